"""Jobs of the core of generation, which needs neither torch nor transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.runtime.lookahead import resolve_lookahead
from ipex_lookahead.runtime.run import length_limit
from tests.support.generate import generated
from tests.support.hashed_engine import HashedEngine
from tests.support.scripted_engine import markov, scripted


def test_a_job_from_end_to_end() -> None:
    """Processors, callback, stop and end tokens on plain numpy; the same with drafts."""
    texts = []
    for lookahead in (0, 4, "auto"):
        told: list[int] = []
        prefixes: list[list[int]] = []
        raw: list[Any] = []

        def forbid(ids: Any, logits: Any, prefixes: list[list[int]] = prefixes) -> Any:
            prefixes.append(ids.tolist())
            logits[ids[-1]] = -np.inf
            return logits

        stats = GenerationStats()
        sequence = Sequence(
            np.array([1, 5, 3, 5], np.int32),
            24,
            processors=[forbid],
            on_token=told.append,
            stop=lambda ids: len(ids) == 20,
            scores=[],
            raw=raw,
        )
        (one,) = generated(markov(seed=2), [sequence], resolve_lookahead(lookahead, adaptive=False), stats=stats)
        assert one.new == told
        assert len(one.new) == 16
        assert prefixes == [[1, 5, 3, 5, *told[:n]] for n in range(16)]
        assert all(a != b for a, b in zip([5, *told], told, strict=False))
        assert len(raw) == 16
        assert np.isfinite(raw[0]).all()
        assert (stats.finish_reasons, stats.seed) == (["stop"], None)
        texts.append(one.new)
    assert texts[0] == texts[1] == texts[2]


def test_end_tokens_and_limits() -> None:
    engine = scripted([4, 5, 6, 7], 16, 2)
    sequences = [Sequence(np.array([1, 2], np.int32), 5, "context", frozenset({end})) for end in (5, 9)]
    stats = GenerationStats()
    assert [one.new for one in generated(engine, sequences, stats=stats)] == [[4, 5], [4, 5, 6]]
    assert stats.finish_reasons == ["stop", "context"]


def test_limits() -> None:
    assert length_limit(5, 100) == (25, "length")
    assert length_limit(5, 100, max_new_tokens=3, max_length=50) == (8, "length")
    assert length_limit(5, 100, max_length=50) == (50, "length")
    assert length_limit(5, 10, max_new_tokens=30) == (10, "context")
    with pytest.raises(InputError, match="max_length is 5 and the prompt alone has 5"):
        length_limit(5, 100, max_length=5)
    with pytest.raises(ContextLengthError):
        length_limit(10, 10)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_long_prompt_tells_how_far_it_is(rows: int) -> None:
    engine = markov()
    told: list[tuple[int, int]] = []
    stats = GenerationStats()
    sequences = [Sequence(np.full(600, 1 + row, np.int32), 700) for row in range(rows)]
    generated(engine, sequences, stats=stats, on_prefill=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == [*range(512, 600 * rows, 512), 600 * rows]
    assert {total for _, total in told} == {600 * rows}


def test_several_answers_to_one_prompt_read_it_once() -> None:
    """Each is what it is alone, and the prompt's rows are run for the first of them only."""
    engine = HashedEngine(11)
    prompt = np.random.default_rng(1).integers(1, 11, 90).astype(np.int32)

    def sequences(numbers: list[int]) -> list[Sequence]:
        return [Sequence(prompt, 120, sampler=Sampler(WarperParams(), 5, number)) for number in numbers]

    alone = [generated(engine, sequences([number]))[0].new for number in range(4)]
    engine.rows = 0
    stats = GenerationStats()
    together = [one.new for one in generated(engine, sequences([0, 1, 2, 3]), stats=stats)]
    assert together == alone
    assert len({tuple(new) for new in alone}) == 4
    assert engine.rows == 90 + 4 * 29
    assert (stats.prompt_tokens, stats.cached_tokens) == (360, 270)
