"""``ipex-lookahead bench decode``: decoding speed with and without lookahead, and equality of the tokens.

The modes alternate prompt by prompt, in an order that alternates too, so that other load on the machine affects all
modes alike. Lookahead 0, the baseline, always runs.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Literal

import click

from ipex_lookahead.bench import layouts
from ipex_lookahead.bench.modes import Generation, Mode, lookahead_config, meaning, measure, modes_of, text_generator
from ipex_lookahead.bench.options import Prompts, Report
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import (
    ModelOptions,
    draft_model_option,
    draft_vocab_option,
    drafter_option,
)
from ipex_lookahead.cli.lookahead import NO_COPY, Lookahead, StrategyOptions
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import conversations
from ipex_lookahead.cli.sampling import GreedySampler
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Strategy, Tokens
from ipex_lookahead.cli.writing import written
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.decoding.stats import GenerationStats


MIN_TOKENS, MIN_ANSWERS = 256, 4
"""A ratio of fewer timed tokens or answers is reported as noise."""


@dataclass
class Compared:
    """The modes to compare with plain decoding."""

    lookahead: tuple[int | str, ...] = option(
        "Maximum tokens to draft per step, or 'auto'. Repeatable; 0 always runs as baseline. Default: 3, or 'auto'"
        " with --strategy.",
        (),
        type=Tokens(),
    )
    strategy: tuple[str, ...] = option(
        "Draft source. Repeatable; each is measured with each --lookahead.",
        (),
        type=Strategy(NO_COPY),
    )
    options: StrategyOptions = field(default_factory=StrategyOptions)

    def modes(self) -> list[Lookahead]:
        """Return the modes other than the baseline, each with the options that apply to it.

        Raises UsageError if an option applies to no mode.
        """
        numbers = self.lookahead or (("auto",) if self.strategy else (3,))
        found = [Lookahead(number, one) for one in self.strategy or (None,) for number in numbers if number != 0]
        for name in ("window", "ngram", "guesses", "store"):
            if (value := getattr(self.options, name)) is None:
                continue
            problem, used = click.UsageError(f"--{name} has no effect"), False
            for mode in found:
                try:
                    Lookahead(mode.lookahead, mode.strategy, StrategyOptions(**{name: value})).check()
                    setattr(mode.options, name, value)
                    used = True
                except click.UsageError as error:
                    problem = error
            if not used:
                raise problem
        return found


@dataclass
class Measured:
    """Lengths and outputs of the measurement."""

    max_new_tokens: int = option("Maximum number of tokens per answer.", 128, "-n", low=1)
    repeat: int = option("Runs of each prompt and mode; the median counts.", 1, low=1)
    layout: Literal["spec-bench", "speed-bench"] | None = option(
        "Also print results in the format of this benchmark's client."
    )
    show_drafts: str | None = option(
        "Write drafted and accepted token ids of each step as lines of JSON.", metavar="FILE.jsonl"
    )


@command(
    "ipex-lookahead bench decode --lookahead 3 --lookahead auto --plot decode.svg",
    "ipex-lookahead bench decode -m path/to/model --low-bit sym_int4 --limit 2",
)
def decode(
    loading: ModelOptions,
    prompts: Prompts,
    compared: Compared,
    what: Measured,
    sampling: GreedySampler,
    to: Report,
    draft_model: str | None = draft_model_option,
    drafter: str | None = drafter_option,
    draft_vocab: int | Path | None = draft_vocab_option,
) -> None:
    """Decoding speed with and without lookahead, and whether the tokens are the same.

    Strategies with a store of earlier answers run twice: cold, with an empty store for each prompt, and warm. Prompts
    may be files of Spec-Bench (question.jsonl) or SPEED-Bench (test.parquet); their later turns follow the model's own
    answers.
    """
    sampling.check()
    modes_given = compared.modes()
    to.check()
    if what.show_drafts is not None and not modes_given:
        raise click.UsageError("--show-drafts has no effect with --lookahead 0 alone: nothing is drafted")
    if sampling.temperature and sampling.seed is None:
        sampling.seed = 0  # without a fixed seed there is nothing to compare

    from ipex_lookahead.bench.plots.decode import plot_decode
    from ipex_lookahead.cli.conversation import ChatEncoder

    texts = prompts.read()
    loaded = loading.load_text(progress=True, draft_model=draft_model, drafter=drafter, draft_vocab=draft_vocab)
    tokenizer = loaded.tokenizer
    keep = {} if what.show_drafts is None else {"keep_drafts": True}
    generate = text_generator(loaded, sampling.params(what.max_new_tokens), **keep)

    def answer(ids: list[int]) -> str:
        text: str = tokenizer.decode(generate(ids, 0).tokens, skip_special_tokens=True)
        return text

    turns = list(conversations(texts, ChatEncoder(tokenizer, loaded.config), answer))
    answered = [prompt for prompt, _ in turns]
    settings = [_setting(mode, adaptive=not compared.options.no_adaptive) for mode in modes_given]
    with (
        nullcontext() if what.show_drafts is None else written(what.show_drafts) as write,
        progress_bar(len(turns) * len(modes_of(settings)) * what.repeat) as advance,
    ):

        def show(mode: Mode, number: int) -> None:
            if write is not None:
                write(lines_of(mode, number, answered[number].id))
                mode.answers[number][-1].stats.drafts = None  # free the memory of a long run
            advance()

        modes = measure(
            generate,
            [ids for _, ids in turns],
            settings,
            repeat=what.repeat,
            answered=show,
            forget=loaded.forget,
        )
    engine = loaded.engine.describe()
    report: dict[str, Any] = {"model": loading.model, **{key: engine.get(key) for key in ("low_bit", "isa", "threads")}}
    report |= {"max_new_tokens": what.max_new_tokens, "repeat": what.repeat, **sampling.arguments()}
    report |= {"prompts": [p.id for p in answered], "categories": [p.category for p in answered]}
    report["runs"] = summarize(modes, [p.file for p in answered], [p.category for p in answered])
    _print_table(report, to_stderr=to.as_json)
    if what.layout is not None:
        report["layout"] = layouts.figures(what.layout, modes, answered)
        for lines in layouts.LAYOUTS[what.layout](report["layout"], [_name(run) for run in report["runs"]]):
            click.echo(lines, err=to.as_json)
    to.write(report, plot_decode)
    differing = [_name(run) for run in report["runs"] if len(set(run["identical_to_plain"].split("/"))) > 1]
    if differing:
        click.echo(f"error: with lookahead {differing[0]} the tokens differ from those without", err=True)
        raise click.exceptions.Exit(1)


def _setting(mode: Lookahead, *, adaptive: bool) -> Any:
    setting = mode.arguments()["lookahead"]
    return setting if adaptive else lookahead_config(setting, adaptive=False)


def _name(run: dict[str, Any]) -> str:
    """Return the short name of a mode."""
    words = [str(run["lookahead"])]
    if run["strategy"] is not None and run["lookahead"] != "auto":
        words.append(run["strategy"])
    return " ".join([*words, run["memory"]] if run["memory"] else words)


def _ratio(value: float, run: dict[str, Any]) -> str:
    """Return a ratio to plain decoding as text, marked if it does not differ from 1 beyond noise."""
    return f"~{value:.2f}x (noise)" if run["ratio_is_noise"] else f"{value:.2f}x"


def _memory(runs: list[dict[str, Any]]) -> str:
    warm = [run for run in runs if run["memory"] == "warm"]
    if not warm:
        return ""
    gains = "; ".join(f"{_ratio(run['memory_gain'], run)} {_name(run).removesuffix(' warm')}" for run in warm)
    return f"; cold: with an empty store for each prompt; warm: with earlier answers stored, a gain of {gains}"


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    runs = report["runs"]
    plain = runs[0]["decode_tok_s"]
    title = f"{report['model']} · {report['low_bit']} · {report['isa']} · {counted(report['threads'], 'thread')}"
    print_rows(
        {
            "lookahead": _name,
            "tok/s": "{decode_tok_s:.1f}",
            "ratio": lambda run: _ratio(run["decode_tok_s"] / plain, run) if plain else "-",
            "worst": lambda run: _ratio(run["slowest_prompt_ratio"], run),
            "CPU": "{cpu_ratio:.3f}",
            "tok/step": "{mean_acceptance_length:.2f}",
            "accept": "{acceptance_rate:.0%}",
            "prompt/s": "{prefill_tok_s:.0f}",
            "TTFT-ms": "{ttft_ms:.1f}",
            "µs/step": "{python_us_per_step:.0f}",
            "identical": "{identical_to_plain}",
        },
        runs,
        title=f"{title} · {counted(runs[0]['prompts'], 'prompt')}",
        caption="worst: ratio of the slowest prompt; noise: too few tokens (-n, --repeat), or both slower and faster "
        "answers; CPU: ratio of CPU time per token; accept: share of the drafted tokens; µs/step: Python's time"
        + _memory(runs),
        to_stderr=to_stderr,
    )


def steps_of(answer: Generation) -> Iterator[dict[str, Any]]:
    """Yield the steps of an answer of ``generate(keep_drafts=True)``, including steps without a draft.

    Yields:
        ``position``: index of the step's first token in the text, prompt included. ``drafted``: the verified ids.
        ``parents``: index of each id's parent in the tree, -1 for the last token of the text. ``sources`` and
        ``probs``: the proposer of each id, and its estimate of the acceptance rate given the parent; probs may be
        empty. ``scratch``: number of last ids that only serve later drafts. ``accepted``: indices of the accepted ids.
        ``emitted``: the new ids; the model's own is the last.

    Example: ``drafted`` 5 6 with ``parents`` -1 0 and ``emitted`` 5 9: 5 was accepted, and 6 was rejected for 9.
    """
    from ipex_lookahead.drafting.draft import Draft

    stats = answer.stats
    drafts, at = iter(stats.drafts or ()), 1  # the first token comes with the prompt
    for drafted, _, _, _ in stats.per_step:
        draft, accepted = next(drafts) if drafted else (Draft(), ())
        emitted = answer.tokens[at : at + len(accepted) + 1]
        yield {
            "position": stats.prompt_tokens + at,
            "drafted": [*map(int, draft.tokens)],
            "parents": [*map(int, draft.parents)],
            "sources": list(draft.sources) or [stats.strategy] * len(draft),
            "probs": [round(float(prob), 4) for prob in draft.probs],
            "scratch": draft.scratch,
            "accepted": list(accepted),
            "emitted": emitted,
        }
        at += len(emitted)


def lines_of(mode: Mode, number: int, name: str) -> str:
    """Return the steps of a mode's last answer to a prompt, one line each; "" for plain decoding."""
    setting, answers = meaning(mode.lookahead), mode.answers[number]
    if setting["strategy"] is None:
        return ""
    setting["strategy"] = answers[-1].stats.strategy  # a draft model replaces the given strategy
    head = {"prompt": name, "number": number, **setting, "memory": mode.memory, "repetition": len(answers)}
    return "".join(json.dumps({**head, "step": at, **step}) + "\n" for at, step in enumerate(steps_of(answers[-1]), 1))


