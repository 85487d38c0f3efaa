"""What the wrappers of the core say to strange arguments, and to a second thread at a cache in use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.drafting.partial_matching import PartialMatching
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.core import integer_peak, read_bandwidth
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.engines.weights import random_matrix
from ipex_lookahead.errors import BusyError, InputError, LookaheadError, MissingWeightError, UnsupportedModelError
from ipex_lookahead.formats import quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.native import ids_of, load, one_by_one, run
from tests.support.native_arguments import arrays, numbers
from tests.support.specs import make_spec

STRANGE = [None, "x", [], [None], [2**62], object(), *numbers(), *arrays()]


def wrappers(engine: NativeEngine) -> dict[str, Callable[[Any], object]]:
    """Calls by name, each with one argument that is not what it should be."""

    def batch(**fields: Any) -> Batch:
        right = {"caches": [engine.new_cache()], "counts": [2], "tokens": ids_of(engine, 2)}
        return Batch(**{**right, "parents": np.array([-1, 0], np.int32), **fields})

    def stepped() -> Any:
        cache = engine.new_cache()
        run(engine, cache, ids_of(engine, 3))
        return cache

    weight = random_matrix((48, 64), "sym_int4", 32, np.random.default_rng(0))
    floats = PackedWeight("fp32", (3, 40), np.ones((3, 40), np.float32))
    fields = ("caches", "counts", "tokens", "parents")
    return {
        "blank": engine.new_cache,
        "keep": lambda v: stepped().keep(v),
        "crop": lambda v: stepped().crop(v),
        **{f"batch.{name}": lambda v, name=name: engine.forward(batch(**{name: v})) for name in fields},
        **{
            f"wants.{name}": lambda v, name=name: engine.forward(batch(wants=OutputRequest(**{name: v})))
            for name in ("rows", "top", "hidden", "hidden_rows")
        },
        "pool": LinearPool,
        "bias": lambda v: LinearPool(1).layer(weight, v),
        "codes": lambda v: LinearPool(1).layer(replace(weight, codes=v)),
        "scales": lambda v: LinearPool(1).layer(replace(weight, scales=v)),
        "isa": lambda v: integer_peak(1, v) if not isinstance(v, str) or v else None,
        "size": lambda v: read_bandwidth(v, 1) if not isinstance(v, int) or v < 2**20 or v > 2**34 else None,
        "depth": lambda v: PartialMatching(depth=v, width=2),
        "width": lambda v: PartialMatching(depth=2, width=v),
        "store": lambda v: PartialMatching(depth=2, width=2, store=v),
        "begin": lambda v: PartialMatching(depth=2, width=2).begin(v),
        "propose": lambda v: PartialMatching(depth=2, width=2).propose(v),
        "quantize": lambda v: quantize(floats, "sym_int4", threads=v) if not isinstance(v, int) or v > 1024 else None,
        "logits": lambda v: Sampler(WarperParams(0.8, 5), 0, 0)(v, 1),
        "position": lambda v: Sampler(WarperParams(0.8, 5), 0, 0)(np.ones(9, np.float32), v),
    }


@pytest.mark.filterwarnings("ignore")  # numpy's, about NaN and complex numbers as token ids
def test_strange_arguments_are_errors_of_ours(folder: Path) -> None:
    refused = dict.fromkeys(wrappers(load(folder)), 0)
    for name, call in wrappers(load(folder)).items():
        for value in STRANGE:
            try:
                call(value)
            except LookaheadError:
                refused[name] += 1
            except Exception as error:
                raise AssertionError(f"{name} of {value!r}: {type(error).__name__}: {error}") from error
    assert min(refused.values()) >= 10, refused


def test_a_step_before_the_weights_are_set_is_refused(folder: Path) -> None:
    from tests.support.native_subjects import unset_decoder

    engine = load(folder)
    hollow = NativeEngine(unset_decoder(), engine.spec, "sym_int4")
    with pytest.raises(MissingWeightError, match="weight layers.0.mixer_norm.weight is not set") as caught:
        run(hollow, hollow.new_cache(), ids_of(engine, 1))
    assert "thread" not in caught.value.hint


@pytest.mark.parametrize("field", ["hidden", "vocab", "max_context", "heads", "kv_heads", "head_dim", "window"])
def test_a_shape_that_no_decoder_has_is_an_error_of_ours(field: str) -> None:
    spec = make_spec()
    for value in (0 if field != "window" else -5, -1, 2**31 + 8, 2**62, 2**64):
        if field in ("hidden", "vocab", "max_context"):
            wrong = replace(spec, **{field: value})
        else:
            layers = (replace(b, mixer=replace(b.mixer, **{field: value})) for b in spec.layers)
            wrong = replace(spec, layers=tuple(layers))
        with pytest.raises(UnsupportedModelError):
            NativeEngine.random(wrong, "sym_int4")


def test_a_blank_is_within_the_context(folder: Path) -> None:
    engine = load(folder)
    assert engine.new_cache(engine.max_context).length == engine.max_context
    for blank in (-5, engine.max_context + 1, 2**62, 2**70):
        with pytest.raises(InputError):
            engine.new_cache(blank)


def test_a_second_thread_is_refused_or_changes_nothing(folder: Path) -> None:
    engine = load(folder, "sym_int4", threads=2)
    tokens = ids_of(engine, 100)
    expected = one_by_one(engine, tokens)[40:].tobytes()
    cache, stop, refused = engine.new_cache(), threading.Event(), 0
    run(engine, cache, tokens[:40])
    cache.keep(range(40))
    wrong: list[str] = []
    said: set[str] = set()

    def steps() -> None:
        while not stop.is_set():
            try:
                if run(engine, cache, tokens[40:]).tobytes() != expected:
                    wrong.append("logits")
            except BusyError as error:
                said.add(str(error))

    beside = threading.Thread(target=steps)
    beside.start()
    try:
        for _ in range(5_000_000):
            try:
                assert cache.fork().length == 40
                cache.crop(40)
            except BusyError as error:
                said.add(str(error))
                refused += 1
            if refused >= 5:
                break
    finally:
        stop.set()
        beside.join()
    assert not wrong
    assert all("in use by another thread" in text for text in said)
    assert refused >= 5


def test_weights_may_lie_at_odd_places_in_a_file(folder: Path) -> None:
    """A header of safetensors may be of any length, so that numbers are not aligned."""
    tokens = ids_of(load(folder), 20)
    expected = [run(engine, engine.new_cache(), tokens) for engine in (load(folder), load(folder, "sym_int4"))]
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    path.write_bytes((size + 1).to_bytes(8, "little") + whole[8 : 8 + size] + b" " + whole[8 + size :])
    found = [run(engine, engine.new_cache(), tokens) for engine in (load(folder), load(folder, "sym_int4"))]
    assert [f.tobytes() for f in found] == [e.tobytes() for e in expected]
