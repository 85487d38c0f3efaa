"""Checkpoints on the OpenCL engine: quantized folders byte for byte as on the native engine, and what is refused."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import AutoModelForCausalLM, InputError, LookaheadConfig
from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.bench.examine import questions
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.controller.kept import key_of
from ipex_lookahead.engines.identity import identity
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.device import device_of, listed
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.load import load as load_opencl
from ipex_lookahead.engines.opencl.memory import measured
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import EngineError, LookaheadError
from ipex_lookahead.formats import quantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.hf.modeling import placement
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.engines.native.test_kernels import WITH_GROUPS
from tests.support.native import ids_of, one_by_one, run
from tests.support.quantized_float_folders import fp8, mxfp4, nvfp4
from tests.support.quantized_folders import ORDERED, Kind, awq, gptq, write_quantized
from tests.support.specs import make_spec, random_weights
from tests.support.tiny import write_tiny_llama


class InMemory:
    """A checkpoint of ``spec`` with random weights: every matrix in ``name``, every vector in a float format."""

    path = Path("in-memory")

    def __init__(self, spec: ModelSpec, name: str, group: int) -> None:
        self.tensors: dict[str, PackedWeight] = {}
        floats = itertools.cycle(("bf16", "fp16", "fp32"))
        for tensor_name, values in random_weights(spec).items():
            plain = PackedWeight("fp32", values.shape, values)
            self.tensors[tensor_name] = (
                quantize(plain, name, group) if values.ndim == 2 else quantize(plain, next(floats))
            )

    def info(self, name: str) -> TensorInfo:
        return TensorInfo.of(self.tensors[name])

    def read(self, name: str) -> PackedWeight:
        return self.tensors[name]


@pytest.mark.parametrize(("name", "group", "tied"), [(*one, i % 2 > 0) for i, one in enumerate(WITH_GROUPS)])
def test_every_tensor_in_any_format(name: str, group: int, tied: bool) -> None:
    """Routers, embeddings, norms, biases and sinks too: the native engine's bytes, also where layers are divided."""
    device = device_of(None)
    spec = make_spec(
        hidden=256, intermediate=256, heads=2, kv_heads=1, head_dim=128, vocab=40, tied=tied, bias="qkvogudrh",
        experts=[5, 4], used=2, q_norm="head", k_norm="head", sinks=True, mixer_after=True,
    )  # fmt: skip
    checkpoint: Any = InMemory(spec, name, group)
    native = NativeEngine.load(checkpoint, spec, WeightPlan(), threads=1)
    tokens = ids_of(native, 9)
    expected = run(native, native.new_cache(), tokens).tobytes()
    model = measured(checkpoint, spec, WeightPlan(), "fp16", 9)
    whole = OpenClEngine.load(checkpoint, spec, WeightPlan(), device, threads=1)
    split = SplitEngine.load(checkpoint, spec, WeightPlan(), device, 1, threads=1)
    for engine, layers in ((whole, 2), (split, 1)):
        assert run(engine, engine.new_cache(), tokens).tobytes() == expected, layers
        on_device = engine if isinstance(engine, OpenClEngine) else engine._device
        assert model.need(layers).weights == on_device._decoder.weights.nbytes
        assert saved(engine) == saved(native)


def saved(engine: Any) -> dict[str, tuple[str, list[bytes]]]:
    """What ``save_low_bit`` writes of each tensor: its format and its streams."""
    return {name: (one.format, [array.tobytes() for _, array in one.arrays()]) for name, one in engine.weights()}


QUANTISED = [gptq(2, 64, False), gptq(3, 32, True), awq(32, "asym_int4", layout="gemv_fast"), fp8(), nvfp4(), mxfp4()]


@pytest.mark.parametrize("kind", QUANTISED, ids=[kind.name for kind in QUANTISED])
def test_folders_that_others_have_quantised(tmp_path: Path, kind: Kind) -> None:
    """The native engine's logits, bit for bit."""
    write_quantized(tmp_path, kind)
    request = LoadRequest(tmp_path, threads=1)
    native, engine = load_native(request).engine, load_opencl(request).engine
    tokens = ids_of(native, 20)
    assert run(engine, engine.new_cache(), tokens).tobytes() == run(native, native.new_cache(), tokens).tobytes()


@pytest.mark.parametrize("kind", ORDERED, ids=[kind.name for kind in ORDERED])
def test_weights_whose_inputs_have_an_order(tmp_path: Path, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """GPTQ's act order: as on the CPU, those that share inputs and have other orders become floats, and it is said."""
    write_quantized(tmp_path, kind)
    request = LoadRequest(tmp_path, threads=1)
    native = load_native(request).engine
    caplog.clear()
    engine = load_opencl(request).engine
    assert ("6 matrices in zero_int4 are kept in float32" in caplog.text) == ("apart" in kind.name)
    tokens = ids_of(native, 20)
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert run(engine, engine.new_cache(), tokens).tobytes() == expected
    assert one_by_one(engine, tokens).tobytes() == expected
    for (name, one), (other_name, other) in zip(engine.weights(), native.weights(), strict=True):
        assert name == other_name
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], name
        assert (one.order is None) == (other.order is None)
        assert one.order is None or np.array_equal(one.order, other.order)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


def test_a_device_is_asked_for_by_its_number(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, device="opencl:0", progress=False)
    facts = model.engine.describe()
    assert facts["chosen"] == "opencl: the device is opencl:0"
    assert facts["device"] == "opencl:0"
    assert facts["device_name"]
    assert facts["driver"]
    for device, message in (("cpu", "the OpenCL devices here are"), ("opencl:99", "opencl:0")):
        with pytest.raises(InputError, match=message):
            AutoModelForCausalLM.from_pretrained(folder, engine="opencl", device=device, progress=False)


