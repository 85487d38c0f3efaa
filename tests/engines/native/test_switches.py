"""Every switch that a model's description has is exact however rows are served."""

from __future__ import annotations

import random
import resource
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.engine import NativeEngine
from tests.gates import cases
from tests.support.native import ids_of, one_by_one, run
from tests.support.specs import NAMED, make_spec, native_engine, random_native_switches, random_weights

ISAS = available_isas()


def rows_in_every_way(engine: NativeEngine, tokens: np.ndarray, sizes: list[int]) -> list[bytes]:
    """Each token's logits as a chain in chunks of those sizes, going round."""
    cache, rows, at = engine.new_cache(), [], 0
    while at < len(tokens):
        chunk = tokens[at : at + sizes[len(rows) % len(sizes)]]
        rows.append(run(engine, cache, chunk))
        cache.keep(range(len(chunk)))
        at += len(chunk)
    return [row.tobytes() for row in np.concatenate(rows)]


def check_exact(options: dict[str, Any], chance: random.Random, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """The oracle is the scalar kernels, one thread, token by token."""
    spec = make_spec(**options)
    weights = random_weights(spec, chance.randrange(1000))
    low_bit = chance.choice(("fp32", "bf16", "sym_int4", "asym_int4", "sym_int8"))
    kv_cache = chance.choice(("fp16", "int8"))
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", "scalar")
    scalar = native_engine(spec, weights, low_bit, kv_cache=kv_cache)
    tokens = ids_of(scalar, rows, chance.randrange(1000))
    expected = [row.tobytes() for row in one_by_one(scalar, tokens)]
    for isa in ISAS:
        monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", isa)
        engine = native_engine(spec, weights, low_bit, threads=chance.choice((1, 2, 3)), kv_cache=kv_cache)
        for sizes in ([rows], [1, 7, 40, 16, 17], [chance.randrange(1, 20)]):
            assert rows_in_every_way(engine, tokens, sizes) == expected, (isa, sizes)
        check_trees(engine, tokens, chance)


def check_trees(engine: NativeEngine, tokens: np.ndarray, chance: random.Random) -> None:
    """Rows of trees of several sequences at once, each as its path alone; and what is kept goes on as if alone."""
    caches, counts, parents, paths = [], [], [], []
    for _ in range(chance.choice((1, 3))):
        prefix = chance.randrange(len(tokens))
        cache = engine.new_cache()
        if prefix:
            run(engine, cache, tokens[: prefix + 1])
            cache.keep(range(prefix + 1))
            cache.crop(prefix)
        cache = cache.fork()
        count = chance.choice((2, 5, 16, 20))
        own = [chance.choice((r - 1, chance.randrange(-1, r))) if r else -1 for r in range(count)]
        for row in range(count):
            path = [row]
            while own[path[0]] >= 0:
                path.insert(0, own[path[0]])
            paths.append((prefix, path, sum(counts)))
        caches.append(cache)
        counts.append(count)
        parents += own
    drafts = ids_of(engine, sum(counts), chance.randrange(1000))
    together = engine.forward(Batch(caches, counts, drafts, np.array(parents, np.int32), OutputRequest(logits=True)))
    assert together.logits is not None
    for prefix, path, first in chance.sample(paths, 5 if len(paths) > 5 else len(paths)):
        alone = one_by_one(engine, np.concatenate([tokens[:prefix], drafts[[first + row for row in path]]]))
        assert together.logits[first + path[-1]].tobytes() == alone[-1].tobytes()
    for i, cache in enumerate(caches):
        prefix, path, first = paths[sum(counts[: i + 1]) - 1]
        cache.keep(path)
        more = tokens[:3]
        text = np.concatenate([tokens[:prefix], drafts[[first + row for row in path]], more])
        assert run(engine, cache, more).tobytes() == one_by_one(engine, text)[-len(more) :].tobytes()


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss_attention", "gpt_oss"])
@pytest.mark.rotating(1)
def test_windows_are_exact_over_the_edge_of_a_block(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_exact({**NAMED[name], "window": [30, 260]}, random.Random(name), monkeypatch, rows=310)


@settings(max_examples=cases(8, 25), deadline=None)
@given(chance=st.randoms(use_true_random=False), rows=st.integers(1, 80))
def test_any_switches_together_are_exact(chance: random.Random, rows: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        check_exact(random_native_switches(chance), chance, monkeypatch, rows)


def test_the_experts_that_a_step_reads_are_counted() -> None:
    """What a step of a mixture costs goes by them: for one row those it chose, for many at most all there are."""
    spec = make_spec(experts=[0, 9, 9], used=[0, 2, 2], layers=3)
    engine = native_engine(spec, random_weights(spec))
    counted = []
    for rows in (1, 2, 60):
        run(engine, engine.new_cache(), ids_of(engine, rows))
        counted.append(engine.experts_touched)
    assert counted[0] == 4
    assert 4 < counted[1] <= 8
    assert 8 < counted[2] <= 18
    dense = native_engine(make_spec(), random_weights(make_spec()))
    run(dense, dense.new_cache(), ids_of(dense, 3))
    assert dense.experts_touched == 0


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_a_window_gives_back_the_keys_that_it_has_passed(kv_cache: str) -> None:
    """Only far behind, and never where they may be needed again: the rest goes on as a sequence that has them all."""
    spec = make_spec(window=[20, None], context=2500, vocab=33, layers=2)
    engine = native_engine(spec, random_weights(spec), "sym_int4", threads=2, kv_cache=kv_cache)
    tokens = ids_of(engine, 2400)
    expected = run(engine, engine.new_cache(), tokens)  # one step has nothing to give back
    cache = engine.new_cache()
    for first in range(0, 2400, 300):
        got = run(engine, cache, tokens[first : first + 300])
        assert got.tobytes() == expected[first : first + 300].tobytes()
        cache.keep(range(300))
    fork = cache.fork()
    for length in (2399, 2300, 2400 - 1024):
        assert cache.crop(length) == length
        assert run(engine, cache, tokens[length:]).tobytes() == expected[length:].tobytes()
    for one in (cache, fork):
        length = one.length
        assert one.crop(length - 1) == length - 1
        assert one.crop(900) == one.length == 0  # its window's keys are gone
        assert run(engine, one, tokens).tobytes() == expected.tobytes()


def test_windows_of_a_long_blank_cost_little() -> None:
    spec = make_spec(window=16, context=1 << 20, head_dim=64, heads=8, kv_heads=8, layers=4, vocab=33)
    engine = native_engine(spec, random_weights(spec), "sym_int4")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cache = engine.new_cache((1 << 20) - 70)
    run(engine, cache, ids_of(engine, 70))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000  # kB; all of it would take 4 GiB


def test_norms_of_all_heads_where_rows_have_several_lengths() -> None:
    """24 keys end within a vector: another layer's row, of another length, leaves values behind them."""
    spec = make_spec(layers=3, heads=6, kv_heads=3, head_dim=8, q_norm="whole", k_norm="whole",
                     attention_gate=[True, False])  # fmt: skip
    engine = native_engine(spec, random_weights(spec, 3), "fp32")
    tokens = ids_of(engine, 40)
    expected = [row.tobytes() for row in one_by_one(engine, tokens)]
    for sizes in ([40], [1, 7], [17, 3]):
        assert rows_in_every_way(engine, tokens, sizes) == expected, sizes
