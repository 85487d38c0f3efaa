"""What a model needs of a device's memory: found before it is loaded, and what is done where there is too little."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import AutoModelForCausalLM, InputError
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.engines import weights
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.opencl import memory
from ipex_lookahead.engines.opencl.device import Device, device_of
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.linear import Rows
from ipex_lookahead.engines.opencl.load import load
from ipex_lookahead.engines.opencl.memory import Measured, measured
from ipex_lookahead.engines.opencl.placement import SHARE, Placement, choose, room
from ipex_lookahead.engines.opencl.scratch import Scratch
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.errors import OutOfMemoryError
from ipex_lookahead.formats import FLOATS, FORMATS
from tests.engines.opencl.test_engine import both, in_pieces, sorted_weights
from tests.engines.opencl.test_split import divided
from tests.support.native import chain, ids_of, run
from tests.support.specs import make_spec
from tests.support.tiny import write_tiny_llama

LATENTS = (24, 20, 8, 12, 40)


def of(spec: Any, low_bit: str, kv_cache: str = "fp16", positions: int = 512) -> Measured:
    group = FORMATS[low_bit].group_sizes[0]

    def formats(tensor: Any) -> TensorInfo:
        return TensorInfo(tensor.shape, "fp32" if "router" in tensor.name and low_bit not in FLOATS else low_bit, group)

    return Measured(spec, formats, kv_cache, positions)


@pytest.mark.parametrize("low_bit", FORMATS)
@pytest.mark.rotating(12)
def test_weights_take_what_was_said(low_bit: str) -> None:
    for options in ({"tied": False, "bias": "qkvogud"}, {"experts": 3, "used": 2}):
        spec = make_spec(hidden=256, intermediate=512, head_dim=64, layers=2, vocab=90, **options)
        _, engine = both(spec, device_of(None), low_bit)
        assert of(spec, low_bit).need(2).weights == engine._decoder.weights.nbytes


def buffers_in(part: Any) -> int:
    """Bytes of all buffers that a part of a step holds."""
    if isinstance(part, (dict, list, tuple)):
        return sum(map(buffers_in, part.values() if isinstance(part, dict) else part))
    if isinstance(part, (Scratch, Rows)):
        names = ("buffers",) if isinstance(part, Rows) else vars(part)
        return sum(buffers_in(getattr(part, name)) for name in names)
    return int(part.size) if hasattr(part, "size") and hasattr(part, "int_ptr") else 0


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_keys_and_what_steps_work_in_take_what_was_said(kv_cache: str) -> None:
    spec = make_spec(
        context=600,
        layers=3,
        experts=[0, 3, 3],
        used=[0, 2, 2],
        shared_expert=[0, 70, 0],
        latent=[None, LATENTS, LATENTS],
    )
    native, engine = both(spec, device_of(None), "sym_int4", kv_cache)
    need = of(spec, "sym_int4", kv_cache, 600).need(3)
    wants = OutputRequest(np.arange(memory.WANTED, dtype=np.int32))
    engine.forward(Batch([engine.new_cache()], [512], ids_of(native, 512), chain(512), wants))
    decoder = engine._decoder
    assert need.keys == 10 * sum(decoder.pages.sizes)  # 600 positions are ten pages
    tables = [sum(int(one.size) for one in rope.buffers if one is not None) for rope in decoder.ropes.values()]
    factors = 4 * 600 * len(tables)  # of queries, of ropes that have none: made with their tables, and not kept
    assert need.scratch == buffers_in(decoder._scratch) + sum(tables) + factors


def test_fewer_layers_need_less_and_an_embedding_of_its_own_goes_first() -> None:
    spec = make_spec(layers=4, tied=False, vocab=1000)
    model = of(spec, "sym_int8")
    needs = [model.need(layers) for layers in range(1, 5)]
    assert [one.total for one in needs] == sorted(one.total for one in needs)
    layer = needs[1].weights - needs[0].weights
    embedding = needs[3].weights - needs[2].weights - layer
    assert embedding > 1000 * 64
    assert [one.keys for one in needs] == [needs[0].keys * layers for layers in range(1, 5)]
    assert needs[3].widest == "embedding"
    assert needs[2].widest != "embedding"


def test_what_does_not_fit_is_refused_with_what_fits(small: Device) -> None:
    spec = make_spec(layers=4, tied=False)
    model = of(spec, "sym_int4")
    small.memory = int(model.need(3).total / SHARE) + 100
    assert choose(small, model) == Placement(3)
    with pytest.raises(OutOfMemoryError, match=r"the model needs .* of weights, .* for 512 positions") as caught:
        choose(small, model, 9)
    assert caught.value.hint.startswith(
        "gpu_layers=3 fits (3 of 4 layers; the others run on the CPU); or use kv_cache="
    )
    assert choose(small, model, 2) == Placement(2)
    with pytest.raises(InputError, match="gpu_layers=0: at least one layer"):
        choose(small, model, 0)
    small.memory = 1000
    with pytest.raises(OutOfMemoryError, match="1 of the model's 4 layers need") as caught:
        choose(small, model)
    assert "not one layer fits: use engine='native'" in caught.value.hint


def test_as_many_as_fit_are_put_there_and_it_is_said(small: Device, caplog: pytest.LogCaptureFixture) -> None:
    model = of(make_spec(layers=4), "sym_int4")
    small.memory = int(model.need(2).total / SHARE) + 100
    with caplog.at_level(logging.INFO, "ipex_lookahead"):
        assert choose(small, model) == Placement(2)
        assert "2 of its 4 layers and the lm_head are put there, the others run on the CPU" in caplog.text
        small.memory *= 100
        caplog.clear()
        assert choose(small, model) == Placement(4)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_device_is_one_by_all_its_names() -> None:
    """Else what a model takes of it would not be known to the next."""
    device = device_of(None)
    assert device_of("opencl") is device
    assert device_of(f"opencl:{device.number}") is device


def test_models_that_are_there_already_count(small: Device) -> None:
    """Weights, keys and values, and what steps work in; as long as the model is there."""
    before = room(small)
    _, engine = both(make_spec(), small)
    run(engine, engine.new_cache(), np.zeros(1, np.int32))
    decoder = engine._decoder
    kept = decoder.weights.nbytes + sum(decoder.pages.sizes)
    assert before - room(small) > kept + buffers_in(decoder._scratch)
    del engine, decoder
    assert room(small) == before


def test_a_model_moves_only_where_its_weights_fit(small: Device) -> None:
    native, _ = both(make_spec(), small, "sym_int4")
    small.memory = 20_000
    with pytest.raises(OutOfMemoryError, match=r"the model's weights are .* has .* for them") as caught:
        OpenClEngine.moved(native, small)
    assert "engine='opencl'" in caught.value.hint


def test_nothing_is_read_before_it_is_known_to_fit(
    tmp_path: Path, small: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path, layers=3, tie=False)
    checkpoint = open_checkpoint(folder)
    request = LoadRequest(folder, low_bit="sym_int4", threads=1)
    spec = checkpoint.spec
    model = measured(checkpoint, spec, request.plan("sym_int4").of_spec(spec), "fp16", None)
    small.memory = int(model.need(2).total / SHARE) + 10
    read: list[str] = []
    monkeypatch.setattr(weights, "read_matrix", lambda _, tensor, *__, **___: read.append(tensor))
    with pytest.raises(OutOfMemoryError, match="has .* for it"):
        load(LoadRequest(folder, low_bit="sym_int4", threads=1, gpu_layers=3))
    assert not read


def test_loading_divides_the_layers_by_itself(tmp_path: Path, small: Device) -> None:
    folder = write_tiny_llama(tmp_path, layers=3, tie=False)
    checkpoint = open_checkpoint(folder)
    spec = checkpoint.spec
    plan = LoadRequest(folder, low_bit="sym_int4").plan("sym_int4").of_spec(spec)
    small.memory = int(measured(checkpoint, spec, plan, "fp16", None).need(2).total / SHARE) + 10
    model = AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="sym_int4", engine="opencl", progress=False)
    assert isinstance(model.engine, SplitEngine)
    facts = model.engine.describe()
    assert facts["gpu_layers"] == 2
    assert 0 < facts["device_bytes"] < facts["weight_bytes"]


SMALL_BUFFERS: dict[str, dict[str, Any]] = {
    "tied": {},
    "untied": {"tied": False, "bias": "qkvh"},
    "mixture": {"experts": 5, "used": 2, "tied": False},
}


@pytest.mark.parametrize("name", SMALL_BUFFERS)
def test_weights_larger_than_a_buffer_are_in_several(
    device: Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model whose embedding, which is one buffer, is on the CPU."""
    spec = make_spec(vocab=300, context=64, **SMALL_BUFFERS[name])
    _, (whole,) = divided(spec, device, "sym_int8")
    monkeypatch.setattr(device, "largest_buffer", 2 * 64 * 64 + 100)
    native, (engine,) = divided(spec, device, "sym_int8")
    weights, before = (one._device._decoder.weights for one in (engine, whole))
    assert (len(before.attentions[0].qkv), len(weights.attentions[0].qkv)) == (1, 3)
    assert (len(before.head), len(weights.head)) == (1, 3)
    if spec.mixtures:
        assert [len(one.mixtures[0][1].down) for one in (before, weights)] == [1, 5]
    tokens = ids_of(native, 40)
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert in_pieces(engine, tokens, [1, 4]).tobytes() == expected
    for (key, one), (other_key, other) in zip(sorted_weights(engine), sorted_weights(native), strict=True):
        assert key == other_key
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], key
    with pytest.raises(OutOfMemoryError, match="the largest that it has is 8,292"):
        OpenClEngine.moved(native, device)


def test_an_embedding_is_in_its_files_format(tmp_path: Path) -> None:
    """Not decoded: it takes what it takes in the file."""
    folder = write_tiny_llama(tmp_path / "floats", tie=False)
    made = AutoModelForCausalLM.from_pretrained(
        folder, load_in_low_bit="sym_int4", embedding_qtype="q8_0", progress=False, threads=1
    )
    made.save_low_bit(tmp_path / "packed")
    engine = load(LoadRequest(tmp_path / "packed", threads=1)).engine
    embedding = engine._decoder.weights.embedding
    tensor = engine.spec.embedding
    assert embedding.format == open_checkpoint(tmp_path / "packed").info(tensor.name).format == "sym_int8"
