"""The OpenCL engine: the native core's logits, byte for byte, however rows come, and the same caches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.errors import BusyError, ContextLengthError, InputError, NonFiniteError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight
from tests.support.cache_walk import Plain, walk
from tests.support.native import chain, ids_of, one_by_one, run
from tests.support.specs import NAMED, make_spec, native_engine, random_switches, random_weights, reader


def both(
    spec: ModelSpec, device: Device, low_bit: Any = "fp32", kv_cache: str = "fp16", seed: int = 0
) -> tuple[NativeEngine, OpenClEngine]:
    """The native engine and the device's with the same weights; ``low_bit``: a format, or a function of a tensor."""
    read = reader(random_weights(spec, seed), low_bit)
    label = low_bit if isinstance(low_bit, str) else "mixed"
    native = NativeEngine.build(spec, label, read, threads=1, kv_cache=kv_cache)
    return native, OpenClEngine.build(spec, label, read, device, kv_cache)


def in_pieces(engine: Any, tokens: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Each token's logits as a chain in pieces of those sizes, going round."""
    cache, rows, at = engine.new_cache(), [], 0
    while at < len(tokens):
        piece = tokens[at : at + sizes[len(rows) % len(sizes)]]
        rows.append(run(engine, cache, piece))
        cache.keep(range(len(piece)))
        at += len(piece)
    return np.concatenate(rows)


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.rotating(54)
def test_families_logits_are_the_native_engines(device: Device, name: str, kv_cache: str) -> None:
    native, engine = both(
        make_spec(**NAMED[name]), device, "sym_int4" if "hidden" not in NAMED[name] else "fp16", kv_cache
    )
    tokens = ids_of(native, 300, seed=1)
    expected = run(native, native.new_cache(), tokens)
    for sizes in ([300], [1, 16, 3, 17, 100]):
        assert in_pieces(engine, tokens, sizes).tobytes() == expected.tobytes(), sizes


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chance=st.randoms(use_true_random=False), seed=st.integers(0, 1000), rows=st.integers(1, 90))
def test_any_switches_together(device: Device, chance: random.Random, seed: int, rows: int) -> None:
    spec = make_spec(**random_switches(chance))
    native, engine = both(spec, device, kv_cache=chance.choice(("fp16", "int8")), seed=seed)
    tokens = ids_of(native, rows, seed)
    sizes = [chance.randint(1, 40) for _ in range(5)]
    assert in_pieces(engine, tokens, sizes).tobytes() == run(native, native.new_cache(), tokens).tobytes()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.rotating(30)
