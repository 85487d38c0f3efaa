"""A prompt, or any other chain of tokens, through an engine in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import ARGMAX, HELD, Batch, Cache, Engine, OutputRequest, StepOutput

PREFILL_ROWS = 512
"""Rows in one forward: enough to be compute bound, few enough to bound the engine's scratch memory."""
TAIL = 8
"""Last rows of a text that are not settled: states go back over them, as to where a template's ``<think>`` begins."""


@dataclass(slots=True)
class CommittedChunk:
    """Tokens of one chain that a forward has committed.

    Attributes:
        chain: number of the chain.
        first, count: which of its tokens: ``first`` to ``first + count - 1``.
        done: whether the chain ends with them.
        wanted: those whose output was wanted, indices into the chain's tokens, ascending.
        answers: for each of ``wanted`` the row of the forward's output.
        rows: for each of its tokens the row of the forward's hidden states.
    """

    chain: int
    first: int
    count: int
    done: bool
    wanted: Sequence[int]
    answers: range
    rows: range


def chain(
    cache: Cache,
    tokens: npt.NDArray[np.int32],
    wants: OutputRequest = ARGMAX,
) -> Batch:
    """A forward of one chain: int32 [n] tokens, n >= 1, that follow what ``cache`` holds."""
    return Batch([cache], [len(tokens)], tokens, _in_a_row(len(tokens)), wants)


def prefill(
    engine: Engine,
    chains: Sequence[tuple[Cache, npt.NDArray[np.int32]]],
    *,
    wanted: Sequence[Sequence[int]] | None = None,
    wants: OutputRequest = ARGMAX,
    rows: int = PREFILL_ROWS,
    held: bool = False,
) -> Iterator[tuple[list[CommittedChunk], StepOutput]]:
    """Feed chains of tokens and commit them, several to a forward where they fit.

    Between two forwards the caller has the word: it may show how far it is, or stop.

    Args:
        engine: where the model runs.
        chains: (cache, int32 [n] tokens that follow what it holds), n >= 1, no cache twice.
        wanted: for each chain the tokens whose output is wanted, indices, ascending; None = the last one.
        wants: what is to be returned of those tokens, and the hidden states of all tokens; its rows are not looked at.
        rows: most rows in a forward.
        held: the caches are to go back over these tokens, as over those kept before (``engines.base.HELD``).

    Yields:
        After each forward what it has committed, and its output.
    """
    left_over = [[len(tokens) - 1] for _, tokens in chains] if wanted is None else [list(found) for found in wanted]
    fed = [0] * len(chains)
    waiting = deque(range(len(chains)))
    while waiting:
        chunks: list[CommittedChunk] = []
        want: list[int] = []
        used = 0
        for number in waiting:
            first, left = fed[number], left_over[number]
            count = min(rows - used, len(chains[number][1]) - first)
            here = [at for at in left if at < first + count]
            left_over[number] = left[len(here) :]
            answers = range(len(want), len(want) + len(here))
            want += [at - first + used for at in here]
            done, at = first + count == len(chains[number][1]), range(used, used + count)
            chunks.append(CommittedChunk(number, first, count, done, here, answers, at))
            used += count
            if used == rows:
                break
        output = engine.forward(
            Batch(
                [chains[chunk.chain][0] for chunk in chunks],
                [chunk.count for chunk in chunks],
                np.concatenate([chains[p.chain][1][p.first : p.first + p.count] for p in chunks]),
                np.concatenate([_in_a_row(chunk.count) for chunk in chunks]),
                replace(wants, rows=np.array(want, np.int32), hidden_rows=None),
                [HELD if held else settled_rows(chunk.count, last=chunk.done) for chunk in chunks],
            )
        )
        for chunk in chunks:
            chains[chunk.chain][0].keep(list(range(chunk.count)))
            fed[chunk.chain] += chunk.count
            if chunk.done:
                waiting.popleft()
        yield chunks, output


def settled_rows(count: int, *, last: bool) -> int:
    """How many rows of a chunk are settled, which is the last one of a text or not."""
    return max(0, count - TAIL) if last else count


def _in_a_row(count: int) -> npt.NDArray[np.int32]:
    """Each row's parent is the row before it."""
    return np.arange(-1, count - 1, dtype=np.int32)
