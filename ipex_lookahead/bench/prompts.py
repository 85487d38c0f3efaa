"""Prompts from files: our own JSON lines, and what Spec-Bench and SPEED-Bench publish, each as it is.

Spec-Bench (Xia et al., 2024, arXiv 2401.07851) is JSON lines with ``question_id``, ``category`` and ``turns``;
SPEED-Bench (NVIDIA, 2026) the same fields in Parquet, of which its ``prepare_data.py`` makes files with all texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path

PACKAGED_PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Our own prompts, by category, for when none are given."""
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
"""What stands in SPEED-Bench's published file where a text has another source."""
SUFFIXES = (".jsonl", ".parquet")
_LINE = 'one JSON object a line: {"id": "a", "prompt": "..."} or {"question_id": 1, "category": "qa", "turns": ["..."]}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """One line of a prompt file: ``{"id": ..., "category": ..., "prompt": ...}``; id and category may be missing.

    ``file`` is the file's name without its suffix. ``later`` is what the user says after each answer, of lines that
    have ``turns`` in place of a prompt.
    """

    id: str
    category: str
    text: str
    file: str = ""
    later: tuple[str, ...] = ()


def read_prompts(paths: Iterable[str | Path], limit: int | None = None) -> list[Prompt]:
    """The prompts of JSONL and Parquet files, and of all in folders; the first ``limit`` of each file.

    Raises:
        InputError: a path that is not there, a line that is no such object, or no prompt at all.
    """
    prompts: list[Prompt] = []
    for path in map(given_path, paths):
        if not path.exists():
            raise InputError(f"no prompt file at {path}", hint=_LINE)
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise InputError(f"the folder {path} holds no {' or '.join(SUFFIXES)} file")
        for file in files:
            prompts += _read_file(file)[:limit]
    if not prompts:
        raise InputError("there are no prompts in the files given")
    return prompts


def conversations(
    prompts: Iterable[Prompt],
    encode: Callable[[list[dict[str, str]]], list[int]],
    answer: Callable[[list[int]], str],
) -> Iterator[tuple[Prompt, list[int]]]:
    """Each turn of each prompt, with the token ids of all that was said until then.

    Args:
        prompts: with or without later turns.
        encode: chat messages that end with the user's -> token ids.
        answer: token ids -> the model's own answer, which the next turn follows. Asked only where there is one.
    """
    for prompt in prompts:
        messages: list[dict[str, str]] = []
        for number, said in enumerate((prompt.text, *prompt.later)):
            messages.append({"role": "user", "content": said})
            ids = encode(messages)
            yield prompt, ids
            if number < len(prompt.later):
                messages.append({"role": "assistant", "content": answer(ids)})


def _read_file(file: Path) -> list[Prompt]:
    return [_prompt(found, file, number) for number, found in _lines(file)]


def _lines(file: Path) -> Iterator[tuple[int, Any]]:
    """(number, object) of each line."""
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
