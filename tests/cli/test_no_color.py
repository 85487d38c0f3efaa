"""NO_COLOR on a terminal: no escape sequence of any kind, in bars, spinners, accepted tokens and errors."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.programs
ROOT = Path(__file__).resolve().parents[2]
PRELUDE = """
from tests.cli.conftest import ScriptedModel
from tests.support.chat_tokenizer import chat_tokenizer
from ipex_lookahead.cli import loading, main
from ipex_lookahead.bench import kernels
from ipex_lookahead.decoding.stats import GenerationStats
GenerationStats.origins = lambda self: ["suffix"] * self.tokens
tokenizer = chat_tokenizer()
model = ScriptedModel(tokenizer, ["a fine day"])
loading.load_text = lambda name, **options: model
kernels.WORKING_SET = 1 << 16
"""
COMMANDS = [
    ["bench", "decode", "--limit", "1"],
    ["bench", "kernels", "--shape", "64,64", "--isa", "scalar", "--low-bit", "sym_int4", "--rows", "1"],
    ["generate", "hi", "--verbose"],
    ["generate", "hi", "--show-accepted"],
    ["generate", "hi", "--strategy", "sufix"],
    ["--help"],
]


def on_a_terminal() -> list[str]:
    """What each command shows on a pseudo-terminal, as it is and with NO_COLOR; one program runs them all."""
    code = f"""{PRELUDE}
import os
for name in (None, "NO_COLOR"):
    os.environ.update({{name: "1"}} if name else {{}})
    for arguments in {COMMANDS!r}:
        main.run(arguments)
        print("=====", flush=True)
"""
    master, slave = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=ROOT,
        env={**kept, "TERM": "xterm-256color", "COLUMNS": "80"},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux's way of saying that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(master)
    assert process.wait(timeout=200) == 0, shown
    found = shown.decode().split("=====")
    assert len(found) == 2 * len(COMMANDS) + 1, shown
    return found[:-1]


def test_no_escape_with_no_color_and_some_without():
    shown = on_a_terminal()
    coloured, plain = shown[: len(COMMANDS)], shown[len(COMMANDS) :]
    assert ["\x1b" in one for one in coloured] == [True, True, False, True, False, False], "or this shows nothing"
    for arguments, one in zip(COMMANDS, plain, strict=True):
        assert "\x1b" not in one, arguments
        assert len(one) > 5, arguments
