"""SmolVLM and SmolVLM 2: the text part, a `llama` as a rule; images are not for this package."""

from __future__ import annotations

from ipex_lookahead.architectures import llama
from ipex_lookahead.architectures.eyes import with_text

KEYS = with_text("llama")
GGUF = None  # a file of these holds the text part, like any other of its architecture

spec = llama.spec
