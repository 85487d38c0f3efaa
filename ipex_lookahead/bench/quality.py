"""``ipex-lookahead bench quality``: the cost of formats in quality, and their speed.

The reference is the checkpoint's own weights in float32 on the same engine. The candidates are formats of the same
checkpoint, or other files of the same model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from ipex_lookahead.bench.options import Report
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import kv_cache_option, model_option, threads_option
from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBit, LowBits, Model
from ipex_lookahead.errors import InputError
from ipex_lookahead.low_bits import ALL_LOW_BITS, LOW_BITS, PRESETS

PACKAGED_TEXT = Path(__file__).with_name("quality.txt")
"""The first chapters of Tolstoy's War and Peace in the Maudes' translation (public domain)."""
HEADINGS = ("format", "bits", "MB", "perplexity", "ratio to\nreference", "KL", "same\ntop 1", "tok/s")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to measure.

    Attributes:
        model: Name of the checkpoint, as on the command line.
        low_bit: Format to load it in; None keeps the file's.
        name: Name in the report; "" is the format.
        kv_cache: Format of keys and values.
    """

    model: str
    low_bit: str | None = None
    name: str = ""
    kv_cache: str = "fp16"


@dataclass
class Quality:
    """The models to measure, and the text."""

    low_bits: tuple[tuple[str, ...], ...] = option(
        f"Formats to measure, separated by commas, or '{ALL_LOW_BITS}': {WEIGHTS}. Default: the file's own.",
        (),
        "--low-bit",
        type=LowBits(),
    )
    with_model: tuple[str, ...] = option(
        "Also measure this model, such as another file of the same weights. Repeatable.", (), type=Model()
    )
    text: Path | None = option(
        "UTF-8 text to predict, such as WikiText. Default: chapters of a novel.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
    )
    tokens: int = option("Number of tokens of the text to use.", 20_000, low=2)
    width: int = option("Tokens per window; each starts with an empty context.", 512, "--window", low=2)
    reference: str = option(
        "Format to compare with; for a bf16 file, bf16 gives the same values as fp32 in half the memory.",
        "fp32",
        type=LowBit(),
    )
    same_weights: bool = option("Also run transformers in float32 on the same weights.", False)
    speed: bool = option("Also measure the decoding speed.", True)


@command("ipex-lookahead bench quality --low-bit sym_int4,sym_int8 --plot formats.svg")
def quality(
    *,
    model: str = model_option,
    what: Quality,
    to: Report,
    kv_cache: Literal["fp16", "int8"] = kv_cache_option,
    threads: int | None = threads_option,
) -> None:
    """Perplexity, KL divergence and agreement of formats, compared with the model's own weights in float32.

    All run on the same engine; the reference has the weights of the file as float32, dequantized if necessary. KL
    divergence is the mean over tokens, in nats; "same top 1" is the share of tokens with the reference's most likely
    token; bits include the scales, over all matrices; MB are the weights as saved.
    """
    to.check()
    from ipex_lookahead.bench.plots.quality import plot_quality
    from ipex_lookahead.engines.weights import check_low_bit

    names = list(dict.fromkeys(check_low_bit(name) for given in what.low_bits for name in _each(given)))
    candidates = [Candidate(model, name, kv_cache=kv_cache) for name in names]
    if not candidates and not what.with_model:
        candidates = [Candidate(model, kv_cache=kv_cache)]
    candidates += [
        Candidate(other, name=Path(other).name.removesuffix(".gguf"), kv_cache=kv_cache) for other in what.with_model
    ]
    content = read_text(what.text or PACKAGED_TEXT)
    compared_with = Candidate(model, check_low_bit(what.reference))

    def load(candidate: Candidate) -> Any:
        from ipex_lookahead.runtime.loading import load_text_model

        settings: dict[str, Any] = {"low_bit": candidate.low_bit, "kv_cache": candidate.kv_cache, "threads": threads}
        # The table marks requantized weights; other warnings are shown once, for the reference.
        with nullcontext() if candidate is compared_with else _no_warnings():
            return load_text_model(candidate.model, progress=True, **settings)

    def report_row(row: dict[str, Any]) -> None:
        click.echo(f"{row['name']}: perplexity {row['perplexity']:.3f}, KL {row['kl']:.2g}", err=True)

    report = measure(
        candidates,
        load,
        content,
        reference=compared_with,
        tokens=what.tokens,
        window=what.width,
        speed=what.speed,
        same_weights=what.same_weights,
        progress=progress_bar,
        found=report_row,
    )
    report = {"model": model, "text": (what.text or PACKAGED_TEXT).name, "kv_cache": kv_cache, **report}
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
        headings.insert(5, "ratio to\ntransformers")
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


