"""Mistral Small 3.1 and Ministral 3 with eyes: the text part, a ``mistral`` or ``ministral3``; no images."""

from __future__ import annotations

from ipex_lookahead.architectures import ministral3, mistral
from ipex_lookahead.architectures.keys import ConfigKeys

KEYS = ConfigKeys(inside="text_config", parts={"mistral": mistral.KEYS, "ministral3": ministral3.KEYS})
GGUF = None  # a file of these holds the text part, like any other of its architecture

spec = mistral.spec
