"""A batch as kernels read it: one buffer of int32 in the layout of ``kernels/device.cl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import HELD, Batch
from ipex_lookahead.engines.opencl.cache import OpenClCache, Pages
from ipex_lookahead.errors import ContextLengthError, InputError, arg

Ints = npt.NDArray[np.int32]

HEADER, RECORD, STATE = 6, 6, 12
"""Integers of the header, of a row's record and of a sequence's states."""
BLOCK = 256
"""Positions in a block of attention; partial results are merged in ascending order."""
SPLIT_ROWS = 16
"""Most rows of a step in which separate work-groups compute a row's blocks; for more rows one group does all blocks."""
MOST_ROWS, MOST_TREE = 1 << 20, 1 << 13


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one sequence.

    Attributes:
        cache: the sequence's.
        first: index of its first row in the step.
        rows: number of its rows.
        depths: None for a chain.
        parents: the parents of its rows.
        settled: see ``Batch``.
    """

    cache: OpenClCache
    first: int
    rows: int
    depths: list[int] | None
    parents: list[int]
    settled: int = 0

    @property
    def replayed(self) -> int:
        """Number of accepted rows of the last step that recurrent layers compute again."""
        return 0 if self.cache.state is None else self.cache.state.accepted

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
        hidden: int32 [n], the rows that hidden states are requested for.
    """

    sequences: list[StepRows]
    tokens: Ints
    want: Ints
    hidden: Ints

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

    @property
    def replayed(self) -> int:
        """Number of accepted rows of the last steps that recurrent layers compute again."""
        return sum(sequence.replayed for sequence in self.sequences)

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
        has_states = self.sequences[0].cache.state is not None
        if has_states:
            lists += _states(self.sequences, self.rows, at)
        states = at if has_states else 0
        header = np.array([self.rows, len(self.want), HEADER + records.size, self.blocks, joint, states], np.int32)
        return np.concatenate([header, records.reshape(-1), *lists])


def _states(sequences: list[StepRows], rows: int, at: int) -> list[Ints]:
    """Return the part of a step's buffer that recurrent layers read, which starts at ``at``."""
    replayed = sum(sequence.replayed for sequence in sequences)
    total = rows + replayed
    records = np.empty((len(sequences), STATE), np.int32)
    owners = np.repeat(np.arange(len(sequences), dtype=np.int32), [one.rows for one in sequences])
    again = np.repeat(np.arange(len(sequences), dtype=np.int32), [one.replayed for one in sequences])
    lists: list[Ints] = [np.array([total, len(sequences)], np.int32), records.reshape(-1), owners, again]
    first, at = rows, at + 2 + records.size + total
    for record, one in zip(records, sequences, strict=True):
        state = one.cache.state
        assert state is not None  # every sequence of a model has one
        now, after, accepted, committed = state.now, state.next, state.accepted, state.committed
        drafts = [now.draft(row) for row in now.accepted]
        drafts += [after.draft(row) for row in range(accepted + one.rows - committed)]
        places = (now.matrix, after.matrix, now.history, after.history)
        record[:5] = one.first, one.rows, first, accepted, committed
        record[5:9] = [-1 if place is None else place for place in places]
        record[9:] = at, at + accepted, one.depths is None
        lists.append(np.array(drafts, np.int32))
        first, at = first + accepted, at + len(drafts)
    return lists


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
        all_settled = [int(settled) for settled in batch.settled] or [0] * len(counts)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"caches, counts and settled are lists: {error}") from None
    if len(caches) != len(counts) or not caches or min(counts) < 1 or sum(counts) != rows:
        raise InputError(f"counts must be positive and sum to the {rows} rows, one for each cache; got {counts[:20]}")
    if len(all_settled) != len(counts):
        raise InputError(f"settled has one number for each of the {len(counts)} sequences; got {all_settled[:20]}")
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
    for cache, count, settled in zip(caches, counts, all_settled, strict=True):
        own = parents[first : first + count]
        chain = np.arange(-1, count - 1, dtype=np.int32)
        if (wrong := np.flatnonzero((own < -1) | (own > chain))).size:
            raise InputError(f"row {wrong[0]} has parent {own[wrong[0]]}; parents are -1 or an earlier row")
        depths = None if np.array_equal(own, chain) else _depths(own.tolist())
        if depths is not None and count > MOST_TREE:
            raise InputError(f"a tree has {count} rows; it may have {MOST_TREE}")
        sequence = StepRows(cache, first, count, depths, own.tolist(), _checked_settled(settled, own))
        if sequence.furthest >= max_context:
            raise ContextLengthError(
                f"position {sequence.furthest} is beyond the context of {max_context} tokens",
                hint=f"shorten the prompt or {arg('max_new_tokens')}",
            )
        sequences.append(sequence)
        first += count
    wants = batch.wants
    rows_of = {name: _ascending(name, getattr(wants, name), rows) for name in ("rows", "hidden_rows")}
    return Plan(sequences, tokens, rows_of["rows"], rows_of["hidden_rows"])


def _ascending(name: str, wanted: object, rows: int) -> Ints:
    """Check wanted rows of a step of ``rows`` rows and return them, int32; None: all rows."""
    want = np.arange(rows, dtype=np.int32) if wanted is None else _ints(name, wanted)
    if want.size and (want[0] < 0 or want[-1] >= rows or (np.diff(want) < 1).any()):
        raise InputError(f"{name}: wanted rows must be ascending rows of the step")
    return want


def _checked_settled(settled: int, parents: Ints) -> int:
    """Check a sequence's number of settled rows: a chain that its other rows follow."""
    if not HELD <= settled <= len(parents):
        raise InputError(f"settled rows are among a sequence's {len(parents)} rows, or {HELD}; got {settled}")
    expected = np.arange(-1, len(parents) - 1, dtype=np.int32)
    wrong = np.where(np.arange(len(parents)) < settled, parents != expected, parents < settled - 1)
    if settled > 0 and wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"row {row} has parent {parents[row]}, which does not follow the {settled} settled rows")
    return settled


def _ints(name: str, values: object) -> Ints:
    if not isinstance(values, np.ndarray) or values.dtype != np.int32 or values.ndim != 1:
        raise InputError(f"{name} must be an int32 array of one dimension, got {str(values)[:60]}")
    return np.array(values)  # another thread may change it meanwhile


def _depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found
