"""``ipex-lookahead bench replay``: proposers and draft lengths on recorded answers, without a model.

A recording has the model's greedy answer to each prompt, the most likely ids at each position, and the cost curve of
the machine. A replay runs the real decoding loop on an engine that reads the recorded answer. Its acceptance is exact,
and its speed is predicted from the cost curve. There are no logits after a rejected token: proposers that learn from
rejected rows do slightly worse in a replay, and those with scratch rows cannot be replayed. Heads are simulated with
given acceptance rates (:mod:`ipex_lookahead.bench.replay_head`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.bench.options import Prompts, Report, comma_separated_rates
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import ModelOptions, config_of
from ipex_lookahead.cli.names import NEEDS_A_COPY, NEEDS_A_HEAD, NEEDS_DRAFT_MODEL
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Strategy
from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.bench.recording import Answer, Recording
    from ipex_lookahead.bench.replay_head import HeadCosts, SimulatedHead, StepCosts
    from ipex_lookahead.controller.calibration import Calibration
    from ipex_lookahead.controller.cost import CostCurve
    from ipex_lookahead.drafting import Proposer
    from ipex_lookahead.drafting.draft import Draft, Outcome

ALONE = {
    **dict.fromkeys((NEEDS_DRAFT_MODEL, NEEDS_A_COPY), "a recording has no second model"),
    NEEDS_A_HEAD: "a recording has no hidden states; --acceptance simulates a head with given acceptance rates",
}


@dataclass
class RecordingFile:
    """The file to write or to replay."""

    record_to: Path | None = option("Generate answers and record them in FILE.", None, "--record", metavar="FILE")
    replay_from: Path | None = option(
        "Replay the answers in FILE; needs no model.",
        None,
        "--replay",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
    )


@dataclass
class Recorded:
    """The contents of a recording."""

    max_new_tokens: int = option("Maximum number of tokens per recorded answer.", 128, "-n", low=2)
    top: int = option("Number of most likely token ids to record per position.", 8, low=1, high=64)


@dataclass
class Replayed:
    """The proposers to replay."""

    strategy: tuple[str, ...] = option("Draft source to replay. Repeatable.", ("auto",), type=Strategy(ALONE))
    budget: tuple[int, ...] = option("Maximum tokens to draft. Repeatable.", (3, 8), low=1, high=MAX_DRAFT)
    adaptive: bool = option("Let the controller choose the draft length by the cost curve.", False)
    costs: Path | None = option(
        "Use the step costs in this file, the output of bench step --acceptance ... --json, instead of the recorded"
        " ones.",
        None,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE.json",
    )
    acceptance: list[float] = option(
        "Also simulate a draft head with these costs; acceptance rates of its 1st, 2nd, ... token.",
        "",
        callback=comma_separated_rates,
        metavar="P,P,...",
    )
    seed: int = option("Seed of the simulated head.", 0, low=0)


@command(
    "ipex-lookahead bench replay --record answers.jsonl",
    "ipex-lookahead bench replay --replay answers.jsonl --strategy suffix",
)
def replay(
    loading: ModelOptions, file: RecordingFile, prompts: Prompts, recorded: Recorded, what: Replayed, to: Report
) -> None:
    """Record answers once, then replay any proposer and draft length in seconds: acceptance and predicted speed."""
    if (file.record_to is None) == (file.replay_from is None):
        raise click.UsageError("give either --record FILE or --replay FILE")
    if to.plot is not None and file.record_to is not None:
        raise click.UsageError("--plot draws what --replay predicts; leave it out with --record")
    if what.acceptance and what.costs is None:
        raise click.UsageError("--acceptance needs --costs FILE.json with the costs of a head")
    to.check()
    if file.record_to is not None:
        _record(file.record_to, loading, prompts, recorded, as_json=to.as_json)
        return
    assert file.replay_from is not None
    from ipex_lookahead.bench.plots.replay import plot_replay
    from ipex_lookahead.bench.recording import load
    from ipex_lookahead.bench.replay_head import load_costs

    recording = load(file.replay_from)
    costs = None if what.costs is None else load_costs(what.costs)
    name = recording.model if costs is None else f"{recording.model} as {costs.shape}"
    tried = _tried(what, costs)
    with progress_bar(len(tried) * len(recording.answers), "replaying") as advance:
        runs = [one(recording, advance) for one in tried]
    _print_table(name, runs, to_stderr=to.as_json)
    found: dict[str, Any] = {"model": name, "runs": runs}
    if what.acceptance:
        found |= {"acceptance": what.acceptance, "seed": what.seed}
    to.write(found, plot_replay)


def _tried(what: Replayed, costs: StepCosts | None) -> list[Callable[..., dict[str, Any]]]:
    """Return the replays: every strategy, every head, and every strategy with every head, by draft length."""
    from ipex_lookahead.bench.replay_head import SimulatedHead
    from ipex_lookahead.controller.kept import HeadRates
    from ipex_lookahead.drafting import make_proposer

    def way(strategy: str | None, head: HeadCosts | None, budget: int) -> Callable[..., dict[str, Any]]:
        rates = HeadRates()

        def simulated(answer: Answer) -> SimulatedHead:
            assert head is not None
            return SimulatedHead([*answer.prompt, *answer.output], what.acceptance, head.price, rates, what.seed)

        def one(recording: Any, advance: Callable[[], None]) -> dict[str, Any]:
            found = replay_answers(
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
    from ipex_lookahead.bench.recording import record, save
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


class _Clocked:
    """A controller that takes the seconds of steps and of a simulated head from the cost curve."""

    def __init__(self, inner: Any, curve: CostCurve, head: SimulatedHead | None) -> None:
        self._inner = inner
        self._curve = curve
        self._head = head
        self._seconds = 0.0
        self.budget, self.select, self.observe = inner.budget, inner.select, inner.observe
        self.join, self.leave, self.idle = inner.join, inner.leave, inner.idle

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        if self._head is not None:
            proposing += self._head.seconds - self._seconds
            self._seconds = self._head.seconds
        self._inner.timed(rows, length, self._curve(rows, length, experts), proposing, experts)


class _Watched:
    """A proposer with its time in seconds."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.wants = inner.wants
        self.begin = inner.begin
        self.propose_seconds = self.observe_seconds = 0.0

    def propose(self, budget: int) -> Draft:
        began = perf_counter()
        draft = self._inner.propose(budget)
        self.propose_seconds += perf_counter() - began
        if draft.scratch:
            raise InputError(f"{type(self._inner).__name__} needs scratch rows, which a recording does not have")
        return draft

    def observe(self, outcome: Outcome) -> None:
        began = perf_counter()
        self._inner.observe(outcome)
        self.observe_seconds += perf_counter() - began


