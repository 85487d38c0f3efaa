"""Gemma 4 with eyes and ears: its text part, which is a ``gemma4_text``; images and sounds are not for this package."""

from __future__ import annotations

from ipex_lookahead.architectures.families import gemma4_text
from ipex_lookahead.architectures.keys import ConfigKeys

KEYS = ConfigKeys(inside="text_config", parts={"gemma4_text": gemma4_text.KEYS})
GGUF = None

spec = gemma4_text.spec
