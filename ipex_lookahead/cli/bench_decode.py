"""``ipex-lookahead bench decode``: decoding speed with and without lookahead."""

from __future__ import annotations

import json
from typing import Any

import click

from ipex_lookahead.cli.options import Sampling, draft_model_option, model_options, option, sampling_options
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.config import MAX_DRAFT


@click.command()
@model_options
@draft_model_option
@option("--prompts", multiple=True, metavar="FILE.jsonl", help="Prompts, or a folder of them; ours if not given.")
@option("--limit", type=click.IntRange(1), metavar="K", help="The first K prompts of each file.")
@option("--max-new-tokens", "-n", type=click.IntRange(1), default=128, help="Most tokens to generate.")
@option(
    "--lookahead",
    type=click.IntRange(0, MAX_DRAFT),
    multiple=True,
    default=(0, 3),
    help="Most drafted tokens a step; several are compared. 0, the baseline, always runs.",
)
@option("--repeat", type=click.IntRange(1), default=1, help="Runs of each prompt in each mode; the median counts.")
@sampling_options
@option("--json", "as_json", is_flag=True, help="One JSON object as the last line.")
def decode(
    model: str,
    low_bit: str | None,
    threads: int | None,
    draft_model: str | None,
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    lookahead: tuple[int, ...],
    repeat: int,
    as_json: bool,
    **sampler: Any,
) -> None:
    """Decoding speed with and without lookahead, and whether the tokens are the same."""
    sampling = Sampling(**sampler)
    sampling.check()
    if sampling.temperature > 0 and sampling.seed is None:
        sampling.seed = 0  # without a fixed seed there is nothing to compare

    from ipex_lookahead.bench.decode import PACKAGED_PROMPTS, generator, measure, read_prompts, summarise

    texts = read_prompts(prompts or [PACKAGED_PROMPTS], limit)

    from ipex_lookahead.cli.loading import config_of, load
    from ipex_lookahead.tokenization.prompts import build_prompt

    loaded, tokenizer = load(model, low_bit=low_bit, threads=threads, draft_model=draft_model, progress=True)
    encoded = [build_prompt(tokenizer, config_of(loaded), prompt.text) for prompt in texts]
    answers = len(encoded) * len({0, *lookahead}) * repeat
    with progress_bar(answers) as advance:
        modes = measure(
            generator(loaded, max_new_tokens, **sampling.arguments()),
            encoded,
            lookahead,
            repeat=repeat,
            advance=advance,
        )
    engine = loaded.engine.describe()
    report = {"model": model, **{key: engine.get(key) for key in ("low_bit", "isa", "threads")}}
    report |= {"max_new_tokens": max_new_tokens, "repeat": repeat, **sampling.arguments(), "runs": summarise(modes)}
    _print_table(report, to_stderr=as_json)
    if as_json:
        click.echo(json.dumps(report))
    differing = [run["lookahead"] for run in report["runs"] if not _all_same(run["identical_to_plain"])]
    if differing:
        click.echo(f"error: with lookahead {differing[0]} the tokens differ from those without", err=True)
        raise click.exceptions.Exit(1)


def _all_same(counted: str) -> bool:
    same, _, prompts = counted.partition("/")
    return same == prompts


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    runs = report["runs"]
    title = f"{report['model']} · {report['low_bit']} · {report['isa']} · {report['threads']} threads"
    table = Table(
        title=f"{title} · {runs[0]['prompts']} prompts",
        caption="worst: the slowest prompt's ratio; accept: of the drafted tokens; µs/step: Python's share of a step",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    headings = "lookahead tok/s ratio worst tok/step accept prompt/s TTFT-ms µs/step identical"
    for heading in headings.split():
        table.add_column(heading, justify="right", no_wrap=True)
    plain = runs[0]["decode_tok_s"]
    for run in runs:
        table.add_row(
            str(run["lookahead"]),
            f"{run['decode_tok_s']:.1f}",
            f"{run['decode_tok_s'] / plain:.2f}x" if plain else "-",
            f"{run['slowest_prompt_ratio']:.2f}x",
            f"{run['mean_acceptance_length']:.2f}",
            f"{100 * run['acceptance_rate']:.0f}%",
            f"{run['prefill_tok_s']:.0f}",
            f"{run['ttft_ms']:.1f}",
            f"{run['python_us_per_step']:.0f}",
            run["identical_to_plain"],
        )
    Console(stderr=to_stderr, soft_wrap=True).print(table)
