"""KV caches for transformers models, with all code that depends on transformers' version.

``BufferSequence`` gives the model a cache with buffers that grow by doubling: a step writes its rows into them and
copies nothing else. ``ModelSequence`` is for models that need their own caches (tuples, and ipex-llm's): it moves the
accepted rows in place and shortens the tensors to views.

transformers' own ``crop`` is not used: its argument was a length, and later a number of positions to remove.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache as TransformersCache

from ipex_lookahead.errors import EngineError, InputError

FIRST_POSITIONS = 256
"""Capacity of a new buffer in positions; it doubles when it is full."""


class SequenceCache(ABC):
    """The base of both kinds, which checks lengths and paths. See ``engines.api.Cache``."""

    def __init__(self) -> None:
        self._length = 0
        self._parents: Sequence[int] = ()

    @property
    def length(self) -> int:
        """The number of committed positions."""
        return self._length

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last forward's rows. Raises InputError if it is not a path."""
        previous, parents = -1, self._parents
        for row in rows:
            if not 0 <= row < len(parents) or parents[row] != previous:
                raise InputError(f"rows {list(rows)} of {len(parents)} are not a path from the committed prefix")
            previous = row
        if rows:
            self._commit(rows)
        self._length += len(rows)
        self._parents = ()

    def crop(self, length: int) -> int:
        """Keep the first ``length`` positions and return ``length``. Raises InputError if there are fewer."""
        if not isinstance(length, int) or not 0 <= length <= self._length:
            raise InputError(f"cannot crop to {length!r}: the cache holds {self._length} positions")
        self._length = length
        self._parents = ()
        return length

    @abstractmethod
    def fork(self) -> SequenceCache:
        """A second sequence with a copy of the committed prefix."""

    @abstractmethod
    def begin(self, parents: Sequence[int]) -> Any:
        """Set the parents of the next rows, and return ``past_key_values`` for the model's forward."""

    def took(self, returned: Any) -> None:  # noqa: B027 - our own buffers need no update
        """Take the ``past_key_values`` that the model's forward has returned."""

    @abstractmethod
    def bytes_per_position(self) -> int:
        """Bytes that a position takes over all layers; 0 before the first forward."""

    @abstractmethod
    def _commit(self, rows: Sequence[int]) -> None:
        """Move rows to positions length, length + 1, ..."""


class BufferSequence(SequenceCache):
    """A sequence in our own buffers, one pair [1, heads, capacity, head_dim] per layer."""

    def __init__(self) -> None:
        super().__init__()
        self._past = BufferCache()

    def begin(self, parents: Sequence[int]) -> BufferCache:
        """Make the next forward write its rows to positions length, length + 1, ..."""
        self._parents = parents
        self._past.append(self._length, len(parents))
        return self._past

    def begin_block(self, parents: Sequence[int], rows: slice, first: int, size: int, visible: int) -> BufferCache:
        """Make the next forward, of ``size`` rows, write row ``rows.start + i`` to position ``first + i``.

        Other rows are not written. The model sees ``visible`` positions, written or not: its mask must hide the others.
        ``parents`` are those of all rows of the engine's forward, which may consist of several such forwards.
        """
        self._parents = parents
        self._past.write(first, rows, size, visible)
        return self._past

    def fork(self) -> BufferSequence:
        """A second sequence with a copy of the committed prefix."""
        other = BufferSequence()
        other._length = self._length
        other._past.copy(self._past, self._length)
        return other

    def bytes_per_position(self) -> int:
        """Bytes that a position takes over all layers; 0 before the first forward."""
        return sum(b.element_size() * b.shape[1] * b.shape[3] for pair in self._past.buffers.values() for b in pair)

    def _commit(self, rows: Sequence[int]) -> None:
        skip = 0
        while skip < len(rows) and rows[skip] == skip:  # rows that are already in place
            skip += 1
        if skip < len(rows):
            self._past.move([self._length + row for row in rows[skip:]], self._length + skip)


