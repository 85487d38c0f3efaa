"""What README says of itself, and of the tests that a submission runs, is true."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ipex_lookahead.formats import FORMATS
from tests.docs.pages import PAGES, ROOT
from tests.support.chat_tokenizer import write_chat_llama

README = PAGES["README.md"]
TARGETS = ("test", "test-ipex-llm", "test-opencl", "test-browser")
"""Make targets that a submission runs."""


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    made = write_chat_llama(tmp_path / "tiny", context=512)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert '"default"' in block
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
    exec(block.replace('"default"', repr(str(made))), {"__name__": "__main__"})
    assert re.search(r"^GenerationStats\(tokens=\d+, .*\)$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.programs
def test_the_python_example_is_typed(tmp_path):
    """As strict as mypy is; what `make types` has kept makes this quick."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "example.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


def test_formats_named_in_the_pages_are_those_there_are():
    for name in ("sym_int4", "sym_int8", "bf16", "fp16"):
        assert name in FORMATS
        assert f"`{name}`" in README
    for name in set(FORMATS) - {"fp32"}:
        assert f"`{name}`" in PAGES["docs/formats.md"] or re.fullmatch(r"q\d_k", name), name


def test_ci_runs_the_test_commands_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines == ["#!/bin/sh", "set -e", *(f"make {target}" for target in TARGETS)]
