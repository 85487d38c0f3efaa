"""Models that see of which nothing but the text part is of this package: which families that part may be.

They are those whose head transformers' class has as it is: of Granite and Gemma 2 it leaves out what they do to their
logits. Models that see and whose text part is one of their own have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from ipex_lookahead.architectures.families import llama, ministral3, mistral, phi3, qwen2, qwen3
from ipex_lookahead.architectures.keys import ConfigKeys, Family

_ANY = {
    "llama": llama.KEYS, "mistral": mistral.KEYS, "qwen2": qwen2.KEYS, "qwen3": qwen3.KEYS, "phi3": phi3.KEYS,
}  # fmt: skip


def _family(models: str, parts: Mapping[str, ConfigKeys], text: str = "") -> Family:
    """The first of ``parts`` is meant where a config does not say; a GGUF file of these holds the text part alone."""
    text = text or f"the text part, a `{next(iter(parts))}` as a rule; images are not for this package"
    keys = ConfigKeys(inside="text_config", parts=parts)
    found: Any = SimpleNamespace(__doc__=f"{models}: {text}.", KEYS=keys, GGUF=None, spec=llama.spec)
    return cast(Family, found)


_QWEN2_FIRST = {"qwen2": qwen2.KEYS, **_ANY}
FAMILIES: Mapping[str, Family] = {
    "idefics3": _family("Idefics 3", _ANY),
    "internvl": _family("InternVL 3 and 3.5 (their -hf folders)", _QWEN2_FIRST),
    "llava": _family("LLaVA 1.5 and others of its form", _ANY),
    "llava_next": _family("LLaVA-NeXT (1.6)", _ANY),
    "llava_onevision": _family("LLaVA-OneVision", _QWEN2_FIRST),
    "mistral3": _family(
        "Mistral Small 3.1 and Ministral 3 with eyes",
        {"mistral": mistral.KEYS, "ministral3": ministral3.KEYS},
        "the text part, a `mistral` or `ministral3`; no images",
    ),
    "smolvlm": _family("SmolVLM and SmolVLM 2", _ANY),
    "vipllava": _family("ViP-LLaVA", _ANY),
}
"""``model_type`` -> the family."""
