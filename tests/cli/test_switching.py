"""``/model`` in a chat: another model continues the conversation, or the earlier one does."""

from __future__ import annotations

import gc
import io
import shutil
import sys
import weakref

import pytest

from ipex_lookahead.cli import switching
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.session import Session
from ipex_lookahead.runtime import loading
from tests.support.chat_tokenizer import write_chat_llama

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of two models, and of one whose weights are damaged behind valid headers."""
    folder = tmp_path_factory.mktemp("models")
    one, other = (write_chat_llama(folder / name, context=context) for name, context in (("one", 512), ("other", 256)))
    broken = shutil.copytree(one, folder / "broken")
    (broken / "tokenizer.json").write_text("{}")
    return one, other, broken


@pytest.fixture
def talk(models, monkeypatch, capsys):
    """``talk(line, ...)`` chats with the first model; returns what is printed, and the sessions' turns at the end."""
    sessions: list[Session] = []
    begin = Session.__init__

    def remember(self, *arguments, **named):
        begin(self, *arguments, **named)
        sessions.append(self)

    monkeypatch.setattr(Session, "__init__", remember)

    def run_lines(*lines: str):
        content = "".join(f"{line}\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        assert run(["chat", "-m", str(models[0]), "--threads", "1", "-n", "8"]) == 0
        return capsys.readouterr().err, sessions[-1]

    return run_lines


def test_the_conversation_continues_with_the_other_model(models, talk):
    one, other, _ = models
    said, session = talk("Hello", f"/model {other}", "And now", "/model", "/undo", f"/model {one}", "/stats")
    assert f"model: {other}" in said
    assert "context 256 tokens" in said
    assert f"* {other} (" in said
    assert f"  {one} (" in said
    assert [turn.user for turn in session.conversation.turns] == ["Hello"]
    assert session.context == 512
    assert session.models.name == str(one)


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["both fit", "one fits"])
def test_the_memory_of_the_earlier_model_is_released(free, models, talk, monkeypatch):
    alive: list[weakref.ref] = []
    before: list[int] = []
    load = loading.load_text_model

    def watched(*arguments, **named):
        gc.collect()
        before.append(sum(one() is not None for one in alive))
        model = load(*arguments, **named)
        alive.append(weakref.ref(model.engine))
        return model

    monkeypatch.setattr(loading, "load_text_model", watched)
    monkeypatch.setattr(switching, "free_memory", lambda: free)
    monkeypatch.setattr(switching, "weight_bytes", lambda path, low_bit: 1000)
    monkeypatch.setattr(switching, "PROCESS_BYTES", 0)
    _, session = talk("Hello", f"/model {models[1]}", "And now")
    assert before == [0, 1 if free else 0], "the earlier model is released before only if both do not fit"
    assert len(session.conversation.turns) == 2
    gc.collect()
    assert alive[0]() is None, "the earlier model is released"


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["both fit", "one fits"])
def test_a_model_that_cannot_be_loaded_leaves_the_earlier_one(free, models, talk, monkeypatch):
    monkeypatch.setattr(switching, "free_memory", lambda: free)
    monkeypatch.setattr(switching, "weight_bytes", lambda path, low_bit: 1000)
    monkeypatch.setattr(switching, "PROCESS_BYTES", 0)
    said, session = talk("Hello", f"/model {models[2]}", "And now")
    assert "error: " in said
    assert "tokenizer.json" in said
    assert [turn.user for turn in session.conversation.turns] == ["Hello", "And now"]
    assert session.models.name == str(models[0])


def test_what_is_refused(models, talk, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    said, session = talk("Hello", f"/model {models[0]}", "/model no-such-model", f"/model {tmp_path / 'empty'}")
    assert f"{models[0]} is already in use" in said
    assert "no model named 'no-such-model'" in said
    assert said.count("error: ") == 3
    monkeypatch.setattr(switching, "free_memory", lambda: 0)
    said, session = talk("Hello", f"/model {models[1]}", "And now")
    assert "GB of memory, and 0.0 GB are free" in said
    assert len(session.conversation.turns) == 2
