"""A model whose answers are written down, for the commands that need no real one."""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.runtime.recommended import resolved
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.support.chat_tokenizer import SIZE, chat_tokenizer, write_chat_llama


class ScriptedModel:
    """Answers with the given texts in turn; remembers what it was asked.

    ``interrupt_after`` stops the next answer with KeyboardInterrupt after that many tokens; ``signal_after`` sends the
    process the signal that a terminal sends for Ctrl-C. ``generation_defaults`` is its generation config.
    """

    recommended_by = "its makers"

    def __init__(self, tokenizer: Any, answers: list[str], context: int = 2048) -> None:
        self.tokenizer = tokenizer
        self.config = {"model_type": "llama", "vocab_size": SIZE}
        facts = {"engine": "scripted", "isa": "scalar", "threads": 1, "low_bit": "sym_int4"}
        self.engine = SimpleNamespace(max_context=context, vocab_size=SIZE, describe=lambda: facts)
        self.asked: list[tuple[list[int], dict[str, Any]]] = []
        self.stats = GenerationStats()
        self.generation_defaults: dict[str, Any] = {}
        self.fingerprint = b"model"
        self.cache_files: Any = None
        self.source = self.mmproj = None
        self.closed = 0
        self.interrupt_after: int | None = None
        self.signal_after: int | None = None
        self._answers = list(answers)

    def forget(self) -> None:
        """As ``TextModel.forget``."""

    def use_cache_folder(self, folder: Path | None, size: int | None = None) -> None:
        """As ``TextModel.use_cache_folder``."""
        self.cache_files = folder and SimpleNamespace(folder=folder, fingerprint=lambda engine: self.fingerprint)

    def close(self) -> None:
        """As ``TextModel.close``."""
        self.closed += 1

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """As ``TextModel.resolved``."""
        return resolved(params, self.generation_defaults)

    def generate(
        self,
        ids: list[int],
        params: Any,
        *,
        on_token: Any = None,
        on_prefill: Any = None,
        cancelled: Any = None,
        keep: bool = False,
        **drafting: Any,
    ) -> Any:
        """As ``TextModel.generate``."""
        given = {name: value for name, value in asdict(params).items() if value not in (None, ())}
        self.asked.append((list(ids), {**given, **drafting}))
        if on_prefill is not None:
            on_prefill(len(ids), len(ids))
        text = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        whole = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
        new, done = whole[: params.max_new_tokens], 0
        stopped = False
        try:
            for token in new:
                if done == self.interrupt_after:
                    self.interrupt_after = None
                    raise KeyboardInterrupt
                if done == self.signal_after:
                    self.signal_after = None
                    signal.raise_signal(signal.SIGINT)
                if stopped := cancelled is not None and cancelled():
                    break
                if on_token is not None:
                    on_token(token)
                done += 1
        finally:
            self.stats = statistics(len(ids), done)  # as the real one, also of what was interrupted
            reason = "stop" if len(new) == len(whole) else "length"
            self.stats.finish_reasons = ["cancelled" if stopped else reason]
            params = self.resolved(params)
            if params.temperature:
                self.stats.seed = 1234 if params.seed is None else params.seed
                self.stats.temperature = params.temperature
        return new[:done]


def statistics(prompt: int, new: int) -> GenerationStats:
    """Those of so many tokens, half of them drafted."""
    steps = max(1, new // 2)
    stats = GenerationStats(prompt_tokens=prompt, tokens=new, steps=steps, sequence_steps=steps)
    stats.accepted, stats.drafted = new // 2, new
    stats.prefill_seconds = stats.first_token_seconds = 0.5
    stats.decode_seconds = 1.0
    return stats


@pytest.fixture(autouse=True)
def nothing_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input is empty, whatever the tests are run from."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))


@pytest.fixture
def tokenizer() -> Any:
    return chat_tokenizer()


@pytest.fixture
def scripted(tokenizer, monkeypatch):
    """``scripted("an answer", ..., context=N)`` gives the model that commands will load."""

    def make(*answers: str, context: int = 2048) -> ScriptedModel:
        model = ScriptedModel(tokenizer, list(answers) or ["a fine day"], context)
        from ipex_lookahead.cli import loading

        monkeypatch.setattr(loading, "load_text", lambda name, **options: model)
        return model

    return make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a chat template, of as many layers as a head that is made for it needs."""
    return write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", layers=4)


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """A text of forty."""
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"the cat number {number} sat on the mat" for number in range(40)))
    return file
