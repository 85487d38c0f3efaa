"""``benchmarks.compare`` as a command, with our own process on a tiny model: output, and missing programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.compare import run
from tests.support.chat_tokenizer import write_chat_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=4096)
    return str(made)


def test_ours_runs_and_what_is_missing_is_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ab ab ab"}\n', encoding="utf-8")
    arguments = ["--model", model, "--prompts", str(prompts), "-n", "8", "--threads", "1", "--json"]
    assert run([*arguments, "--peer", "llama-cpp-python"]) == 1, "a program that was asked for does not run"
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    assert [(row["peer"], row["mode"]) for row in report["rows"]] == [
        ("ipex-lookahead", "plain"), ("ipex-lookahead", "lookahead"), ("ipex-lookahead", "auto")
    ]  # fmt: skip
    assert {row["identical_to_plain"] for row in report["rows"]} == {"1/1"}
    assert all(row["decode_tok_s"] > 0 for row in report["rows"])
    assert {"version", "date", "machine", "threads", "prompt_tokens"} <= set(report)
    assert "llama-cpp-python does not run here: " in err
    assert list(report["absent"]) == ["llama-cpp-python"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--peer", "ollama"], "'ollama' is none of llama-cpp-python"),
        (["--python", "ipex-llm"], "is not NAME=PATH"),
        (["--plot", "a.gif"], ".svg or .png"),
    ],
)
def test_what_cannot_work_is_refused_first(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--model", "./absent", *arguments]) in (1, 2)
    assert says in capsys.readouterr().err
