"""``ipex-lookahead chat`` and ``run``: chat with a model in the terminal, or line by line through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ipex_lookahead.cli.adapters import AdapterOptions
from ipex_lookahead.cli.chat_images import ChatImage
from ipex_lookahead.cli.commands import Command, command, double_quoted
from ipex_lookahead.cli.loading import CacheFolderOptions, TextModelOptions, template_note
from ipex_lookahead.cli.lookahead import Lookahead
from ipex_lookahead.cli.options import Option, option
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.tables import print_line
from ipex_lookahead.cli.thinking import ThinkOptions
from ipex_lookahead.cli.types import Model, Refused
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.terminal import counted, is_terminal

if TYPE_CHECKING:
    from ipex_lookahead.cli.session import Session

LEAVING = ("exit", "quit")
"""A message with one of these words alone ends the chat."""


@dataclass
class ChatOptions:
    """The settings of the conversation."""

    max_new_tokens: int = option("Maximum number of tokens per answer.", 512, "-n", low=1)
    system: str | None = option("System prompt.", metavar="TEXT")
    image: tuple[str, ...] = option(
        "Image file for the first message. Repeatable.", (), type=click.Path(), metavar="FILE"
    )
    show_accepted: bool = option("Color tokens accepted from a draft.", False)
    session: str | None = option(
        "Continue the conversation of this name, or begin it; it is saved after each turn.", metavar="NAME"
    )
    stop_loops: bool = option("End an answer that repeats itself.", True)
    history: bool = option("Save typed messages for the arrow keys of later chats.", True)


@command(
    "ipex-lookahead chat --lookahead auto",
    'ipex-lookahead chat -m path/to/model --temperature 0.7 --system "Be brief."',
)
def chat(
    loading: TextModelOptions,
    ahead: Lookahead,
    sampling: Sampling,
    thinking: ThinkOptions,
    settings: ChatOptions,
    disk: CacheFolderOptions,
    adapters: AdapterOptions,
    prompt: str | None = None,
) -> None:
    """Chat with a model. /help lists commands; Ctrl-C stops an answer, Ctrl-D exits."""
    sampling.check()
    ahead.check()
    disk.check()
    adapters.check()

    from ipex_lookahead.cli.saved_sessions import session_folder
    from ipex_lookahead.cli.session import Session
    from ipex_lookahead.cli.stream import Painter
    from ipex_lookahead.cli.switching import ChatModels
    from ipex_lookahead.cli.wrapping import WordWrap

    if settings.session is not None:
        session_folder(settings.session)  # an invalid name is an error before the model is loaded
    wrap = WordWrap(sys.stdout.write) if is_terminal(sys.stdout) else None
    loaded = loading.load_text(progress=True)
    disk.use(loaded)
    named = adapters.load(loaded, progress=True)
    thinking.check(loaded)
    drafting = ahead.arguments()
    session = Session(
        loaded,
        loading.model,
        system=settings.system,
        sampling=sampling,
        lookahead=drafting.pop("lookahead"),
        drafting=drafting,
        max_new_tokens=settings.max_new_tokens,
        thinking=thinking,
        stop_loops=settings.stop_loops,
        show_accepted=settings.show_accepted,
        painter=Painter(wrap),
        tell=partial(print_line, dim=True),
    )
    session.models = ChatModels(loading, adapters)
    if named:
        session.use_adapter(named[0])
    if note := template_note(loaded):
        session.tell(note)
    try:
        if settings.session is not None:
            session.open(settings.session, _given())
        sampling.check(loaded)  # with the settings of the session
        for path in settings.image:
            session.attach(ChatImage.read(path))
        del loaded  # the session has it, and may release it
        if prompt is None:
            converse(session, _messages(session, loading.model, settings))
        elif not session.send(prompt):  # of ``run``: one answer
            raise click.exceptions.Exit(1)
    finally:
        session.close()


def _given() -> list[str]:
    """Return the names of the options that were given, in the command line or elsewhere."""
    context = click.get_current_context()
    return [name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT]


def _messages(session: Session, model: str, settings: ChatOptions) -> Iterator[str]:
    """Return the messages of a pipe, or print the facts of the model in a box and return those of the keyboard."""
    from rich.panel import Panel
    from rich.text import Text

    from ipex_lookahead.cli.messages import piped, typed
    from ipex_lookahead.cli.progress import console
    from ipex_lookahead.cli.slash import SLASHES

    if not is_terminal(sys.stdin):
        return piped()
    facts = session.engine_facts
    head = f"{model} · {facts.get('low_bit')} · {facts.get('isa')} · {counted(facts.get('threads', 1), 'thread')}"
    head += f" · adapter {session.adapter.adapter.name}" if session.adapter is not None else ""
    head += f"\n{session.sampling_in_words()}\n/help lists commands, Ctrl-D exits"
    console(stderr=True).print(Panel(Text(head), expand=False), soft_wrap=False)  # otherwise long lines are truncated
    return typed([f"/{name}" for name in SLASHES], settings.history, session.tell)


def converse(session: Any, messages: Iterator[str]) -> None:
    """Answer messages and run slash commands until the end of input, ``/bye``, ``exit`` or ``quit``.

    A named session is saved after each of them.
    """
    from ipex_lookahead.cli.slash import run_slash

    for message in messages:
        if not message.strip():
            continue
        if message.strip().lower() in LEAVING:
            return
        if message.startswith("/"):
            run_slash(session, message.rstrip())
        else:
            session.send(message)
        session.save()
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
