"""What a sequence's states take: reckoned from the description, told by the core, and held."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines import api as base
from ipex_lookahead.engines.native.decoder import kv_bytes_per_token, state_bytes
from tests.support.hybrids import HYBRIDS, hybrid, random_text
from tests.support.scripted_engine import markov


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_description_says_what_the_core_has(name: str) -> None:
    engine = hybrid(name)
    facts = engine.describe()
    assert facts["state_bytes"] == state_bytes(engine.spec) == base.state_bytes(engine) > 0
    assert facts["kv_bytes_per_token"] == kv_bytes_per_token(engine.spec, "fp16") == base.position_bytes(engine)


def test_an_engine_that_keeps_no_states_has_none() -> None:
    assert base.state_bytes(markov(12, 2, 0)) == 0


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_cache_keeps_the_last_four_lengths(name: str) -> None:
    engine = hybrid(name)
    cache = engine.new_cache()
    for first in range(0, 40, 5):
        rows = np.array(random_text(5, first), np.int32)
        engine.forward(base.Batch([cache], [5], rows, np.arange(-1, 4, dtype=np.int32), settled=[5]))
        cache.keep(list(range(5)))
        before = cache.state_bytes
        cache.checkpoint()
        assert cache.state_bytes <= before, "nothing is copied"
        assert engine.state_bytes <= before <= (min(first // 5, 4) + 2) * engine.state_bytes
    assert cache.crop(39) == 35
    assert cache.crop(27) == 25
    assert cache.fork().crop(25) == 25
    assert cache.crop(24) == 0, "the fifth last was given up"
