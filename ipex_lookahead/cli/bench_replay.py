"""``ipex-lookahead bench replay``: proposers and budgets on recorded answers, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.names import NEEDS_A_COPY, NEEDS_DRAFT_MODEL
from ipex_lookahead.cli.options import json_option, limit_option, model_options, option, plot_option, prompts_option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import Strategy
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.system.terminal import counted

ALONE = dict.fromkeys((NEEDS_DRAFT_MODEL, NEEDS_A_COPY), "a recording holds no second model")


@command(
    "ipex-lookahead bench replay --record answers.jsonl",
    "ipex-lookahead bench replay --replay answers.jsonl --strategy suffix",
)
@model_options
@option("--record", "record_to", type=click.Path(), metavar="FILE", help="Generate with the model once and write FILE.")
@option(
    "--replay",
    "replay_from",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Replay FILE; needs no model.",
)
@prompts_option
@limit_option
@option("--max-new-tokens", "-n", type=click.IntRange(2), default=128, help="Most tokens of a recorded answer.")
@option("--top", type=click.IntRange(1, 64), default=8, help="Likeliest ids to record at each position.")
@option("--strategy", multiple=True, default=("auto",), type=Strategy(ALONE), help="Proposers to replay.")
@option("--budget", multiple=True, type=click.IntRange(1, MAX_DRAFT), default=(3, 8), help="Most drafted tokens.")
@option("--adaptive", is_flag=True, help="Let the controller take what pays by the recorded cost curve.")
@plot_option
@json_option
def replay(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    record_to: str | None,
    replay_from: str | None,
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    top: int,
    strategy: tuple[str, ...],
    budget: tuple[int, ...],
    adaptive: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Record answers once, then replay any proposer and budget in seconds: acceptance, and the speed to expect."""
    if (record_to is None) == (replay_from is None):
        raise click.UsageError("give either --record FILE or --replay FILE")
    if plot is not None and record_to is not None:
        raise click.UsageError("--plot draws what --replay predicts; leave it out with --record")
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    if record_to is not None:
        _record(Path(record_to), model, low_bit, threads, kv_cache, prompts, limit, max_new_tokens, top, as_json)
        return
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.replay import load
    from ipex_lookahead.bench.replay import replay as run
    from ipex_lookahead.config import LookaheadConfig
    from ipex_lookahead.drafting import make_proposer

    recording = load(Path(str(replay_from)))
    configs = [LookaheadConfig(name, number, adaptive=adaptive) for name in strategy for number in budget]
    with progress_bar(len(configs) * len(recording.answers), "replaying") as advance:
        runs = [run(recording, config, make_proposer, advance=advance) for config in configs]
    _print_table(recording.model, runs, to_stderr=as_json)
    report = {"model": recording.model, "runs": runs, **where_and_when()}
    if plot is not None:
        from ipex_lookahead.bench.plots.replay import plot_replay

        plot_replay(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))


def _record(
    file: Path,
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    top: int,
    as_json: bool,
) -> None:
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts
    from ipex_lookahead.bench.replay import record, save
    from ipex_lookahead.cli.loading import config_of, load
    from ipex_lookahead.tokenization.prompts import build_prompt

    texts = read_prompts(prompts or [PACKAGED_PROMPTS], limit)
    loaded, tokenizer = load(model, low_bit=low_bit, threads=threads, kv_cache=kv_cache, progress=True)
    encoded = [build_prompt(tokenizer, config_of(loaded), prompt.text) for prompt in texts]
    with progress_bar(len(encoded), "recording") as advance:
        made = record(loaded, model, encoded, max_new_tokens=max_new_tokens, top=top, advance=advance)
    save(file, made)
    tokens = sum(len(answer.output) for answer in made.answers)
    click.echo(f"{file}: {len(made.answers)} answers, {tokens} tokens", err=as_json)
    if as_json:
        click.echo(json.dumps({"model": model, "file": str(file), "answers": len(made.answers), "tokens": tokens}))


def _print_table(model: str, runs: list[dict[str, Any]], *, to_stderr: bool) -> None:
    print_table(
        ("strategy", "budget", "tok/step", "accept", "propose µs", "observe µs", "predicted", "tok/s"),
        [
            (
                run["strategy"],
                run["budget"],
                f"{run['mean_acceptance_length']:.2f}",
                f"{100 * run['acceptance_rate']:.0f}%",
                f"{run['propose_us']:.1f}",
                f"{run['observe_us']:.1f}",
                f"{run['predicted_ratio']:.2f}x",
                f"{run['predicted_tok_s']:.0f}",
            )
            for run in runs
        ],
        keys=2,
        title=f"{model} · {counted(runs[0]['answers'], 'answer')}",
        to_stderr=to_stderr,
    )
