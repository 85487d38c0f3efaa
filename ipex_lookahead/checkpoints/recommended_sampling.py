"""Sampling that a model's authors recommend, where its files do not have it.

It is in ``generation_config.json``, or in a GGUF file's ``general.sampling.*``, which llama.cpp's converter copies from
there. Without either, a table has families with a recommendation elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SETTINGS = ("temperature", "top_k", "top_p", "min_p")
"""Sampling options, by transformers' names."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share a recommendation.

    Attributes:
        name: name in messages.
        model_types: of their configs.
        marker: a text that their chat templates hold; "": any template. Base models have none, and no entry.
        settings: by the names of ``SETTINGS``.
        source: document of the models' authors.
    """

    name: str
    model_types: tuple[str, ...]
    marker: str
    settings: Mapping[str, float]
    source: str


_QWEN35 = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
FAMILIES = (
    Family("SmolLM2", ("llama",), "named SmolLM, trained by Hugging Face", {"temperature": 0.2, "top_p": 0.9},
           "the model card of HuggingFaceTB/SmolLM2-135M-Instruct"),
    Family("SmolLM3", ("smollm3",), "", {"temperature": 0.6, "top_p": 0.95},
           "the model card of HuggingFaceTB/SmolLM3-3B"),
    Family("Llama 3", ("llama",), "<|start_header_id|>", {"temperature": 0.6, "top_p": 0.9},
           "generation_config.json of meta-llama/Llama-3.1-8B-Instruct"),
    Family("Qwen2.5", ("qwen2",), "You are Qwen, created by Alibaba Cloud",
           {"temperature": 0.7, "top_p": 0.8, "top_k": 20}, "generation_config.json of Qwen/Qwen2.5-7B-Instruct"),
    Family("Qwen3, thinking", ("qwen3", "qwen3_moe"), "<think>", {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
           "the model card of Qwen/Qwen3-8B, best practices"),
    Family("Qwen3, instruct", ("qwen3", "qwen3_moe"), "", {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
           "the model card of Qwen/Qwen3-4B-Instruct-2507, best practices"),
    Family("Qwen3.5, thinking", _QWEN35, "enable_thinking is false", {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
           "the model card of Qwen/Qwen3.5-35B-A3B, best practices"),
    Family("Qwen3.5, instruct", _QWEN35, "", {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
           "the model card of Qwen/Qwen3.5-35B-A3B, best practices without thinking"),
    Family("LFM2", ("lfm2", "lfm2_moe"), "<|tool_list_start|>", {"temperature": 0.3, "min_p": 0.15},
           "the model card of LiquidAI/LFM2-1.2B"),
    Family("Nemotron 3 Nano", ("nemotron_h",), "<function=", {"temperature": 1.0, "top_p": 1.0},
           "the model card of nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    Family("Gemma 3", ("gemma3", "gemma3_text"), "", {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
           "generation_config.json of google/gemma-3-4b-it"),
    Family("Gemma 4", ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"), "",
           {"temperature": 1.0, "top_p": 0.95, "top_k": 64},
           "the model card of google/gemma-4-E4B-it, best practices"),
    Family("gpt-oss", ("gpt_oss",), "", {"temperature": 1.0, "top_p": 1.0, "top_k": 0},
           "the README of openai/gpt-oss, recommended sampling parameters"),
    Family("Olmo 3", ("olmo3",), "", {"temperature": 0.6, "top_p": 0.95},
           "the model card of allenai/Olmo-3-7B-Instruct"),
)  # fmt: skip
"""Families that the native engine runs; the first that fits is taken."""


def with_recommended(
    generation_config: Mapping[str, Any], config: Mapping[str, Any], template: str | Mapping[str, str] | None
) -> tuple[dict[str, Any], str]:
    """Return the generation config, with recommended sampling where it has none, and the source of its sampling.

    Args:
        generation_config: the checkpoint's own, by transformers' names.
        config: of the checkpoint; its ``model_type`` is looked at.
        template: the tokenizer's chat template, or several by name; None: it has none.

    Returns:
        The config, and its source for people: "the model's own generation config", that of the table, or "" for none.
    """
    own = dict(generation_config)
    if any(own.get(name) is not None for name in ("do_sample", *SETTINGS)):
        return own, "the model's own generation config"
    said = "\n".join(template.values()) if isinstance(template, Mapping) else template
    for family in FAMILIES:
        if said and config.get("model_type") in family.model_types and family.marker in said:
            return {**own, "do_sample": True, **family.settings}, family.source
    return own, ""


def temperature_of(generation_config: Mapping[str, Any]) -> float:
    """Return the temperature of a generation config; 0, the most likely token, where it does not sample.

    Sampling options without ``do_sample`` are a recommendation to sample: they have no other use.
    """
    samples = any(generation_config.get(name) is not None for name in SETTINGS)
    if not generation_config.get("do_sample", samples):
        return 0.0
    temperature = generation_config.get("temperature")
    return 1.0 if temperature is None else float(temperature)
