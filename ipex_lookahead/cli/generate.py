"""``ipex-lookahead generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.lookahead import Lookahead, lookahead_options
from ipex_lookahead.cli.options import (
    PLACING,
    SAMPLING_OPTIONS,
    Sampling,
    draft_model_option,
    engine_options,
    model_options,
    option,
    sampling_options,
)
from ipex_lookahead.errors import InputError


@command()
@click.argument("prompt", required=False)
@model_options
@engine_options
@draft_model_option
@lookahead_options
@option("--max-new-tokens", "-n", type=click.IntRange(0), default=256, help="Most tokens to generate.")
@sampling_options
@option("--stop", multiple=True, metavar="TEXT", help="End where this text appears; may be given several times.")
@option("--system", metavar="TEXT", help="What the model is told before the prompt.")
@option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@option("--quiet", "-q", is_flag=True, help="The text alone: no progress, no statistics.")
@option("--verbose", "-v", is_flag=True, help="More statistics: acceptance by source and position, where time went.")
@option("--show-accepted", is_flag=True, help="Show at the end which tokens came for free, coloured by their source.")
def generate(
    prompt: str | None,
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    max_new_tokens: int,
    stop: tuple[str, ...],
    system: str | None,
    raw: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    show_accepted: bool,
    **options: Any,
) -> None:
    """Answer PROMPT; '-', or nothing at all in a pipe, reads it from standard input."""
    sampling = Sampling(**{name: options.pop(name) for name in SAMPLING_OPTIONS})
    sampling.check()
    placing = {name: options.pop(name) for name in PLACING}
    ahead = Lookahead(**options)
    ahead.check()
    if show_accepted and as_json:
        raise click.UsageError("--show-accepted is for reading, --json for programs; leave one of them out")
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    text = _read(prompt)

    from ipex_lookahead.cli.loading import config_of, load

    settings: dict[str, Any] = {
        "low_bit": low_bit,
        "threads": threads,
        "kv_cache": kv_cache,
        "draft_model": draft_model,
    }
    loaded, tokenizer = load(model, **settings, **placing, progress=not quiet)
    if raw:
        ids = tokenizer(text)["input_ids"]
    else:
        from ipex_lookahead.tokenization.prompts import build_prompt

        ids = build_prompt(tokenizer, config_of(loaded), text, system)

    import torch

    from ipex_lookahead.cli.report import print_details, stats_json, stats_line
    from ipex_lookahead.cli.stream import Answer, show

    answer = Answer(tokenizer, (lambda part: None) if as_json or show_accepted else show)
    try:
        loaded.generate(
            torch.tensor([ids], dtype=torch.long),
            max_new_tokens=max_new_tokens,
            **ahead.arguments(),
            streamer=answer,
            stop_strings=list(stop) or None,
            tokenizer=tokenizer,
            **sampling.arguments(),
        )
    finally:
        if show_accepted:
            from ipex_lookahead.cli.accepted import print_accepted

            print_accepted(tokenizer, answer.ids, loaded.stats.origins())
        elif not as_json:
            show("\n")
    if as_json:
        facts = {"model": model, **_engine_facts(loaded), "lookahead": ahead.lookahead, "text": answer.text}
        reason = "length" if len(answer.ids) >= max_new_tokens else "stop"
        facts |= {"token_ids": answer.ids, "finish_reason": reason, **stats_json(loaded.stats)}
        click.echo(json.dumps(facts))
    elif not quiet:
        click.echo(stats_line(loaded.stats), err=True)
        if verbose:
            print_details(loaded.stats)


def _read(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("no prompt; give one, or '-' to type it in")
    if prompt is None or prompt == "-":
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not UTF-8 text (byte {error.start})") from error
    if not prompt.strip():
        raise InputError("the prompt is empty", hint="ipex-lookahead generate 'Why is the sky blue?'")
    return prompt


def _engine_facts(loaded: Any) -> dict[str, Any]:
    facts = loaded.engine.describe()
    return {key: facts.get(key) for key in ("engine", "low_bit", "isa", "threads")}
