"""Gemma 3 with eyes (4B, 12B and 27B): its text part, which is a ``gemma3_text``; images are not for this package."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.architectures.families import gemma3_text
from ipex_lookahead.architectures.keys import ConfigKeys

_CAP = "final_logit_softcapping"
_TEXT = replace(
    gemma3_text.KEYS,
    used={key: check for key, check in gemma3_text.KEYS.used.items() if key != _CAP},
    nullable=("sliding_window",),
    neutral={**gemma3_text.KEYS.neutral, _CAP: "transformers' class with eyes caps no logits"},
)
KEYS = ConfigKeys(inside="text_config", parts={"gemma3_text": _TEXT})
GGUF = None  # a file of these holds the text part, like any other of the architecture

spec = gemma3_text.spec
