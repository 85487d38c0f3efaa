"""Vision-language models, one row each, with the family of their text part.

``vision/`` has the vision parts of those that take images.

If the text part may belong to several families, those are listed with which transformers' class uses the lm_head
without changes; for Granite and Gemma 2 it omits the scaling of logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipex_lookahead.architectures.families import (
    dense,
    find,
    gemma4_text,
    gemma4_unified_text,
    lfm2,
    mixtures,
    muse_glimmer_text,
    qwen3_5_moe_text,
    qwen3_5_text,
)
from ipex_lookahead.architectures.images import OUTER, SECTIONS, VISION, taking_images
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.spec import ModelSpec

_GGUF_VISION = {SECTIONS: "rope.dimension_sections", VISION: "n_deepstack_layers"}


@dataclass(frozen=True)
class VisionLanguage:
    """A vision-language model with the config of the text part in ``text_config``.

    Attributes:
        about: the models, a colon, and the text part.
        KEYS: keys of the whole config and of its text part.
        GGUF: its GGUF files; None: GGUF files hold the text part and have that family's architecture.
    """

    about: str
    KEYS: ConfigKeys
    GGUF: GgufKeys | None = None

    def spec(self, config: dict[str, Any]) -> ModelSpec:
        """Return the decoder for the checked config of the text part."""
        found: ModelSpec = find(config["model_type"]).spec(config)
        return found


def _inside(**parts: ConfigKeys) -> ConfigKeys:
    """Return keys inside ``text_config``; the first part is the default."""
    outer = [key for key in OUTER if any(key in part.used for part in parts.values())]
    return ConfigKeys(inside="text_config", parts=parts, outer=outer)


def _any(models: str, *first: str, token: int | None = None) -> VisionLanguage:
    """Return a model with a text part of several families; ``token``: default of the placeholder's id, if it sees."""
    parts = dict.fromkeys((*first, "llama", "mistral", "qwen2", "qwen3", "phi3"))
    what = f"the text part, usually a `{next(iter(parts))}`"
    keys = {part: dense.FAMILIES[part].KEYS for part in parts}
    if token is None:
        return VisionLanguage(f"{models}: {what}; images are not supported.", _inside(**keys))
    return VisionLanguage(
        f"{models}: {what}, and images; videos are not supported.",
        _inside(**{part: taking_images(one, token) for part, one in keys.items()}),
    )


def _qwen3_5(family: str, part: ConfigKeys) -> ConfigKeys:
    return taking_images(replace(part, family=family), qwen3_5_text.IMAGE_TOKEN, turns=qwen3_5_text.TURNS)


_MISTRAL, _MINISTRAL = dense.FAMILIES["mistral"].KEYS, dense.FAMILIES["ministral3"].KEYS
_GEMMA3, _CAP = dense.FAMILIES["gemma3_text"].KEYS, "final_logit_softcapping"
_QWEN2, _QWEN3 = dense.FAMILIES["qwen2"].KEYS, dense.FAMILIES["qwen3"].KEYS
_NO_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_GEMMA3_TEXT = replace(
    _GEMMA3,
    used={key: check for key, check in _GEMMA3.used.items() if key != _CAP},
    nullable=("sliding_window",),
    neutral={**_GEMMA3.neutral, _CAP: "transformers' vision-language class does not cap logits"},
)
_QWEN2_TEXT = replace(
    _QWEN2,
    family="qwen2",
    defaults={
        **_QWEN2.defaults, "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 1e6, "max_window_layers": 80,
    },
)  # fmt: skip
_QWEN2_TEXT = taking_images(_QWEN2_TEXT, 151655, turns=[16, 24, 24])
_QWEN2_GGUF = GgufKeys(
    "qwen2vl",
    "Qwen2ForCausalLM",
    used={SECTIONS: "rope.dimension_sections"},
)
_QWEN3_TEXT = replace(
    _QWEN3,
    family="qwen3",
    neutral={
        **_QWEN3.neutral,
        **dict.fromkeys(_NO_WINDOWS, "for windows, which transformers' Qwen3-VL lacks"),
    },
    used={key: check for key, check in _QWEN3.used.items() if key not in _NO_WINDOWS},
    defaults={
        **_QWEN3.defaults, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 128000, "rope_theta": 500000.0,
    },
)  # fmt: skip

_QWEN3_MOE = mixtures.FAMILIES["qwen3_moe"]
_QWEN3_MOE_TEXT = replace(
    _QWEN3_MOE.KEYS,
    family="qwen3_moe",
    neutral={
        **_QWEN3_MOE.KEYS.neutral,
        **dict.fromkeys(_NO_WINDOWS, "for windows, which transformers' Qwen3-VL lacks"),
        "norm_topk_prob": "transformers' Qwen3-VL always divides by the sum of the chosen experts' weights",
    },
    refused={},
    used={key: check for key, check in _QWEN3_MOE.KEYS.used.items() if key not in (*_NO_WINDOWS, "norm_topk_prob")},
    defaults={
        **_QWEN3_MOE.KEYS.defaults, "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
        "max_position_embeddings": 128000, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "norm_topk_prob": True,
    },
    check=lambda config, source: mixtures.check_qwen3(config, source, default=60),
)  # fmt: skip
_QWEN3_TEXT = taking_images(_QWEN3_TEXT, 151655, turns=[24, 20, 20], deepstack=True)
_QWEN3_MOE_TEXT = taking_images(_QWEN3_MOE_TEXT, 151655, turns=[24, 20, 20], deepstack=True)

