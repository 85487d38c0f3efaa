"""``ipex-lookahead bench quality``: what low-bit weights and int8 activations cost in perplexity."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import json_option, model_options, option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_facts


@command()
@model_options
@option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A UTF-8 text to predict, such as WikiText's.",
)
@option("--tokens", type=click.IntRange(2), default=20_000, help="The first so many tokens of it.")
@option("--window", type=click.IntRange(2), default=512, help="Tokens in a window; each starts afresh.")
@option(
    "--prompts",
    multiple=True,
    type=click.Path(),
    metavar="FILE.jsonl",
    help="Also compare the first token after these prompts.",
)
@option("--reference/--no-reference", default=True, help="Run transformers in float32 on the same weights too.")
@json_option
def quality(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    text: Path,
    tokens: int,
    window: int,
    prompts: tuple[str, ...],
    reference: bool,
    as_json: bool,
) -> None:
    """Perplexity of a text, beside transformers in float32 on the same dequantised weights."""
    from ipex_lookahead.bench.decode import read_prompts
    from ipex_lookahead.bench.quality import run
    from ipex_lookahead.cli.loading import config_of, load
    from ipex_lookahead.errors import InputError
    from ipex_lookahead.tokenization.prompts import build_prompt

    try:
        written = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from error
    asked = read_prompts(prompts) if prompts else []
    loaded, tokenizer = load(model, low_bit=low_bit, threads=threads, kv_cache=kv_cache, progress=True)
    encoded = [build_prompt(tokenizer, config_of(loaded), prompt.text) for prompt in asked]
    passes = 2 if reference else 1
    with progress_bar(passes * -(-tokens // window), "windows") as advance:
        report = run(
            loaded,
            written,
            tokens=tokens,
            window=window,
            reference=reference,
            prompts=encoded,
            progress=lambda done, total: advance(),
        )
    report = {"model": model, **report}
    spoken = ((key, f"{value:.5g}" if isinstance(value, float) else value) for key, value in report.items())
    print_facts(((key.replace("_", " "), value) for key, value in spoken), to_stderr=as_json)
    if as_json:
        click.echo(json.dumps(report))
