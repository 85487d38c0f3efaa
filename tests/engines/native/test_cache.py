"""Sequences of the native engine: forks, crops, paths that are kept, steps that are refused and change nothing."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.errors import ContextLengthError, InputError
from tests.gates import cases
from tests.support.cache_walk import Plain, walk
from tests.support.hybrids import HYBRIDS, hybrid
from tests.support.native import chain, ids_of, load, run
from tests.support.specs import make_spec, native_engine, random_weights
from tests.support.tiny import write_tiny_llama


def test_keep_wants_a_path_from_the_root(folder: Path) -> None:
    engine = load(folder)
    cache = engine.new_cache()
    run(engine, cache, ids_of(engine, 4), np.array([-1, 0, 0, 1], dtype=np.int32))
    for rows in ([1], [0, 3], [0, 2, 1], [4], [-1], [0, 0]):
        with pytest.raises(InputError, match="keep"):
            cache.keep(rows)
    assert cache.length == 0
    cache.keep([0, 1, 3])
    assert cache.length == 3
    with pytest.raises(InputError, match="keep"):
        cache.keep([0])
    for length in (4, -1):
        with pytest.raises(InputError, match="crop"):
            cache.crop(length)


def test_bad_steps_are_refused_and_change_nothing(folder: Path) -> None:
    engine = load(folder)
    cache = engine.new_cache()
    good = ids_of(engine, 3)

    def step(
        tokens: object = good,
        parents: object = (-1, 0, 1),
        counts: object = (3,),
        caches: object = (cache,),
        want: object = None,
    ) -> None:
        engine.forward(
            Batch(
                list(caches),
                list(counts),
                np.asarray(tokens, dtype=np.int32),
                np.asarray(parents, dtype=np.int32),
                OutputRequest(want),
            )  # type: ignore
        )

    with pytest.raises(InputError, match="token id 105"):
        step(tokens=(1, 2, 105))
    with pytest.raises(InputError, match="token id -1"):
        step(tokens=(1, 2, -1))
    with pytest.raises(InputError, match="parent"):
        step(parents=(-1, 1, 0))
    with pytest.raises(InputError, match="parent"):
        step(parents=(-2, 0, 1))
    with pytest.raises(InputError, match="counts"):
        step(counts=(2,))
    with pytest.raises(InputError, match="counts"):
        step(counts=(4,))
    with pytest.raises(InputError, match="twice"):
        step(counts=(2, 1), parents=(-1, 0, -1), caches=(cache, cache))
    with pytest.raises(InputError, match="wanted"):
        step(want=np.array([3], dtype=np.int32))
    with pytest.raises(InputError, match="its own caches"):
        step(caches=(object(),))
    assert cache.length == 0
    step()


def test_a_cache_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    engine, other = load(folder), load(write_tiny_llama(tmp_path, layers=1))
    with pytest.raises(InputError, match="another model"):
        run(engine, other.new_cache(), ids_of(engine, 2))


def test_the_context_ends_where_the_config_says(tmp_path: Path) -> None:
    engine = load(write_tiny_llama(tmp_path, context=20))
    cache = engine.new_cache()
    run(engine, cache, ids_of(engine, 19))
    cache.keep(range(19))
    run(engine, cache, ids_of(engine, 1))
    with pytest.raises(ContextLengthError, match="20"):
        run(engine, cache, ids_of(engine, 2))
    run(engine, cache, ids_of(engine, 2), np.array([-1, -1], dtype=np.int32))  # two rows, but one position
    cache.keep([1])
    with pytest.raises(ContextLengthError):
        run(engine, cache, ids_of(engine, 1))
    assert cache.length == 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read the resident memory from")
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_blank_positions_are_memory_and_pages_are_given_back_one_by_one(kv_cache: str) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    spec = make_spec(context=8192, head_dim=64, heads=8, kv_heads=8, layers=4, vocab=33)
    engine = native_engine(spec, random_weights(spec), "sym_int4", kv_cache=kv_cache)
    whole = 8000 * engine.describe()["kv_bytes_per_token"]
    gc.collect()
    before = resident()
    cache = engine.new_cache(8000)
    assert 0.9 * whole < resident() - before < 1.2 * whole  # not one page of zeros, seen 125 times
    fork = cache.fork()
    cache.crop(4000)
    assert resident() - before > 0.9 * whole  # the fork holds them
    fork.crop(0)
    assert 0.35 * whole < resident() - before < 0.65 * whole  # half of the pages that were made together
    del cache, fork
    assert resident() - before < 0.2 * whole


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", [*HYBRIDS, "dense", "shared keys"])
@pytest.mark.rotating(7)
def test_walks(name: str, kv_cache: str) -> None:
    """Rows of trees in batches, on forks, after crops and steps that are not kept are those of decoding one by one.

    A crop goes back as far as it says, with states at times to the beginning.
    """
    engine = hybrid(name, kv_cache=kv_cache)
    plain = Plain(engine)
    for seed in range(cases(4, 10)):
        walk(engine, seed, plain=plain)


@pytest.mark.parametrize("name", HYBRIDS)
def test_settled_rows_that_are_not_kept_leave_no_trace(name: str) -> None:
    """Accepted rows that the dropped step had added to the state are pending again, in a batch too."""
    engine = hybrid(name)
    tokens = ids_of(engine, 30)
    expected = run(engine, engine.new_cache(), tokens)
    caches = [engine.new_cache(), engine.new_cache()]

    def step(chosen: list[int], first: int, rows: int, settled: int) -> np.ndarray:
        parents = np.concatenate([chain(rows)] * len(chosen))
        some = np.concatenate([tokens[first : first + rows]] * len(chosen))
        own, counts = [caches[i] for i in chosen], [rows] * len(chosen)
        logits = engine.forward(
            Batch(own, counts, some, parents, OutputRequest(logits=True), [settled] * len(chosen))
        ).logits
        assert logits is not None
        return logits

    step([0, 1], 0, 10, 10)
    for cache in caches:
        cache.keep(list(range(10)))
    step([0, 1], 10, 8, 0)
    for cache in caches:
        cache.keep(list(range(8)))
    step([0], 18, 4, 4)
    found = step([0, 1], 18, 3, 0)
    assert found.tobytes() == np.concatenate([expected[18:21]] * 2).tobytes()
