"""A batch as kernels read it: one buffer of int32 in the layout of ``kernels/device.cl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import Batch
from ipex_lookahead.engines.opencl.cache import OpenClCache, Pages
from ipex_lookahead.errors import ContextLengthError, InputError, arg

Ints = npt.NDArray[np.int32]

HEADER, RECORD = 5, 6
BLOCK = 256
"""Positions in a block of attention; partial results are merged in ascending order."""
SPLIT_ROWS = 16
"""Most rows of a step in which separate work-groups compute a row's blocks; for more rows one group does all blocks."""
MOST_ROWS, MOST_TREE = 1 << 20, 1 << 13


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one sequence.

    ``first`` is the index of its first row in the step. ``depths`` is None for a chain.
    """

    cache: OpenClCache
    first: int
    rows: int
    depths: list[int] | None
    parents: list[int]

    @property
    def furthest(self) -> int:
        """The highest position of a row."""
        return self.cache.length + (self.rows - 1 if self.depths is None else max(self.depths))


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked batch.

    Attributes:
        sequences: in the order of the batch.
        tokens: int32 [rows].
        want: int32 [wanted], the rows that outputs are requested for.
    """

    sequences: list[StepRows]
    tokens: Ints
    want: Ints

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.tokens)

    @property
    def positions(self) -> int:
        """One more than the highest position of a row."""
        return max(sequence.furthest for sequence in self.sequences) + 1

    @property
    def blocks(self) -> int:
        """Partial results of attention for a row and head; 1 where one work-group does all blocks of a row."""
        return (self.positions - 1) // BLOCK + 1 if self.rows <= SPLIT_ROWS else 1

    def joint(self, most: int) -> int:
        """Number of rows of one sequence that a work-group of attention computes together, at most ``most``."""
        return max(1, min(most, self.rows // len(self.sequences)))

    def encoded(self, joint: int) -> Ints:
        """Return the buffer that kernels read. The caches must have been prepared for their rows.

        ``joint``: number of rows that attention computes together.
        """
        records = np.empty((self.rows, RECORD), np.int32)
        records[:, 0] = self.tokens
        lists: list[Ints] = [self.want]
        at = HEADER + records.size + len(self.want)
        for sequence in self.sequences:
            own = records[sequence.first : sequence.first + sequence.rows]
            slots = sequence.cache.length + np.arange(sequence.rows, dtype=np.int32)
            own[:, 1] = (
                slots if sequence.depths is None else sequence.cache.length + np.array(sequence.depths, np.int32)
            )
            own[:, 2] = slots
            own[:, 3] = at
            own[:, 4] = sequence.cache.length
            own[:, 5] = -1
            lists.append(np.array(sequence.cache.held, np.int32))
            at += len(sequence.cache.held)
            if sequence.depths is not None:
                for row, path in enumerate(_paths(sequence.parents)):
                    own[row, 5] = at
                    lists.append(np.array(path, np.int32))
                    at += len(path)
        header = np.array([self.rows, len(self.want), HEADER + records.size, self.blocks, joint], np.int32)
        return np.concatenate([header, records.reshape(-1), *lists])


def _paths(parents: Sequence[int]) -> list[list[int]]:
    """Return each row's path from the root to the row itself."""
    found: list[list[int]] = []
    for row, parent in enumerate(parents):
        found.append([*(found[parent] if parent >= 0 else []), row])
    return found


def plan(batch: Batch, pages: Pages, vocab: int, max_context: int) -> Plan:
    """Check a batch. Raises as ``engines.api.Engine.forward``."""
    tokens, parents = _ints("tokens", batch.tokens), _ints("parents", batch.parents)
    rows = len(tokens)
    if len(parents) != rows or not 1 <= rows <= MOST_ROWS:
        raise InputError(
            f"a step has 1 to {MOST_ROWS} rows with a token and a parent each; got {rows} tokens and"
            f" {len(parents)} parents"
        )
    caches: list[Any]
    try:
        caches, counts = list(batch.caches), [int(count) for count in batch.counts]
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"caches and counts are lists: {error}") from None
    if len(caches) != len(counts) or not caches or min(counts) < 1 or sum(counts) != rows:
        raise InputError(f"counts must be positive and sum to the {rows} rows, one for each cache; got {counts[:20]}")
    for cache in caches:
        if not isinstance(cache, OpenClCache):
            raise InputError(f"the OpenCL engine needs its own caches, got {type(cache).__name__}")
        if cache.pages is not pages:
            raise InputError("a cache of another model was given")
    if len({id(cache) for cache in caches}) != len(caches):
        raise InputError("the same cache was given twice in one step")
    if (bad := tokens[(tokens < 0) | (tokens >= vocab)]).size:
        raise InputError(f"token id {bad[0]} is outside the vocabulary of {vocab}")
    sequences, first = [], 0
    for cache, count in zip(caches, counts, strict=True):
        own = parents[first : first + count]
        chain = np.arange(-1, count - 1, dtype=np.int32)
        if (wrong := np.flatnonzero((own < -1) | (own > chain))).size:
            raise InputError(f"row {wrong[0]} has parent {own[wrong[0]]}; parents are -1 or an earlier row")
        depths = None if np.array_equal(own, chain) else _depths(own.tolist())
        if depths is not None and count > MOST_TREE:
            raise InputError(f"a tree has {count} rows; it may have {MOST_TREE}")
        sequence = StepRows(cache, first, count, depths, own.tolist())
        if sequence.furthest >= max_context:
            raise ContextLengthError(
                f"position {sequence.furthest} is beyond the context of {max_context} tokens",
                hint=f"shorten the prompt or {arg('max_new_tokens')}",
            )
        sequences.append(sequence)
        first += count
    want = np.arange(rows, dtype=np.int32) if batch.wants.rows is None else _ints("rows", batch.wants.rows)
    if want.size and (want[0] < 0 or want[-1] >= rows or (np.diff(want) < 1).any()):
        raise InputError("wanted rows must be ascending rows of the step")
    return Plan(sequences, tokens, want)


def _ints(name: str, values: object) -> Ints:
    if not isinstance(values, np.ndarray) or values.dtype != np.int32 or values.ndim != 1:
        raise InputError(f"{name} must be an int32 array of one dimension, got {str(values)[:60]}")
    return np.array(values)  # another thread may change it meanwhile


def _depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
