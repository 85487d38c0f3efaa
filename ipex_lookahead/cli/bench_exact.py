"""``ipex-lookahead bench exact``: whether lookahead changes a token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import (
    comma_separated,
    draft_model_option,
    json_option,
    limit_option,
    model_options,
    option,
    plot_option,
    prompts_option,
)
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.spelling import in_options
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, Strategy
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.system.terminal import counted

MODES = ("fixed", "adaptive")


@command("ipex-lookahead bench exact --strategy auto --limit 2 --plot exact.svg")
@model_options
@draft_model_option
@option("--draft-low-bit", type=LowBit(), help="The draft model's format; as its file has it if not given.")
@prompts_option
@limit_option
@option("--max-new-tokens", "-n", type=click.IntRange(1), default=128, help="Most tokens of an answer.")
@option("--strategy", multiple=True, type=Strategy(), help="Strategies to check; all that apply if not given.")
@option(
    "--mode",
    multiple=True,
    type=click.Choice(MODES),
    default=MODES,
    help="All the draft, or what pays.",
)
@option(
    "--draft-tokens",
    default="1,3,7,31",
    callback=comma_separated,
    metavar="N,N,...",
    help="Most drafted tokens a step.",
)
@option("--spread", is_flag=True, help="Fixed drafts of 1, 2, ... up to that many, another number for each batch.")
@option("--greedy/--no-greedy", default=True, help="Check greedy decoding.")
@option("--seeds", type=click.IntRange(0), default=3, help="Check sampling with the seeds 0, 1, ...; 0 leaves it out.")
@option("--temperature", type=click.FloatRange(0, min_open=True), default=0.8, help="Of sampling.")
@option("--top-k", type=click.IntRange(0), default=0, help="Of sampling; 0 keeps all.")
@option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=0.95, help="Of sampling.")
@option("--repetition-penalty", "penalty", type=click.FloatRange(0, min_open=True), default=1.1, help="Of sampling.")
@option("--batch", type=click.IntRange(1), default=8, help="Prompts that are decoded together with a fixed draft.")
@plot_option
@json_option
def exact(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    draft_low_bit: str | None,
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    strategy: tuple[str, ...],
    mode: tuple[str, ...],
    draft_tokens: list[int],
    spread: bool,
    greedy: bool,
    seeds: int,
    temperature: float,
    top_k: int,
    top_p: float,
    penalty: float,
    batch: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Whether the tokens with lookahead are those without: every strategy, budget and way of sampling."""
    if max(draft_tokens) > MAX_DRAFT:
        raise click.BadParameter(f"a step drafts at most {MAX_DRAFT} tokens", param_hint="--draft-tokens")
    if not greedy and not seeds:
        raise click.UsageError("--no-greedy --seeds 0 leaves nothing to check; leave one of them out")
    if draft_low_bit is not None and draft_model is None:
        raise click.UsageError("--draft-low-bit has no effect without --draft-model; add it, or leave it out")
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    from ipex_lookahead.bench.exact import GREEDY, answerer, check, configurations, sampled, strategies
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts
    from ipex_lookahead.cli import loading
    from ipex_lookahead.tokenization.prompts import build_prompt

    texts = read_prompts(prompts or [PACKAGED_PROMPTS], limit)
    load: dict[str, Any] = {"threads": threads, "kv_cache": kv_cache, "progress": True}
    loaded, tokenizer = loading.load(model, low_bit=low_bit, **load)
    draft = None if draft_model is None else loading.load(draft_model, low_bit=draft_low_bit, **load)[0]
    usable, absent = strategies(loaded, draft)
    if wrong := [name for name in strategy if name not in usable]:
        why = absent.get(wrong[0], f"choose from {', '.join(usable)}")
        raise click.BadParameter(f"{wrong[0]!r} cannot be checked: {in_options(why)}", param_hint="--strategy")
    if not strategy:
        for name, why in absent.items():
            click.echo(f"left out: {name}: {in_options(why)}", err=True)

    encoded = [build_prompt(tokenizer, loading.config_of(loaded), prompt.text) for prompt in texts]
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": penalty}
    samplings = ([GREEDY] if greedy else []) + ([sampled(seeds, **settings)] if seeds else [])
    configs = configurations(strategy or usable, draft_tokens, mode)
    answers = (1 + len(configs)) * len(encoded) * sum(len(sampling.runs) for sampling in samplings)
    answer = answerer(loaded, max_new_tokens, draft)
    rows = []
    with progress_bar(answers, "comparing") as advance:
        told = {"batch": batch, "spread": spread, "advance": advance, "forget": loaded.forget}
        for row in check(answer, encoded, configs, samplings, **told):
            found = _json(row, spread, [prompt.id for prompt in texts])
            click.echo(_line(found), err=True)  # a long run shows what is known so far
            rows.append(found)
    engine = loaded.engine.describe()
    report = {"model": model, **{key: engine.get(key) for key in ("engine", "low_bit", "isa", "threads", "kv_cache")}}
    report |= {"prompts": len(texts), "max_new_tokens": max_new_tokens, "batch": batch, **settings, "seeds": seeds}
    report |= {"left_out": {} if strategy else absent, "rows": rows, **where_and_when()}
    _print_table(report, to_stderr=as_json)
    if plot is not None:
        from ipex_lookahead.bench.plots.exact import plot_exact

        plot_exact(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))
    differing = [found for found in rows if found["differences"]]
    for found in differing:
        click.echo(f"error: {_sentence(found)}", err=True)
    if differing:
        raise click.exceptions.Exit(1)


def _json(row: Any, spread: bool, names: Sequence[str]) -> dict[str, Any]:
    """A row as plain values; a difference names its prompt."""
    most = row.config.num_draft_tokens
    return {
        "strategy": row.config.strategy,
        "mode": MODES[row.config.adaptive],
        "draft_tokens": f"1-{most}" if spread and not row.config.adaptive and most > 1 else most,
        "sampling": row.sampling,
        "equal": row.equal,
        "total": row.total,
        "differences": [
            {
                "prompt": names[found.prompt],
                "position": found.position,
                "seed": found.seed,
                "got": found.got,
                "expected": found.expected,
            }
            for found in row.differences
        ],
    }


def _line(row: dict[str, Any]) -> str:
    names = ("strategy", "mode", "draft_tokens", "sampling")
    return " ".join(str(row[name]) for name in names) + f": {row['equal']}/{row['total']}"


def _sentence(row: dict[str, Any]) -> str:
    first = row["differences"][0]
    seed = "" if first["seed"] is None else f" with seed {first['seed']}"
    return (
        f"{_line(row)} equal; {row['sampling']}{seed}, prompt {first['prompt']} has {first['got']} as its new token"
        f" number {first['position']} (counted from 0), plain decoding {first['expected']}"
    )


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = report["rows"]
    budgets = list(dict.fromkeys(row["draft_tokens"] for row in rows))
    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        cells = lines.setdefault((row["strategy"], row["mode"], row["sampling"]), {})
        cells[row["draft_tokens"]] = f"{row['equal']}/{row['total']}"
    print_table(
        ("strategy", "mode", "tokens", *map(str, budgets)),
        [(*names, *(cells.get(budget, "") for budget in budgets)) for names, cells in lines.items()],
        keys=3,
        title=f"{report['model']} · {report['low_bit']} · {counted(report['prompts'], 'prompt')} · "
        "answers equal to plain",
        caption="columns: most drafted tokens a step",
        to_stderr=to_stderr,
    )
