"""``ipex-lookahead bench quality``: what formats cost in quality, beside the same weights in float32."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import kv_cache_option, model_option, threads_option
from ipex_lookahead.cli.measuring import Report
from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.reading import read_text
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, LowBits, Model
from ipex_lookahead.low_bits import ALL_LOW_BITS, LOW_BITS, PRESETS

if TYPE_CHECKING:
    from ipex_lookahead.bench.quality import Candidate

HEADINGS = ("format", "bits", "MB", "perplexity", "beside\nreference", "KL", "same\ntop 1", "tok/s")


@dataclass
class Quality:
    """What is measured, and on which text."""

    low_bits: tuple[tuple[str, ...], ...] = option(
        f"What to measure, with commas between: {WEIGHTS}; or '{ALL_LOW_BITS}'. As the file has it if not given.",
        (),
        "--low-bit",
        type=LowBits(),
    )
    beside: tuple[str, ...] = option(
        "Also measure this model as it is, such as another file of the same weights.", (), type=Model()
    )
    text: Path | None = option(
        "A UTF-8 text to predict, such as WikiText's; chapters of a novel if not given.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    tokens: int = option("The first so many tokens of it.", 20_000, low=2)
    width: int = option("Tokens in a window; each starts afresh.", 512, "--window", low=2)
    reference: str = option(
        "What all are compared with. Of a file in bf16, bf16 has the same bits as fp32 and half the size.",
        "fp32",
        type=LowBit(),
    )
    same_weights: bool = option("Also run transformers in float32 on each one's weights.", False)
    speed: bool = option("Measure how fast each decodes.", True)


@command("ipex-lookahead bench quality --low-bit sym_int4,sym_int8 --plot formats.svg")
def quality(
    *,
    model: str = model_option,
    what: Quality,
    to: Report,
    kv_cache: Literal["fp16", "int8"] = kv_cache_option,
    threads: int | None = threads_option,
) -> None:
    """Perplexity, KL divergence and agreement of formats beside the model's own weights in float32.

    All run on the same engine: the reference has the weights as float32, of a quantised file the values that its codes
    stand for. KL divergence is the mean over tokens, in nats; "same top 1" the share of tokens for which both have the
    same most likely one; bits count the scales and all matrices; MB are the weights as saved.
    """
    to.check()
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.bench.plots.quality import plot_quality
    from ipex_lookahead.bench.quality import PACKAGED_TEXT, Candidate, measure
    from ipex_lookahead.engines.weights import check_low_bit

    names = list(dict.fromkeys(check_low_bit(name) for given in what.low_bits for name in _each(given)))
    candidates = [Candidate(model, name, kv_cache=kv_cache) for name in names]
    if not candidates and not what.beside:
        candidates = [Candidate(model, kv_cache=kv_cache)]
    candidates += [
        Candidate(other, name=Path(other).name.removesuffix(".gguf"), kv_cache=kv_cache) for other in what.beside
    ]
    written = read_text(what.text or PACKAGED_TEXT)
    compared_with = Candidate(model, check_low_bit(what.reference))

    def load(candidate: Candidate) -> Any:
        from ipex_lookahead.runtime.loading import load_text_model

        settings: dict[str, Any] = {"low_bit": candidate.low_bit, "kv_cache": candidate.kv_cache, "threads": threads}
        # The table says which weights are rounded twice; warnings about the model itself are shown once.
        with nullcontext() if candidate is compared_with else _no_warnings():
            return load_text_model(candidate.model, progress=True, **settings)

    def report_row(row: dict[str, Any]) -> None:
        click.echo(f"{row['name']}: perplexity {row['perplexity']:.3f}, KL {row['kl']:.2g}", err=True)

    report = measure(
        candidates,
        load,
        written,
        reference=compared_with,
        tokens=what.tokens,
        window=what.width,
        speed=what.speed,
        same_weights=what.same_weights,
        progress=progress_bar,
        found=report_row,
    )
    report = {
        "model": model,
        "text": (what.text or PACKAGED_TEXT).name,
        "kv_cache": kv_cache,
        **where_and_when(),
        **report,
    }
    _print_table(report, to_stderr=to.as_json)
    to.write(report, plot_quality)


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
