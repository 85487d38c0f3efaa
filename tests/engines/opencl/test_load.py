"""Checkpoints on the OpenCL engine: every family's, byte for byte as on the native engine, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead import AutoModelForCausalLM, InputError, LookaheadConfig
from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.load import load as load_native
from ipex_lookahead.engines.opencl.device import listed
from ipex_lookahead.engines.opencl.load import load as load_opencl
from ipex_lookahead.errors import EngineError, LookaheadError
from ipex_lookahead.tokenization.prompts import build_prompt
from tests.support.family_engines import each, some
from tests.support.native import run
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_families import CONTEXT, Variant, build, text, write_folder


@each(some())
def test_every_family(tmp_path: Path, model_type: str, variant: Variant) -> None:
    model = build(model_type, variant)
    folder = write_folder(tmp_path / "folder", model)
    request = LoadRequest(folder, kv_cache="int8" if variant.gguf else "fp16", threads=1, max_context=CONTEXT)
    tokens = text(model)
    native, engine = load_native(request).engine, load_opencl(request).engine
    expected = run(native, native.new_cache(), tokens).tobytes()
    assert run(engine, engine.new_cache(), tokens).tobytes() == expected
    for (name, one), (other_name, other) in zip(engine.weights(), native.weights(), strict=True):
        assert name == other_name
        assert [(n, a.tobytes()) for n, a in one.arrays()] == [(n, a.tobytes()) for n, a in other.arrays()], name


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
    with pytest.raises(EngineError, match="device is 'xpu', and 0 of the OpenCL devices here"):
        AutoModelForCausalLM.from_pretrained(folder, device="xpu", progress=False)


def test_options_of_other_engines_are_refused(folder: Path) -> None:
    for options in ({"ipex": True}, {"kv_cache": "int4"}, {"speculative": True}):
        with pytest.raises(InputError):
            AutoModelForCausalLM.from_pretrained(folder, engine="opencl", progress=False, **options)


def test_a_family_without_a_spec_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    with pytest.raises(LookaheadError, match="'gpt2' is none that the opencl engine has"):
        AutoModelForCausalLM.from_pretrained(tmp_path, engine="opencl", progress=False)


def test_progress_and_threads_reach_the_weights(folder: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    load_opencl(LoadRequest(folder, threads=2, progress=lambda *told: seen.append(told)))
    told = [one for one in seen if one[1]]
    assert [done for done, _, _ in told] == list(range(len(told)))
    assert told[-1][0] == told[-1][1]


@pytest.mark.timeout(900)
def test_the_embedded_models_tokens_are_the_native_engines() -> None:
    """A real model in Q4_1: prompts of several kinds, greedy and sampled, plain and with lookahead, and its logits."""
    count, tokens = (60, 64) if os.environ.get("IPEX_LOOKAHEAD_GATES") == "large" else (4, 24)
    native, ours = (
        AutoModelForCausalLM.from_pretrained("default", engine=engine, progress=False)
        for engine in ("native", "opencl")
    )
    prompts = read_prompts([PACKAGED_PROMPTS])
    chosen = prompts[:: max(1, len(prompts) // count)][:count]
    accepted = 0
    for number, prompt in enumerate(chosen):
        ids = torch.tensor([build_prompt(native.tokenizer, {}, prompt.text)[-160:]])
        sampling = {"do_sample": True, "temperature": 0.8, "seed": number} if number % 2 else {"do_sample": False}
        expected = native.generate(ids, max_new_tokens=tokens, **sampling)
        for lookahead in (None, LookaheadConfig("auto", 6, adaptive=False)):
            got = ours.generate(ids, max_new_tokens=tokens, lookahead=lookahead, **sampling)
            assert torch.equal(got, expected), prompt.text[:60]
        accepted += ours.stats.accepted
        if number < 2:
            assert torch.equal(ours(expected).logits, native(expected).logits)
    assert accepted > 0
