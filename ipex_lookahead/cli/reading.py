"""Where a prompt comes from: the command line, a file, standard input."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

import click

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.terminal import is_terminal

PATIENCE_SECONDS = 2.0
"""So long nothing is said about waiting for standard input."""


def read_prompt(argument: str | None, file: str | None) -> str:
    """The prompt: of the command line or of a file, followed by what is piped in, after an empty line.

    A byte order mark at the head of a file or pipe is no text.

    Args:
        argument: PROMPT; "-" or None is standard input alone.
        file: of ``--prompt-file``, in the place of ``argument``.

    Raises:
        UsageError: both are given, or neither is and nothing is piped in.
        InputError: a file that cannot be read or is not UTF-8, or a prompt without a character.
    """
    if argument is not None and file is not None:
        raise click.UsageError("PROMPT and --prompt-file are both given; leave one of them out")
    begun = argument if file is None else _of_file(Path(file))
    if begun is None and (sys.stdin is None or is_terminal(sys.stdin)):
        raise click.UsageError("no prompt; give one, or '-' to type it in")
    if begun is None or begun == "-":
        prompt = _of_standard_input()
    else:
        piped = "" if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin) else _of_standard_input()
        prompt = f"{begun.rstrip()}\n\n{piped}" if piped.strip() else begun
    if not prompt.strip():
        raise InputError("the prompt is empty", hint="ipex-lookahead generate 'Why is the sky blue?'")
    return prompt


def read_text(file: Path) -> str:
    """A text to measure on. Raises InputError where it cannot be read, or is not UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read as UTF-8 text: {error}") from error


def _of_file(file: Path) -> str:
    try:
        return given_path(file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", hint="check the path of --prompt-file") from error


def _of_standard_input() -> str:
    _say_if_waiting()
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text (byte {error.start})") from error


def _say_if_waiting() -> None:
    """A pipe that nobody closes would be waited for in silence: a program may have been started with one."""
    with contextlib.suppress(OSError, ValueError):
        at = sys.stdin.fileno()
        if os.isatty(at) or select.select([at], [], [], PATIENCE_SECONDS)[0]:
            return
        click.echo("waiting for the end of standard input; '< /dev/null' leaves it out", err=True)
