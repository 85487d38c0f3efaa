"""Errors speak of arguments in Python and of options on the command line, whoever raises them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.spelling import ARGUMENTS, PYTHON_ONLY, in_options

PACKAGE = Path(__file__).resolve().parents[2] / "ipex_lookahead"
ONLY_FROM_PYTHON = ("lookahead_decoding.py", "wrapping.py", "transformers.py", "cli/", "model.py")
"""What no command calls with arguments of its own: these may speak Python."""


@pytest.mark.parametrize(
    ("python", "command"),
    [
        ('for example load_in_low_bit="sym_int4"', "for example --low-bit sym_int4"),
        ("use engine='native' or engine='torch'", "use --engine native or --engine torch"),
        ("shorten the prompt or max_new_tokens", "shorten the prompt or --max-new-tokens"),
        ("pass draft_model= to generate", "pass --draft-model to generate"),
        ("deterministic=False", "--no-deterministic"),
        ("lookahead=3, or lookahead=", "--lookahead 3, or --lookahead"),
        ("num_draft_tokens (lookahead) is 129", "--lookahead is 129"),
        ("speculative=True drafts", "speculative=True (in Python) drafts"),
        ("modules_to_not_convert=['a.b'] leaves it", "modules_to_not_convert=['a.b'] (in Python) leaves it"),
        ("write one with model.save_low_bit(folder)", "write one with ipex-lookahead quantize"),
        ("no folder that ipex-llm's save_low_bit wrote", "no folder that ipex-llm's save_low_bit wrote"),
        ("strategy 'draft_model' needs a second model", "strategy 'draft_model' needs a second model"),
        ("pip install ipex-llm, in a speculative mood", "pip install ipex-llm, in a speculative mood"),
        ("no threads, no store, a lookahead strategy", "no threads, no store, a lookahead strategy"),
        ("/models/low_bit/a.gguf: my-low_bit", "/models/low_bit/a.gguf: my-low_bit"),
    ],
)
def test_in_options(python, command):
    assert in_options(python) == command


def sentences() -> list[tuple[str, str]]:
    """(place, text) of every message and hint of an error below the command line; "X" stands for what is filled in."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith(ONLY_FROM_PYTHON):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            texts = [k.value for k in node.keywords if k.arg == "hint"]
            texts += node.args if name.endswith("Error") else []
            found += [(f"{place}:{text.lineno}", spoken(text)) for text in texts]
    return [(place, text) for place, text in found if " " in text]


def spoken(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
    if isinstance(node, ast.BinOp | ast.IfExp):
        parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.body, node.orelse)
        return " ".join(map(spoken, parts))
    return "X"


def test_there_are_sentences_in_python_words():
    assert sum(in_options(text) != text for _, text in sentences()) > 20


@pytest.mark.parametrize(("place", "text"), sentences())
def test_no_argument_is_left_in_a_commands_error(place, text):
    said = in_options(text)
    for name in ARGUMENTS:
        assert f"{name}=" not in said, said
    for name, _ in re.findall(r"\b([a-z_]+)=(True|False|None)\b(?! \(in Python\))", said):
        raise AssertionError(f"{name}=: {said}; put it into ARGUMENTS or PYTHON_ONLY")
    assert not re.search(r"(--[\w-]+) \(\1\)", said), f"the option stood beside the argument: {said}"


def test_an_error_from_below_names_the_option(monkeypatch, capsys):
    from ipex_lookahead.cli import loading
    from ipex_lookahead.errors import LowBitFormatError

    def load(*arguments, **options):
        raise LowBitFormatError("load_in_low_bit is 'x'", hint='for example load_in_low_bit="sym_int4"')

    monkeypatch.setattr(loading, "load_text", load)
    assert run(["generate", "hi"]) == 1
    assert capsys.readouterr().err == "error: --low-bit is 'x'\nhint: for example --low-bit sym_int4\n"


def test_options_of_the_table_are_options_of_a_command():
    from tests.cli.test_main import every_option

    known = {name for option in every_option() for name in (*option.opts, *option.secondary_opts)}
    for option in ARGUMENTS.values():
        assert option.split()[0] in known or option.startswith("ipex-lookahead"), option
    assert not set(ARGUMENTS) & set(PYTHON_ONLY)
