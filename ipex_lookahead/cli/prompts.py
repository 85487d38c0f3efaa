"""Prompts from the command line, standard input and files.

Prompt files are JSON lines, or the published files of Spec-Bench and SPEED-Bench, unchanged.
Spec-Bench (Xia et al., 2024, arXiv 2401.07851) is JSON lines with ``question_id``, ``category`` and ``turns``;
SPEED-Bench (NVIDIA, 2026) the same fields in Parquet, of which its ``prepare_data.py`` makes files with all texts.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.terminal import is_terminal

PATIENCE_SECONDS = 2.0
"""Time to wait for standard input before a message is printed."""
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
"""SPEED-Bench's published file has this in place of texts from other sources."""
SUFFIXES = (".jsonl", ".parquet")
_LINE = 'one JSON object a line: {"id": "a", "prompt": "..."} or {"question_id": 1, "category": "qa", "turns": ["..."]}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a prompt file: ``{"id": ..., "category": ..., "prompt": ...}``; id and category are optional.

    Attributes:
        file: name of the file, without its suffix.
        later: the user's further messages, of lines with ``turns`` instead of ``prompt``.
    """

    id: str
    category: str
    text: str
    file: str = ""
    later: tuple[str, ...] = ()


def read_prompt(argument: str | None, file: str | None) -> str:
    """Return the prompt of the command line or of a file, followed by an empty line and the piped input.

    A byte order mark at the head of a file or pipe is skipped.

    Args:
        argument: PROMPT; "-" or None reads standard input alone.
        file: Path of ``--prompt-file``, an alternative to ``argument``.

    Raises:
        UsageError: Both are given, or neither is and nothing is piped in.
        InputError: A file that cannot be read or is not UTF-8, or an empty prompt.
    """
    if argument is not None and file is not None:
        raise click.UsageError("a prompt and --prompt-file are both given; leave one of them out")
    given = argument if file is None else _of_file(Path(file))
    if given is None and (sys.stdin is None or is_terminal(sys.stdin)):
        raise click.UsageError("no prompt; give one in quotes, or '-' to type it in")
    if given is None or given == "-":
        prompt = _of_standard_input()
    else:
        piped = "" if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin) else _of_standard_input()
        prompt = f"{given.rstrip()}\n\n{piped}" if piped.strip() else given
    if not prompt.strip():
        raise InputError("the prompt is empty", hint='ipex-lookahead generate "Why is the sky blue?"')
    return prompt


def read_text(file: Path) -> str:
    """Read a UTF-8 text file. Raises InputError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
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
    """Print a message if standard input is a pipe that stays open without data."""
    with contextlib.suppress(OSError, ValueError):
        at = sys.stdin.fileno()
        if os.isatty(at) or select.select([at], [], [], PATIENCE_SECONDS)[0]:
            return
        click.echo("waiting for standard input to end; redirect it with < /dev/null to ignore it", err=True)


def read_prompts(paths: Iterable[str | Path], limit: int | None = None) -> list[Prompt]:
    """Return the prompts of JSONL and Parquet files, or of all such files in a folder; ``limit`` of each file.

    Raises:
        InputError: A path does not exist, a line is invalid, or there is no prompt.
    """
    prompts: list[Prompt] = []
    for path in map(given_path, paths):
        if not path.exists():
            raise InputError(f"no prompt file at {path}", hint=_LINE)
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise InputError(f"the folder {path} has no {' or '.join(SUFFIXES)} file")
        for file in files:
            prompts += _read_file(file)[:limit]
    if not prompts:
        raise InputError("the files have no prompts")
    return prompts


def conversations(
    prompts: Iterable[Prompt],
    encode: Callable[[list[dict[str, str]]], list[int]],
    answer: Callable[[list[int]], str],
) -> Iterator[tuple[Prompt, list[int]]]:
    """Yield each turn of each prompt, with the token ids of the conversation so far.

    Args:
        prompts: With or without later turns.
        encode: Chat messages that end with the user's -> token ids.
        answer: Token ids -> the model's answer; called only if another turn follows.
    """
    for prompt in prompts:
        messages: list[dict[str, str]] = []
        for number, text in enumerate((prompt.text, *prompt.later)):
            messages.append({"role": "user", "content": text})
            ids = encode(messages)
            yield prompt, ids
            if number < len(prompt.later):
                messages.append({"role": "assistant", "content": answer(ids)})


def _read_file(file: Path) -> list[Prompt]:
    return [_prompt(found, file, number) for number, found in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    if file.suffix == ".parquet":
        yield from enumerate(_parquet(file), 1)
        return
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{file}, line {number}: not JSON: {error}", hint=_LINE) from error
        yield number, found


def _parquet(file: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{file}: reading Parquet needs pyarrow", hint="pip install pyarrow") from None
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
        raise InputError(f"{file} is not Parquet: {error}") from error
    return rows


def _prompt(found: Any, file: Path, number: int) -> Prompt:
    turns = None
    if isinstance(found, dict):
        turns = [found["prompt"]] if "prompt" in found else found.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise InputError(
            f'{file}, line {number}: an object with a non-empty text "prompt", or a list of texts "turns", is expected',
            hint=_LINE,
        )
    if any(turn.startswith(PLACEHOLDER) for turn in turns):
        raise InputError(
            f"{file}, line {number}: SPEED-Bench's published file has no text here, only where it comes from",
            hint="python prepare_data.py --dataset speed, in NVIDIA/Model-Optimizer's examples/specdec_bench, fetches"
            " the texts; give --prompts the file that it writes",
        )
    name = str(found.get("id", found.get("question_id", f"{file.stem}/{number}")))
    return Prompt(name, str(found.get("category", "")), turns[0], file.stem, tuple(turns[1:]))
