"""The engine's caches behind transformers' ``Cache``: what ``forward`` returns and takes as ``past_key_values``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache as TransformersCache

from ipex_lookahead.engines.base import Cache, Engine
from ipex_lookahead.errors import InputError


class LookaheadCache(TransformersCache):  # type: ignore[misc]
    """Keys and values of a batch, one engine cache a row. They stay in the engine: there are no tensors to look at.

    A forward adds to the cache that it is given, as transformers' caches are added to. ``copy.deepcopy`` shares what is
    there and goes on independently, which is how one prompt serves several continuations.

    Args:
        engine: whose caches they are.
        rows: sequences in the batch.

    Attributes:
        rows: the engine's caches.
        mask: bool [rows, columns]; the columns of ``input_ids`` so far, False where they were padding.
    """

    is_compileable = False
    is_initialized = True
    is_croppable = True

    def __init__(self, engine: Engine, rows: int) -> None:
        # Not the base's own: it makes layers of tensors.
        self.layers: list[Any] = []
        self.engine = engine
        self.rows: list[Cache] = [engine.new_cache() for _ in range(rows)]
        self.mask = torch.zeros((rows, 0), dtype=torch.bool)

    # ---- how much there is -------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Sequences in the batch."""
        return len(self.rows)

    def get_seq_length(self, layer_idx: int | None = 0) -> int:
        """Columns so far, padding included."""
        return int(self.mask.shape[1])

    def get_usable_length(self, new_seq_length: int, layer_idx: int | None = 0) -> int:
        """As transformers 4.37 asks: nothing is ever thrown away to make room."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """(columns that a forward of ``query_length`` more sees, the first one's number)."""
        return self.get_seq_length() + int(query_length), 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Positions that a sequence may have."""
        return self.engine.max_context

    get_max_cache_shape = get_max_length

    # ---- changing it -------------------------------------------------------------------------------------------------

    def crop(self, tokens_to_remove: int) -> None:
        """Drop columns at the end: ``-n`` drops n; a positive number is the columns to keep, as before transformers 5.

        Raises InputError where there are fewer.
        """
        have = self.get_seq_length()
        keep = tokens_to_remove if tokens_to_remove > 0 else have + tokens_to_remove
        if not 0 <= keep <= have:
            raise InputError(f"cannot crop by {tokens_to_remove}: the cache holds {have} columns")
        self.mask = self.mask[:, :keep].clone()
        for cache, length in zip(self.rows, self.mask.sum(1).tolist(), strict=True):
            cache.crop(length)

    def reset(self) -> None:
        """Drop everything."""
        self.crop(-self.get_seq_length())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """The rows of those numbers (or where True), in that order, each as often as it is named."""
        chosen = torch.arange(len(self.rows))[torch.as_tensor(indices).cpu()]
        self._select(chosen.tolist())

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times."""
        self._select([row for row in range(len(self.rows)) for _ in range(repeats)])

    def __deepcopy__(self, memo: dict[int, Any]) -> LookaheadCache:
        twin = LookaheadCache(self.engine, 0)
        twin.rows = [cache.fork() for cache in self.rows]
        twin.mask = self.mask.clone()
        memo[id(self)] = twin
        return twin

    def _select(self, chosen: Sequence[int]) -> None:
        """A row named once keeps its cache; one named again gets a fork."""
        taken: set[int] = set()
        rows = []
        for row in chosen:
            rows.append(self.rows[row].fork() if row in taken else self.rows[row])
            taken.add(row)
        self.rows, self.mask = rows, self.mask[list(chosen)]

    # ---- what it has not ---------------------------------------------------------------------------------------------

    def _no_tensors(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: keys and values are the engine's."""
        raise InputError(
            "keys and values are the engine's: this cache shows no tensors and cannot be pickled; pass it on as"
            " past_key_values of its own model"
        )

    update = to_legacy_cache = __iter__ = __getitem__ = __reduce__ = _no_tensors

    def __len__(self) -> int:
        return 0  # layers that could be looked at

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self.rows)}, columns={self.get_seq_length()})"
