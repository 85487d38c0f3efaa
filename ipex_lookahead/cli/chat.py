"""``ipex-lookahead chat`` and ``run``: chat with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from ipex_lookahead.cli.commands import Command, command, double_quoted
from ipex_lookahead.cli.loading import TextModelOptions, template_note
from ipex_lookahead.cli.lookahead import Lookahead
from ipex_lookahead.cli.options import Option, option
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.tables import print_line
from ipex_lookahead.cli.thinking import check_think, think_option
from ipex_lookahead.cli.types import Model, Refused
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.terminal import counted, is_terminal

LEAVING = ("exit", "quit")
"""A message with one of these words alone ends the chat."""


@dataclass
class ChatOptions:
    """The settings of the conversation."""

    max_new_tokens: int = option("Maximum number of tokens per answer.", 512, "-n", low=1)
    system: str | None = option("System prompt.", metavar="TEXT")
    show_accepted: bool = option("Color tokens accepted from a draft.", False)
    think: bool | None = think_option
    history: bool = option("Save typed messages for the arrow keys of later chats.", True)


@command(
    "ipex-lookahead chat --lookahead auto",
    'ipex-lookahead chat -m path/to/model --temperature 0.7 --system "Be brief."',
)
def chat(
    loading: TextModelOptions, ahead: Lookahead, sampling: Sampling, settings: ChatOptions, prompt: str | None = None
) -> None:
    """Chat with a model. /help lists commands; Ctrl-C stops an answer, Ctrl-D exits."""
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
    check_think(loaded, settings.think)
    drafting = ahead.arguments()
    session = Session(
        loaded,
        system=settings.system,
        sampling=sampling,
        lookahead=drafting.pop("lookahead"),
        drafting=drafting,
        max_new_tokens=settings.max_new_tokens,
        think=settings.think,
        show_accepted=settings.show_accepted,
        painter=Painter(wrap),
        tell=partial(print_line, dim=True),
    )
    if note := template_note(loaded):
        session.tell(note)
    if prompt is not None:  # of ``run``: one answer
        if not session.answer(prompt):
            raise click.exceptions.Exit(1)
        return
    if by_hand:
        facts = loaded.engine.describe()
        threads = counted(facts.get("threads", 1), "thread")
        head = f"{loading.model} · {facts.get('low_bit')} · {facts.get('isa')} · {threads}"
        head += f"\n{session.sampling_in_words()}"
        box = Panel(Text(f"{head}\n/help lists commands, Ctrl-D exits"), expand=False)
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


def _run(model: str | None, prompt: str | None, prompt_text: str | None, **options: Any) -> None:
    """Download MODEL if necessary and chat with it, or answer PROMPT. Without MODEL: list models."""
    if prompt is not None and prompt_text is not None:
        raise click.UsageError("PROMPT and --prompt are both given; leave one of them out")
    if model is None:
        from ipex_lookahead.cli.models import print_models

        print_models()
        return
    if any(sign.isspace() for sign in model) and not given_path(model).exists():
        hint = f"ipex-lookahead run default {double_quoted(model)}"
        raise Refused(f"MODEL must be the name of a model, got {model!r}", hint=hint)
    assert chat.callback is not None
    chat.callback(model=model, prompt=prompt if prompt_text is None else prompt_text, **options)


run = Command(
    "run",
    callback=_run,
    params=[
        click.Argument(["model"], type=Model(), required=False),
        click.Argument(["prompt"], required=False),
        Option(["prompt_text", "-p", "--prompt"], help="The prompt, instead of PROMPT.", metavar="TEXT"),
        *(param for param in chat.params if param.name not in ("model", "config")),
    ],
    help=_run.__doc__,
    examples=("ipex-lookahead run qwen3-4b", 'ipex-lookahead run default "Why is the sky blue?"'),
)