FAMILIES: Mapping[str, VisionLanguage] = {
    "gemma3": VisionLanguage(
        "Gemma 3 with vision (4B, 12B and 27B): the text part, a `gemma3_text`, and images.",
        _inside(gemma3_text=taking_images(_GEMMA3_TEXT, 262144, key="image_token_index")),
    ),
    "gemma4": VisionLanguage(
        "Gemma 4 with vision and audio: the text part, a `gemma4_text`, and images; audio is not supported.",
        _inside(gemma4_text=taking_images(gemma4_text.KEYS, 258880)),
    ),
    "gemma4_unified": VisionLanguage(
        "Gemma 4 12B with vision and audio: the text part, a `gemma4_unified_text`, and images; no audio.",
        _inside(gemma4_unified_text=taking_images(gemma4_unified_text.KEYS, 258880)),
    ),
    "idefics3": _any("Idefics 3", token=128257),
    "internvl": _any("InternVL 3 and 3.5 (their -hf folders)", "qwen2"),
    "lfm2_vl": VisionLanguage(
        "LFM2-VL and LFM2.5-VL: the text part, an `lfm2`, and images.",
        _inside(lfm2=taking_images(lfm2.KEYS, lfm2.IMAGE_TOKEN)),
    ),
    "llava": _any("LLaVA 1.5 and similar models"),
    "llava_next": _any("LLaVA-NeXT (1.6)"),
    "llava_onevision": _any("LLaVA-OneVision", "qwen2"),
    "mistral3": VisionLanguage(
        "Mistral Small 3.1 and Ministral 3 with vision: the text part, a `mistral` or `ministral3`; no images.",
        _inside(mistral=_MISTRAL, ministral3=_MINISTRAL),
    ),
    "muse_glimmer": VisionLanguage(
        "Muse-Glimmer 30B: the text part, a `muse_glimmer_text`; images and videos are not supported.",
        _inside(muse_glimmer_text=muse_glimmer_text.KEYS),
    ),
    "qwen2_vl": VisionLanguage(
        "Qwen2-VL: the text part, a `qwen2`; images and videos are not supported.",
        replace(_inside(qwen2_vl_text=_QWEN2_TEXT, qwen2_vl=_QWEN2_TEXT), outside=True),
        _QWEN2_GGUF,
    ),
    "qwen2_5_vl": VisionLanguage(
        "Qwen2.5-VL: the text part, a `qwen2`; images and videos are not supported.",
        replace(_inside(qwen2_5_vl_text=_QWEN2_TEXT, qwen2_5_vl=_QWEN2_TEXT), outside=True),
        _QWEN2_GGUF,
    ),
    "qwen3_vl": VisionLanguage(
        "Qwen3-VL (dense): the text part, a `qwen3`, and images; videos are not supported.",
        _inside(qwen3_vl_text=_QWEN3_TEXT, qwen3_vl=_QWEN3_TEXT),
        GgufKeys("qwen3vl", "Qwen3ForCausalLM", used=_GGUF_VISION, constants={"attention_bias": False}),
    ),
    "qwen3_vl_moe": VisionLanguage(
        "Qwen3-VL with experts (30B-A3B, 235B-A22B): the text part, a `qwen3_moe`, and images; no videos.",
        _inside(qwen3_vl_moe_text=_QWEN3_MOE_TEXT, qwen3_vl_moe=_QWEN3_MOE_TEXT),
        replace(
            _QWEN3_MOE.GGUF,
            architecture="qwen3vlmoe",
            used={**_QWEN3_MOE.GGUF.used, **_GGUF_VISION},
            complete=mixtures.complete_qwen3,
        ),
    ),
    "qwen3_5": VisionLanguage(
        "Qwen3.5 to 3.8 (dense), the whole model: the text part, a `qwen3_5_text`, and images; no videos.",
        _inside(qwen3_5_text=_qwen3_5("qwen3_5_text", qwen3_5_text.KEYS)),
    ),
    "qwen3_5_moe": VisionLanguage(
        "Qwen3.5 to 3.8 with experts, the whole model: the text part, a `qwen3_5_moe_text`, and images.",
        _inside(qwen3_5_moe_text=_qwen3_5("qwen3_5_moe_text", qwen3_5_moe_text.KEYS)),
    ),
    "smolvlm": _any("SmolVLM and SmolVLM 2", token=128257),
    "vipllava": _any("ViP-LLaVA"),
}
"""``model_type`` -> the family."""
