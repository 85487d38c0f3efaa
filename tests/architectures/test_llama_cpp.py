"""The tiny GGUF files of every family in llama.cpp itself: that these files are what it means by them.

`make test-peers` runs it: ``IPEX_LOOKAHEAD_LLAMA_CPP`` names a Python that can import llama-cpp-python (0.3.36 or
newer).
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf import GGUFReader

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures.adapter import adaptable
from ipex_lookahead.architectures.spec import named_tensors
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.adapters import read_adapter
from ipex_lookahead.checkpoints.placed import run_of
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.engines.api import state_bytes
from tests.support.adapter_files import random_changes, write_gguf_adapter
from tests.support.family_table import CONTEXT, FAMILIES, VOCAB, Variant, variants
from tests.support.gguf_families import PAIRED, architecture, write_gguf
from tests.support.mxfp4 import rounded
from tests.support.tiny_families import build, config_of, distance, logits, text, with_weights

PYTHON = "IPEX_LOOKAHEAD_LLAMA_CPP"
PROGRAM = Path(__file__).parents[1] / "support" / "llama_cpp_logits.py"
if PYTHON not in os.environ:
    pytest.skip(f"{PYTHON} names no Python with llama-cpp-python; make test-peers does", allow_module_level=True)

IN_GGUF = [(model_type, variant) for model_type in FAMILIES for variant in variants(model_type) if variant.gguf]
EACH = pytest.mark.parametrize(
    ("model_type", "variant"), IN_GGUF, ids=[f"{model_type}-{variant.name}" for model_type, variant in IN_GGUF]
)
CLOSE = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4_unified_text", "starcoder2"), 5e-3),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"), 2e-4),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "bailing_hybrid"), 2e-4),
}
"""Of the logits' standard deviation, 2e-5 else: llama.cpp takes GELU from a table in float16, its delta nets read a
prompt in chunks, and its latent attention sums in another order."""


def file_of(folder: Path, model_type: str, variant: Variant, **how: str) -> Path:
    """A GGUF file that llama.cpp takes: it wants to hear that there is no tokenizer, and of how many tokens."""
    metadata: dict[str, str | int] = {"tokenizer.ggml.model": "none"}
    model = build(model_type, variant)
    name = architecture(model.config.get_text_config())
    if (name not in PAIRED or name == "muse-glimmer") and not name.startswith("nemotron_h"):
        metadata[f"{name}.vocab_size"] = VOCAB
    return write_gguf(folder / "m.gguf", model, metadata=metadata, **how)


def logits_of_llama_cpp(file: Path, ids: npt.NDArray[np.int32], **more: object) -> npt.NDArray[np.float32]:
    into, requests = file.with_suffix(".npy"), file.with_suffix(".json")
    request = {"model": str(file), "ids": ids.tolist(), "context": CONTEXT, "into": str(into), **more}
    requests.write_text(json.dumps([request]), encoding="utf-8")
    done = subprocess.run(
        [os.environ[PYTHON], str(PROGRAM), str(requests)], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: npt.NDArray[np.float32] = np.load(into)
    return found


def loads(file: Path) -> bool:
    """Whether llama.cpp reads the file at all."""
    try:
        logits_of_llama_cpp(file, np.array([5], np.int32))
    except AssertionError as error:
        return "failed to load model" not in str(error)
    return True


@EACH
def test_llama_cpp_has_the_logits_of_transformers(tmp_path: Path, model_type: str, variant: Variant) -> None:
    model = build(model_type, variant)
    ids = text(model)
    expected = logits(model, ids)
    file = file_of(tmp_path, model_type, variant)
    if not variant.llama_cpp and not loads(file):
        return
    got = logits_of_llama_cpp(file, ids)
    difference = distance(got, expected)
    if variant.llama_cpp:
        assert difference < CLOSE.get(model_type, 2e-5)
    else:
        assert difference > 0.01, f"llama.cpp has it now: {variant.why}"


@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_0"])
@EACH
def test_this_package_has_the_logits_of_llama_cpp(
    tmp_path: Path, model_type: str, variant: Variant, quant: str
) -> None:
    """Activations are rounded differently: by 32 to 8 bits here as there, but not the same way."""
    if not variant.llama_cpp:
        pytest.skip(f"llama.cpp has it otherwise: {variant.why}")
    file = file_of(tmp_path, model_type, variant, quant=quant)
    ids = text(build(model_type, variant))
    expected = logits_of_llama_cpp(file, ids)
    model = AutoModelForCausalLM.from_pretrained(file, threads=1, progress=False, max_context=CONTEXT)
    got = model(torch.from_numpy(ids[None])).logits[0].numpy()
    if quant == "F32":
        assert distance(got, expected) < 1e-2
        return
    off = np.abs(got - expected).max(axis=1) / expected.std()
    # Of the rows, where the rounding sends some to other experts, or states carry what came of it.
    many = model.engine.spec.mixtures or state_bytes(model.engine)
    assert (np.median(off) if many else off.max()) < 0.25


@pytest.mark.parametrize("variant", [one for one in variants("gpt_oss") if one.gguf and "odd" in one.name])
def test_experts_in_mxfp4_have_the_logits_of_transformers(tmp_path: Path, variant: Variant) -> None:
    """Weights that MXFP4 holds exactly; llama.cpp rounds the activations to 8 bits."""
    plain = Variant("mxfp4", {"rope_parameters": variant.values["rope_parameters"]})
    model = rounded(with_weights(config_of("gpt_oss", plain)))
    metadata = {"tokenizer.ggml.model": "none", "gpt-oss.vocab_size": VOCAB}
    file = write_gguf(tmp_path / "m.gguf", model, experts="MXFP4", metadata=metadata)
    ids = text(model)
    assert distance(logits_of_llama_cpp(file, ids), logits(model, ids)) < 0.2


@pytest.mark.parametrize(("alpha", "scale"), [(6.0, 1.0), (0.0, 0.25)])
@pytest.mark.parametrize("model_type", ["llama", "phi3", "qwen3_5_text", "gemma3_text"])
def test_llama_cpp_applies_adapters_as_they_are_read(
    tmp_path: Path, model_type: str, alpha: float, scale: float
) -> None:
    """transformers' model with the matrices that are read for its folder added has the logits of llama.cpp."""
    variant = next(one for one in variants(model_type) if one.gguf)
    model = copy.deepcopy(build(model_type, variant))
    file = file_of(tmp_path, model_type, variant)
    model.save_pretrained(tmp_path / "folder")
    base = open_checkpoint(tmp_path / "folder")
    known = adaptable(base.spec)
    places = {one.gguf.name: one.gguf.shape for _, one in named_tensors(base.spec) if one.name in known}
    changes = random_changes({name.removesuffix(".weight"): (n, m) for name, (n, m) in places.items()})
    named = str(GGUFReader(file).fields["general.architecture"].contents())
    adapter = write_gguf_adapter(tmp_path / "adapter.gguf", changes, architecture=named, alpha=alpha)
    whole = {
        one.hf.name: np.zeros(one.hf.shape, np.float32) for _, one in named_tensors(base.spec) if one.name in known
    }
    tensors = {tensor.name: tensor for _, tensor in named_tensors(base.spec)}
    for name, change in read_adapter(adapter, base.spec, "x").matrices.items():
        place = tensors[name].hf
        run = run_of(tensors[name], place)
        rows = np.arange(place.shape[0])[run.first : run.first + run.span][run.rows]
        whole[place.name][rows] += np.float32(scale * change.scale) * change.b @ change.a
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if (added := whole.get(renamed(name) or "")) is not None:
                weight += torch.from_numpy(added)
    ids = text(model)
    got = logits_of_llama_cpp(file, ids, lora=str(adapter), scale=scale)
    assert distance(got, logits(model, ids)) < 10 * CLOSE.get(model_type, 2e-5)
