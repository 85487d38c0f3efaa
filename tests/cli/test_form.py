"""``generate --json-schema`` and ``--grammar``: the answer has the form in the file, with and without lookahead."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("llguidance")

from ipex_lookahead.cli import form
from ipex_lookahead.cli.main import run

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def schema(tmp_path) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    return str(file)


@pytest.fixture
def grammar(tmp_path) -> str:
    file = tmp_path / "list.gbnf"
    file.write_text('root ::= "yes" (", yes"){3}\n')
    return str(file)


def answer(capsys, tiny, *arguments: str) -> str:
    assert run(["generate", "hello", "-q", "-n", "60", "--threads", "1", "-m", str(tiny), *arguments]) == 0
    return capsys.readouterr().out


def test_a_schema(tiny, schema, capsys):
    said = [answer(capsys, tiny, "--json-schema", schema, "--lookahead", n) for n in ("0", "4")]
    assert said[0] == said[1]
    assert json.loads(said[0])["a"] in ("x", "y")


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_a_grammar(tiny, grammar, raw, capsys):
    assert answer(capsys, tiny, "--grammar", grammar, *raw) == "yes, yes, yes, yes\n"


def test_each_prompt_of_a_file_is_answered_in_the_form(tiny, grammar, tmp_path, capsys):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    assert run(["generate", "--prompts", str(file), "-m", str(tiny), "--grammar", grammar]) == 0
    found = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert found == ["yes, yes, yes, yes"] * 2


@pytest.mark.parametrize(
    ("flag", "text", "said"),
    [
        ("--json-schema", "{", "is not valid JSON"),
        ("--json-schema", "[1]", "must hold a JSON schema, which is an object, got '[1]'"),
        ("--json-schema", '{"type": "nonsense"}', "the grammar cannot be compiled"),
        ("--grammar", "root ::= other", "there is no rule 'other'"),
    ],
)
def test_files_without_a_form(tiny, tmp_path, flag, text, said, capsys):
    file = tmp_path / "file"
    file.write_text(text)
    assert run(["generate", "hello", "-m", str(tiny), flag, str(file)]) == 1
    assert re.search(rf"^error: {flag}.*{re.escape(said)}", capsys.readouterr().err, re.M)


def test_a_form_on_the_command_line(tiny, capsys):
    assert json.loads(answer(capsys, tiny, "--json-schema", json.dumps(SCHEMA)))["a"] in ("x", "y")
    assert answer(capsys, tiny, "--grammar", 'root ::= "yes"') == "yes\n"
    assert answer(capsys, tiny, "--grammar", 'start: "no"') == "no\n"


@pytest.mark.parametrize(
    ("flag", "given", "said"),
    [
        ("--json-schema", '{"type":', "--json-schema is not valid JSON"),
        ("--json-schema", "[1]", "--json-schema must hold a JSON schema"),
        ("--json-schema", "none.json", "none.json cannot be read: No such file or directory"),
        ("--grammar", "root ::= other", "--grammar: the grammar cannot be read"),
    ],
)
def test_texts_without_a_form(tiny, flag, given, said, capsys):
    assert run(["generate", "hello", "-m", str(tiny), flag, given]) == 1
    assert f"error: {said}" in capsys.readouterr().err


def test_one_form_at_a_time(schema, grammar, capsys):
    assert run(["generate", "hello", "--json-schema", schema, "--grammar", grammar]) == 2
    assert "--json-schema and --grammar exclude each other" in capsys.readouterr().err


def test_a_missing_package_is_named_before_the_model_is_loaded(schema, monkeypatch, capsys):
    monkeypatch.setattr(form, "find_spec", lambda name: None)
    assert run(["generate", "hello", "-m", "no/such", "--json-schema", schema]) == 1
    err = capsys.readouterr().err
    assert "--json-schema needs llguidance, which is not installed" in err
    assert "hint: pip install 'ipex-lookahead[serve]'" in err
