"""``--config``: a file beneath the command line and the environment, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipex_lookahead.cli.main import run


def write(folder: Path, text: str) -> str:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def lookahead_of(capsys, *arguments: str) -> object:
    assert run(["generate", "hi", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["lookahead"]


def test_the_command_line_wins_then_the_environment_then_the_section_then_the_file(
    scripted, monkeypatch, capsys, tmp_path
):
    scripted("yes")
    assert lookahead_of(capsys) == 3
    file = write(tmp_path, "lookahead: 5\n")
    assert lookahead_of(capsys, "--config", file) == 5
    file = write(tmp_path, "lookahead: 5\ngenerate: {lookahead: 6}\nchat: {lookahead: 9}\n")
    assert lookahead_of(capsys, "--config", file) == 6
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_LOOKAHEAD", "7")
    assert lookahead_of(capsys, "--config", file) == 7
    assert lookahead_of(capsys, "--config", file, "--lookahead", "8") == 8


def test_the_file_itself_may_be_named_in_the_environment(scripted, monkeypatch, capsys, tmp_path):
    scripted("yes")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_CONFIG", write(tmp_path, "lookahead: 5\n"))
    assert lookahead_of(capsys) == 5


@pytest.mark.parametrize("key", ["max_new_tokens", "max-new-tokens", "--max-new-tokens"])
def test_keys_are_spelled_as_one_likes(scripted, capsys, tmp_path, key):
    scripted("yes and no and maybe")
    whole = run(["generate", "hi"]), capsys.readouterr().out
    cut = run(["generate", "hi", "--config", write(tmp_path, f"'{key}': 2\n")]), capsys.readouterr().out
    assert whole[0] == cut[0] == 0
    assert len(cut[1].strip()) < len(whole[1].strip())


def test_lists_and_flags(monkeypatch, tmp_path, capsys):
    file = write(tmp_path, "bench step: {rows: [1, 2], repeat: 1, shape: smollm2-135m, threads: 1}\njson: true\n")
    assert run(["bench", "step", "--config", file]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [step["rows"] for step in report["steps"]] == [1, 2]


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("lokahead: 3", "sets 'lokahead', which no command has", "did you mean lookahead?"),
        ("generat: {lookahead: 3}", "has a section 'generat'", "did you mean generate?"),
        ("generate: {rows: 3}", "sets 'rows' of generate, which it does not have", ""),
        ("bench step: {rwos: 3}", "sets 'rwos' of bench step", "did you mean rows?"),
        ("[1, 2]", "must be a mapping of options, got list", ""),
        ("a: [", "is not YAML", ""),
        ("json: 3", "json is 3; it must be true or false", ""),
        ("model: [[a]]", "must be a value or a list", ""),
        ("config: other.yaml", "sets 'config', which no command has", ""),
        ("lookahead: 1000", "'--lookahead': must be 0 to 128 or 'auto', got '1000'", ""),
        ("temperature: hot", "settings.yaml)", ""),
    ],
)
def test_what_a_file_cannot_say(tmp_path, capsys, text, says, hint):
    assert run(["generate", "hi", "--config", write(tmp_path, text)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert hint in said


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert run(["generate", "hi", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_a_huge_file_is_not_read(tmp_path, capsys):
    assert run(["generate", "hi", "--config", write(tmp_path, "#" * (1 << 20) + "#")]) == 2
    assert "the maximum is" in capsys.readouterr().err


def test_info_shows_what_holds_and_where_it_comes_from(monkeypatch, tmp_path, capsys):
    file = write(tmp_path, "threads: 1\nlow_bit: null\nchat: {threads: 2}\n")
    monkeypatch.setenv("IPEX_LOOKAHEAD_BENCH_STEP_THREADS", "3")
    assert run(["info", "--config", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["settings"]
    at = {one["command"]: one for one in found if one["option"] == "--threads"}
    assert at["generate"] == {"command": "generate", "option": "--threads", "value": "1", "from": file}
    assert (at["chat"]["value"], at["chat"]["from"]) == ("2", f"{file}, chat")
    assert (at["bench step"]["value"], at["bench step"]["from"]) == ("3", "IPEX_LOOKAHEAD_BENCH_STEP_THREADS")
    assert not any(one["option"] == "--low-bit" for one in found)
    assert run(["info", "--config", file]) == 0
    assert "chat" in capsys.readouterr().out