def replay_answers(
    recording: Recording,
    config: LookaheadConfig,
    make: Callable[[LookaheadConfig], Proposer] | None,
    *,
    curve: Calibration | None = None,
    head: Callable[[Answer], SimulatedHead] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Replay every answer with one proposer.

    Args:
        recording: The recorded answers.
        config: Strategy, draft length, and whether the controller chooses the number of drafts.
        make: Makes the n-gram proposer; None for a head alone.
        curve: Step costs; by default the recorded ones.
        head: Makes the simulated head for an answer.
        advance: Called after every answer.

    Returns:
        Acceptance by source and by position, microseconds per step in ``propose`` and ``observe``, and the speed in
        tokens/s that the cost curve predicts, with that of plain decoding.
    """
    import numpy as np

    from ipex_lookahead.bench.recording import RecordedEngine
    from ipex_lookahead.controller import AdaptiveController, Controller
    from ipex_lookahead.controller.adaptive import should_attach_head
    from ipex_lookahead.controller.cost import CostCurve
    from ipex_lookahead.decoding.loop import decode
    from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
    from ipex_lookahead.decoding.sequence_group import SequenceGroup
    from ipex_lookahead.decoding.stats import GenerationStats
    from ipex_lookahead.drafting.heads.joined import SOURCE, HeadAndFree

    total, seconds, plain_seconds, propose, observe = GenerationStats(strategy=config.strategy), 0.0, 0.0, 0.0, 0.0
    decode_tokens, calibration = 0, curve or recording.calibration
    for answer in recording.answers:
        known, truth = CostCurve(calibration), CostCurve(calibration)
        drafter = None if head is None else head(answer)
        if drafter is not None and make is not None and config.adaptive:
            rates = drafter.rates
            attached = should_attach_head(rates, rates.tests, rates.skipped, known, drafter.most)
            rates.skipped = 0 if attached else rates.skipped + 1
            drafter = drafter if attached else None
        inner, budget, plan = Controller(config.num_draft_tokens), config.num_draft_tokens, None
        if config.adaptive:
            heads = () if drafter is None else ((SOURCE, drafter.rates),)
            inner = adaptive = AdaptiveController(known, budget, config.strategy, heads)
            plan = adaptive.plan
        free: Any = None if make is None else make(config)
        proposer = _Watched(free if drafter is None else HeadAndFree(free, drafter, plan))
        controller: Any = _Clocked(inner, truth, drafter)
        engine = RecordedEngine(answer)
        prompt = np.array(answer.prompt, np.int32)
        limit = len(answer.prompt) + len(answer.output)
        sequence = TokenSequence(prompt, limit, proposer=proposer)
        before, steps = total.tokens, total.steps
        for _ in decode(engine, SequenceGroup([sequence], total, controller)):
            pass
        decode_tokens += total.tokens - before - 1
        length = len(answer.prompt) + 1
        for drafted, accepted, _, _ in total.per_step[steps:]:
            length += 1 + accepted
            seconds += truth(1 + drafted, length)
        if drafter is not None:
            seconds += drafter.seconds
        plain_seconds += sum(truth(1, length) for length in range(len(answer.prompt) + 1, limit))
        propose += proposer.propose_seconds
        observe += proposer.observe_seconds
        advance()
    steps = max(total.steps, 1)
    spent = seconds + propose + observe
    return {
        "strategy": config.strategy,
        "budget": config.num_draft_tokens,
        "adaptive": config.adaptive,
        "answers": len(recording.answers),
        "tokens": total.tokens,
        "steps": total.steps,
        "mean_acceptance_length": decode_tokens / steps,
        "acceptance_rate": total.acceptance_rate,
        "drafted_by_source": dict(total.drafted_by_source),
        "accepted_by_source": dict(total.accepted_by_source),
        "drafted_by_position": total.drafted_by_position,
        "accepted_by_position": total.accepted_by_position,
        "propose_us": 1e6 * propose / steps,
        "observe_us": 1e6 * observe / steps,
        "predicted_tok_s": decode_tokens / spent if spent else 0.0,
        "predicted_plain_tok_s": decode_tokens / plain_seconds if plain_seconds else 0.0,
        "predicted_ratio": plain_seconds / spent if spent else 1.0,
    }
