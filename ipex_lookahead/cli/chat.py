"""``ipex-lookahead chat``: talk with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
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
    special_tokens_option,
)
from ipex_lookahead.system.terminal import counted, is_terminal, may_draw

LEAVING = ("exit", "quit")
"""Said alone these end the chat, as they do in other programs."""


@command(
    "ipex-lookahead chat --lookahead auto",
    'ipex-lookahead chat -m path/to/model --temperature 0.7 --system "Be brief."',
)
@model_options
@engine_options
@draft_model_option
@lookahead_options
@option("--max-new-tokens", "-n", type=click.IntRange(1), default=512, help="Most tokens in an answer.")
@sampling_options
@penalty_options
@option("--system", metavar="TEXT", help="What the model is told before the conversation.")
@special_tokens_option
@option(
    "--show-accepted/--hide-accepted",
    default=None,
    help="Colour the tokens that came for free, by their source; on where the terminal has colours.",
)
@option("--history/--no-history", default=True, help="Keep typed lines in a file, for the arrow keys.")
def chat(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    max_new_tokens: int,
    system: str | None,
    special_tokens_in_content: bool,
    show_accepted: bool | None,
    history: bool,
    prompt: str | None = None,
    **options: Any,
) -> None:
    """Conversation with a model. /help lists what can be typed; Ctrl-C stops an answer, Ctrl-D leaves."""
    sampling = Sampling(**{name: options.pop(name) for name in (*SAMPLING_OPTIONS, *PENALTIES)})
    sampling.check()
    placing = {name: options.pop(name) for name in PLACING}
    ahead = Lookahead(**options)
    ahead.check()

    from rich.panel import Panel
    from rich.text import Text

    from ipex_lookahead.cli.accepted import Painter
    from ipex_lookahead.cli.loading import load_text
    from ipex_lookahead.cli.messages import piped, typed
    from ipex_lookahead.cli.progress import console
    from ipex_lookahead.cli.session import Session
    from ipex_lookahead.cli.slash import SLASHES
    from ipex_lookahead.cli.stream import show
    from ipex_lookahead.cli.wrapping import WordWrap

    by_hand = is_terminal(sys.stdin)
    wrap = WordWrap(sys.stdout.write) if is_terminal(sys.stdout) else None
    aside = console(stderr=True)
    settings: dict[str, Any] = {
        "low_bit": low_bit,
        "threads": threads,
        "kv_cache": kv_cache,
        "draft_model": draft_model,
        "special_tokens_in_content": special_tokens_in_content,
    }
    loaded = load_text(model, **settings, **placing, progress=True)
    sampling.check(loaded)
    drafting = ahead.arguments()
    session = Session(
        loaded,
        system=system,
        sampling=sampling,
        lookahead=drafting.pop("lookahead"),
        drafting=drafting,
        max_new_tokens=max_new_tokens,
        say=partial(show, wrap=wrap),
        show_accepted=may_draw(sys.stdout) if show_accepted is None else show_accepted,
        painter=Painter(wrap),
        tell=lambda line: aside.print(Text(line, style="dim")),
    )
    if prompt is not None:  # given by ``run``: one answer
        if not session.answer(prompt):
            raise click.exceptions.Exit(1)
        return
    if by_hand:
        facts = loaded.engine.describe()
        head = f"{model} · {facts.get('low_bit')} · {facts.get('isa')} · {counted(facts.get('threads', 1), 'thread')}"
        head += f"\n{session.sampling_in_words()}"
        box = Panel(Text(f"{head}\n/help lists the commands, Ctrl-D leaves"), expand=False)
        aside.print(box, soft_wrap=False)  # else what is longer than a line is cut off
        lines = typed([f"/{name}" for name in SLASHES], history, session.tell)
    else:
        lines = piped()
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
