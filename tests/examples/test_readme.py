"""What README and CONTRIBUTING tell people to type is true."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ipex_lookahead.cli.main import cli
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def command_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README + CONTRIBUTING, re.DOTALL)
    lines = [line.split("   #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("line", [x for x in command_lines() if x.startswith("ipex-lookahead ")])
def test_commands_parse(line):
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found
    command.make_context(command.name, words)


@pytest.mark.parametrize("line", [x for x in command_lines() if x.startswith("make ")])
def test_make_targets_exist(line):
    for word in shlex.split(line)[1:]:
        assert "=" in word or re.search(rf"^{word}:", MAKEFILE, re.MULTILINE), f"{line}: no target {word}"


def test_there_are_command_lines_to_check():
    assert sum(line.startswith("ipex-lookahead") for line in command_lines()) >= 5
    assert sum(line.startswith("make") for line in command_lines()) >= 4


def test_the_python_example_runs(tmp_path):
    made = write_tiny_llama(tmp_path / "tiny", vocab=SIZE, context=512)
    chat_tokenizer().save_pretrained(made)
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert '"default"' in block
    code = block.replace('"default"', repr(str(made)))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "tokens a step" in done.stdout


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_links_and_files_named_are_there(text):
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"`((?:tests|scripts|examples|docs|configs|csrc)/[\w./]+)`", text):
        assert (ROOT / target).exists() or "x." in target, target


def test_formats_named_in_the_readme_are_those_there_are():
    from ipex_lookahead.formats import FORMATS

    for name in ("sym_int4", "sym_int8", "bf16", "fp16"):
        assert name in FORMATS
        assert f"`{name}`" in README


def test_ci_runs_the_three_test_commands_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines == ["#!/bin/sh", "set -e", "make test", "make test-ipex-llm", "make test-opencl"]
