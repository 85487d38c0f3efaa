"""``ipex-lookahead generate``: one prompt, one answer; or a file of prompts, and a line for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

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
from ipex_lookahead.cli.reading import read_prompt
from ipex_lookahead.cli.spelling import in_options
from ipex_lookahead.cli.writing import check_output, written
from ipex_lookahead.errors import LookaheadError

if TYPE_CHECKING:
    from ipex_lookahead.cli.stream import Answer
    from ipex_lookahead.generation.sampling_params import SamplingParams
    from ipex_lookahead.generation.text_model import TextModel


@command(
    'ipex-lookahead generate "Why is the sky blue?"',
    'cat notes.txt | ipex-lookahead generate "Summarise this:"',
    'ipex-lookahead generate -m path/to/model --lookahead auto --show-accepted "Hi"',
)
@click.argument("prompt", required=False)
@model_options
@engine_options
@draft_model_option
@lookahead_options
@option("--prompt-file", type=click.Path(), metavar="FILE", help="Read the prompt from this file.")
@option(
    "--prompts",
    type=click.Path(),
    metavar="FILE.jsonl",
    help='Answer each {"id": ..., "prompt": ...} of a file, with a line of JSON for each, in order.',
)
@option("--max-new-tokens", "-n", type=click.IntRange(0), default=256, help="Most tokens to generate.")
@sampling_options
@penalty_options
@option("--stop", multiple=True, metavar="TEXT", help="End where this text appears; may be given several times.")
@option("--system", metavar="TEXT", help="What the model is told before the prompt.")
@option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@special_tokens_option
@option("--output", "-o", type=click.Path(), metavar="FILE", help="Write what would be printed to this file.")
@option("--overwrite", is_flag=True, help="Replace the file of --output.")
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
    prompt_file: str | None,
    prompts: str | None,
    max_new_tokens: int,
    stop: tuple[str, ...],
    system: str | None,
    raw: bool,
    special_tokens_in_content: bool,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    show_accepted: bool,
    **options: Any,
) -> None:
    """Answer PROMPT. What is piped in follows it after an empty line; '-', or no PROMPT, is what is piped in alone."""
    sampling = Sampling(**{name: options.pop(name) for name in (*SAMPLING_OPTIONS, *PENALTIES)})
    sampling.check()
    placing = {name: options.pop(name) for name in PLACING}
    ahead = Lookahead(**options)
    ahead.check()
    if show_accepted and (as_json or prompts is not None):
        raise click.UsageError("--show-accepted is for reading, --json for programs; leave one of them out")
    if show_accepted and output is not None:
        raise click.UsageError("--show-accepted is for a terminal; leave out --output, or it")
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw leaves out")
    if prompts is not None and (prompt is not None or prompt_file is not None):
        raise click.UsageError("--prompts has the prompts; leave out PROMPT and --prompt-file")
    check_output(output, overwrite=overwrite)
    asked = _many(prompts) if prompts is not None else [("", read_prompt(prompt, prompt_file))]

    from ipex_lookahead.cli.loading import load_text

    placing |= {"low_bit": low_bit, "threads": threads, "kv_cache": kv_cache}
    placing["special_tokens_in_content"] = special_tokens_in_content
    loaded = load_text(model, draft_model=draft_model, **placing, progress=not quiet)
    sampling.check(loaded)
    params, drafting = sampling.params(max_new_tokens, stop), ahead.arguments()
    encode = partial(_encode, loaded, system=system, raw=raw)
    facts = {"model": model, **_engine_facts(loaded), "lookahead": ahead.lookahead}

    from ipex_lookahead.cli.stream import show

    with nullcontext(show) if output is None else written(output) as write:
        if prompts is not None:
            _answer_many(loaded, asked, encode, params, drafting, facts, write, shown=not quiet)
            return
        silent = as_json or show_accepted
        answer = _answer(
            loaded, encode(asked[0][1]), params, drafting, write, silent=silent, marked=show_accepted, shown=not quiet
        )
        if as_json:
            write(json.dumps({**facts, **_answer_facts(loaded, answer)}) + "\n")
    if not quiet and not as_json:
        from ipex_lookahead.cli.ending import ending, is_loop
        from ipex_lookahead.cli.report import print_details, stats_line

        click.echo(stats_line(loaded.stats, loop=is_loop(loaded.stats, answer.ids)), err=True)
        limit = f"--max-new-tokens {max_new_tokens}"
        for line in ending(loaded.stats, answer.ids, limit=limit, setting=_flag):
            click.echo(line, err=True)
        if verbose:
            print_details(loaded.stats)


def _flag(name: str, value: float) -> str:
    return f"--{name.replace('_', '-')} {value:g}"


def _encode(loaded: TextModel, text: str, *, system: str | None, raw: bool) -> list[int]:
    """The ids of a prompt."""
    if raw:
        return loaded.tokenizer.encode(text)
    from ipex_lookahead.tokenization.prompts import build_prompt

    return build_prompt(loaded.tokenizer, loaded.config, text, system)


def _answer(
    loaded: TextModel,
    ids: list[int],
    params: SamplingParams,
    drafting: dict[str, Any],
    write: Callable[[str], None],
    *,
    silent: bool,
    marked: bool,
    shown: bool,
) -> Answer:
    """One answer, written as it comes unless ``silent``; ``marked``: at the end, with what came for free."""
    from ipex_lookahead.cli.interrupt import ends_at_once
    from ipex_lookahead.cli.prompt_bar import PromptBar
    from ipex_lookahead.cli.stream import Answer

    answer, bar = Answer(loaded.tokenizer, (lambda part: None) if silent else write), PromptBar(shown=shown)
    try:
        with ends_at_once(bar.close) as from_now_on_in_order:

            def put(token: int) -> None:
                if not answer.ids:
                    from_now_on_in_order()
                answer.put(token)

            loaded.generate(ids, params, **drafting, on_token=put, on_prefill=bar.update)
    finally:
        bar.close()
        answer.end()
        if marked:
            from ipex_lookahead.cli.accepted import print_accepted

            print_accepted(loaded.tokenizer, answer.ids, loaded.stats.origins())
        elif not silent and (answer.text or loaded.stats.finish_reasons):  # an error before the first token has no line
            write("\n")
    return answer


def _many(file: str) -> list[tuple[str, str]]:
    """(id, prompt) of each line."""
    from ipex_lookahead.bench.prompts import read_prompts

    return [(found.id, found.text) for found in read_prompts([file])]


def _answer_many(
    loaded: TextModel,
    asked: list[tuple[str, str]],
    encode: Callable[[str], list[int]],
    params: SamplingParams,
    drafting: dict[str, Any],
    facts: dict[str, Any],
    write: Callable[[str], None],
    *,
    shown: bool,
) -> None:
    """A line of JSON for each prompt. One that cannot be answered has its error there; then the exit status is 1."""
    from ipex_lookahead.cli.progress import progress_bar
    from ipex_lookahead.cli.stream import Answer

    failed = 0
    with progress_bar(len(asked), "answering") if shown else nullcontext(lambda: None) as advance:
        for name, text in asked:
            answer = Answer(loaded.tokenizer, lambda part: None)
            try:
                loaded.generate(encode(text), params, **drafting, on_token=answer.put)
                answer.end()
                found = {**facts, **_answer_facts(loaded, answer)}
            except LookaheadError as error:
                failed += 1
                found = {"error": in_options(str(error))}
            write(json.dumps({"id": name, **found}) + "\n")
            advance()
    if failed:
        click.echo(f"error: {failed} of {len(asked)} prompts could not be answered; their lines say why", err=True)
        raise click.exceptions.Exit(1)


def _engine_facts(loaded: TextModel) -> dict[str, Any]:
    facts = loaded.engine.describe()
    return {key: facts.get(key) for key in ("engine", "low_bit", "isa", "threads")}


def _answer_facts(loaded: TextModel, answer: Answer) -> dict[str, Any]:
    from ipex_lookahead.cli.ending import is_loop
    from ipex_lookahead.cli.report import stats_json

    stats = loaded.stats
    facts = {"text": answer.text, "token_ids": answer.ids, "finish_reason": stats.finish_reasons[0]}
    return {**facts, "repeats_itself": is_loop(stats, answer.ids), **stats_json(stats)}