class BufferCache(TransformersCache):  # type: ignore[misc]
    """The cache that a model's layers write and read, with the interfaces of transformers 4.37 to 5."""

    is_compileable = False
    is_initialized = True

    def __init__(self) -> None:
        # The base's constructor is not called: it makes the layers or states that are replaced here.
        self.layers: list[Any] = []
        self.buffers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._first = self._visible = self._seen = 0
        self._rows: slice | None = None

    # ---- set by the sequence before each forward ---------------------------------------------------------------------

    def append(self, length: int, count: int) -> None:
        """Make the next forward write its ``count`` rows to positions ``length``, ``length`` + 1, ..."""
        self._seen = self._first = length
        self._visible = length + count
        self._rows = None

    def write(self, first: int, rows: slice, size: int, visible: int) -> None:
        """Make the next forward, of ``size`` rows, write those of a slice to positions ``first``, ``first`` + 1, ...

        The model sees ``visible`` positions. ``get_seq_length`` returns ``visible - size``, since transformers accepts
        a mask of no other width.
        """
        self._first = first
        self._seen = visible - size
        self._visible = visible
        self._rows = rows

    def move(self, places: list[int], to: int) -> None:
        """Copy the values at ``places`` (ascending) to positions ``to``, ``to`` + 1, ..."""
        index: dict[torch.device, torch.Tensor] = {}
        for pair in self.buffers.values():
            for buffer in pair:
                if buffer.device not in index:
                    index[buffer.device] = torch.tensor(places, device=buffer.device)
                buffer[:, :, to : to + len(places)] = buffer.index_select(2, index[buffer.device])

    def copy(self, other: BufferCache, length: int) -> None:
        """Copy the first ``length`` positions of another cache."""
        for layer, pair in other.buffers.items():
            key, value = (_room(None, buffer, length) for buffer in pair)
            key[:, :, :length], value[:, :, :length] = pair[0][:, :, :length], pair[1][:, :, :length]
            self.buffers[layer] = (key, value)

    # ---- called by the model's layers --------------------------------------------------------------------------------

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new keys and values [1, heads, rows, head_dim]; return views of all visible positions."""
        held = self.buffers.get(layer_idx, (None, None))
        new = [key_states, value_states]
        if self._rows is not None:
            new = [states[:, :, self._rows] for states in new]
        end = self._first + new[0].shape[2]
        pair = [_room(buffer, states, max(self._visible, end)) for buffer, states in zip(held, new, strict=True)]
        for buffer, states in zip(pair, new, strict=True):
            buffer[:, :, self._first : end] = states
        self.buffers[layer_idx] = (pair[0], pair[1])
        return pair[0][:, :, : self._visible], pair[1][:, :, : self._visible]

    def get_seq_length(self, layer_idx: int | None = 0) -> int:
        """Return the number of positions before the next rows."""
        return self._seen

    def get_usable_length(self, new_seq_length: int, layer_idx: int | None = 0) -> int:
        """Return the same for transformers 4.37: no position is evicted."""
        return self._seen

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Return the number of positions that ``update`` returns, and the index of the first one."""
        return self._visible, 0

    def get_max_length(self, layer_idx: int | None = None) -> Any:
        """Return the value for "no maximum": -1 since transformers 5, None before."""
        return -1 if hasattr(TransformersCache, "get_query_offset") else None

    def get_max_cache_shape(self, layer_idx: int = 0) -> Any:
        """Return None for "no maximum", in releases between."""
        return None

    def to_legacy_cache(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Return the cache as tuples, for models that convert every cache."""
        return tuple(self)

    def __len__(self) -> int:
        return len(self.buffers)

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self[layer] for layer in sorted(self.buffers))

    def __getitem__(self, layer_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self.buffers[layer_idx]
        return key[:, :, : self._seen], value[:, :, : self._seen]


def _room(buffer: torch.Tensor | None, like: torch.Tensor, positions: int) -> torch.Tensor:
    """Return ``buffer`` if it has the capacity, else a larger one with the same values, padded with zeros."""
    have = 0 if buffer is None else buffer.shape[2]
    if buffer is not None and have >= positions:
        return buffer
    capacity = max(FIRST_POSITIONS, 2 * have)
    while capacity < positions:
        capacity *= 2
    larger = like.new_zeros((like.shape[0], like.shape[1], capacity, like.shape[3]))
    if buffer is not None:
        larger[:, :, :have] = buffer
    return larger


class ModelSequence(SequenceCache):
    """A sequence in the cache that the model itself returns.

    The cache is tuples of (keys, values, ...) or an object with ``key_cache`` and ``value_cache``, each [1, heads,
    positions, head_dim]. Rows are moved in place and dropped by views of the same memory, so that caches with spare
    capacity (ipex-llm's) keep it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._past: Any = None
        self._held = 0  # positions in the model's tensors: committed ones and the last forward's rows

    def begin(self, parents: Sequence[int]) -> Any:
        """Set the parents of the next rows, and return the model's cache without rejected rows."""
        self._shorten(self._length)
        self._parents = parents
        return self._past if self._length else None

    def took(self, returned: Any) -> None:
        """Take the model's cache. Raises EngineError if it does not have the expected positions."""
        self._past = returned
        self._held = expected = self._length + len(self._parents)
        found = {tensor.shape[2] if tensor.dim() == 4 else -1 for pair in tensors_of(returned) for tensor in pair}
        if found != {expected}:
            raise EngineError(
                f"the model's cache should hold {expected} positions in the third dimension, but has {sorted(found)}",
                hint="this model's cache cannot be rolled back; use another engine",
            )

    def fork(self) -> ModelSequence:
        """A second sequence with a copy of the committed prefix."""
        other = ModelSequence()
        other._length = other._held = self._length
        self._shorten(self._length)
        if self._past is not None:
            pairs = [tuple(tensor.clone() for tensor in pair) for pair in tensors_of(self._past)]
            other._past = _with_tensors(self._past, pairs, self._length, fresh=True)
        return other

    def bytes_per_position(self) -> int:
        """Bytes that a position takes over all layers; 0 before the first forward."""
        if self._past is None:
            return 0
        return sum(t.element_size() * t.shape[1] * t.shape[3] for pair in tensors_of(self._past) for t in pair)

    def _commit(self, rows: Sequence[int]) -> None:
        places = [self._length + row for row in rows]
        to = range(self._length, self._length + len(rows))
        if places != list(to):
            for pair in tensors_of(self._past):
                for tensor in pair:
                    index = torch.tensor(places, device=tensor.device)
                    tensor[:, :, to.start : to.stop] = tensor.index_select(2, index)
        self._shorten(to.stop)

    def _shorten(self, length: int) -> None:
        if self._held == length:
            return
        if self._past is not None:
            pairs = [tuple(tensor[:, :, :length] for tensor in pair) for pair in tensors_of(self._past)]
            self._past = _with_tensors(self._past, pairs, length)
        self._held = length


def tensors_of(past: Any) -> list[tuple[torch.Tensor, ...]]:
    """Return (keys, values) of each layer. Raises EngineError for a cache without tuples or lists of tensors."""
    if hasattr(past, "key_cache"):
        return list(zip(past.key_cache, past.value_cache, strict=True))
    if isinstance(past, tuple | list) and past and all(isinstance(pair, tuple | list) for pair in past):
        return [tuple(pair[:2]) for pair in past]
    raise EngineError(
        f"the model returned a cache of the kind {type(past).__name__}, which cannot be rolled back",
        hint="use another engine, or a newer transformers",
    )


def _with_tensors(past: Any, pairs: list[tuple[torch.Tensor, ...]], length: int, *, fresh: bool = False) -> Any:
    """Return ``past`` with other tensors of ``length`` positions; with ``fresh``, as a new object."""
    if not hasattr(past, "key_cache"):
        return tuple((*pair, *old[2:]) for pair, old in zip(pairs, past, strict=True))
    target = type(past)() if fresh else past
    target.key_cache, target.value_cache = [key for key, _ in pairs], [value for _, value in pairs]
    for counter in ("_seen_tokens", "seen_tokens"):
        if hasattr(past, counter):
            setattr(target, counter, length)
    return target


def sequence_kinds(model: Any) -> list[type[SequenceCache]]:
    """Return the kinds of sequences to try with a model, the more likely one first."""
    if hasattr(TransformersCache, "get_mask_sizes"):  # since 4.53 every model takes a given cache
        return [BufferSequence]
    ours = getattr(model, "_supports_cache_class", False)
    return [BufferSequence, ModelSequence] if ours else [ModelSequence]
