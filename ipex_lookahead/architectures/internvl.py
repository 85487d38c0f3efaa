"""InternVL 3 and 3.5 (their -hf folders): the text part, a `qwen2` as a rule; images are not for this package."""

from __future__ import annotations

from ipex_lookahead.architectures import qwen2
from ipex_lookahead.architectures.eyes import with_text

KEYS = with_text("qwen2")
GGUF = None  # a file of these holds the text part, like any other of its architecture

spec = qwen2.spec
