"""``ipex-lookahead chat``: talk with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.lookahead import Lookahead, lookahead_options
from ipex_lookahead.cli.options import (
    PENALTIES,
    PLACING,
    SAMPLING_OPTIONS,
    Sampling,
    draft_model_option,
    engine_options,
    model_options,
    option,
    penalty_options,
    sampling_options,
)
from ipex_lookahead.errors import InputError
from ipex_lookahead.terminal import counted, is_terminal, wants_plain

HISTORY_LINES = 1000
LEAVING = ("exit", "quit")
"""Said alone these end the chat, as they do in other programs."""
QUOTE = '"""'
"""Begins and ends a message of several lines."""
FURTHER = "... "
"""The prompt for a further line of one."""


class BlockLeft(Exception):
    """Ctrl-C inside a message of several lines: it is dropped, and the chat goes on."""


@command()
@model_options
@engine_options
@draft_model_option
@lookahead_options
@option("--max-new-tokens", "-n", type=click.IntRange(1), default=512, help="Most tokens in an answer.")
@sampling_options
@penalty_options
@option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@option("--history/--no-history", default=True, help="Keep typed lines in a file, for the arrow keys.")
def chat(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    max_new_tokens: int,
    system: str | None,
    history: bool,
    **options: Any,
) -> None:
    """Talk with a model. /help lists what can be typed; Ctrl-C stops an answer, Ctrl-D leaves."""
    sampling = Sampling(**{name: options.pop(name) for name in (*SAMPLING_OPTIONS, *PENALTIES)})
    sampling.check()
    placing = {name: options.pop(name) for name in PLACING}
    ahead = Lookahead(**options)
    ahead.check()

    from rich.panel import Panel
    from rich.text import Text

    from ipex_lookahead.cli.loading import load_text
    from ipex_lookahead.cli.progress import console
    from ipex_lookahead.cli.session import Session
    from ipex_lookahead.cli.stream import show

    typed = is_terminal(sys.stdin)
    aside = console(stderr=True)
    settings: dict[str, Any] = {
        "low_bit": low_bit,
        "threads": threads,
        "kv_cache": kv_cache,
        "draft_model": draft_model,
    }
    loaded = load_text(model, **settings, **placing, progress=True)
    drafting = ahead.arguments()
    session = Session(
        loaded,
        system=system,
        sampling=sampling,
        lookahead=drafting.pop("lookahead"),
        drafting=drafting,
        max_new_tokens=max_new_tokens,
        say=show,
        tell=lambda line: aside.print(Text(line, style="dim")),
    )
    if typed:
        facts = loaded.engine.describe()
        head = f"{model} · {facts.get('low_bit')} · {facts.get('isa')} · {counted(facts.get('threads', 1), 'thread')}"
        aside.print(Panel(Text(f"{head}\n/help lists the commands, Ctrl-D leaves"), expand=False))
        lines = _typed(history, session.tell)
    else:
        lines = _piped()
    converse(session, lines)


def converse(session: Any, messages: Iterator[str]) -> None:
    """Answer messages and run slash commands until there are no more, or until ``/bye``, ``exit`` or ``quit``."""
    from ipex_lookahead.cli.slash import run_slash

    for message in messages:
        if not message.strip():
            continue
        if message.strip().lower() in LEAVING:
            return
        if message.startswith("/"):
            run_slash(session, message.rstrip())
        else:
            session.answer(message)
        if session.over:
            return


def _piped() -> Iterator[str]:
    """One message a line, or several lines between two ``\"\"\"``."""
    if sys.stdin is None:  # Python's sign that file 0 was closed
        raise click.UsageError("standard input is closed, so there is nothing to answer; type, or pipe messages in")
    lines = sys.stdin.buffer  # text would be what the locale says: in "C" any byte passes, as no character

    def ask(prompt: str) -> str | None:
        return lines.readline().decode("utf-8") or None

    try:
        yield from _joined(ask)
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input is not UTF-8 text (byte {error.start} of a line)", hint="iconv -t utf-8 converts a file"
        ) from error


def _typed(history: bool, tell: Callable[[str], None]) -> Iterator[str]:
    """Messages from the keyboard, with line editing. Ctrl-C says how to leave, Ctrl-D leaves."""
    import readline

    from ipex_lookahead.cli.slash import SLASHES

    names = [f"/{name}" for name in SLASHES]
    readline.set_completer(lambda text, n: [*(x for x in names if x.startswith(text)), None][n])
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    if wants_plain():  # it would be switched on and off with escape sequences around every line
        readline.parse_and_bind("set enable-bracketed-paste off")
    file = history_file()
    if history:
        try:
            readline.read_history_file(file)
        except OSError:  # the first time there is none
            readline.clear_history()

    def ask(prompt: str) -> str | None:
        while True:
            try:
                return input(prompt) + "\n"
            except EOFError:
                print(file=sys.stderr)
                return None
            except KeyboardInterrupt:
                print(file=sys.stderr)
                if prompt == FURTHER:
                    tell("the message is dropped")
                    raise BlockLeft from None
                tell("Ctrl-D or /bye leaves")

    try:
        yield from _joined(ask)
    finally:
        if history:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                readline.set_history_length(HISTORY_LINES)
                readline.write_history_file(file)
                file.chmod(0o600)  # it holds what people typed
            except OSError as error:
                tell(f"the history could not be saved: {error}")


def _joined(ask: Callable[[str], str | None]) -> Iterator[str]:
    """Lines as messages; those between two ``\"\"\"`` are one message. None ends it, and what was begun is given."""
    while (line := ask(">>> ")) is not None:
        line = line.rstrip("\n")
        if not line.startswith(QUOTE):
            yield line
            continue
        try:
            yield _block(line.removeprefix(QUOTE), ask)
        except BlockLeft:
            continue


def _block(begun: str, ask: Callable[[str], str | None]) -> str:
    """A message of several lines, of which the first is there."""
    closed = False
    while not (closed := begun.rstrip().endswith(QUOTE)) and (following := ask(FURTHER)) is not None:
        begun += "\n" + following.rstrip("\n")
    return begun.rstrip().removesuffix(QUOTE).strip("\n") if closed else begun


def history_file() -> Path:
    """``$XDG_STATE_HOME/ipex-lookahead/chat_history``, by default below ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ipex-lookahead" / "chat_history"
