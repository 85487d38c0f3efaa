"""Models that see: which text parts they may have, those of families here whose head transformers' class has as it is.

(Of Granite and Gemma 2 it leaves out what they do to their logits.)
"""

from __future__ import annotations

from ipex_lookahead.architectures import llama, mistral, phi3, qwen2, qwen3
from ipex_lookahead.architectures.keys import ConfigKeys

_ANY = {
    "llama": llama.KEYS, "mistral": mistral.KEYS, "qwen2": qwen2.KEYS, "qwen3": qwen3.KEYS, "phi3": phi3.KEYS,
}  # fmt: skip


def with_text(first: str) -> ConfigKeys:
    """The keys of a model whose text part may be any of these, and is ``first`` where it does not say."""
    return ConfigKeys(inside="text_config", parts={first: _ANY[first], **_ANY})
