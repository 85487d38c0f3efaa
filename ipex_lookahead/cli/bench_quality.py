"""``ipex-lookahead bench quality``: what formats cost in quality, beside the same weights in float32."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import (
    WEIGHTS,
    json_option,
    kv_cache_option,
    model_option,
    option,
    plot_option,
    threads_option,
)
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, LowBits, Model
from ipex_lookahead.low_bits import ALL_LOW_BITS, LOW_BITS, PRESETS

if TYPE_CHECKING:
    from ipex_lookahead.bench.quality import Candidate

HEADINGS = ("format", "bits", "MB", "perplexity", "beside\nreference", "KL", "same\ntop 1", "tok/s")


@command("ipex-lookahead bench quality --low-bit sym_int4,sym_int8 --plot formats.svg")
@model_option
@option(
    "--low-bit",
    "low_bits",
    type=LowBits(),
    multiple=True,
    help=f"What to measure, with commas between: {WEIGHTS}; or '{ALL_LOW_BITS}'. As the file has it if not given.",
)
@option(
    "--beside",
    type=Model(),
    multiple=True,
    help="Also measure this model as it is, such as another file of the same weights.",
)
@option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A UTF-8 text to predict, such as WikiText's; chapters of a novel if not given.",
)
@option("--tokens", type=click.IntRange(2), default=20_000, help="The first so many tokens of it.")
@option("--window", "width", type=click.IntRange(2), default=512, help="Tokens in a window; each starts afresh.")
@option(
    "--reference",
    type=LowBit(),
    default="fp32",
    help="What all are compared with. Of a file in bf16, bf16 has the same bits as fp32 and half the size.",
)
@option("--same-weights", is_flag=True, help="Also run transformers in float32 on each one's weights.")
@option("--speed/--no-speed", default=True, help="Measure how fast each decodes.")
@kv_cache_option
@threads_option
@plot_option
@json_option
def quality(
    model: str,
    low_bits: tuple[tuple[str, ...], ...],
    beside: tuple[str, ...],
    text: Path | None,
    tokens: int,
    width: int,
    reference: str,
    same_weights: bool,
    speed: bool,
    kv_cache: str,
    threads: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Perplexity, KL divergence and agreement of formats beside the model's own weights in float32.

    All run on the same engine: the reference has the weights as float32, of a quantised file the values that its codes
    stand for. KL divergence is the mean over tokens, in nats; "same top 1" the share of tokens for which both have the
    same most likely one; bits count the scales and all matrices; MB are the weights as saved.
    """
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.quality import PACKAGED_TEXT, Candidate, measure
    from ipex_lookahead.engines.weights import check_low_bit
    from ipex_lookahead.errors import InputError

    names = list(dict.fromkeys(check_low_bit(name) for given in low_bits for name in _each(given)))
    candidates = [Candidate(model, name, kv_cache=kv_cache) for name in names]
    if not candidates and not beside:
        candidates = [Candidate(model, kv_cache=kv_cache)]
    candidates += [Candidate(other, name=Path(other).name.removesuffix(".gguf"), kv_cache=kv_cache) for other in beside]
    try:
        written = (text or PACKAGED_TEXT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as UTF-8 text: {error}") from error

    compared_with = Candidate(model, check_low_bit(reference))

    def load(candidate: Candidate) -> Any:
        from ipex_lookahead.auto import load_text_model

        settings: dict[str, Any] = {"low_bit": candidate.low_bit, "kv_cache": candidate.kv_cache, "threads": threads}
        # What weights are rounded twice the table says; what is to be said of the model itself is said once.
        with nullcontext() if candidate is compared_with else _no_warnings():
            return load_text_model(candidate.model, progress=True, **settings)

    def told(row: dict[str, Any]) -> None:
        click.echo(f"{row['name']}: perplexity {row['perplexity']:.3f}, KL {row['kl']:.2g}", err=True)

    report = measure(
        candidates,
        load,
        written,
        reference=compared_with,
        tokens=tokens,
        window=width,
        speed=speed,
        same_weights=same_weights,
        progress=progress_bar,
        found=told,
    )
    report = {
        "model": model,
        "text": (text or PACKAGED_TEXT).name,
        "kv_cache": kv_cache,
        **where_and_when(),
        **report,
    }
    _print_table(report, to_stderr=as_json)
    if plot is not None:
        from ipex_lookahead.bench.plots.quality import plot_quality

        plot_quality(report, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report))


def _each(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield from (*LOW_BITS, *PRESETS) if name == ALL_LOW_BITS else (name,)


@contextmanager
def _no_warnings() -> Iterator[None]:
    log = logging.getLogger("ipex_lookahead")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows, reference = report["formats"], report["reference"]
    headings = list(HEADINGS)
    if compared := any("same_weights_ratio" in row for row in rows):
        headings.insert(5, "beside trans-\nformers")
    cells = []
    for row in rows:
        line = [
            row["name"],
            f"{row['bits']:.2f}",
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['perplexity']:.3f}",
            f"{row['ratio']:.4f}",
            f"{row['kl']:.2g}" if row["kl"] < 1e-4 else f"{row['kl']:.4f}",
            f"{100 * row['top1']:.1f}%",
            f"{row['decode_tok_s']:.1f}" if row["decode_tok_s"] else "",
        ]
        if compared:
            line.insert(5, f"{row['same_weights_ratio']:.4f}")
        cells.append(line)
    twice = {row["requantized_from"] for row in rows} - {None}
    print_table(
        headings,
        cells,
        title=f"{report['model']} · {report['text']}, {report['tokens']:,} tokens in windows of {report['window']} · "
        f"{report['isa'] or report['engine']} · keys and values in {report['kv_cache']}",
        caption=f"reference: these weights in {reference['low_bit']}, perplexity {reference['perplexity']:.3f}"
        + (f"; they are in {', '.join(sorted(twice))} in the file, so other formats round them again" if twice else ""),
        to_stderr=to_stderr,
    )
