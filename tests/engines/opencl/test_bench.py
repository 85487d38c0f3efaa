"""The commands that measure take the device and how many layers are on it, as those that answer do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.cli.main import run
from tests.support.byte_tokenizer import VOCAB, byte_tokenizer
from tests.support.tiny import write_tiny_llama


@pytest.fixture
def model(tmp_path: Path) -> list[str]:
    """Options of a command: a model whose last layer is on the device, and a prompt."""
    folder = write_tiny_llama(tmp_path / "model", vocab=VOCAB, layers=2)
    byte_tokenizer().save_pretrained(folder)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "hello hello"}\n')
    return ["-m", str(folder), "--threads", "1", "--prompts", str(prompts), "--device", "opencl", "-ngl", "1"]


def test_decoding_and_exactness(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["decode", "--lookahead", "3"], ["exact", "--strategy", "prompt_lookup", "--seeds", "1"]):
        assert run(["bench", *command, *model, "--max-new-tokens", "8", "--json"]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert ", opencl (" in report["isa"], "one layer on the CPU, one on the device"


def test_replay_records_answers_of_the_device(model: list[str], tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    assert run(["bench", "replay", "--record", str(file), *model, "--max-new-tokens", "8"]) == 0
    assert file.stat().st_size > 0
