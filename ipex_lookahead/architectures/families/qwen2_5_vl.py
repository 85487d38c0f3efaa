"""Qwen2.5-VL: the text part, a `qwen2`; images and videos are not for this package."""

from __future__ import annotations

from ipex_lookahead.architectures.families import qwen2, qwen2_vl
from ipex_lookahead.architectures.keys import ConfigKeys

KEYS = ConfigKeys(
    inside="text_config",
    parts={"qwen2_5_vl_text": qwen2_vl.TEXT, "qwen2_5_vl": qwen2_vl.TEXT},
    outside=True,
)
GGUF = qwen2_vl.GGUF  # only their vision encoders differ

spec = qwen2.spec
