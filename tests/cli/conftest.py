"""A model whose answers are written down, for the commands that need no real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ipex_lookahead.decoding.stats import GenerationStats
from tests.support.chat_tokenizer import SIZE, chat_tokenizer


class ScriptedModel:
    """Answers with the given texts in turn; remembers what it was asked.

    ``interrupt_after`` stops the next answer with KeyboardInterrupt after that many tokens.
    """

    def __init__(self, tokenizer: Any, answers: list[str], context: int = 2048) -> None:
        self.tokenizer = tokenizer
        self.config = SimpleNamespace(to_dict=lambda: {"model_type": "llama", "vocab_size": SIZE})
        facts = {"engine": "scripted", "isa": "scalar", "threads": 1, "low_bit": "sym_int4"}
        self.engine = SimpleNamespace(max_context=context, describe=lambda: facts)
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.stats = GenerationStats()
        self.interrupt_after: int | None = None
        self._answers = list(answers)

    def generate(self, input_ids: torch.Tensor, *, max_new_tokens: int, streamer: Any = None, **settings: Any) -> Any:
        prompt = input_ids[0].tolist()
        self.asked.append((prompt, {"max_new_tokens": max_new_tokens, **settings}))
        text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        new = [*self.tokenizer(text)["input_ids"], self.tokenizer.eos_token_id][:max_new_tokens]
        done = 0
        try:
            if streamer is not None:
                streamer.put(input_ids[0])
                for token in new:
                    if done == self.interrupt_after:
                        self.interrupt_after = None
                        raise KeyboardInterrupt
                    streamer.put(torch.tensor([token]))
                    done += 1
                streamer.end()
            done = len(new)
        finally:
            self.stats = statistics(len(prompt), done)  # as the real one, also of what was interrupted
        return torch.tensor([prompt + new])

    def forget(self) -> None:
        pass


def statistics(prompt: int, new: int) -> GenerationStats:
    """Those of so many tokens, half of them drafted."""
    steps = max(1, new // 2)
    stats = GenerationStats(prompt_tokens=prompt, tokens=new, steps=steps, sequence_steps=steps)
    stats.accepted, stats.drafted = new // 2, new
    stats.prefill_seconds = stats.first_token_seconds = 0.5
    stats.decode_seconds = 1.0
    return stats


@pytest.fixture
def tokenizer() -> Any:
    return chat_tokenizer()


@pytest.fixture
def scripted(tokenizer, monkeypatch):
    """``scripted("an answer", ..., context=N)`` gives the model that commands will load."""

    def make(*answers: str, context: int = 2048) -> ScriptedModel:
        model = ScriptedModel(tokenizer, list(answers) or ["a fine day"], context)
        from ipex_lookahead.cli import loading

        monkeypatch.setattr(loading, "load", lambda name, **options: (model, tokenizer))
        return model

    return make
