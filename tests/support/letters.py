"""A model whose tokens are letters, for tests of services."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.runtime.service import Event
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.scripted_engine import markov

VOCAB = 24


class Letters:
    """A tokenizer of one letter a token."""

    chat_template = None

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(ord("a") + token) for token in ids)

    def get_vocab(self) -> dict[str, int]:
        return {chr(ord("a") + token): token for token in range(VOCAB)}


def text_model(engine: Any = None, **generation_config: Any) -> TextModel:
    engine = markov(VOCAB, order=2, seed=4) if engine is None else engine
    loaded = LoadedModel(engine, "fp32", generation_config=generation_config)
    return TextModel(loaded, Letters())  # type: ignore[arg-type]


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]
