"""Running prompts, or other chains of tokens, through an engine in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.api import ARGMAX, HELD, AppliedAdapter, Batch, Cache, Engine, OutputRequest, StepOutput
from ipex_lookahead.engines.images import GivenRows, ImageRows

PREFILL_ROWS = 512
"""Most rows in one forward: enough to be compute bound, and a bound for the engine's scratch memory."""
TAIL = 8
"""Last rows of a text that are not settled, so that states can roll back, for example to a template's ``<think>``."""


@dataclass(slots=True)
class CommittedChunk:
    """Tokens of one chain that a forward has committed.

    Attributes:
        chain: index of the chain.
        first, count: its tokens ``first`` to ``first + count - 1``.
        done: whether the chain ends with them.
        wanted: the tokens with a requested output: ascending indices into the chain's tokens.
        answers: for each of ``wanted``, the row of the forward's output.
        rows: for each of its tokens, the row of the forward's hidden states.
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
    """Return the batch of one chain: int32 [n] tokens, n >= 1, that follow the positions of ``cache``."""
    return Batch([cache], [len(tokens)], tokens, _in_a_row(len(tokens)), wants)


def prefill(
    engine: Engine,
    chains: Sequence[tuple[Cache, npt.NDArray[np.int32]]],
    *,
    wanted: Sequence[Sequence[int]] | None = None,
    wants: OutputRequest = ARGMAX,
    rows: int = PREFILL_ROWS,
    held: bool = False,
    adapter: AppliedAdapter | None = None,
    images: Sequence[ImageRows | None] = (),
) -> Iterator[tuple[list[CommittedChunk], StepOutput]]:
    """Run chains of tokens and commit them, several chains per forward if they fit.

    The caller may report progress, or stop, after each forward.

    Args:
        engine: the engine.
        chains: (cache, int32 [n] tokens that follow its positions), n >= 1, with distinct caches.
        wanted: for each chain, the ascending indices of tokens with a requested output; None = the last token.
        wants: the outputs of those tokens, and the hidden states of all tokens; its ``rows`` are ignored.
        rows: most rows in a forward.
        adapter: the low-rank adapter of all chains; None: the base model.
        held: whether the caches must be able to roll back these tokens (``engines.api.HELD``).
        images: for each chain, the images in its text, which begins with the cache's positions; () = there are none.

    Yields:
        After each forward, the committed chunks and the output.
    """
    of_chain = images if images else [None] * len(chains)
    held_before = [cache.length for cache, _ in chains]
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
            if (own := of_chain[number]) is not None:
                count = own.fitted(held_before[number] + first, count)
                if used and used + count > rows:  # a span for the next forward
                    break
            here = [at for at in left if at < first + count]
            left_over[number] = left[len(here) :]
            answers = range(len(want), len(want) + len(here))
            want += [at - first + used for at in here]
            done, at = first + count == len(chains[number][1]), range(used, used + count)
            chunks.append(CommittedChunk(number, first, count, done, here, answers, at))
            used += count
            if used >= rows:
                break
        output = engine.forward(
            Batch(
                [chains[chunk.chain][0] for chunk in chunks],
                [chunk.count for chunk in chunks],
                np.concatenate([chains[p.chain][1][p.first : p.first + p.count] for p in chunks]),
                np.concatenate([_in_a_row(chunk.count) for chunk in chunks]),
                replace(wants, rows=np.array(want, np.int32), hidden_rows=None),
                [HELD if held else settled_rows(chunk.count, last=chunk.done) for chunk in chunks],
                () if adapter is None else [adapter] * len(chunks),
                *image_inputs(
                    [(of_chain[p.chain], held_before[p.chain] + p.first, p.count) for p in chunks] if images else ()
                ),
            )
        )
        for chunk in chunks:
            chains[chunk.chain][0].keep(list(range(chunk.count)))
            fed[chunk.chain] += chunk.count
            if chunk.done:
                waiting.popleft()
        yield chunks, output


def image_inputs(
    parts: Sequence[tuple[ImageRows | None, int, int]], before: int = 0
) -> tuple[Sequence[int], list[GivenRows]]:
    """Return the ``offsets`` and ``given`` of some sequences of a batch.

    Args:
        parts: for each sequence the images of its text, the slot of its first row, and its number of rows, a chain.
        before: number of sequences before them in the batch.
    """
    if all(images is None for images, _, _ in parts):
        return (), []
    offsets = [0 if images is None else images.offset(first) for images, first, _ in parts]
    given = [
        found
        for number, (images, first, count) in enumerate(parts, before)
        if images is not None and (found := images.given(number, first, count)) is not None
    ]
    return offsets if any(offsets) else (), given


def settled_rows(count: int, *, last: bool) -> int:
    """Return the number of settled rows of a chunk; ``last``: it is the last one of a text."""
    return max(0, count - TAIL) if last else count


def _in_a_row(count: int) -> npt.NDArray[np.int32]:
    """Return the parents of a chain."""
    return np.arange(-1, count - 1, dtype=np.int32)
