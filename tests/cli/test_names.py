"""Errors speak of arguments in Python, of options on the command line and of fields to a server's clients."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.names import OPTIONS, in_options, option_of
from ipex_lookahead.errors import InputError, LowBitFormatError, arg, spelled

PACKAGE = Path(__file__).resolve().parents[2] / "ipex_lookahead"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (f"for example {arg('load_in_low_bit', 'sym_int4')}", "for example --low-bit sym_int4"),
        (f"use {arg('engine', 'native')} or {arg('engine', 'torch')}", "use --engine native or --engine torch"),
        (f"shorten the prompt or {arg('max_new_tokens')}", "shorten the prompt or --max-new-tokens"),
        (arg("deterministic", False), "--no-deterministic"),
        (arg("overwrite", True), "--overwrite"),
        (f"{arg('dimensions')} is 0; {arg('task')}; {arg('truncate', True)}", "--dimensions is 0; --task; --truncate"),
        (f"{arg('speculative', True)} drafts", "speculative=True (in Python) drafts"),
        (arg("modules_to_not_convert", ["a.b"]), "modules_to_not_convert=['a.b'] (in Python)"),
        (f"write one with {arg('model.save_low_bit(folder)')}", "write one with ipex-lookahead quantize"),
        ("my-low_bit/threads=4.gguf, engine='x'", "my-low_bit/threads=4.gguf, engine='x'"),
    ],
)
def test_only_what_is_marked_becomes_an_option(text, command):
    assert spelled(text, option_of) == command


def test_an_error_of_an_argument_has_its_facts_and_is_said_with_the_option():
    error = InputError(argument="kv_cache", got="x", allowed="one of fp16, int8", hint=f"or {arg('threads', 2)}")
    assert (str(error), error.hint) == ("kv_cache is 'x'; it must be one of fp16, int8", "or threads=2")
    assert (error.argument, error.got, error.allowed) == ("kv_cache", "x", "one of fp16, int8")
    assert in_options(error) == ("--kv-cache is 'x'; it must be one of fp16, int8", "or --threads 2")


def named() -> set[str]:
    """The name in every call of ``arg`` in the package."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if called == "arg" and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


def test_every_argument_that_errors_name_is_an_option_or_one_of_pythons():
    assert named() - set(OPTIONS) == {
        "ipex", "local_files_only", "modules_to_not_convert", "remove_invalid_values", "speculative",
    }  # fmt: skip


def texts() -> list[tuple[str, str]]:
    """(place, text) of every string that errors below the command line hold."""
    python = ("lookahead_decoding.py", "wrapping.py", "model.py", "optimize.py", "modeling/")
    only_python = ("cli/", *(f"hf/{place}" for place in python))
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith(only_python):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error"):
                for part in (*node.args, *(k.value for k in node.keywords)):
                    found += [
                        (f"{place}:{text.lineno}", text.value)
                        for text in ast.walk(part)
                        if isinstance(text, ast.Constant) and isinstance(text.value, str)
                    ]
    return found


def test_no_option_is_named_as_python_does_in_a_commands_error():
    """Where a text says ``engine='torch'`` the command cannot turn it into ``--engine torch``: ``arg`` is for that."""
    unmarked = re.compile(rf"\b({'|'.join(name for name in OPTIONS if name.isidentifier())})=(?:'|\"|True|False|$)")
    assert not [found for found in texts() if unmarked.search(found[1])]


def test_an_error_from_below_names_the_option(monkeypatch, capsys):
    from ipex_lookahead.cli import loading

    def load(*arguments, **options):
        raise LowBitFormatError(
            argument="load_in_low_bit", got="x", allowed="a format", hint=f"for example {arg('load_in_low_bit', 'nf4')}"
        )

    monkeypatch.setattr(loading, "load_text", load)
    assert run(["generate", "hi"]) == 1
    assert capsys.readouterr().err == "error: --low-bit is 'x'; it must be a format\nhint: for example --low-bit nf4\n"


def test_options_of_the_table_are_options_of_a_command():
    from tests.cli.test_main import every_option

    known = {name for option in every_option() for name in (*option.opts, *option.secondary_opts)}
    for option in OPTIONS.values():
        assert option in known or option.startswith("ipex-lookahead"), option
