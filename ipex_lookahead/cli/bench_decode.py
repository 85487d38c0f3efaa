"""``ipex-lookahead bench decode``: decoding speed with and without lookahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.lookahead import NO_COPY, Lookahead, strategy_options
from ipex_lookahead.cli.options import (
    SAMPLING_OPTIONS,
    Sampling,
    draft_model_option,
    greedy_sampling_options,
    json_option,
    limit_option,
    model_options,
    option,
    plot_option,
    prompts_option,
)
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import Strategy, Tokens
from ipex_lookahead.system.terminal import counted


@command(
    "ipex-lookahead bench decode --lookahead 3 --lookahead auto --plot decode.svg",
    "ipex-lookahead bench decode -m path/to/model --low-bit sym_int4 --limit 2",
)
@model_options
@draft_model_option
@prompts_option
@limit_option
@option("--max-new-tokens", "-n", type=click.IntRange(1), default=128, help="Most tokens to generate.")
@option(
    "--lookahead",
    type=Tokens(),
    multiple=True,
    help="Most drafted tokens a step, or 'auto'; several are compared, and 0, the baseline, always runs. If not given:"
    " 3, and 'auto' with a --strategy.",
)
@option(
    "--strategy",
    multiple=True,
    type=Strategy(NO_COPY),
    help="Where drafts come from; several are compared, with each --lookahead or, if none is given, with 'auto'.",
)
@strategy_options
@option("--repeat", type=click.IntRange(1), default=1, help="Runs of each prompt in each mode; the median counts.")
@greedy_sampling_options
@option(
    "--layout",
    type=click.Choice(["spec-bench", "speed-bench"]),
    help="Also print each mode's figures as that benchmark's own client does, by its definitions.",
)
@plot_option
@json_option
def decode(
    model: str,
    low_bit: str | None,
    threads: int | None,
    kv_cache: str,
    draft_model: str | None,
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    lookahead: tuple[int | str, ...],
    strategy: tuple[str, ...],
    repeat: int,
    layout: str | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Decoding speed with and without lookahead, and whether the tokens are the same.

    Strategies that remember their answers run cold, every prompt with an empty memory, and warm, one after the other.
    Prompts may be files of Spec-Bench (question.jsonl) or SPEED-Bench (test.parquet); their later turns follow the
    model's own answers.
    """
    sampling = Sampling(**{name: options.pop(name) for name in SAMPLING_OPTIONS})
    sampling.check()
    _check(lookahead, strategy, options)
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    if sampling.temperature and sampling.seed is None:
        sampling.seed = 0  # without a fixed seed there is nothing to compare

    from ipex_lookahead.bench.decode import generator, measure, modes_of, summarise
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, conversations, read_prompts

    texts = read_prompts(prompts or [PACKAGED_PROMPTS], limit)

    from ipex_lookahead.cli.conversation import chat_encoder
    from ipex_lookahead.cli.loading import config_of, load

    loaded, tokenizer = load(
        model, low_bit=low_bit, threads=threads, kv_cache=kv_cache, draft_model=draft_model, progress=True
    )
    generate = generator(loaded, max_new_tokens, **sampling.arguments())

    def answer(ids: list[int]) -> str:
        said: str = tokenizer.decode(generate(ids, 0).tokens, skip_special_tokens=True)
        return said

    turns = list(conversations(texts, chat_encoder(tokenizer, config_of(loaded)), answer))
    asked = [prompt for prompt, _ in turns]
    settings = _settings(lookahead, strategy, options)
    with progress_bar(len(turns) * len(modes_of(settings)) * repeat) as advance:
        modes = measure(
            generate,
            [ids for _, ids in turns],
            settings,
            repeat=repeat,
            advance=advance,
            forget=loaded.forget,
        )
    engine = loaded.engine.describe()
    report = {"model": model, **{key: engine.get(key) for key in ("low_bit", "isa", "threads")}}
    report |= {"max_new_tokens": max_new_tokens, "repeat": repeat, **sampling.arguments()}
    report |= {"prompts": [p.id for p in asked], "categories": [p.category for p in asked]}
    report |= where_and_when()
    report["runs"] = summarise(modes, [p.file for p in asked], [p.category for p in asked])
    _print_table(report, to_stderr=as_json)
    if layout is not None:
        from ipex_lookahead.bench import layouts

        report["layout"] = layouts.figures(layout, modes, asked)
        for lines in layouts.LAYOUTS[layout](report["layout"], [_name(run) for run in report["runs"]]):
            click.echo(lines, err=as_json)
    if plot is not None:
        from ipex_lookahead.bench.plots.decode import plot_decode

        plot_decode(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))
    differing = [_name(run) for run in report["runs"] if not _all_same(run["identical_to_plain"])]
    if differing:
        click.echo(f"error: with lookahead {differing[0]} the tokens differ from those without", err=True)
        raise click.exceptions.Exit(1)


