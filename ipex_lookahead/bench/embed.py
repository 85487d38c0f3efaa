"""``ipex-lookahead bench embed``: texts per second by length and batch size, compared with other programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import click

from ipex_lookahead.bench.embed_peers import Contender, Own, SentenceTransformers, llama_server, own_server
from ipex_lookahead.bench.options import Report, comma_separated
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.embedding_texts import EmbeddingOptions
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.errors import ContextLengthError, InputError

PACKAGED_TEXT = Path(__file__).with_name("quality.txt")


@dataclass
class Sizes:
    """The texts and the compared programs."""

    lengths: list[int] = option(
        "Tokens per text, comma-separated; words of a novel, cut to this number.", "16,64,256",
        callback=comma_separated, metavar="N,N,...",
    )  # fmt: skip
    batches: list[int] = option(
        "Texts per batch, comma-separated.", "1,8,32", callback=comma_separated, metavar="N,N,..."
    )
    repeat: int = option("Number of timed batches of each size; programs alternate. The median counts.", 5, low=1)
    over_http: bool = option("Also measure ipex-lookahead serve, with the time of a whole request.", False, "--serve")
    sentence_transformers: Path | None = option(
        "Also measure sentence-transformers in float32 with this Python; the model is a folder.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PYTHON",
    )  # fmt: skip
    llama: Path | None = option(
        "Also measure this llama-server, with the time of a whole request.", None, "--llama-server",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PROGRAM",
    )  # fmt: skip
    llama_file: Path | None = option(
        "GGUF file of the same weights for llama-server. Default: the model itself.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE.gguf",
    )  # fmt: skip


@command("ipex-lookahead bench embed -m path/to/embedder --lengths 16 --batches 1,8")
def embed(what: Sizes, loading: EmbeddingOptions, to: Report) -> None:
    """Measure texts per second of an embedding model by length and batch size.

    The times include tokenization. Programs run alternately in one run, and ratios are those of the medians.
    """
    from ipex_lookahead.hub import resolve_model

    to.check()
    path = resolve_model(loading.model)
    file = what.llama_file or path
    if what.llama is not None and not file.is_file():
        raise InputError("--llama-server needs a GGUF file", hint="give --llama-file FILE.gguf with the same weights")
    if what.sentence_transformers is not None and not path.is_dir():
        raise InputError(f"--sentence-transformers needs a folder, and {loading.model} is a file", hint="leave it out")
    with ExitStack() as stack:
        own = Own(loading.open())
        stack.callback(own.close)
        if own.model.purpose != "embedding":
            raise InputError(f"{loading.model} is for {own.model.purpose}", hint="give an embedding model")
        texts = {length: texts_of(own.model, length, max(what.batches)) for length in what.lengths}
        others: list[Contender] = []
        if what.over_http:
            others.append(own_server(loading.model, loading.low_bit, loading.threads))
            stack.callback(others[-1].close)
        if what.sentence_transformers is not None:
            others.append(SentenceTransformers(what.sentence_transformers, path, loading.threads))
            stack.callback(others[-1].close)
        if what.llama is not None:
            most = max(2048, max(what.lengths) * max(what.batches))
            others.append(llama_server(what.llama, file, loading.threads, most))
            stack.callback(others[-1].close)
        rows = measure([own, *others], texts, what.batches, what.repeat)
        facts = own.model.describe()
    names = [own.name, *(one.name for one in others)]
    headings = [
        "tokens",
        "texts",
        *(f"{name}\ntexts/s" for name in names),
        *(f"ratio to\n{name}" for name in names[1:]),
    ]
    print_table(headings, [_cells(row, names) for row in rows], keys=2, caption="ratio: our texts/s by the program's.")
    to.write({"model": loading.model, "facts": facts, "repeat": what.repeat, "rows": rows}, None)


def texts_of(model: Any, length: int, count: int) -> list[str]:
    """Return texts of a novel with ``length`` tokens each, special tokens included, or the nearest smaller number.

    Raises InputError if the model takes no texts of this length.
    """
    if length > model.max_length:
        raise InputError(f"--lengths {length} exceeds the model's maximum of {model.max_length} tokens")
    words = read_text(PACKAGED_TEXT).split()
    found = []
    for number in range(count):
        begin = number * 37 % max(1, len(words) - 2 * length)
        low, high = 1, 2 * length + 1  # words of a text with at most ``length`` tokens
        while high - low > 1:
            middle = (low + high) // 2
            given = _tokens(model, " ".join(words[begin : begin + middle]))
            low, high = (middle, high) if given <= length else (low, middle)
            if given == length:
                break
        found.append(" ".join(words[begin : begin + low]))
    return found


def _tokens(model: Any, text: str) -> float:
    """Return the number of tokens of a text; infinity for more than the model reads."""
    try:
        return len(model.inputs([text], truncate=False)[0])
    except ContextLengthError:
        return inf


def measure(
    contenders: Sequence[Contender], texts: dict[int, list[str]], batches: Sequence[int], repeat: int
) -> list[dict[str, Any]]:
    """Return a row for each length and batch size: the median seconds of a batch for each program."""
    rows = []
    with progress_bar(len(texts) * len(batches), "sizes") as advance:
        for length, given in texts.items():
            for batch in batches:
                times: dict[str, list[float]] = {one.name: [] for one in contenders}
                for turn in range(repeat + 1):
                    for one in contenders:
                        took = one.seconds(given[:batch])
                        if turn:  # the first batch of a size is not timed
                            times[one.name].append(took)
                rows.append({"tokens": length, "texts": batch, "seconds": {k: median(v) for k, v in times.items()}})
                advance()
    return rows


def _cells(row: dict[str, Any], names: Sequence[str]) -> list[object]:
    seconds = row["seconds"]
    own = seconds[names[0]]
    rates = [f"{row['texts'] / seconds[name]:,.1f}" for name in names]
    return [row["tokens"], row["texts"], *rates, *(f"{seconds[name] / own:.2f}" for name in names[1:])]
