"""What ipex-llm has and this package has not, and what to use instead: an import of it fails with that sentence."""

from __future__ import annotations

from typing import NoReturn

_TRAINING = (
    "models here are for inference; fine-tune with peft, merge the adapter (merge_and_unload), and load the result"
)
_GGML = "ipex-llm's own ggml files are not read; AutoModelForCausalLM.from_gguf reads llama.cpp's GGUF files"
_ONE_DEVICE = "a model runs on one device; load it with AutoModelForCausalLM.from_pretrained"
_OPTIMIZE = "ipex_lookahead.optimize_model(model, low_bit=...) packs a loaded model's layers"
_NPU = "there is no engine for NPUs; the same classes of ipex_lookahead.transformers run on the CPU and on Intel GPUs"

ABSENT_NAMES = {
    "ipex_lookahead": {
        "llm_convert": _GGML,
        "llm_patch": "nothing of transformers is patched; import AutoModelForCausalLM from ipex_lookahead.transformers",
        "llm_unpatch": "nothing of transformers is patched; leave it out",
    },
    "ipex_lookahead.transformers": {
        "BloomForCausalLM": _GGML,
        "ChatGLMForCausalLM": _GGML,
        "GptneoxForCausalLM": _GGML,
        "LlamaForCausalLM": _GGML,
        "StarcoderForCausalLM": _GGML,
        "PPModelWorker": _ONE_DEVICE,
        "Qwen2VLForConditionalGeneration": "load it with transformers; ipex_lookahead.optimize_model packs its layers",
        "convert_model_hybrid": _OPTIMIZE,
        "ggml_convert_low_bit": _OPTIMIZE,
        "init_pipeline_parallel": _ONE_DEVICE,
    },
    "ipex_lookahead.transformers.convert": {
        "convert_model_hybrid": _OPTIMIZE,
        "ggml_convert_low_bit": _OPTIMIZE,
    },
}
"""Module here -> names that ipex-llm has in its module of that name, and what to do without them."""

ABSENT_MODULES = {
    "ipex_lookahead.transformers.low_bit_linear": f"its layers are not ipex-llm's; {_OPTIMIZE}",
    "ipex_lookahead.transformers.models": "models are not rewritten in Python; leave it out",
    "ipex_lookahead.transformers.npu_model": _NPU,
    "ipex_lookahead.transformers.pipeline_parallel": _ONE_DEVICE,
    "ipex_lookahead.transformers.qlora": _TRAINING,
    "ipex_lookahead.transformers.streamer": "transformers' TextIteratorStreamer works with generate",
    "ipex_lookahead.utils": "it is internal to ipex-llm; raise your own errors, and measure with ipex-lookahead bench",
    "ipex_lookahead.vllm": "this package has no vLLM backend; `ipex-lookahead serve` provides the OpenAI API and"
    " batches concurrent requests, and Python has model.generate and model.stream",
}
"""Module of ipex-llm, by its name here -> what to do without it."""


def refuse_name(module: str, name: str) -> NoReturn:
    """For a module's ``__getattr__``: ImportError with a sentence for a name of ipex-llm's, else AttributeError."""
    if reason := ABSENT_NAMES.get(module, {}).get(name):
        raise ImportError(f"{_theirs(module)}.{name} is not in ipex-lookahead: {reason}", name=name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def refuse_module(module: str) -> NoReturn:
    """Raise ImportError for a module of ipex-llm that has no counterpart, with its replacement."""
    raise ImportError(f"{_theirs(module)} is not in ipex-lookahead: {ABSENT_MODULES[module]}", name=module)


def _theirs(module: str) -> str:
    return module.replace("ipex_lookahead", "ipex_llm", 1)