def _check(lookahead: tuple[int | str, ...], strategies: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise UsageError where an option has no effect on any mode."""
    problem: click.UsageError | None = None
    for name in ("window", "ngram", "guesses", "store"):
        if options[name] is None:
            continue
        for number, strategy in _pairs(lookahead, strategies):
            try:
                Lookahead(number, strategy, **{name: options[name]}).check()
                break
            except click.UsageError as error:
                problem = error
        else:
            raise problem or click.UsageError(f"--{name} has no effect")


def _pairs(lookahead: tuple[int | str, ...], strategies: tuple[str, ...]) -> list[tuple[int | str, str | None]]:
    """(most tokens, strategy) of each mode beside the baseline."""
    numbers = lookahead or (("auto",) if strategies else (3,))
    return [(number, strategy) for strategy in strategies or (None,) for number in numbers if number != 0]


def _settings(lookahead: tuple[int | str, ...], strategies: tuple[str, ...], options: dict[str, Any]) -> list[Any]:
    """What ``generate(lookahead=...)`` gets in each mode; an option reaches the modes that have a use for it."""
    from ipex_lookahead.generation.lookahead import resolve_lookahead

    found: list[Any] = []
    for number, strategy in _pairs(lookahead, strategies):
        fitting = {}
        for name in ("window", "ngram", "guesses", "store"):
            try:
                Lookahead(number, strategy, **{name: options[name]}).check()
                fitting[name] = options[name]
            except click.UsageError:
                pass
        setting = Lookahead(number, strategy, **fitting).arguments()["lookahead"]
        found.append(resolve_lookahead(setting, adaptive=False) if options["no_adaptive"] else setting)
    return found


def _name(run: dict[str, Any]) -> str:
    """A mode in a few letters."""
    said = [str(run["lookahead"])]
    if run["strategy"] is not None and run["lookahead"] != "auto":
        said.append(run["strategy"])
    return " ".join([*said, run["memory"]] if run["memory"] else said)


def _ratio(value: float, run: dict[str, Any]) -> str:
    """A ratio to plain decoding, marked where it cannot be told from 1."""
    return f"~{value:.2f}x (noise)" if run["ratio_is_noise"] else f"{value:.2f}x"


def _all_same(share: str) -> bool:
    same, _, prompts = share.partition("/")
    return same == prompts


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
    print_table(
        (
            "lookahead",
            "tok/s",
            "ratio",
            "worst",
            "CPU",
            "tok/step",
            "accept",
            "prompt/s",
            "TTFT-ms",
            "µs/step",
            "identical",
        ),
        [
            (
                _name(run),
                f"{run['decode_tok_s']:.1f}",
                _ratio(run["decode_tok_s"] / plain, run) if plain else "-",
                _ratio(run["slowest_prompt_ratio"], run),
                f"{run['cpu_ratio']:.3f}",
                f"{run['mean_acceptance_length']:.2f}",
                f"{100 * run['acceptance_rate']:.0f}%",
                f"{run['prefill_tok_s']:.0f}",
                f"{run['ttft_ms']:.1f}",
                f"{run['python_us_per_step']:.0f}",
                run["identical_to_plain"],
            )
            for run in runs
        ],
        title=f"{title} · {counted(runs[0]['prompts'], 'prompt')}",
        caption="worst: the slowest prompt's ratio; noise: too few tokens to tell (-n, --repeat), or now slower, now "
        "quicker; CPU: CPU time a token over that without; "
        "accept: of the drafted tokens; µs/step: Python's share of a step" + _memory(runs),
        to_stderr=to_stderr,
    )
