"""``ipex-lookahead bench replay``: proposers and budgets on recorded answers, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import ModelOptions
from ipex_lookahead.cli.measuring import Prompts, Report, comma_separated_rates
from ipex_lookahead.cli.names import NEEDS_A_COPY, NEEDS_A_HEAD, NEEDS_DRAFT_MODEL
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Strategy
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.bench.replay_head import StepCosts

ALONE = {
    **dict.fromkeys((NEEDS_DRAFT_MODEL, NEEDS_A_COPY), "a recording holds no second model"),
    NEEDS_A_HEAD: "a recording holds no features; --acceptance says how often a head is right",
}


@dataclass
class Recording:
    """Which file is written or replayed."""

    record_to: Path | None = option("Generate with the model once and write FILE.", None, "--record", metavar="FILE")
    replay_from: Path | None = option(
        "Replay FILE; needs no model.",
        None,
        "--replay",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
    )


@dataclass
class Recorded:
    """What a recording holds of each answer."""

    max_new_tokens: int = option("Most tokens of a recorded answer.", 128, "-n", low=2)
    top: int = option("Likeliest ids to record at each position.", 8, low=1, high=64)


@dataclass
class Replayed:
    """What is tried on a recording."""

    strategy: tuple[str, ...] = option("Proposers to replay.", ("auto",), type=Strategy(ALONE))
    budget: tuple[int, ...] = option("Most drafted tokens.", (3, 8), low=1, high=MAX_DRAFT)
    adaptive: bool = option("Let the controller take what pays by the cost curve.", False)
    costs: Path | None = option(
        "Costs of a shape and of its head in place of the recorded ones: what bench step --acceptance ... --json "
        "printed.",
        None,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
    )
    acceptance: list[float] = option(
        "Also a head of these costs, alone and beside the strategies: how often its 1st, 2nd, ... token is right "
        "where those before it are.",
        "",
        callback=comma_separated_rates,
        metavar="P,P,...",
    )
    seed: int = option("Of the places at which that head is right.", 0, low=0)


@command(
    "ipex-lookahead bench replay --record answers.jsonl",
    "ipex-lookahead bench replay --replay answers.jsonl --strategy suffix",
)
def replay(
    loading: ModelOptions, file: Recording, prompts: Prompts, recorded: Recorded, what: Replayed, to: Report
) -> None:
    """Record answers once, then replay any proposer and budget in seconds: acceptance, and the speed to expect."""
    if (file.record_to is None) == (file.replay_from is None):
        raise click.UsageError("give either --record FILE or --replay FILE")
    if to.plot is not None and file.record_to is not None:
        raise click.UsageError("--plot draws what --replay predicts; leave it out with --record")
    if what.acceptance and what.costs is None:
        raise click.UsageError("--acceptance needs --costs FILE.json, which says what a head takes")
    to.check()
    if file.record_to is not None:
        _record(file.record_to, loading, prompts, recorded, as_json=to.as_json)
        return
    assert file.replay_from is not None
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.replay import plot_replay
    from ipex_lookahead.bench.replay import load
    from ipex_lookahead.bench.replay_head import load_costs

    recording = load(file.replay_from)
    costs = None if what.costs is None else load_costs(what.costs)
    name = recording.model if costs is None else f"{recording.model} as {costs.shape}"
    tried = _tried(what, costs)
    with progress_bar(len(tried) * len(recording.answers), "replaying") as advance:
        runs = [one(recording, advance) for one in tried]
    _print_table(name, runs, to_stderr=to.as_json)
    found = {"model": name, "runs": runs, **where_and_when()}
    if what.acceptance:
        found |= {"acceptance": what.acceptance, "seed": what.seed}
    to.write(found, plot_replay)


def _tried(what: Replayed, costs: StepCosts | None) -> list[Callable[..., dict[str, Any]]]:
    """Every strategy with every budget, then each head alone, and each beside every strategy."""
    from ipex_lookahead.bench.replay import Answer
    from ipex_lookahead.bench.replay import replay as run
    from ipex_lookahead.bench.replay_head import HeadCosts, SimulatedHead
    from ipex_lookahead.config import LookaheadConfig
    from ipex_lookahead.drafting import make_proposer
    from ipex_lookahead.drafting.heads.record import Record

    def way(strategy: str | None, head: HeadCosts | None, budget: int) -> Callable[..., dict[str, Any]]:
        record = Record()

        def simulated(answer: Answer) -> SimulatedHead:
            assert head is not None
            return SimulatedHead([*answer.prompt, *answer.output], what.acceptance, head.price, record, what.seed)

        def one(recording: Any, advance: Callable[[], None]) -> dict[str, Any]:
            found = run(
                recording,
                LookaheadConfig(strategy or "head", budget, adaptive=what.adaptive),
                make_proposer if strategy else None,
                curve=costs.curve if costs else None,
                head=simulated if head else None,
                advance=advance,
            )
            names = (strategy, f"head of {head.words:,}" if head else None)
            return {**found, "strategy": " + ".join(filter(None, names))}

        return one

    heads = costs.heads if costs and what.acceptance else ()
    pairs: list[tuple[str | None, HeadCosts | None]] = [(strategy, None) for strategy in what.strategy]
    pairs += [(None, head) for head in heads]
    pairs += [(strategy, head) for strategy in what.strategy for head in heads]
    return [way(*pair, budget) for pair in pairs for budget in what.budget]


def _record(file: Path, loading: ModelOptions, prompts: Prompts, recorded: Recorded, *, as_json: bool) -> None:
    from ipex_lookahead.bench.replay import record, save
    from ipex_lookahead.cli.loading import config_of
    from ipex_lookahead.tokenization.prompts import build_prompt

    texts = prompts.read()
    loaded, tokenizer = loading.load()
    encoded = [build_prompt(tokenizer, config_of(loaded), prompt.text) for prompt in texts]
    with progress_bar(len(encoded), "recording") as advance:
        made = record(loaded, loading.model, encoded, **vars(recorded), advance=advance)
    save(file, made)
    tokens = sum(len(answer.output) for answer in made.answers)
    click.echo(f"{file}: {len(made.answers)} answers, {tokens} tokens", err=as_json)
    if as_json:
        found = {"model": loading.model, "file": str(file), "answers": len(made.answers), "tokens": tokens}
        click.echo(json.dumps(found))


def _print_table(model: str, runs: list[dict[str, Any]], *, to_stderr: bool) -> None:
    print_rows(
        {
            "strategy": "{strategy}",
            "budget": "{budget}",
            "tok/step": "{mean_acceptance_length:.2f}",
            "accept": "{acceptance_rate:.0%}",
            "propose µs": "{propose_us:.1f}",
            "observe µs": "{observe_us:.1f}",
            "predicted": "{predicted_ratio:.2f}x",
            "tok/s": "{predicted_tok_s:.0f}",
        },
        runs,
        keys=2,
        title=f"replayed: {model} · {counted(runs[0]['answers'], 'answer')}",
        to_stderr=to_stderr,
    )
