"""``ipex-lookahead chat`` and ``run``: chat with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from ipex_lookahead.cli.commands import Command, command
from ipex_lookahead.cli.loading import TextModelOptions
from ipex_lookahead.cli.lookahead import Lookahead
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.types import Model
from ipex_lookahead.system.terminal import counted, is_terminal, may_draw

LEAVING = ("exit", "quit")
"""A message with one of these words alone ends the chat."""


@dataclass
class ChatOptions:
    """The settings of the conversation."""

    max_new_tokens: int = option("Most tokens in an answer.", 512, "-n", low=1)
    system: str | None = option("The system prompt.", metavar="TEXT")
    show_accepted: bool | None = option(
        "Color the accepted draft tokens by their source; on by default if the terminal has colors.",
        None,
        "--show-accepted/--hide-accepted",
    )
    think: bool | None = option(
        "Turn the model's thinking on or off, if its chat template supports that; by default the template decides.",
        None,
        "--think/--no-think",
    )
    history: bool = option("Save typed lines in a file, for the arrow keys.", True)


@command(
    "ipex-lookahead chat --lookahead auto",
    'ipex-lookahead chat -m path/to/model --temperature 0.7 --system "Be brief."',
)
def chat(
    loading: TextModelOptions, ahead: Lookahead, sampling: Sampling, settings: ChatOptions, prompt: str | None = None
) -> None:
    """Chat with a model. /help lists the commands; Ctrl-C stops an answer, Ctrl-D leaves."""
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
    if prompt is not None:  # of ``run``: one answer
        if not session.answer(prompt):
            raise click.exceptions.Exit(1)
        return
    if by_hand:
        facts = loaded.engine.describe()
        threads = counted(facts.get("threads", 1), "thread")
        head = f"{loading.model} · {facts.get('low_bit')} · {facts.get('isa')} · {threads}"
        head += f"\n{session.sampling_in_words()}"
        box = Panel(Text(f"{head}\n/help lists the commands, Ctrl-D leaves"), expand=False)
        aside.print(box, soft_wrap=False)  # otherwise long lines are truncated
        lines = typed([f"/{name}" for name in SLASHES], settings.history, session.tell)
    else:
        lines = piped()
    converse(session, lines)


def converse(session: Any, messages: Iterator[str]) -> None:
    """Answer messages and run slash commands until the end of input, ``/bye``, ``exit`` or ``quit``."""
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


def _run(model: str, prompt: str | None, **options: Any) -> None:
    """Fetch MODEL if necessary and chat with it, or answer PROMPT.

    MODEL is the same as --model of other commands; `ipex-lookahead pull` lists short names. The options are chat's.
    """
    assert chat.callback is not None
    chat.callback(model=model, prompt=prompt, **options)


run = Command(
    "run",
    callback=_run,
    params=[
        click.Argument(["model"], type=Model()),
        click.Argument(["prompt"], required=False),
        *(param for param in chat.params if param.name not in ("model", "config")),
    ],
    help=_run.__doc__,
    examples=("ipex-lookahead run qwen3-4b", 'ipex-lookahead run default "Why is the sky blue?"'),
)
