"""Recurrent layers on a device: the native engine's bytes, however rows come, and the same caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.api import HELD, Batch, OutputRequest, state_bytes
from ipex_lookahead.engines.native.decoder import state_bytes as described_state_bytes
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.errors import EngineError, InputError
from tests.engines.opencl.test_engine import both, in_pieces, sorted_weights
from tests.engines.opencl.test_split import divided
from tests.support.cache_walk import Plain, walk
from tests.support.native import chain, ids_of, run
from tests.support.recurrences import ODD, recurrent_spec, walk_in_step

KINDS = ("delta", "mamba", "short")
WHERE: dict[str, tuple[str, ...]] = {
    **{kind: (kind, "attention", kind) for kind in KINDS},
    "one of each": ("mamba alone", "delta", "mlp alone", "attention alone", "short", "mamba"),
}
"""Blocks of models; without an MLP, and without a mixer, as Nemotron-H has them."""


@pytest.mark.parametrize("low_bit", ["fp32", "sym_int4"])
@pytest.mark.parametrize("name", WHERE)
@pytest.mark.rotating(8)
def test_logits_are_the_native_engines(device: Device, name: str, low_bit: str) -> None:
    native, engine = both(recurrent_spec(*WHERE[name]), device, low_bit)
    tokens = ids_of(native, 90)
    expected = run(native, native.new_cache(), tokens).tobytes()
    for sizes in ([90], [1, 16, 3, 17]):
        assert in_pieces(engine, tokens, sizes).tobytes() == expected, sizes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [ODD, {**ODD, "whole_norm": False}, {"kernel": 1}, {"key_dim": 128, "value_dim": 128}], ids=str
)
@pytest.mark.rotating(6)
def test_any_sizes(device: Device, kind: str, options: dict[str, Any]) -> None:
    native, engine = both(recurrent_spec(kind, kind, **options), device)
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert in_pieces(engine, tokens, [7, 1, 2]).tobytes() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_several_formats_and_their_weights(device: Device, kind: str) -> None:
    """As in GGUF files, where small matrices are floats: neighbors of a format are one product, others their own."""
    formats = {"gate": "sym_int8", "steps": "fp32", "beta": "fp32", "b": "fp16", "x": "sym_int8", "c": "sym_int8"}
    native, engine = both(
        recurrent_spec(kind, "attention"), device, lambda t: formats.get(t.name.split(".")[-2], "sym_int4")
        if "." in t.name else "sym_int4",
    )  # fmt: skip
    tokens = ids_of(native, 20)
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert in_pieces(engine, tokens, [1, 5]).tobytes() == expected
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("name", WHERE)
@pytest.mark.rotating(8)
def test_caches_in_step_with_the_native_engines(device: Device, name: str, kv_cache: str) -> None:
    """Settled, held, kept, dropped, cropped and forked: equal logits, lengths, and bytes of states."""
    native, engine = both(recurrent_spec(*WHERE[name]), device, kv_cache=kv_cache)
    for seed in range(12):
        walk_in_step(native, engine, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_walks_over_caches(device: Device, kind: str) -> None:
    native, engine = both(recurrent_spec(kind, "attention", vocab=40), device)
    plain = Plain(native)
    for seed in range(6):
        walk(engine, seed, plain=plain)


def test_any_division_of_the_layers(device: Device) -> None:
    native, engines = divided(recurrent_spec("delta", "attention", "mamba alone", "short"), device)
    for i, engine in enumerate(engines):
        assert state_bytes(engine) == state_bytes(native) == engine.describe()["state_bytes"]
        walk_in_step(native, engine, seed=i)


@pytest.mark.parametrize("kind", KINDS)
def test_what_states_take_is_what_is_said(device: Device, kind: str) -> None:
    native, engine = both(recurrent_spec(kind, "attention", kind, **ODD), device)
    assert engine.describe()["state_bytes"] == described_state_bytes(native.spec) == state_bytes(engine) > 0
    assert "state_bytes" not in both(recurrent_spec("attention"), device)[1].describe()


def test_forks_share_states_and_give_them_back(device: Device) -> None:
    _, engine = both(recurrent_spec("delta"), device)
    states, tokens = engine._decoder.recurrent, ids_of(engine, 30)
    cache = engine.new_cache()
    engine.forward(Batch([cache], [30], tokens, chain(30), settled=[30]))
    cache.keep(range(30))
    forks = [cache.fork() for _ in range(5)]
    assert states.matrices.held() == 1
    for fork in forks:
        engine.forward(Batch([fork], [1], tokens[:1], chain(1), settled=[1]))
        fork.keep([0])
    assert states.matrices.held() == 6
    del fork
    forks.clear()
    assert states.matrices.held() == 1
    del cache
    assert (states.matrices.held(), states.histories.held(), states.drafts.held()) == (0, 0, 0)


def test_settled_rows_that_are_none_are_refused(device: Device) -> None:
    native, engine = both(recurrent_spec("short"), device)
    tokens = ids_of(native, 4)
    for one in (native, engine):
        cache = one.new_cache()
        for settled, parents in (([5], chain(4)), ([-2], chain(4)), ([1, 1], chain(4)), ([3], np.array([-1, 0, 1, 1]))):
            with pytest.raises(InputError):
                one.forward(Batch([cache], [4], tokens, parents.astype(np.int32), settled=settled))
        one.forward(Batch([cache], [4], tokens, chain(4), settled=[3]))
        with pytest.raises(InputError, match="the last step's first 3 rows were settled, and these are 2"):
            cache.keep([0, 1])
        cache.keep([0, 1, 2])
        assert cache.crop(2) == 0


def test_held_rows_are_gone_back_over(device: Device) -> None:
    native, engine = both(recurrent_spec("mamba", "attention"), device)
    tokens, logits = ids_of(native, 40), OutputRequest(logits=True)
    expected = run(native, native.new_cache(), tokens)
    cache = engine.new_cache()
    engine.forward(Batch([cache], [30], tokens[:30], chain(30), settled=[30]))
    cache.keep(range(30))
    for _ in range(2):
        for at in range(30, 40):
            out = engine.forward(Batch([cache], [1], tokens[at : at + 1], chain(1), logits, [HELD]))
            assert out.logits is not None
            assert out.logits[0].tobytes() == expected[at].tobytes()
            cache.keep([0])
        assert cache.crop(30) == 30
    assert cache.crop(29) == 0


def test_a_state_that_a_failed_step_may_have_changed_is_lost(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted rows are added in place: they must not be added twice."""
    native, engine = both(recurrent_spec("delta"), device)
    tokens, other = ids_of(native, 20), native.new_cache()
    cache = engine.new_cache()
    for one, own in ((engine, cache), (native, other)):
        one.forward(Batch([own], [5], tokens[:5], chain(5), settled=[5]))
        own.keep(range(5))
        own.checkpoint()
        for at in (5, 6):
            run(one, own, tokens[at : at + 1])
            own.keep([0])
        assert run(one, own, tokens[7:8]).size  # the matrix is this sequence's own now
        own.keep([0])
    with monkeypatch.context() as patch:
        patch.setattr(device, "read_all", lambda *_: (_ for _ in ()).throw(EngineError("lost")))
        with pytest.raises(EngineError, match="lost"):
            run(engine, cache, tokens[8:9])
    for deed in (lambda: run(engine, cache, tokens[8:9]), cache.checkpoint, lambda: run(engine, cache.fork(), tokens)):
        with pytest.raises(EngineError, match="recurrent state was lost in a step that failed"):
            deed()
    assert cache.crop(8) == other.crop(5) == 5
    assert run(engine, cache, tokens[5:9]).tobytes() == run(native, other, tokens[5:9]).tobytes()
