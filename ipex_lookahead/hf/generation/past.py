"""The engine's caches behind transformers' ``Cache``: ``past_key_values`` of ``forward`` and ``generate``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache as TransformersCache

from ipex_lookahead.decoding.prefix_cache import crop_to_shared
from ipex_lookahead.engines.api import Cache, Engine
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError


class LookaheadCache(TransformersCache):  # type: ignore[misc]
    """KV caches of a batch, one engine cache per row. They stay in the engine: there are no tensors to look at.

    A forward adds to the cache that it is given, as transformers' caches are added to. ``copy.deepcopy`` shares what is
    there and goes on independently, which is how one prompt serves several continuations.

    Args:
        engine: the engine of the caches.
        rows: sequences in the batch.

    Attributes:
        rows: the engine's caches.
        ids: int64 [rows, columns]; the columns of ``input_ids`` so far.
        mask: bool [rows, columns]; False where they were padding.
    """

    is_compileable = False
    is_initialized = True
    is_croppable = True

    def __init__(self, engine: Engine, rows: int) -> None:
        # Not the base's own: it makes layers of tensors.
        self.layers: list[Any] = []
        self.engine = engine
        self.rows: list[Cache] = [engine.new_cache() for _ in range(rows)]
        self.ids = torch.zeros((rows, 0), dtype=torch.int64)
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
        """For transformers 4.37: nothing is ever thrown away to make room."""
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
        self.ids, self.mask = self.ids[:, :keep].clone(), self.mask[:, :keep].clone()
        for row in range(len(self.rows)):
            self.cut(row)

    def cut(self, row: int) -> None:
        """Crop a row's cache to the tokens of that row here; tokens that a layer's state has lost are run again."""
        cache, ids = self.rows[row], self.ids[row][self.mask[row]].numpy().astype(np.int32)
        left = ids[cache.crop(len(ids)) :]
        if len(left):
            deque(prefill(self.engine, [(cache, left)], wanted=[()]), maxlen=0)

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
        twin.ids, twin.mask = self.ids.clone(), self.mask.clone()
        memo[id(self)] = twin
        return twin

    def _select(self, chosen: Sequence[int]) -> None:
        """A row named once keeps its cache; one named again gets a fork."""
        taken: set[int] = set()
        rows = []
        for row in chosen:
            rows.append(self.rows[row].fork() if row in taken else self.rows[row])
            taken.add(row)
        self.rows, self.ids, self.mask = rows, self.ids[list(chosen)], self.mask[list(chosen)]

    # ---- lent to a generation ----------------------------------------------------------------------------------------

    def take(self, prompts: Sequence[npt.NDArray[np.int32]]) -> list[Cache]:
        """Return each row's cache, cropped to the prefix that it shares with its prompt, and leave this cache empty.

        A generation that fails leaves an empty cache; one that succeeds returns the rows with ``hold``.
        """
        lent = self.rows
        for cache, prompt, ids, mask in zip(lent, prompts, self.ids, self.mask, strict=True):
            crop_to_shared(cache, ids[mask].numpy(), prompt)
        self.rows = [self.engine.new_cache() for _ in lent]
        self.ids, self.mask = self.ids[:, :0], self.mask[:, :0]
        return lent

    def hold(self, caches: Sequence[Any], ids: torch.Tensor, padding: Sequence[int]) -> None:
        """Take over the caches of a generation; all rows are cropped to the columns of the shortest.

        Args:
            caches: one per row.
            ids: int64 [rows, n], their tokens.
            padding: number of padding columns on the left of each row.
        """
        columns = min(empty + cache.length for empty, cache in zip(padding, caches, strict=True))
        self.rows = list(caches)
        self.ids = ids[:, :columns].clone()
        self.mask = torch.arange(columns)[None] >= torch.tensor(padding)[:, None]
        for row in range(len(self.rows)):
            self.cut(row)

    # ---- what it has not ---------------------------------------------------------------------------------------------

    def _no_tensors(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: keys and values are the engine's."""
        raise InputError(
            "the engine owns keys and values: this cache exposes no tensors and cannot be pickled; pass it as"
            " past_key_values of its own model"
        )

    update = to_legacy_cache = __iter__ = __getitem__ = __reduce__ = _no_tensors

    def __len__(self) -> int:
        return 0  # layers that could be looked at

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={len(self.rows)}, columns={self.get_seq_length()})"


def given_cache(past_key_values: Any, cache: Any) -> Any:
    """Return a call's cache, which releases of transformers from 5.24 on call ``cache``; None for no cache.

    Raises InputError where both names have a value.
    """
    if past_key_values is not None and cache is not None:
        raise InputError("past_key_values and cache are both given; they name the same argument, so leave one out")
    return cache if past_key_values is None else past_key_values


def past_of(engine: Engine, past_key_values: Any, cache: Any, rows: int) -> LookaheadCache:
    """The caller's cache, which is given under one of two names, checked; or an empty one."""
    past = given_cache(past_key_values, cache)
    if past is None or past == ():  # transformers 4.37 makes () of a cache that shows no layers
        return LookaheadCache(engine, rows)
    name = "cache" if past_key_values is None else "past_key_values"
    if not isinstance(past, LookaheadCache):
        raise InputError(
            f"{name} is a {type(past).__name__}; leave it out of the first call, and pass on the"
            " past_key_values of its output"
        )
    if past.engine is not engine:
        raise InputError("past_key_values come from another model; pass on those of this model's output")
    if past.batch_size != rows:
        raise InputError(
            f"past_key_values hold {past.batch_size} rows and input_ids {rows}; they must be equal"
            " (batch_select_indices and batch_repeat_interleave change the cache's)"
        )
    return past


def check_positions(mask: torch.Tensor, before: int, position_ids: Any, cache_position: Any = None) -> None:
    """Raise InputError for positions that do not follow from the mask: the engine counts them itself.

    Args:
        mask: bool [rows, columns].
        before: how many of the columns came before those that have positions here.
        position_ids: int64 [rows or 1, columns - before], any values at padding; or None.
        cache_position: int64 [columns - before], or None.
    """
    new = mask[:, before:]
    if position_ids is not None:
        given = torch.as_tensor(position_ids).cpu()
        expected = (mask.cumsum(1) - 1)[:, before:]
        if given.dim() != 2 or given.shape[1] != new.shape[1] or given.shape[0] not in (1, len(new)):
            raise InputError(f"position_ids has shape {tuple(given.shape)}; it must be {tuple(new.shape)}")
        given = given.expand_as(expected)
        if not torch.equal(given[new], expected[new]):
            row = int((given != expected).logical_and(new).any(1).to(torch.int8).argmax())
            raise InputError(
                f"position_ids of row {row} are {given[row].tolist()}; a token's position is the number of tokens"
                f" before it, here {expected[row].tolist()}: leave position_ids out, and give attention_mask where"
                " there is padding"
            )
    columns = None if cache_position is None else torch.as_tensor(cache_position).tolist()
    if columns not in (None, list(range(before, mask.shape[1]))):
        raise InputError(
            f"cache_position is {columns}; columns follow those in past_key_values, {before} to"
            f" {mask.shape[1] - 1}: leave it out"
        )
