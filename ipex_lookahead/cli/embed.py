"""``ipex-lookahead embed``: the vectors of texts, as JSON lines or as a NumPy file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.embedding_texts import EmbeddingOptions, Given, texts_of
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.writing import check_output, output_path
from ipex_lookahead.errors import SaveError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BATCH_TOKENS = 2048
"""Tokens of the texts that are computed between two updates of the bar."""
_BLOCK = 512
"""Texts that are tokenized at a time."""
NUMPY = ".npy"


@dataclass
class Vectors:
    """The texts, and what is written of each."""

    file: tuple[str, ...] = option(
        "Read texts from this file: one per line, or JSON lines (.jsonl). Repeatable; - is standard input.",
        (),
        type=click.Path(),
        metavar="FILE",
    )
    field: str = option("Field of the text in JSON lines.", "text", metavar="NAME")
    to: str | None = option(
        "Write to this file: .npy is a float32 matrix, other names are JSON lines. Default: JSON lines to standard "
        "output.",
        None,
        "--output",
        "-o",
        type=click.Path(),
        metavar="FILE",
    )
    replace: bool = option("Replace an existing --output file.", False, "--overwrite")
    task: str | None = option("Prompt before each text, such as query or document. Default: the model's default.")
    dimensions: int | None = option("Length of the vectors, for models trained for it. Default: the model's.", low=1)
    normalize: bool | None = option("Scale vectors to length 1. Default: as the model's files say.")
    truncate: bool = option("Cut texts that are longer than the model's maximum; without, they are errors.", True)


@command(
    'ipex-lookahead embed -m path/to/embedder "The sky is blue." "Grass is green."',
    "ipex-lookahead embed -m path/to/embedder --file texts.jsonl -o vectors.npy",
)
@click.argument("texts", nargs=-1)
def embed(texts: tuple[str, ...], what: Vectors, loading: EmbeddingOptions) -> None:
    """Compute the vectors of TEXTS with an embedding model.

    JSON lines have "index", "embedding", and the "id" of an input line. A .npy file has one row per text. A vector does
    not depend on the other texts. The output file is complete, or there is none.
    """
    check_output(what.to, overwrite=what.replace)
    given = texts_of(texts, what.file, what.field)
    with loading.open() as model:
        rows = computed(model, given, what)
        if what.to is None:
            for index, row in enumerate(rows):
                click.echo(json_line(index, given[index], row))
        elif what.to.endswith(NUMPY):
            write_numpy(output_path(what.to), rows, len(given), what.dimensions or model.dimensions)
        else:
            write_lines(output_path(what.to), rows, given)
    if what.to is not None:
        click.echo(f"saved {what.to}: {len(given):,} vectors", err=True)


def computed(model: Any, given: Sequence[Given], what: Vectors) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the vector of each text, float32 [dimensions], with a bar; print how many texts were cut."""
    from ipex_lookahead.system.terminal import bar, may_draw, print_status

    if not may_draw():
        print_status(f"embedding ({len(given):,} texts) ...")
    full = done = 0
    with ExitStack() as stack:
        draw = stack.enter_context(bar("embedding", len(given))) if len(given) > 1 else None
        for begin in range(0, len(given), _BLOCK):
            block = [one.text for one in given[begin : begin + _BLOCK]]
            inputs = model.inputs(block, task=what.task, truncate=what.truncate)
            full += sum(len(one) >= model.max_length for one in inputs)
            for batch in batches(inputs):
                yield from model.vectors(batch, dimensions=what.dimensions, normalize=what.normalize)
                done += len(batch)
                if draw is not None:
                    draw(done)
    if full:
        count = f"{full:,} text has" if full == 1 else f"{full:,} texts have"
        click.echo(f"note: {count} the maximum of {model.max_length:,} tokens; longer ones were cut", err=True)


def batches(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield inputs in order, in batches of at most ``BATCH_TOKENS`` tokens or one text."""
    batch: list[Any] = []
    tokens = 0
    for one in inputs:
        if batch and tokens + len(one) > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(one)
        tokens += len(one)
    if batch:
        yield batch


def json_line(index: int, given: Given, row: npt.NDArray[np.float32]) -> str:
    """Return a vector as a JSON line; its numbers have 9 digits, from which readers get the same float32."""
    numbers = ", ".join(["%.9g"] * len(row)) % tuple(row.tolist())
    named = "" if given.id is None else f'"id": {json.dumps(given.id, ensure_ascii=False)}, '
    return f'{{"index": {index}, {named}"embedding": [{numbers}]}}'


def write_lines(file: Path, rows: Iterator[npt.NDArray[np.float32]], given: Sequence[Given]) -> None:
    """Write JSON lines under a temporary name, and rename the file when it is complete. Raises SaveError."""
    from ipex_lookahead.files.temporary import temporary_file

    try:
        with temporary_file(file) as half:
            with half.open("w", encoding="utf-8") as out:
                for index, row in enumerate(rows):
                    out.write(json_line(index, given[index], row) + "\n")
            half.rename(file)
    except OSError as error:
        raise SaveError(f"cannot write {file}: {error.strerror}", hint="choose a file in another folder") from error


def write_numpy(file: Path, rows: Iterator[npt.NDArray[np.float32]], count: int, dimensions: int) -> None:
    """Write float32 [count, dimensions] as .npy under a temporary name, and rename it. Raises SaveError."""
    import numpy as np

    from ipex_lookahead.files.temporary import temporary_file

    try:
        with temporary_file(file) as half:
            with half.open("wb") as out:
                head = {"descr": "<f4", "fortran_order": False, "shape": (count, dimensions)}
                np.lib.format.write_array_header_1_0(out, head)
                for row in rows:
                    out.write(np.ascontiguousarray(row, "<f4").tobytes())
            half.rename(file)
    except OSError as error:
        raise SaveError(f"cannot write {file}: {error.strerror}", hint="choose a file in another folder") from error
