"""``ipex-lookahead generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ipex_lookahead.cli.options import Sampling, lookahead_option, model_options, option, sampling_options
from ipex_lookahead.errors import InputError


@click.command()
@click.argument("prompt", required=False)
@model_options
@lookahead_option
@option("--max-new-tokens", "-n", type=click.IntRange(0), default=256, help="Most tokens to generate.")
@sampling_options
@option("--stop", multiple=True, metavar="TEXT", help="End where this text appears; may be given several times.")
@option("--system", metavar="TEXT", help="What the model is told before the prompt.")
@option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@option("--quiet", "-q", is_flag=True, help="The text alone: no progress, no statistics.")
def generate(
    prompt: str | None,
    model: str,
    low_bit: str | None,
    threads: int | None,
    lookahead: int,
    max_new_tokens: int,
    stop: tuple[str, ...],
    system: str | None,
    raw: bool,
    as_json: bool,
    quiet: bool,
    **sampler: Any,
) -> None:
    """Answer PROMPT; '-', or nothing at all in a pipe, reads it from standard input."""
    sampling = Sampling(**sampler)
    sampling.check()
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    text = _read(prompt)

    from ipex_lookahead.cli.loading import config_of, load

    loaded, tokenizer = load(model, low_bit=low_bit, threads=threads, progress=not quiet)
    if raw:
        ids = tokenizer(text)["input_ids"]
    else:
        from ipex_lookahead.tokenization.prompts import build_prompt

        ids = build_prompt(tokenizer, config_of(loaded), text, system)

    import torch

    from ipex_lookahead.cli.report import stats_json, stats_line
    from ipex_lookahead.cli.stream import Answer, show

    answer = Answer(tokenizer, (lambda part: None) if as_json else show)
    try:
        loaded.generate(
            torch.tensor([ids], dtype=torch.long),
            max_new_tokens=max_new_tokens,
            lookahead=lookahead,
            streamer=answer,
            stop_strings=list(stop) or None,
            tokenizer=tokenizer,
            **sampling.arguments(),
        )
    finally:
        if not as_json:
            show("\n")
    if as_json:
        facts = {"model": model, **_engine_facts(loaded), "lookahead": lookahead, "text": answer.text}
        reason = "length" if len(answer.ids) >= max_new_tokens else "stop"
        facts |= {"token_ids": answer.ids, "finish_reason": reason, **stats_json(loaded.stats)}
        click.echo(json.dumps(facts))
    elif not quiet:
        click.echo(stats_line(loaded.stats), err=True)


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
    return {key: facts.get(key) for key in ("low_bit", "isa", "threads")}
