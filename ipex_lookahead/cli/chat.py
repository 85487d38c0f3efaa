"""``ipex-lookahead chat``: talk with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import TextModelOptions
from ipex_lookahead.cli.lookahead import Lookahead
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.system.terminal import counted, is_terminal, may_draw

LEAVING = ("exit", "quit")
"""Said alone these end the chat, as they do in other programs."""


@dataclass
class ChatOptions:
    """How the conversation goes."""

    max_new_tokens: int = option("Most tokens in an answer.", 512, "-n", low=1)
    system: str | None = option("The system prompt.", metavar="TEXT")
    show_accepted: bool | None = option(
        "Colour the tokens that came for free, by their source; on where the terminal has colours.",
        None,
        "--show-accepted/--hide-accepted",
    )
    think: bool | None = option(
        "Whether the chat template asks the model to think, where it knows that; else as the template likes.",
        None,
        "--think/--no-think",
    )
    history: bool = option("Keep typed lines in a file, for the arrow keys.", True)


@command(
    "ipex-lookahead chat --lookahead auto",
    'ipex-lookahead chat -m path/to/model --temperature 0.7 --system "Be brief."',
)
def chat(
    loading: TextModelOptions, ahead: Lookahead, sampling: Sampling, settings: ChatOptions, prompt: str | None = None
) -> None:
    """Talk with a model. /help lists what can be typed; Ctrl-C stops an answer, Ctrl-D leaves."""
    sampling.check()
    ahead.check()

    from rich.panel import Panel
    from rich.text import Text

    from ipex_lookahead.cli.messages import piped, typed
    from ipex_lookahead.cli.progress import console
    from ipex_lookahead.cli.session import Session
    from ipex_lookahead.cli.slash import SLASHES
    from ipex_lookahead.cli.stream import Painter
    from ipex_lookahead.cli.wrapping import WordWrap

    by_hand = is_terminal(sys.stdin)
    wrap = WordWrap(sys.stdout.write) if is_terminal(sys.stdout) else None
    aside = console(stderr=True)
    loaded = loading.load_text(progress=True)
    sampling.check(loaded)
    drafting = ahead.arguments()
    session = Session(
        loaded,
        system=settings.system,
        sampling=sampling,
        lookahead=drafting.pop("lookahead"),
        drafting=drafting,
        max_new_tokens=settings.max_new_tokens,
        think=settings.think,
        show_accepted=may_draw(sys.stdout) if settings.show_accepted is None else settings.show_accepted,
        painter=Painter(wrap),
        tell=lambda line: aside.print(Text(line, style="dim")),
    )
    if prompt is not None:  # given by ``run``: one answer
        if not session.answer(prompt):
            raise click.exceptions.Exit(1)
        return
    if by_hand:
        facts = loaded.engine.describe()
        threads = counted(facts.get("threads", 1), "thread")
        head = f"{loading.model} · {facts.get('low_bit')} · {facts.get('isa')} · {threads}"
        head += f"\n{session.sampling_in_words()}"
        box = Panel(Text(f"{head}\n/help lists the commands, Ctrl-D leaves"), expand=False)
        aside.print(box, soft_wrap=False)  # else what is longer than a line is cut off
        lines = typed([f"/{name}" for name in SLASHES], settings.history, session.tell)
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
