"""``ipex-lookahead bench decode``: decoding speed with and without lookahead."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import ModelOptions, draft_model_option, draft_vocab_option, drafter_option
from ipex_lookahead.cli.lookahead import NO_COPY, Lookahead, StrategyOptions
from ipex_lookahead.cli.measuring import Prompts, Report
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.sampling import GreedySampler
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Strategy, Tokens
from ipex_lookahead.cli.writing import written
from ipex_lookahead.system.terminal import counted


@dataclass
class Compared:
    """The modes that are measured."""

    lookahead: tuple[int | str, ...] = option(
        "Most drafted tokens a step, or 'auto'; several are compared, and 0, the baseline, always runs. If not given:"
        " 3, and 'auto' with a --strategy.",
        (),
        type=Tokens(),
    )
    strategy: tuple[str, ...] = option(
        "Where drafts come from; several are compared, with each --lookahead or, if none is given, with 'auto'.",
        (),
        type=Strategy(NO_COPY),
    )
    options: StrategyOptions = field(default_factory=StrategyOptions)

    def modes(self) -> list[Lookahead]:
        """Those beside the baseline; an option reaches the modes that have a use for it.

        Raises UsageError where an option has no effect on any mode.
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
    """How much is measured."""

    max_new_tokens: int = option("Most tokens to generate.", 128, "-n", low=1)
    repeat: int = option("Runs of each prompt in each mode; the median counts.", 1, low=1)
    layout: Literal["spec-bench", "speed-bench"] | None = option(
        "Also print each mode's figures as that benchmark's own client does, by its definitions."
    )
    show_drafts: str | None = option(
        "Write each step's drafted ids, and what became of them, as lines of JSON.", metavar="FILE.jsonl"
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

    Strategies that remember their answers run cold, every prompt with an empty memory, and warm, one after the other.
    Prompts may be files of Spec-Bench (question.jsonl) or SPEED-Bench (test.parquet); their later turns follow the
    model's own answers.
    """
    sampling.check()
    modes_given = compared.modes()
    to.check()
    if what.show_drafts is not None and not modes_given:
        raise click.UsageError("--show-drafts has no effect with --lookahead 0 alone: nothing is drafted")
    if sampling.temperature and sampling.seed is None:
        sampling.seed = 0  # without a fixed seed there is nothing to compare

    from ipex_lookahead.bench.decode import Mode, generator, measure, modes_of, summarise
    from ipex_lookahead.bench.drafts import lines_of
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.decode import plot_decode
    from ipex_lookahead.bench.prompts import conversations

    texts = prompts.read()

    from ipex_lookahead.cli.conversation import chat_encoder
    from ipex_lookahead.cli.loading import config_of

    loaded, tokenizer = loading.load(draft_model=draft_model, drafter=drafter, draft_vocab=draft_vocab)
    keep = {} if what.show_drafts is None else {"keep_drafts": True}
    generate = generator(loaded, what.max_new_tokens, **sampling.arguments(), **keep)

    def answer(ids: list[int]) -> str:
        said: str = tokenizer.decode(generate(ids, 0).tokens, skip_special_tokens=True)
        return said

    turns = list(conversations(texts, chat_encoder(tokenizer, config_of(loaded)), answer))
    answered = [prompt for prompt, _ in turns]
    settings = [_setting(mode, adaptive=not compared.options.no_adaptive) for mode in modes_given]
    with (
        nullcontext() if what.show_drafts is None else written(what.show_drafts) as write,
        progress_bar(len(turns) * len(modes_of(settings)) * what.repeat) as advance,
    ):

        def show(mode: Mode, number: int) -> None:
            if write is not None:
                write(lines_of(mode, number, answered[number].id))
                mode.answers[number][-1].stats.drafts = None  # a long run's are many
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
    report = {"model": loading.model, **{key: engine.get(key) for key in ("low_bit", "isa", "threads")}}
    report |= {"max_new_tokens": what.max_new_tokens, "repeat": what.repeat, **sampling.arguments()}
    report |= {"prompts": [p.id for p in answered], "categories": [p.category for p in answered]}
    report |= where_and_when()
    report["runs"] = summarise(modes, [p.file for p in answered], [p.category for p in answered])
    _print_table(report, to_stderr=to.as_json)
    if what.layout is not None:
        from ipex_lookahead.bench import layouts

        report["layout"] = layouts.figures(what.layout, modes, answered)
        for lines in layouts.LAYOUTS[what.layout](report["layout"], [_name(run) for run in report["runs"]]):
            click.echo(lines, err=to.as_json)
    to.write(report, plot_decode)
    differing = [_name(run) for run in report["runs"] if len(set(run["identical_to_plain"].split("/"))) > 1]
    if differing:
        click.echo(f"error: with lookahead {differing[0]} the tokens differ from those without", err=True)
        raise click.exceptions.Exit(1)


def _setting(mode: Lookahead, *, adaptive: bool) -> Any:
    """What ``generate(lookahead=...)`` gets in a mode."""
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    setting = mode.arguments()["lookahead"]
    return setting if adaptive else resolve_lookahead(setting, adaptive=False)


def _name(run: dict[str, Any]) -> str:
    """A mode in a few letters."""
    said = [str(run["lookahead"])]
    if run["strategy"] is not None and run["lookahead"] != "auto":
        said.append(run["strategy"])
    return " ".join([*said, run["memory"]] if run["memory"] else said)


def _ratio(value: float, run: dict[str, Any]) -> str:
    """A ratio to plain decoding, marked where it cannot be told from 1."""
    return f"~{value:.2f}x (noise)" if run["ratio_is_noise"] else f"{value:.2f}x"


def _memory(runs: list[dict[str, Any]]) -> str:
    """What remembering answers brought, where something did."""
    warm = [run for run in runs if run["memory"] == "warm"]
    if not warm:
        return ""
    gains = "; ".join(f"{_ratio(run['memory_gain'], run)} {_name(run).removesuffix(' warm')}" for run in warm)
    return f"; cold: every prompt with an empty memory; warm: one after the other, which brought {gains}"


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
        caption="worst: the slowest prompt's ratio; noise: too few tokens to tell (-n, --repeat), or now slower, now "
        "quicker; CPU: CPU time a token over that without; "
        "accept: of the drafted tokens; µs/step: Python's share of a step" + _memory(runs),
        to_stderr=to_stderr,
    )
