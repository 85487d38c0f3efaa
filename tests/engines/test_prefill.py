"""One prefill: chains in pieces, several to a forward; the answers are those of one forward each."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead.engines.api import OutputRequest
from ipex_lookahead.engines.prefill import chain, prefill
from tests.support.scripted_engine import markov, state_of

CHAINS = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 1, 9, 1]]
ASKED = [[0, 3, 6], [], [1, 2]]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("asked", [None, ASKED])
def test_pieces_answer_what_whole_chains_answer(rows: int, asked: list[list[int]] | None) -> None:
    engine = markov(seed=4)
    wanted = asked or [[len(tokens) - 1] for tokens in CHAINS]
    caches = [engine.new_cache() for _ in CHAINS]
    chains = [(cache, np.array(tokens, np.int32)) for cache, tokens in zip(caches, CHAINS, strict=True)]
    found: list[dict[int, int]] = [{} for _ in CHAINS]
    fed: list[list[int]] = [[] for _ in CHAINS]
    ended: list[int] = []
    wants = OutputRequest(logits=True, top=2, hidden=(1,))
    for pieces, output in prefill(engine, chains, wanted=asked, rows=rows, wants=wants):
        assert sum(piece.count for piece in pieces) <= rows
        assert len(output.argmax) == sum(len(piece.wanted) for piece in pieces)
        for piece in pieces:
            assert caches[piece.chain].length == piece.first + piece.count
            fed[piece.chain] += range(piece.first, piece.first + piece.count)
            ended += [piece.chain] * piece.done
            assert output.hidden is not None
            for at, states in enumerate(output.hidden[1][piece.rows.start : piece.rows.stop], piece.first):
                assert tuple(states) == state_of(1, at, CHAINS[piece.chain][at])
            for at, answer in zip(piece.wanted, piece.answers, strict=True):
                found[piece.chain][at] = int(output.argmax[answer])
    assert fed == [list(range(len(tokens))) for tokens in CHAINS]
    assert ended == [0, 1, 2]
    for tokens, positions, answers in zip(CHAINS, wanted, found, strict=True):
        whole = engine.forward(chain(engine.new_cache(), np.array(tokens, np.int32))).argmax.tolist()
        assert answers == {at: whole[at] for at in positions}


def test_stopping_between_two_pieces_leaves_what_was_read() -> None:
    engine = markov()
    cache = engine.new_cache()
    for _ in prefill(engine, [(cache, np.arange(10, dtype=np.int32))], rows=4):
        break
    assert cache.length == 4
    assert len(engine.batches) == 1
