"""Several commands in one process that is unlike this one: starting Python for each would take longer than they do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_CODE = """
import contextlib, io, json, sys
given, typed = json.loads(sys.stdin.read())
{before}
from ipex_lookahead.cli.main import run
done = []
for words in given:
    out, err, code = (*(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)), None)
    sys.stdin = io.TextIOWrapper(io.BytesIO(typed.encode()), "utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(words)
        except SystemExit as end:
            code = end.code
    done.append((code, *(stream.buffer.getvalue().decode() for stream in (out, err))))
print(json.dumps(done))
"""


class Done(NamedTuple):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


def in_one_process(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], typed: str = "", before: str = ""
) -> list[Done]:
    """Run commands in one Python process, one after the other.

    Args:
        commands: words of the command line, without the program's name.
        environment: all variables of the process.
        typed: standard input of each command.
        before: code that runs before the package is imported.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(before=before)],
        cwd=ROOT,
        env=dict(environment),
        input=json.dumps((list(map(list, commands)), typed)),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*one) for one in json.loads(done.stdout.splitlines()[-1])]