def measure(
    candidates: Sequence[Candidate],
    load: Callable[[Candidate], Any],
    text: str,
    *,
    reference: Candidate,
    tokens: int = 20_000,
    window: int = 512,
    speed: bool = True,
    same_weights: bool = False,
    progress: Callable[[int, str], AbstractContextManager[Callable[[], None]]],
    found: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Measure the candidates and return the report. Each model is unloaded before the next is loaded.

    Args:
        candidates: Models to compare with the reference.
        load: Returns a model with ``engine``, ``tokenizer`` and ``config``.
        text: Text to predict.
        reference: Model to compare with.
        tokens: Number of tokens of the text to use.
        window: See :func:`score`.
        speed: Also measure the decoding speed.
        same_weights: Also run transformers in float32 on the weights of each candidate, to separate the error of our
            arithmetic from that of the format.
        progress: Context manager ``progress(steps, title)`` that returns a function to call after each step.
        found: Called with each row of the report as soon as it is known.

    Raises:
        InputError: Fewer than 2 tokens, a candidate with another vocabulary, or too little space for the reference.
    """
    from ipex_lookahead.bench import perplexity as p

    model = load(reference)
    ids = model.tokenizer.encode(text, add_special_tokens=False)[:tokens]
    vocab = model.engine.vocab_size
    windows = -(-len(ids) // window)
    kept = p.Distributions(p.predicted(len(ids), window), vocab) if len(ids) > 1 else None
    facts = model.engine.describe()
    with progress(windows, f"the reference, {facts['low_bit']}") as advance:
        expected = p.score(p.engine_logits(model.engine), ids, window, keep=kept, advance=advance)
    report: dict[str, Any] = {
        "tokens": len(ids),
        "window": window,
        **{key: facts.get(key) for key in ("engine", "isa", "threads")},
        "reference": {"low_bit": facts["low_bit"], "perplexity": expected.perplexity},
        "formats": [],
    }
    del model
    for number, candidate in enumerate(candidates, 1):
        model = load(candidate)
        engine = model.engine
        low_bit = engine.describe()["low_bit"]
        name = candidate.name or low_bit
        other_file = candidate.model != reference.model
        alike = not other_file or model.tokenizer.encode(text, add_special_tokens=False)[:tokens] == ids
        if engine.vocab_size != vocab or not alike:
            raise InputError(f"{name} has another vocabulary than {reference.model}; their tokens cannot be compared")
        with progress(windows, f"{name} ({number} of {len(candidates)})") as advance:
            got = p.score(p.engine_logits(engine), ids, window, reference=kept, advance=advance)
        bits, size = p.weight_sizes(engine)
        row: dict[str, Any] = {
            "name": name,
            "low_bit": low_bit,
            "other_file": other_file,
            "requantized_from": engine.describe().get("requantized_from"),
            "bits": bits,
            "bytes": size,
            "perplexity": got.perplexity,
            "ratio": got.perplexity / expected.perplexity,
            "kl": got.kl,
            "top1": got.top1,
            "decode_tok_s": p.decode_speed(engine, ids) if speed else None,
        }
        if same_weights:
            theirs = p.reference_logits(p.reference_model(engine, model.config))
            with progress(windows, f"{name} in transformers") as advance:
                other = p.score(theirs, ids, window, advance=advance)
            row |= {
                "same_weights_perplexity": other.perplexity,
                "same_weights_ratio": got.perplexity / other.perplexity,
            }
        report["formats"].append(row)
        found(row)
        del model, engine
    return report