def summarize(modes: Sequence[Mode], files: Sequence[str] = (), categories: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return one row for each mode; the first is the baseline. Speeds are in tokens/s, ``ttft_ms`` is a median.

    The speed of a prompt is the median of its repetitions; ``decode_tok_s`` weights prompts by their tokens. A ratio
    is the speed of a prompt over its speed at lookahead 0, or 1 if it could not be timed: ``prompt_ratios`` in the
    order of the prompts, with ``mean_prompt_ratio`` and ``slowest_prompt_ratio``. ``ratio_is_noise``: the ratios do not
    differ from 1 beyond noise. ``cpu_ms_per_token`` is the CPU time of all threads for each token after the first,
    which other processes disturb less than the wall clock; ``cpu_ratio`` is the median over prompts of its ratio to
    lookahead 0. ``memory_gain`` of a warm row is its speed over that of the cold row before it. ``files`` and
    ``categories`` give each prompt's file and category, for ``by_file`` and ``by_category``.
    """
    plain = modes[0]
    rows = [_row(mode, plain, {"by_file": files, "by_category": categories}) for mode in modes]
    for cold, warm in zip(rows, rows[1:], strict=False):
        if warm["memory"] == "warm":
            warm["memory_gain"] = _over(warm["decode_tok_s"], cold["decode_tok_s"])
    return rows


def _row(mode: Mode, plain: Mode, groups: dict[str, Sequence[str]]) -> dict[str, Any]:
    everything = [g.stats for answers in mode.answers for g in answers]
    firsts = [answers[0].stats for answers in mode.answers]
    speeds = [(_speed(answers), _speed(base)) for answers, base in zip(mode.answers, plain.answers, strict=True)]
    ratios = [mine / base if mine > 0 and base > 0 else 1.0 for mine, base in speeds]
    same = sum(
        all(g.tokens == base[0].tokens for g in answers)
        for base, answers in zip(plain.answers, mode.answers, strict=True)
    )
    drafted, accepted = (sum(getattr(s, name) for s in everything) for name in ("drafted", "accepted"))
    steps = sum(s.steps for s in everything)
    return {
        **meaning(mode.lookahead),
        "memory": mode.memory,
        "memory_gain": None,
        "prompts": len(mode.answers),
        "tokens": sum(s.tokens for s in firsts),
        "decode_tok_s": _over(sum(s.decode_tokens for s in firsts), sum(map(_decode_seconds, mode.answers))),
        "cpu_ms_per_token": 1e3 * _over(sum(map(_cpu_seconds, mode.answers)), sum(s.decode_tokens for s in firsts)),
        "cpu_ratio": median(_cpu_ratio(*pair) for pair in zip(mode.answers, plain.answers, strict=True)),
        "prefill_tok_s": _over(sum(s.prompt_tokens for s in everything), sum(s.prefill_seconds for s in everything)),
        "ttft_ms": 1000 * median(s.first_token_seconds for s in everything),
        "mean_acceptance_length": _acceptance_length(everything),
        "acceptance_rate": _over(accepted, drafted),
        **_acceptance(everything),
        "identical_to_plain": f"{same}/{len(mode.answers)}",
        "slowest_prompt_ratio": min(ratios),
        "mean_prompt_ratio": fmean(ratios),
        "prompt_ratios": ratios,
        "prompt_acceptance_lengths": [_acceptance_length([g.stats for g in answers]) for answers in mode.answers],
        **_certainty(mode, plain),
        **{
            group: {
                name: _of_some([n for n, its in enumerate(names) if its == name], mode, ratios)
                for name in dict.fromkeys(names)
            }
            for group, names in groups.items()
        },
        "python_us_per_step": 1e6 * _over(sum(s.python_seconds for s in everything), steps),
        **{
            f"{part}_ms_per_step": 1e3 * _over(sum(getattr(s, f"{part}_seconds") for s in everything), steps)
            for part in ("proposer", "engine", "sampler")
        },
    }


def _certainty(mode: Mode, plain: Mode) -> dict[str, Any]:
    """Return :func:`certainty` of the ratios of all answers to plain decoding's in the same repetition."""
    pairs = [
        _over(_speed([mine]), _speed([base]))
        for answers, bases in zip(mode.answers, plain.answers, strict=True)
        for mine, base in zip(answers, bases, strict=True)
        if _speed([mine]) > 0 and _speed([base]) > 0
    ]
    tokens = sum(g.stats.decode_tokens for answers in mode.answers for g in answers)
    found = certainty(pairs, tokens)
    return {**found, "ratio_is_noise": mode is not plain and found["ratio_is_noise"]}


def certainty(ratios: Sequence[float], tokens: int) -> dict[str, Any]:
    """Test whether the answers' ratios to plain decoding, of ``tokens`` timed tokens in all, differ from 1.

    Returns ``ratio_quartiles``, None for a single ratio, and ``ratio_is_noise``: there are too few tokens or answers,
    or 1 is between the quartiles.
    """
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (0.0, 1.0, math.inf)
    few = tokens < MIN_TOKENS or len(ratios) < MIN_ANSWERS
    return {"ratio_quartiles": [low, high] if len(ratios) > 1 else None, "ratio_is_noise": few or low <= 1.0 <= high}


def _of_some(places: Sequence[int], mode: Mode, ratios: Sequence[float]) -> dict[str, Any]:
    answers = [mode.answers[n] for n in places]
    tokens = sum(a[0].stats.decode_tokens for a in answers)
    return {
        "prompts": len(places),
        "decode_tok_s": _over(tokens, sum(map(_decode_seconds, answers))),
        "mean_acceptance_length": _acceptance_length([g.stats for a in answers for g in a]),
        "mean_prompt_ratio": fmean(ratios[n] for n in places),
        "slowest_prompt_ratio": min(ratios[n] for n in places),
    }


def _acceptance_length(stats: Sequence[GenerationStats]) -> float:
    return _over(sum(s.decode_tokens for s in stats), sum(s.sequence_steps for s in stats))


def _acceptance(stats: Sequence[GenerationStats]) -> dict[str, Any]:
    """Return the counts of drafted and accepted tokens by source and by position."""
    from ipex_lookahead.decoding.stats import by_position, by_source

    drafted = sum((one.drafted_at for one in stats), Counter())
    accepted = sum((one.accepted_at for one in stats), Counter())
    right = by_source(accepted)

    def positions(source: str | None = None) -> dict[str, list[int]]:
        counts = by_position(drafted, accepted, source)
        return dict(zip(("drafted_by_position", "accepted_by_position"), counts, strict=True))

    sources = {
        name: {
            "drafted": count,
            "accepted": right[name],
            "acceptance_rate": _over(right[name], count),
            **positions(name),
        }
        for name, count in by_source(drafted).most_common()
    }
    return {"acceptance_by_source": sources, **positions()}


def _decode_seconds(answers: Sequence[Generation]) -> float:
    return median(g.stats.decode_seconds for g in answers)


def _cpu_seconds(answers: Sequence[Generation]) -> float:
    return median(g.stats.decode_cpu_seconds for g in answers)


def _cpu_ratio(answers: Sequence[Generation], plain: Sequence[Generation]) -> float:
    """Return 1 for answers that are too short for the clock."""
    return _over(_cpu_seconds(answers), _cpu_seconds(plain)) or 1.0


def _speed(answers: Sequence[Generation]) -> float:
    return _over(answers[0].stats.decode_tokens, _decode_seconds(answers))


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
