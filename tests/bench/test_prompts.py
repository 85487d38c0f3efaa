"""Prompt files of others: Spec-Bench's lines, SPEED-Bench's Parquet, and the later turns of both."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ipex_lookahead.cli.prompts import PLACEHOLDER, conversations, read_prompts
from ipex_lookahead.errors import InputError


def lines(file: Path, *found: object) -> Path:
    file.write_text("".join(json.dumps(one) + "\n" for one in found), encoding="utf-8")
    return file


def test_spec_bench_lines(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "question.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"question_id": 161, "category": "translation", "turns": ["only"], "reference": ["x"]},
    )
    first, second = read_prompts([file])
    assert (first.id, first.category, first.text, first.later) == ("81", "writing", "first", ("second",))
    assert (second.id, second.text, second.later, second.file) == ("161", "only", (), "question")


def test_a_prompt_counts_before_its_turns(tmp_path: Path) -> None:
    (found,) = read_prompts([lines(tmp_path / "a.jsonl", {"prompt": "p", "turns": ["p", "q"]})])
    assert (found.text, found.later) == ("p", ())


@pytest.mark.parametrize("turns", [[], [1], ["a", ""], "text", None])
def test_turns_that_are_no_texts(tmp_path: Path, turns: object) -> None:
    with pytest.raises(InputError, match='line 1: an object with a non-empty text "prompt", or a list of texts'):
        read_prompts([lines(tmp_path / "a.jsonl", {"turns": turns})])


def test_a_text_that_was_left_out_is_no_prompt(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"turns": ["fine"]}, {"turns": [f"{PLACEHOLDER}\n\nabout"]})
    with pytest.raises(InputError, match="line 2: SPEED-Bench's published file has no text here") as caught:
        read_prompts([file])
    assert "prepare_data.py" in caught.value.hint


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    rows = [
        {"question_id": "a1", "category": "coding", "sub_category": "x", "turns": ["one", "two"], "multiturn": True},
        {"question_id": "b2", "category": "qa", "sub_category": None, "turns": ["three"], "multiturn": False},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    lines(tmp_path / "zz.jsonl", {"prompt": "four"})
    assert [(p.id, p.text, p.later) for p in read_prompts([tmp_path])] == [
        ("a1", "one", ("two",)), ("b2", "three", ()), ("zz/1", "four", ())
    ]  # fmt: skip
    (tmp_path / "test.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(InputError, match="is not Parquet"):
        read_prompts([tmp_path / "test.parquet"])


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "test.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="needs pyarrow") as caught:
        read_prompts([tmp_path / "test.parquet"])
    assert caught.value.hint == "pip install pyarrow"


def test_each_turn_follows_the_answer_to_the_one_before(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", {"turns": ["a", "b", "c"]}, {"prompt": "d"})
    asked: list[list[int]] = []

    def answer(ids: list[int]) -> str:
        asked.append(ids)
        return "xyz"[len(asked) - 1]

    said = list(conversations(read_prompts([file]), lambda messages: [ord(m["content"]) for m in messages], answer))
    assert ["".join(map(chr, ids)) for _, ids in said] == ["a", "axb", "axbyc", "d"]
    assert len(asked) == 2, "the last turn's answer is not needed"
