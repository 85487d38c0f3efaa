"""Texts of ``embed`` and ``rank``: arguments, files and standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import LowBit, Model
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_json import parse
from ipex_lookahead.system.terminal import is_terminal

JSON_LINES = ".jsonl"
_LINE = 'a JSON text, or an object such as {"id": "a", "text": "..."}'


@dataclass(frozen=True, slots=True)
class Given:
    """A text, and its ``id`` in a file of JSON lines; None elsewhere."""

    text: str
    id: Any = None


@dataclass
class EmbeddingOptions:
    """The model of ``embed`` and ``rank``."""

    model: str = option(
        "Folder, .gguf file, short name (list: pull) or hub id.", None, "-m", type=Model(), required=True
    )
    low_bit: str | None = option(f"Weight format: {WEIGHTS}. Default: the file's own.", type=LowBit())
    threads: int | None = option("Number of threads. Default: all physical cores.", low=1)
    max_length: int | None = option("Maximum tokens of a text. Default: the model's.", low=1)

    def open(self) -> Any:
        """Load the model, with a bar. Raises InputError for a text model."""
        from ipex_lookahead.cli.progress import byte_bar
        from ipex_lookahead.embedding.model import EmbeddingModel

        with byte_bar(f"loading {self.model}") as draw:
            return EmbeddingModel.open(
                self.model,
                load_in_low_bit=self.low_bit,
                threads=self.threads,
                max_length=self.max_length,
                progress=lambda done, total, name: draw(done, total),
            )


def texts_of(arguments: Sequence[str], files: Sequence[str], field: str, what: str = "text") -> list[Given]:
    """Return the texts of a command line: its arguments, then those of its files; "-" and a pipe are standard input.

    A file of JSON lines (.jsonl, or standard input that begins with a brace) has one text a line: a JSON text, or an
    object. Any other file has one text a line; its last line end does not begin another text.

    Args:
        arguments: texts.
        files: paths; "-" is standard input.
        field: name of the text in objects.
        what: noun for messages.

    Raises:
        UsageError: there is no text.
        InputError: a file that cannot be read, or is not UTF-8, or a line that is not JSON.
    """
    found = [Given(text) for text in arguments if text != "-"]
    wanted = [*files, *(["-"] if "-" in arguments else [])]
    if not found and not wanted and sys.stdin is not None and not is_terminal(sys.stdin):
        wanted = ["-"]
    for file in dict.fromkeys(wanted):
        found += _of_file(file, field)
    if not found:
        raise click.UsageError(f"there is no {what}; give one in quotes, --file FILE, or - to read standard input")
    return found


def _of_file(file: str, field: str) -> list[Given]:
    name = "standard input" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else given_path(file).read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", hint="check the path of --file") from error
    lines = text.removesuffix("\n").split("\n") if text else []
    if Path(file).suffix != JSON_LINES and not (file == "-" and text.lstrip().startswith("{")):
        return [Given(line.removesuffix("\r")) for line in lines]
    return [_of_line(line, f"{name}, line {number}", field) for number, line in enumerate(lines, 1) if line.strip()]


def _of_line(line: str, where: str, field: str) -> Given:
    try:
        value = parse(line.encode(), where)
    except ModelFormatError as error:
        raise InputError(str(error), hint=_LINE) from None
    if isinstance(value, str):
        return Given(value)
    if isinstance(value, dict) and isinstance(value.get(field), str):
        return Given(value[field], value.get("id"))
    has = f"it has {', '.join(map(repr, list(value)[:8]))}" if isinstance(value, dict) else json.dumps(value)[:60]
    raise InputError(f"{where}: there is no text {field!r}; {has}", hint=f"{_LINE}; --field names another field")
