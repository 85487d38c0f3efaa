"""Gemma 3 with eyes (4B, 12B and 27B): its text part, which is a ``gemma3_text``; images are not for this package."""

from __future__ import annotations

from ipex_lookahead.architectures import gemma3_text
from ipex_lookahead.architectures.keys import ConfigKeys

KEYS = ConfigKeys(inside="text_config", parts={"gemma3_text": gemma3_text.KEYS})
GGUF = None  # a file of these holds the text part, like any other of the architecture

spec = gemma3_text.spec
