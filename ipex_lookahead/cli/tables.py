"""Tables that are complete at any width: as one block if it fits, as several blocks, or row by row.

Rich truncates a cell that does not fit; these tables do not. The terminal breaks words that are wider than a line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from ipex_lookahead.system.terminal import is_terminal, may_draw

PIPED_WIDTH = 80
"""Width of tables if the output is not a terminal and ``COLUMNS`` is not set."""
ENDLESS = 10**6
"""Width of facts in that case: values in one piece are easy to search and copy."""
GAPS = (2, 1)
"""Spaces between columns: the first one that fits."""
_FIGURE = re.compile(r"[-+]?\d\S*|-?")


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    keys: int = 1,
    title: str = "",
    caption: str = "",
    to_stderr: bool = False,
) -> None:
    """Print a table in the layout of :func:`table_lines`."""
    width = terminal_width(to_stderr=to_stderr)
    click.echo("\n".join(table_lines(headings, rows, width, keys=keys, title=title, caption=caption)), err=to_stderr)


def print_rows(
    columns: Mapping[str, str | Callable[[Any], object]], rows: Iterable[Mapping[str, Any]], **options: Any
) -> None:
    """Print a table of rows that are mappings.

    Args:
        columns: Heading -> a format string of the row's fields, or a function of the row.
        rows: The rows.
        **options: See :func:`print_table`.
    """
    cells = [
        [cell.format_map(row) if isinstance(cell, str) else cell(row) for cell in columns.values()] for row in rows
    ]
    print_table(tuple(columns), cells, **options)


def print_facts(facts: Iterable[tuple[str, object]], *, to_stderr: bool = False) -> None:
    """Print labels and values in the layout of :func:`fact_lines`."""
    width = terminal_width(to_stderr=to_stderr, piped=ENDLESS)
    click.echo("\n".join(fact_lines(facts, width)), err=to_stderr)


def print_line(line: str, **style: Any) -> None:
    """Print a line on standard error; on a terminal it is broken between words.

    Args:
        line: The text.
        **style: Arguments of ``click.style``.
    """
    width = terminal_width(to_stderr=True) if is_terminal(sys.stderr) else ENDLESS
    for part in map(_plain, line.split("\n")):
        for one in [part] if columns_of(part) <= width else _wrapped(part, width):
            click.echo(click.style(one, **style) if style and may_draw() else one, err=True)


def terminal_width(*, to_stderr: bool = False, piped: int = PIPED_WIDTH) -> int:
    """Return ``COLUMNS`` if set, else the width of the terminal, else ``piped``."""
    if (columns := os.environ.get("COLUMNS", "")).isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size((sys.stderr if to_stderr else sys.stdout).fileno()).columns or piped
    except (OSError, ValueError, AttributeError):  # not a terminal, closed, or None
        return piped


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int,
    *,
    keys: int = 1,
    title: str = "",
    caption: str = "",
) -> list[str]:
    """Return the lines of a table, at most ``width`` columns wide unless a word is wider.

    Args:
        headings: Headings of the columns; they may have several lines.
        rows: One cell for each heading, shown as ``str``; numbers are right-aligned.
        width: Columns of the terminal.
        keys: Number of first columns that identify a row; each block repeats them.
        title: A sentence above.
        caption: A sentence below.
    """
    cells = [[_plain(cell) for cell in row] for row in rows]
    for row in cells:
        if len(row) != len(headings):
            raise ValueError(f"a row has {len(row)} cells, the table {len(headings)} columns")
    columns = [[*heading.split("\n")] for heading in headings]
    body = _whole(columns, cells, width) or _stacked(columns, cells, width, keys) or _records(headings, cells, width)
    return [*_wrapped(title, width), *body, *_wrapped(caption, width)]


def fact_lines(facts: Iterable[tuple[str, object]], width: int) -> list[str]:
    """Return labels and values as lines; a long value continues below, indented."""
    pairs = [(_plain(label), _plain(value)) for label, value in facts]
    indent = max((columns_of(label) for label, _ in pairs), default=0) + 2
    lines: list[str] = []
    for label, value in pairs:
        wrapped = _wrapped(value, width - indent)
        if max(map(columns_of, wrapped), default=0) <= width - indent:
            first, *others = wrapped or [""]
            lines += [f"{_padded(label, indent)}{first}".rstrip(), *(" " * indent + line for line in others)]
        else:
            lines += [label, *("  " + line for line in _wrapped(value, width - 2))]
    return lines


def markdown_lines(headings: Sequence[str], rows: Iterable[Sequence[object]], width: int) -> list[str]:
    """Return a Markdown table, or a list of the rows if ``width`` is too narrow."""
    cells = [[_plain(cell).replace("|", "\\|") for cell in row] for row in rows]
    columns = list(zip(headings, *cells, strict=True))
    widths = [max(map(columns_of, column)) for column in columns]
    if sum(widths) + 3 * len(widths) + 1 <= width:
        ruler = ["-" * each for each in widths]
        padded = ([_padded(cell, each) for cell, each in zip(row, widths, strict=True)] for row in (headings, *cells))
        lines = [f"| {' | '.join(row)} |" for row in padded]
        return [lines[0], f"| {' | '.join(ruler)} |", *lines[1:]]
    lines = []
    for first, *others in cells:
        facts = [f"{heading}: {cell}" for heading, cell in zip(headings[1:], others, strict=True) if cell]
        wrapped = _wrapped("; ".join([first, *facts]), width - 2)
        lines += [("  " if number else "- ") + line for number, line in enumerate(wrapped)]
    return lines


def _whole(columns: list[list[str]], cells: list[list[str]], width: int) -> list[str]:
    """Return one block, or nothing if it is too wide."""
    for gap in GAPS:
        lines = _block(columns, cells, gap)
        if max(map(columns_of, lines)) <= width:
            return lines
    return []


def _stacked(columns: list[list[str]], cells: list[list[str]], width: int, keys: int) -> list[str]:
    """Return several blocks, each with all columns that fit; nothing if a single column does not fit."""

    def block(chosen: list[int]) -> list[str]:
        picked = [*range(keys), *chosen]
        return _whole([columns[n] for n in picked], [[row[n] for n in picked] for row in cells], width)

    blocks: list[list[str]] = []
    chosen: list[int] = []
    for number in range(keys, len(columns)):
        if chosen and not block([*chosen, number]):
            blocks.append(block(chosen))
            chosen = []
        if not block([*chosen, number]):
            return []
        chosen.append(number)
    blocks.append(block(chosen))
    return [line for number, lines in enumerate(blocks) for line in ([""] if number else []) + lines]


def _records(headings: Sequence[str], cells: list[list[str]], width: int) -> list[str]:
    """Return each row as facts, separated by blank lines."""
    labels = [" ".join(heading.split("\n")) for heading in headings]
    lines: list[str] = []
    for row in cells:
        lines += [""] if lines else []
        lines += fact_lines(zip(labels, row, strict=True), width)
    return lines or fact_lines([(label, "") for label in labels], width)


def _block(columns: list[list[str]], cells: list[list[str]], gap: int) -> list[str]:
    height = max(len(heading) for heading in columns)
    drawn: list[list[str]] = []
    for number, heading in enumerate(columns):
        below = [row[number] for row in cells]
        column = [""] * (height - len(heading)) + heading + below
        right = any(below) and all(_FIGURE.fullmatch(cell) for cell in below)
        widest = max(map(columns_of, column))
        drawn.append([_padded(cell, widest, right=right) for cell in column])
    return [(" " * gap).join(line).rstrip() for line in zip(*drawn, strict=True)]


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap words at ``width``; a longer word has its own line."""
    lines: list[str] = []
    for word in text.split():
        if lines and columns_of(lines[-1]) + 1 + columns_of(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def _plain(cell: object) -> str:
    """Return a cell as one line of text, with control characters escaped as in Python."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(cell))


def _padded(text: str, width: int, *, right: bool = False) -> str:
    fill = " " * (width - columns_of(text))
    return fill + text if right else text + fill


def columns_of(text: str) -> int:
    """Return the columns of a text in a terminal; Chinese, Japanese and Korean characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
