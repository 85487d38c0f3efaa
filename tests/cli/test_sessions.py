"""Named sessions of ``chat``: what they keep, who may open them, and what happens to damaged ones."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.saved_sessions import SessionFolder, saved_sessions
from ipex_lookahead.errors import InputError
from tests.cli.test_chat import asked, talk

__all__ = ["talk"]


@pytest.fixture(autouse=True)
def sessions(tmp_path, monkeypatch) -> Path:
    """The folder of all sessions."""
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sessions"


def content(sessions: Path, name: str = "work") -> dict:
    return json.loads((sessions / name / "conversation.json").read_text(encoding="utf-8"))


def test_a_session_continues(scripted, talk, sessions):
    """With its messages, token ids, system prompt and settings; those of the command line come first."""
    scripted("one")
    _, err = talk("first", "/set temperature=0.5", arguments=("--session", "work", "--system", "Be brief.", "-n", "99"))
    assert "session work begins" in err
    saved = content(sessions)
    assert [(turn["user"], turn["assistant"]) for turn in saved["turns"]] == [("first", "one")]
    assert (sessions / "work").stat().st_mode & 0o777 == 0o700
    assert (sessions / "work" / "conversation.json").stat().st_mode & 0o777 == 0o600

    model = scripted("two")
    out, err = talk("second", arguments=("--session", "work", "--seed", "3"))
    assert out == "two\n"
    assert "session work continues after 1 turn\n" in err
    assert "Be brief." in asked(model)
    assert "assistant\none<|im_end|>\n<|im_start|>user\nsecond" in asked(model)
    (_, given), *_ = model.asked
    assert (given["temperature"], given["max_new_tokens"], given["seed"]) == (0.5, 99, 3)

    model = scripted("three")
    talk("third", arguments=("--session", "work", "--system", "Be long.", "-n", "7"))
    assert "Be long." in asked(model)
    assert model.asked[0][1]["max_new_tokens"] == 7
    assert len(content(sessions)["turns"]) == 3


def test_generated_ids_come_back_with_the_same_model_only(scripted, talk, sessions):
    """Ids that are no tokens are not used either."""
    model = scripted("one")
    model.fingerprint = b"ab"
    talk("first", arguments=("--session", "work"))
    file = sessions / "work" / "conversation.json"
    own = model.tokenizer.encode("ONE")
    for fingerprint, ids, expected in ((b"ab", own, "ONE"), (b"cd", own, "one"), (b"ab", [10**6], "one")):
        saved = content(sessions)
        saved["turns"][0]["token_ids"], saved["turns"][1:], saved["fingerprint"] = ids, [], b"ab".hex()
        file.write_text(json.dumps(saved), encoding="utf-8")
        model = scripted("two")
        model.fingerprint = fingerprint
        _, err = talk("second", arguments=("--session", "work"))
        assert f"assistant\n{expected}<" in asked(model)
        assert ("its KV cache belongs to default: the whole conversation is read again" in err) == (
            fingerprint == b"cd"
        )


def test_every_change_is_saved_at_once(scripted, talk, sessions, monkeypatch):
    model = scripted("one")
    answer, counts = model.generate, []

    def generate(*arguments, **settings):
        counts.append(len(content(sessions)["turns"]) if (sessions / "work" / "conversation.json").exists() else None)
        return answer(*arguments, **settings)

    monkeypatch.setattr(model, "generate", generate)
    talk("first", "second", "/undo", "third", "/reset", "/system Hi", arguments=("--session", "work"))
    assert counts == [None, 1, 1]
    assert (content(sessions)["turns"], content(sessions)["system"]) == ([], "Hi")


def test_sessions_are_listed_switched_and_removed_in_chat(scripted, talk, sessions):
    model = scripted("one")
    _, err = talk("/sessions", "first", "/sessions a", "/sessions b", "hello", "/sessions a", "second", "/sessions")
    assert "no sessions yet; /sessions NAME saves this conversation\n" in err
    assert "* a: 2 turns\n" in err
    assert "  b: 1 turn\n" in err
    assert "first" not in asked(model, 1), "a new session begins empty, unless the conversation was not saved yet"
    assert "hello" not in asked(model)
    assert "user\nfirst<|im_end|>" in asked(model)
    _, err = talk("first", "/sessions a", "/sessions rm a", "/sessions rm b", "/sessions ../a", "/sessions rm none")
    assert "error: this conversation is not saved, and session 'a' exists" in err
    assert "removed session a\n" in err
    assert "'../a' is not a session name" in err
    assert "no session named 'none' is stored here" in err
    assert saved_sessions() == []


def test_an_open_session_is_removed_and_opened_by_no_other(scripted, talk, capsys):
    scripted("one")
    folder = SessionFolder("work")
    try:
        assert run(["chat", "--session", "work"]) != 0
        assert "session 'work' is open in another chat" in capsys.readouterr().err
        assert run(["rm", "--session", "work", "--yes"]) != 0
        assert "session 'work' is open in a chat" in capsys.readouterr().err
    finally:
        folder.close()
    assert saved_sessions() == [], "nothing was saved"
    _, err = talk("first", "/sessions rm work", arguments=("--session", "work"))
    assert "session 'work' is open in a chat" in err


def test_list_and_rm_know_sessions(scripted, talk, capsys):
    scripted("one")
    talk("first", arguments=("--session", "default"))
    assert run(["list"]) == 0
    out = capsys.readouterr().out
    assert "session" in out
    assert "just now" in out.splitlines()[-1]
    assert run(["list", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sessions"]
    assert (found["name"], found["model"], found["turns"]) == ("default", "default", 1)
    assert found["bytes"] > 0
    assert run(["rm", "--session", "default"]) != 0
    assert "ipex-lookahead rm --yes --session default" in capsys.readouterr().err
    assert run(["rm", "default", "--session", "default", "--yes"]) != 0
    assert run(["rm", "--yes"]) != 0
    capsys.readouterr()
    assert run(["rm", "--session", "default", "--yes"]) == 0
    assert "removed session default" in capsys.readouterr().out
    assert saved_sessions() == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc",
        "a/b",
        "a\\b",
        ".hidden",
        "-n",
        "a b",
        "a\n",
        "a\0b",
        "x" * 65,
        "ä" * 65,
        "a.",
        "\ud800",
    ],
)
def test_names_stay_in_the_folder(name, sessions):
    with pytest.raises(InputError, match="is not a session name"):
        SessionFolder(name)
    assert not sessions.exists()


def test_links_are_not_followed(sessions, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "conversation.json").write_text("{}", encoding="utf-8")
    sessions.mkdir(parents=True)
    os.symlink(other, sessions / "work")
    assert saved_sessions() == []
    with pytest.raises(Exception, match="session folder"):
        SessionFolder("work")
    assert run(["rm", "--session", "work", "--yes"]) != 0
    assert (other / "conversation.json").exists()
    assert stat.S_ISLNK((sessions / "work").lstat().st_mode)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"system": null}',
        '{"system": 1, "turns": []}',
        '{"system": null, "turns": [{"user": "a"}]}',
        '{"system": null, "turns": 3}',
        '{"system": null, "turns": [{"user": "a", "assistant": "b", "token_ids": [-1]}]}',
        '{"system": null, "turns": [{"user": "a", "assistant": "b", "token_ids": "x"}]}',
        '{"system": null, "turns": [], "settings": []}',
        '{"system": null, "turns": [], "settings": {"temperature": "hot"}}',
        '{"system": null, "turns": [], "settings": {"max_new_tokens": 0}}',
        '{"system": null, "turns": [], "model": 3}',
    ],
)
def test_a_damaged_session_is_named_and_kept(text, scripted, sessions, capsys):
    scripted("one")
    file = sessions / "work" / "conversation.json"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    assert run(["chat", "--session", "work"]) != 0
    err = capsys.readouterr().err
    assert "work" in err or "session" in err
    assert "Traceback" not in err
    assert file.read_text(encoding="utf-8") == text
    assert run(["list"]) == 0
    assert run(["rm", "--session", "work", "--yes"]) == 0


def test_a_full_disk_costs_the_session_not_the_chat(scripted, talk, sessions, monkeypatch):
    scripted("one")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    out, err = talk("first", "second", arguments=("--session", "work"))
    assert out == "one\none\n"
    assert "error: the session is not saved: cannot write" in err
    assert saved_sessions() == []


def test_one_answer_of_run_belongs_to_the_session(scripted, sessions, capsys):
    model = scripted("one", "two")
    for prompt in ("first", "second"):
        assert run(["run", "default", prompt, "--session", "work"]) == 0
    assert "assistant\none<|im_end|>\n<|im_start|>user\nsecond" in asked(model)
    assert len(content(sessions)["turns"]) == 2


def test_the_kv_cache_is_in_the_sessions_folder(scripted, talk, sessions):
    """Written before the next chat can open the session; an engine without images of caches costs the cache alone."""
    model = scripted("one")
    talk("first", arguments=("--session", "work"))
    assert (model.cache_files.folder, model.closed) == (sessions / "work" / "kv", 1)
    model = scripted("two")
    real = model.use_cache_folder

    def refuse(folder: Path | None, size: int | None = None) -> None:
        if folder is not None:
            raise InputError("this engine cannot save KV caches")
        real(folder)

    model.use_cache_folder = refuse
    out, err = talk("second", arguments=("--session", "work"))
    assert (out, err.count("the KV cache is not saved: this engine cannot save KV caches\n")) == ("two\n", 1)
    assert "read again" not in err
