"""Gemma 3 with eyes (4B, 12B and 27B): its text part, which is a ``gemma3_text``; images are not for this package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures import gemma3_text
from ipex_lookahead.architectures.hparams import Source, one_of
from ipex_lookahead.architectures.spec import ModelSpec

PART = "gemma3_text"


def _check(config: dict[str, Any], source: Source) -> None:
    gemma3_text.KEYS.check(config, source)
    config["model_type"] = PART


KEYS = replace(
    gemma3_text.KEYS, used={**gemma3_text.KEYS.used, "model_type": one_of(PART)}, check=_check, inside="text_config"
)
GGUF = None  # a file of these holds the text part, like any other of the architecture

rename = gemma3_text.rename


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that the text part of a gemma3 ``config`` describes."""
    return gemma3_text.spec(config)
