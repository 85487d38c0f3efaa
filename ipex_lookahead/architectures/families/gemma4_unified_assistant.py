"""Drafting heads of Gemma 4 12B: a `gemma4_assistant` with that model's text part."""

from __future__ import annotations

from ipex_lookahead.architectures.families import gemma4_assistant, gemma4_unified_text

KEYS = gemma4_assistant.keys_of("gemma4_unified_text", gemma4_unified_text.KEYS, 3840)
GGUF = None
spec = gemma4_assistant.spec
