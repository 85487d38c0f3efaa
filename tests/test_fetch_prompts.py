"""The script that writes the prompts of README's figures, against a folder that stands for the network."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fetch_prompts.py"


@pytest.fixture
def script():
    found = importlib.util.spec_from_file_location("fetch_prompts", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


SOURCES = {
    "mt_bench.jsonl": [
        {"question_id": 81, "category": "writing", "turns": ["odd", "left out"]},
        {"question_id": 82, "category": "writing", "turns": ["Write a poem.", "Shorter."]},
    ],
    "humaneval.jsonl": [{"task_id": f"HumanEval/{n}", "prompt": f'\ndef f{n}():\n    """Ä."""\n'} for n in range(90)],
    "gsm8k.jsonl": [{"question": f"How many are {n}?", "answer": "#### 1"} for n in range(90)],
    "code_edit.jsonl": [
        {"task_id": f"Python/{n}", "declaration": "def f():\n", "buggy_solution": f"    return {n}\n\n"}
        for n in range(50)
    ],
}


@pytest.fixture
def base(tmp_path, script):
    for name, (_, where, _) in script.SETS.items():
        path = tmp_path / "net" / where
        path.parent.mkdir(parents=True)
        data = "".join(json.dumps(row) + "\n" for row in SOURCES[name]).encode()
        path.write_bytes(gzip.compress(data) if where.endswith(".gz") else data)
    return (tmp_path / "net").as_uri()


def test_the_files_are_made_of_the_public_sets(script, base, tmp_path, capsys):
    script.main([str(tmp_path / "out")], base)
    rows = {
        name: [json.loads(line) for line in (tmp_path / "out" / name).read_text(encoding="utf-8").splitlines()]
        for name in script.SETS
    }
    assert {name: len(found) for name, found in rows.items()} == {
        "mt_bench.jsonl": 1,
        "humaneval.jsonl": 82,
        "gsm8k.jsonl": 82,
        "code_edit.jsonl": 41,
    }
    assert rows["mt_bench.jsonl"][0] == {
        "id": "mt/82",
        "category": "writing",
        "prompt": "Write a poem.",
        "turns": ["Write a poem.", "Shorter."],
    }
    assert rows["humaneval.jsonl"][3]["prompt"].endswith('```python\n\ndef f3():\n    """Ä."""\n```')
    assert rows["code_edit.jsonl"][7] == {
        "id": "Python/7/fix",
        "category": "code_edit",
        "prompt": "Fix the bug in this function and answer with the whole corrected function in one code block.\n\n"
        "```python\ndef f():\n    return 7\n```",
    }
    assert capsys.readouterr().out.count("the set has changed") == 4  # and it says so, since these are made up


def test_the_commands_read_what_it_writes(script, base, tmp_path):
    from ipex_lookahead.cli.prompts import read_prompts

    script.main([str(tmp_path / "out")], base)
    assert len(read_prompts([tmp_path / "out" / "gsm8k.jsonl"])) == 82


def test_a_set_that_cannot_be_had_or_read_is_a_sentence(script, base, tmp_path):
    with pytest.raises(script.FetchError, match="could not be fetched"):
        script.main([str(tmp_path / "out")], (tmp_path / "nowhere").as_uri())
    first = tmp_path / "net" / script.SETS["mt_bench.jsonl"][1]
    first.write_text("<html>")
    with pytest.raises(script.FetchError, match="does not hold JSON lines"):
        script.main([str(tmp_path / "out")], base)
    first.write_text('{"question_id": 2}\n')
    with pytest.raises(script.FetchError, match="rows are not as they were"):
        script.main([str(tmp_path / "out")], base)
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(script.FetchError, match="usage"):
        script.main([])
