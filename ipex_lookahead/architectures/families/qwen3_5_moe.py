"""Qwen3.5 to 3.8 with experts, the whole: a text part, which is a `qwen3_5_moe_text`; no images."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.architectures.families import qwen3_5_moe_text
from ipex_lookahead.architectures.keys import ConfigKeys

_TEXT = replace(qwen3_5_moe_text.KEYS, family="qwen3_5_moe_text")
KEYS = ConfigKeys(inside="text_config", parts={"qwen3_5_moe_text": _TEXT})
GGUF = None

spec = qwen3_5_moe_text.spec
