"""Models that see, a row each: which family their text part is. Images are not for this package.

Of a part that may be several families, these are those whose head transformers' class has as it is: of Granite and
Gemma 2 it leaves out what they do to their logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipex_lookahead.architectures.families import dense, find, gemma4_text, qwen3_5_moe_text, qwen3_5_text
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.spec import ModelSpec

VISION_KEYS = {
    "rope.dimension_sections": "which of a place's three numbers turns a pair; a text's are the same",
    "n_deepstack_layers": "how many layers take what an image's encoder saw on its way; a text has no image",
}


@dataclass(frozen=True)
class Seeing:
    """A model that sees, in whose config the text part is ``text_config``.

    Attributes:
        about: the models, a colon, and what the text part is.
        KEYS: the keys of the whole and of its text part.
        GGUF: its GGUF files; None: a file of these holds the text part, like any other of the part's architecture.
    """

    about: str
    KEYS: ConfigKeys
    GGUF: GgufKeys | None = None

    def spec(self, config: dict[str, Any]) -> ModelSpec:
        """Return the decoder that the checked config of the text part describes."""
        found: ModelSpec = find(config["model_type"]).spec(config)
        return found


def _inside(**parts: ConfigKeys) -> ConfigKeys:
    """Keys inside ``text_config``; the first part is meant where a config names none."""
    return ConfigKeys(inside="text_config", parts=parts)


def _any(models: str, *first: str) -> Seeing:
    parts = dict.fromkeys((*first, "llama", "mistral", "qwen2", "qwen3", "phi3"))
    what = f"the text part, a `{next(iter(parts))}` as a rule; images are not for this package"
    return Seeing(f"{models}: {what}.", _inside(**{part: dense.FAMILIES[part].KEYS for part in parts}))


_MISTRAL, _MINISTRAL = dense.FAMILIES["mistral"].KEYS, dense.FAMILIES["ministral3"].KEYS
_GEMMA3, _CAP = dense.FAMILIES["gemma3_text"].KEYS, "final_logit_softcapping"
_QWEN2, _QWEN3 = dense.FAMILIES["qwen2"].KEYS, dense.FAMILIES["qwen3"].KEYS
_NO_WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_GEMMA3_TEXT = replace(
    _GEMMA3,
    used={key: check for key, check in _GEMMA3.used.items() if key != _CAP},
    nullable=("sliding_window",),
    neutral={**_GEMMA3.neutral, _CAP: "transformers' class with eyes caps no logits"},
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
_QWEN2_GGUF = GgufKeys(
    "qwen2vl",
    "Qwen2ForCausalLM",
    neutral={"rope.dimension_sections": VISION_KEYS["rope.dimension_sections"]},
)
_QWEN3_TEXT = replace(
    _QWEN3,
    family="qwen3",
    neutral={
        **_QWEN3.neutral,
        **dict.fromkeys(_NO_WINDOWS, "of windows, which transformers' Qwen3-VL has none of"),
    },
    used={key: check for key, check in _QWEN3.used.items() if key not in _NO_WINDOWS},
    defaults={
        **_QWEN3.defaults, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 128000, "rope_theta": 500000.0,
    },
)  # fmt: skip

FAMILIES: Mapping[str, Seeing] = {
    "gemma3": Seeing(
        "Gemma 3 with eyes (4B, 12B and 27B): its text part, which is a ``gemma3_text``; images are not for this"
        " package.",
        _inside(gemma3_text=_GEMMA3_TEXT),
    ),
    "gemma4": Seeing(
        "Gemma 4 with eyes and ears: its text part, which is a ``gemma4_text``; images and sounds are not for this"
        " package.",
        _inside(gemma4_text=gemma4_text.KEYS),
    ),
    "idefics3": _any("Idefics 3"),
    "internvl": _any("InternVL 3 and 3.5 (their -hf folders)", "qwen2"),
    "llava": _any("LLaVA 1.5 and others of its form"),
    "llava_next": _any("LLaVA-NeXT (1.6)"),
    "llava_onevision": _any("LLaVA-OneVision", "qwen2"),
    "mistral3": Seeing(
        "Mistral Small 3.1 and Ministral 3 with eyes: the text part, a `mistral` or `ministral3`; no images.",
        _inside(mistral=_MISTRAL, ministral3=_MINISTRAL),
    ),
    "qwen2_vl": Seeing(
        "Qwen2-VL: the text part, a `qwen2`; images and videos are not for this package.",
        replace(_inside(qwen2_vl_text=_QWEN2_TEXT, qwen2_vl=_QWEN2_TEXT), outside=True),
        _QWEN2_GGUF,
    ),
    "qwen2_5_vl": Seeing(
        "Qwen2.5-VL: the text part, a `qwen2`; images and videos are not for this package.",
        replace(_inside(qwen2_5_vl_text=_QWEN2_TEXT, qwen2_5_vl=_QWEN2_TEXT), outside=True),
        _QWEN2_GGUF,
    ),
    "qwen3_vl": Seeing(
        "Qwen3-VL (dense): the text part, a `qwen3`; images and videos are not for this package.",
        _inside(qwen3_vl_text=_QWEN3_TEXT, qwen3_vl=_QWEN3_TEXT),
        GgufKeys("qwen3vl", "Qwen3ForCausalLM", constants={"attention_bias": False}, neutral=VISION_KEYS),
    ),
    "qwen3_5": Seeing(
        "Qwen3.5 to 3.8 (dense), the whole: a text part, which is a `qwen3_5_text`; no images and videos.",
        _inside(qwen3_5_text=replace(qwen3_5_text.KEYS, family="qwen3_5_text")),
    ),
    "qwen3_5_moe": Seeing(
        "Qwen3.5 to 3.8 with experts, the whole: a text part, which is a `qwen3_5_moe_text`; no images.",
        _inside(qwen3_5_moe_text=replace(qwen3_5_moe_text.KEYS, family="qwen3_5_moe_text")),
    ),
    "smolvlm": _any("SmolVLM and SmolVLM 2"),
    "vipllava": _any("ViP-LLaVA"),
}
"""``model_type`` -> the family."""