def test_xpu_means_gpus(folder: Path) -> None:
    """On a machine without one it is said, and nothing else is taken instead."""
    if any(one.kind == "GPU" for one in listed()):
        assert AutoModelForCausalLM.from_pretrained(folder, device="xpu", progress=False).engine.name == "opencl"
        return
    with pytest.raises(EngineError, match="device='xpu': 0 of the OpenCL devices here"):
        AutoModelForCausalLM.from_pretrained(folder, device="xpu", progress=False)


def test_a_model_that_was_loaded_on_the_cpu_moves_to_the_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ipex-llm's scripts have it. The card here is the runtime for CPUs, taken for a GPU."""
    for low_bit in ("sym_int4", "q4_k"):
        model = AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, progress=False, threads=1)
        ids = torch.arange(3, 21)[None]
        expected, said = model(ids).logits, model.generate(ids, max_new_tokens=12, do_sample=False)
        weights = dict(model.engine.weights())
        monkeypatch.setattr(placement, "device_of", lambda name: device_of(None))
        assert model.to("xpu") is model
        facts = model.engine.describe()
        assert (facts["engine"], facts["low_bit"]) == ("opencl", low_bit)
        assert facts["chosen"] == f"opencl: it was moved to {facts['device']}"
        engine = model.engine
        for move in (lambda m: m.to("xpu"), lambda m: m.xpu(), lambda m: m.to("xpu:0"), lambda m: m.cpu()):
            assert move(model) is model
            assert model.engine is engine
        with pytest.raises(InputError, match="cannot move to cuda"):
            model.to("cuda")
        assert model(ids).logits.numpy().tobytes() == expected.numpy().tobytes()
        assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, lookahead=3), said)
        assert model.costs._engine is engine
        for name, weight in engine.weights():
            assert [a.tobytes() for _, a in weight.arrays()] == [a.tobytes() for _, a in weights[name].arrays()], name


def test_without_a_gpu_the_model_stays_on_the_cpu(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, progress=False, threads=1)
    if not any(one.kind == "GPU" for one in listed()):
        with pytest.raises(EngineError, match="device='xpu': 0 of the OpenCL devices here"):
            model.to("xpu")
        assert model.engine.name == "native"


def test_a_calibration_knows_device_and_driver(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AutoModelForCausalLM.from_pretrained(folder, engine="opencl", progress=False).engine
    found, keys = engine.describe(), {key_of(identity(engine))}
    assert identity(engine).items() >= {name: found[name] for name in ("device", "device_name", "driver")}.items()
    for name in ("device_name", "driver"):
        other = found | {name: "another"}
        monkeypatch.setattr(engine, "describe", lambda other=other: other)
        keys.add(key_of(identity(engine)))
    assert len(keys) == 3


def test_options_of_other_engines_are_refused(folder: Path) -> None:
    for options in ({"ipex": True}, {"kv_cache": "int4"}, {"speculative": True}):
        with pytest.raises(InputError):
            AutoModelForCausalLM.from_pretrained(folder, engine="opencl", progress=False, **options)


def test_a_family_without_a_spec_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(LookaheadError, match="the opencl engine does not support model type 'gpt2'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, engine="opencl", progress=False)


def test_progress_and_threads_reach_the_weights(folder: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    load_opencl(LoadRequest(folder, threads=2, progress=lambda *told: seen.append(told)))
    told = [one for one in seen if one[1]]
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert told[-1][0] == told[-1][1]


def in_batches(tokenizer: Any, count: int, size: int) -> Iterator[dict[str, torch.Tensor]]:
    """So many questions as a model is asked them, padded on the left, ``size`` of them at a time."""
    ids = [build_prompt(tokenizer, {}, text)[-96:] for text in questions(count)]
    for first in range(0, count, size):
        some = ids[first : first + size]
        longest = max(map(len, some))
        padded = [[0] * (longest - len(one)) + one for one in some]
        mask = [[0] * (longest - len(one)) + [1] * len(one) for one in some]
        yield {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}


@pytest.mark.timeout(3600)
def test_the_embedded_models_tokens_are_the_native_engines() -> None:
    """A real model in Q4_1: 8 prompts, 60 on request, 48 tokens each, greedy and sampled, plain and with lookahead.

    Several sequences at a time, since a step of many rows takes the runtime for CPUs less than many steps of one.
    """
    count, together = (60, 15) if os.environ.get("IPEX_LOOKAHEAD_GATES") == "large" else (8, 4)
    native, ours = (
        AutoModelForCausalLM.from_pretrained("default", engine=engine, progress=False)
        for engine in ("native", "opencl")
    )
    accepted = compared = 0
    for number, batch in enumerate(in_batches(native.tokenizer, count, together)):
        sampling = {"do_sample": True, "temperature": 0.8, "seed": number} if number % 2 else {"do_sample": False}
        expected = native.generate(**batch, max_new_tokens=48, **sampling)
        for lookahead in (None, LookaheadConfig("auto", 4, adaptive=False)):
            got = ours.generate(**batch, max_new_tokens=48, lookahead=lookahead, **sampling)
            assert torch.equal(got, expected), (number, lookahead)
        accepted += ours.stats.accepted
        compared += len(expected)
        if number == 0:
            whole = expected[:1, batch["attention_mask"].shape[1] - int(batch["attention_mask"][0].sum()) :]
            assert torch.equal(ours(whole).logits, native(whole).logits)
    assert compared == count
    assert accepted > 0
