"""``ipex-lookahead run``: from a model's name to a conversation; the model is fetched where it is not here yet."""

from __future__ import annotations

from typing import Any

import click

from ipex_lookahead.cli.chat import chat
from ipex_lookahead.cli.commands import Command
from ipex_lookahead.cli.types import Model


def _run(model: str, prompt: str | None, **options: Any) -> None:
    """Fetch MODEL if need be, and talk with it as `chat` does; with PROMPT, answer that alone.

    MODEL is what --model of other commands is; `ipex-lookahead pull` lists short names. The options are chat's.
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
