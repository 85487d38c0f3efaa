"""``--draft-model``: a second model drafts, the text stays what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import write_chat_llama


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    made = {}
    for name, sizes in {"large": {"layers": 2}, "small": {"layers": 1}}.items():
        made[name] = str(write_chat_llama(tmp_path_factory.mktemp("models") / name, **sizes, context=512))
    return made


def answer(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--threads", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("draft", ["large", "small"])
def test_generate(models: dict[str, str], capsys: Any, draft: str) -> None:
    arguments = ["generate", "--raw", "Once upon", "-m", models["large"], "-n", "24"]
    plain = answer(capsys, *arguments, "--lookahead", "0")
    drafted = answer(capsys, *arguments, "--lookahead", "4", "--draft-model", models[draft], "--no-adaptive")
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["drafted_by_source"]["draft_model"] > 0
    assert draft != "large" or drafted["acceptance_rate"] == 1.0


def test_bench_decode(models: dict[str, str], capsys: Any, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "category": "b", "prompt": "Once upon"}) + "\n")
    shown = tmp_path / "drafts.jsonl"
    arguments = ["bench", "decode", "-m", models["large"], "-n", "12", "--prompts", str(prompts), "--lookahead", "3"]
    arguments += ["--draft-model", models["large"], "--strategy", "draft_model", "--no-adaptive", "--repeat", "2"]
    for more in ([], ["--show-drafts", str(shown)]):
        with_draft = next(r for r in answer(capsys, *arguments, *more)["runs"] if r["lookahead"] == 3)
        assert with_draft["identical_to_plain"] == "1/1"
        assert with_draft["acceptance_rate"] == 1.0
    of_it = with_draft["acceptance_by_source"]["draft_model"]
    steps = [json.loads(line) for line in shown.read_text().splitlines()]
    assert {(step["prompt"], step["lookahead"], step["strategy"]) for step in steps} == {("a", 3, "draft_model")}
    assert {step["repetition"] for step in steps} == {1, 2}
    assert sum(len(step["drafted"]) for step in steps) == of_it["drafted"] == sum(of_it["drafted_by_position"])
    assert sum(len(step["accepted"]) for step in steps) == of_it["accepted"] == sum(of_it["accepted_by_position"])
    assert sum(len(step["emitted"]) for step in steps) == 2 * (with_draft["tokens"] - 1)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".part"] == []