def test_every_format(device: Device, name: str) -> None:
    sizes = {"hidden": 256, "intermediate": 512, "head_dim": 64, "layers": 1, "tied": False, "bias": "qkvogud"}
    native, engine = both(make_spec(**sizes), device, name)
    tokens = ids_of(native, 20)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([20], [1], [3]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected
    assert dict(engine.weights()).keys() == dict(native.weights()).keys()
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key


def sorted_weights(engine: Any) -> list[tuple[str, PackedWeight]]:
    return sorted(engine.weights(), key=lambda named: named[0])


def test_formats_that_differ_within_a_block(device: Device) -> None:
    """As in Q4_K_M: what cannot be one matrix or one kernel is several."""
    formats = {"v": "q6_k", "down": "q6_k", "up": "sym_int8", "k": "fp16"}
    spec = make_spec(hidden=256, intermediate=512, head_dim=64)
    native, engine = both(
        spec, device, lambda tensor: formats.get(tensor.name.split(".")[-2], "q4_k") if "." in tensor.name else "q6_k"
    )
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([40], [1, 5]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected


EXPERTS_FORMATS: dict[str, dict[str, str]] = {
    "experts": {"experts.1": "sym_int8", "experts.2": "q6_k"},
    "gate and up": {".up": "fp16"},
    "both": {"experts.0.up": "sym_int8", "experts.1": "q6_k", "down": "fp16"},
}


@pytest.mark.parametrize("name", EXPERTS_FORMATS)
def test_experts_in_several_formats(device: Device, name: str) -> None:
    """As mixtures of formats give them: whatever is not alike, the CPU's bytes, and the weights as they came."""
    formats = EXPERTS_FORMATS[name]
    spec = make_spec(experts=4, used=2, hidden=256, intermediate=288, head_dim=64, bias="gud")
    native, engine = both(
        spec, device, lambda t: next((low for part, low in formats.items() if part in t.name), "sym_int4")
    )
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for pieces in ([40], [1, 5]):
        assert in_pieces(engine, tokens, pieces).tobytes() == expected
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_long_contexts(device: Device, kv_cache: str) -> None:
    spec = make_spec(context=2100, layers=1, window=None)
    native, engine = both(spec, device, "sym_int4", kv_cache)
    tokens = ids_of(native, 2100)
    caches = native.new_cache(), engine.new_cache()
    for at in range(0, 2040, 340):
        for one, cache in zip((native, engine), caches, strict=True):
            one.forward(Batch([cache], [340], tokens[at : at + 340], chain(340), OutputRequest(np.zeros(0, np.int32))))
            cache.keep(range(340))
    for rows in (1, 4, 16, 17):
        expected = run(native, caches[0], tokens[2040 : 2040 + rows]).tobytes()
        assert run(engine, caches[1], tokens[2040 : 2040 + rows]).tobytes() == expected, rows


@pytest.mark.parametrize(("kv_cache", "low_bit"), [("fp16", "q4_k"), ("int8", "q6_k")])
def test_a_prompt_of_4096_tokens_and_rows_of_several_sequences_after_it(
    device: Device, kv_cache: str, low_bit: str
) -> None:
    """Rows of one sequence share what is read of keys and values, those of a batch do not: the same bytes."""
    spec = make_spec(context=4200, layers=1, window=None, hidden=256, heads=4, kv_heads=2, head_dim=64)
    native, engine = both(spec, device, low_bit, kv_cache)
    tokens = ids_of(native, 4096)
    outputs = []
    for one in (native, engine):
        long, short = one.new_cache(), one.new_cache()
        last = OutputRequest(np.array([0, 2047, 4095], np.int32), logits=True)
        made = [one.forward(Batch([long], [4096], tokens, chain(4096), last)).logits]
        long.keep(range(4096))
        run(one, short, tokens[:70])
        short.keep(range(70))
        for first, second in ((1, 1), (9, 1), (3, 20)):
            rows = np.concatenate([chain(first), chain(second)])
            batch = Batch([long, short], [first, second], tokens[: first + second], rows, OutputRequest(logits=True))
            made.append(one.forward(batch).logits)
            long.keep([0])
            short.keep([0])
        outputs.append([array.tobytes() for array in made if array is not None])
    assert len(outputs[0]) == 4
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss_attention"])
def test_trees_over_pages_and_blocks(device: Device, name: str) -> None:
    spec = make_spec(**NAMED[name])
    rng = np.random.default_rng(3)
    for kv_cache in ("fp16", "int8"):
        native, engine = both(spec, device, kv_cache=kv_cache)
        for length in (1, 62, 250, 257):
            prompt = ids_of(native, length, length)
            pairs = [(one, one.new_cache()) for one in (native, engine)]
            for one, cache in pairs:
                run(one, cache, prompt)
                cache.keep(range(length))
            for rows in (7, 24):
                tokens = ids_of(native, rows, rows)
                parents = [int(rng.integers(-1, i)) for i in range(rows)]
                one, other = (run(e, cache, tokens, np.array(parents)) for e, cache in pairs)
                assert one.tobytes() == other.tobytes(), (length, rows)
                path = [rows - 1]
                while parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                for _, cache in pairs:
                    cache.keep(path)


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_moves_slots_whatever_groups_the_driver_chooses(
    device: Device, kv_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may put several heads in a work-group where none is asked for: Intel's for CPUs does on some Xeons."""
    chosen = []

    def launch(queue: Any, kernel: Any, size: tuple[int, ...], local: tuple[int, ...] | None = None) -> Any:
        if local is None:
            chosen.append(size)
        return kept(queue, kernel, size, local or (1, *size[1:]))

    native, engine = both(make_spec(vocab=40), device, kv_cache=kv_cache)
    kept = device.launch
    monkeypatch.setattr(device, "launch", launch)
    walk(engine, seed=1, steps=24, plain=Plain(native), longest=90)
    assert any(heads > 1 for _, heads in chosen)


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_walks_over_caches(device: Device, kv_cache: str) -> None:
    """Keep, crop, fork, several sequences at once; plain decoding is the native engine's."""
    native, engine = both(make_spec(vocab=40), device, kv_cache=kv_cache)
    plain = Plain(native)
    for seed in range(12):
        walk(engine, seed, steps=12, plain=plain, longest=90)


def test_forks_share_pages_and_give_them_back(device: Device) -> None:
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, 200)
    cache = engine.new_cache()
    run(engine, cache, tokens)
    cache.keep(range(200))
    pages = cache.pages
    forks = [cache.fork() for _ in range(20)]
    assert pages.held() == 4
    expected = one_by_one(native, np.concatenate([tokens, tokens[:3]]))[200:].tobytes()
    for fork in forks:
        assert run(engine, fork, tokens[:3]).tobytes() == expected
    assert pages.held() == 4 + 20  # the last page of each is its own
    assert run(engine, cache, tokens[:3]).tobytes() == expected
    del forks, fork
    assert pages.held() == 4
    cache.crop(64)
    assert pages.held() == 1
    del cache
    assert pages.held() == 0


@pytest.mark.parametrize("shape", [(6, 2, 8), (3, 1, 24), (5, 5, 16), (4, 2, 80), (2, 1, 96)], ids=str)
@pytest.mark.parametrize("rows", [1, 16, 20])
@pytest.mark.rotating(12)
def test_heads_that_share_a_block_are_merged_once(device: Device, shape: tuple[int, int, int], rows: int) -> None:
    """Heads of sizes that 32 does not divide, over one block of positions and over several."""
    heads, kv_heads, head_dim = shape
    native, engine = both(make_spec(heads=heads, kv_heads=kv_heads, head_dim=head_dim, layers=1), device)
    for length in (3, 300):
        tokens = ids_of(native, length + rows, length)
        pairs = [(one, one.new_cache()) for one in (native, engine)]
        for one, cache in pairs:
            run(one, cache, tokens[:length])
            cache.keep(range(length))
        for _ in range(2):  # what counts arrivals is as it was
            one, other = (run(e, cache, tokens[length:]) for e, cache in pairs)
            assert one.tobytes() == other.tobytes()


def test_only_what_is_asked_for_comes_back(device: Device) -> None:
    native, engine = both(make_spec(vocab=9001, hidden=32), device)
    tokens = ids_of(native, 12)
    for want in (None, [11], [0, 5, 11], []):
        for top in (0, 1, 7, 64):
            for logits in (False, True):
                wants = OutputRequest(None if want is None else np.array(want, np.int32), logits, top)
                one, other = (
                    e.forward(Batch([e.new_cache()], [12], tokens, chain(12), wants)) for e in (native, engine)
                )
                assert one.argmax.tolist() == other.argmax.tolist()
                for mine, theirs in ((one.logits, other.logits), (one.top, other.top)):
                    assert (mine is None) == (theirs is None)
                    assert mine is None or (mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes())


def test_equal_logits_are_taken_by_the_lowest_id(device: Device) -> None:
    spec = make_spec(vocab=50, tied=False)
    weights = random_weights(spec)
    weights["head"][:] = weights["head"][7]
    engines = (
        native_engine(spec, weights),
        OpenClEngine.build(spec, "fp32", reader(weights), device),
    )
    for engine in engines:
        out = engine.forward(Batch([engine.new_cache()], [1], ids_of(engines[0], 1), chain(1), OutputRequest(top=64)))
        assert out.top is not None
        assert out.top[0].tolist() == [*range(50), *[-1] * 14]


def test_logits_that_are_not_finite_are_an_error(device: Device) -> None:
    spec = make_spec()
    weights = random_weights(spec)
    weights["final_norm"][3] = 3e38
    weights["embedding"][:, 3] = 1e30
    engine = OpenClEngine.build(spec, "fp32", reader(weights), device)
    with pytest.raises(NonFiniteError, match="not finite"):
        engine.forward(Batch([engine.new_cache()], [1], ids_of(engine, 1), chain(1)))


def test_bad_steps_are_refused_and_nothing_is_lost(device: Device) -> None:
    native, engine = both(make_spec(), device)
    tokens = ids_of(native, 60)
    cache, other = engine.new_cache(), native.new_cache()
    for one, own in ((engine, cache), (native, other)):
        run(one, own, tokens)
        own.keep(range(60))
    ints = np.array
    good: dict[str, Any] = {"caches": [cache], "counts": [2], "tokens": tokens[:2], "parents": chain(2)}
    for changed in (
        {"tokens": ints([1, 96], np.int32)},
        {"tokens": ints([-1, 1], np.int32)},
        {"tokens": [1, 2]},
        {"tokens": ints([1, 2], np.int64)},
        {"tokens": ints([[1, 2]], np.int32)},
        {"parents": ints([-1, 1], np.int32)},
        {"parents": ints([-2, 0], np.int32)},
        {"parents": chain(1)},
        {"counts": [1]},
        {"counts": [2, 0], "caches": [cache, engine.new_cache()]},
        {"counts": [1, 1], "caches": [cache, cache]},
        {"counts": [None]},
        {"caches": [other]},
        {"caches": None},
        {"caches": []},
        {"wants": OutputRequest(ints([1, 0], np.int32))},
        {"wants": OutputRequest(ints([2], np.int32))},
        {"wants": OutputRequest(ints([0, 0], np.int32))},
        {"wants": OutputRequest("x")},
        {"wants": OutputRequest(top=65)},
        {"wants": OutputRequest(top=-1)},
        {"wants": OutputRequest(top=None)},
        {"wants": OutputRequest(hidden=(9,))},
        {"wants": OutputRequest(timings=True)},
    ):
        with pytest.raises(InputError):
            engine.forward(Batch(**{**good, **changed}))
    with pytest.raises(InputError, match="another model"):
        engine.forward(Batch(**{**good, "caches": [both(make_spec(), device)[1].new_cache()]}))
    with pytest.raises(ContextLengthError, match="position 512 is beyond the context of 512"):
        engine.forward(Batch([cache], [453], np.zeros(453, np.int32), chain(453)))
    for rows in ([1], [0, 2], [0, 0], [60], [-1], "x", None, [0.5]):
        with pytest.raises(InputError):
            cache.keep(rows)
    for length in (61, -1, "x", 0.5):
        with pytest.raises(InputError):
            cache.crop(length)
    assert run(engine, cache, tokens[:5]).tobytes() == run(native, other, tokens[:5]).tobytes()


def test_a_cache_has_one_user_at_a_time(device: Device) -> None:
    _, engine = both(make_spec(), device)
    cache = engine.new_cache()
    with cache.claim("a test"):
        for deed in (
            lambda: run(engine, cache, np.zeros(1, np.int32)),
            lambda: cache.keep([]),
            lambda: cache.crop(0),
            cache.fork,
        ):
            with pytest.raises(BusyError, match="in use by another thread"):
                deed()
    run(engine, cache, np.zeros(1, np.int32))
