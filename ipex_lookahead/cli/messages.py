"""The messages of ``chat``: from the keyboard, with line editing and a history, or from a pipe."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.hub import home_folder
from ipex_lookahead.system.terminal import plain_output

HISTORY_LINES = 1000
QUOTE = '"""'
"""Begins and ends a message of several lines."""
TAKES_FILES = ("/image", "/save", "/load")
"""The commands that take the path of a file."""
FURTHER = "... "
"""The prompt for a further line of one."""
_ESCAPED = {"\\": "\\\\", "\n": "\\n"}
"""Escapes for a message of several lines in one line of the history."""


class BlockLeft(Exception):
    """Ctrl-C in a message of several lines: the message is dropped, and the chat continues."""


def piped() -> Iterator[str]:
    """Yield one message per line, or the lines between two ``\"\"\"`` as one."""
    if sys.stdin is None:  # Python's sign that file 0 was closed
        raise click.UsageError("standard input is closed; run chat in a terminal or pipe messages in")
    lines = sys.stdin.buffer  # sys.stdin would decode with the locale, which accepts any byte in "C"
    encodings = chain(["utf-8-sig"], repeat("utf-8"))  # a byte order mark may be at the start only

    def ask(prompt: str) -> str | None:
        return lines.readline().decode(next(encodings)) or None

    try:
        yield from _joined(ask)
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input is not UTF-8 text (byte {error.start} of a line)", hint="convert it with iconv -t utf-8"
        ) from error


def typed(names: list[str], history: bool, tell: Callable[[str], None]) -> Iterator[str]:
    """Yield messages from the keyboard, with line editing. Ctrl-C prints how to leave, Ctrl-D leaves.

    Args:
        names: Words for Tab completion.
        history: Save the messages in :func:`history_file`, for the arrow keys.
        tell: Prints a line that is not the model's.
    """
    readline = line_editor(names)
    if readline is None:
        tell("this Python has no readline: arrow keys, history and Alt-Enter are not available")
    elif history:
        load_history(readline)

    def ask(prompt: str) -> str | None:
        while True:
            try:
                line = input(prompt) + "\n"
                line.encode()
                return line
            except UnicodeEncodeError:  # Python decodes invalid bytes as surrogates
                tell("the message is not valid UTF-8 and was not sent; set the terminal to UTF-8")
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                if prompt == FURTHER:
                    tell("message discarded")
                    raise BlockLeft from None
                tell("press Ctrl-D or type /bye to exit")

    try:
        yield from _joined(ask)
    finally:
        if readline is not None and history:
            try:
                save_history(readline)
            except OSError as error:
                tell(f"the history could not be saved: {error}")


def line_editor(names: list[str]) -> Any:
    """Return the configured readline module, or None if Python was built without it."""
    try:
        import readline
    except ImportError:
        return None
    readline.set_completer(lambda text, n: [*completions(readline.get_line_buffer(), text, names), None][n])
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    readline.parse_and_bind(r'"\e\C-m": "\C-v\C-j"')  # Alt-Enter inserts a line break
    # Bracketed paste makes pasted lines one message, but writes escape sequences.
    readline.parse_and_bind(f"set enable-bracketed-paste {'off' if plain_output() else 'on'}")
    return readline


def completions(line: str, text: str, names: Sequence[str]) -> list[str]:
    """Return what Tab writes in place of the last word ``text`` of a line: commands, or files after TAKES_FILES."""
    command, space, typed = line.partition(" ")
    if not space or command not in TAKES_FILES:
        return [name for name in names if name.startswith(text)]
    folder, _, start = typed.rpartition("/")
    try:
        inside = sorted(given_path(f"{folder}/" if "/" in typed else ".").iterdir())
    except (OSError, InputError):
        return []
    before = len(typed) - len(text)  # of a path with spaces, the last word is replaced
    found = [f"{folder}/{one.name}" if "/" in typed else one.name for one in inside if one.name.startswith(start)]
    ends = ["/" if given_path(one).is_dir() else "" for one in found]
    return [one[before:] + end for one, end in zip(found, ends, strict=True)]


def load_history(readline: Any) -> None:
    """Load the history of earlier chats, if the file exists."""
    readline.clear_history()
    file = history_file()
    if file is None:
        return
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    except OSError:  # it does not exist the first time
        return
    unescaped = {escape: plain for plain, escape in _ESCAPED.items()}
    for line in lines[-HISTORY_LINES:]:
        readline.add_history(re.sub(r"\\[\\n]", lambda found: unescaped[found[0]], line))


def save_history(readline: Any) -> None:
    """Save the history with one message per line; readline's own file would split messages of several lines."""
    count = readline.get_current_history_length()
    messages = [readline.get_history_item(number + 1) or "" for number in range(count)][-HISTORY_LINES:]
    lines = [re.sub(r"[\\\n]", lambda found: _ESCAPED[found[0]], message) for message in messages]
    file = history_file()
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(file) as temporary:
        temporary.chmod(0o600)  # messages are private
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="replace")
        temporary.replace(file)


def _joined(ask: Callable[[str], str | None]) -> Iterator[str]:
    """Yield lines as messages, and those between two ``\"\"\"`` as one. None ends the last message."""
    while (line := ask(">>> ")) is not None:
        line = line.rstrip("\n")
        if not line.startswith(QUOTE):
            yield line
            continue
        try:
            yield _block(line.removeprefix(QUOTE), ask)
        except BlockLeft:
            continue


def _block(text: str, ask: Callable[[str], str | None]) -> str:
    """Read the further lines of a message."""
    closed = False
    while not (closed := text.rstrip().endswith(QUOTE)) and (following := ask(FURTHER)) is not None:
        text += "\n" + following.rstrip("\n")
    return text.rstrip().removesuffix(QUOTE).strip("\n") if closed else text


def history_file() -> Path | None:
    """Return ``$XDG_STATE_HOME/ipex-lookahead/chat_history``, by default in ``~/.local/state``; None without a home."""
    home, state = home_folder(), os.environ.get("XDG_STATE_HOME")
    if not state and home is None:
        return None
    return Path(state or f"{home}/.local/state") / "ipex-lookahead" / "chat_history"
