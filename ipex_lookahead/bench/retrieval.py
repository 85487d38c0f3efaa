"""``ipex-lookahead bench retrieval``: the cost of an embedding model's formats in quality.

The retrieval set is made from a text, as in the inverse cloze task (Lee et al., 2019, arXiv 1906.00300). The text is
cut into passages. One sentence of each passage is taken out and becomes a query, and the rest of the passage is the
only relevant document. So nDCG@10 of a query is 1 / log2(1 + rank), or 0 beyond rank 10.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.bench.embed import PACKAGED_TEXT
from ipex_lookahead.bench.options import Report
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.embed import batches
from ipex_lookahead.cli.loading import threads_option
from ipex_lookahead.cli.names import WEIGHTS
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.prompts import read_text
from ipex_lookahead.cli.tables import print_table
from ipex_lookahead.cli.types import LowBits, Model
from ipex_lookahead.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
RANKS = 10
MIN_WORDS = 6
"""Minimum words of a sentence that becomes a query."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Queries and documents; ``documents[i]`` is the relevant one for ``queries[i]``."""

    queries: list[str]
    documents: list[str]


FORMATS = ("sym_int8", "sym_int4")
"""Formats that are measured by default."""


@dataclass
class Retrieval:
    """The formats, and the text."""

    low_bits: tuple[tuple[str, ...], ...] = option(
        f"Formats to measure, separated by commas: {WEIGHTS}. Default: {','.join(FORMATS)}.", (), "--low-bit",
        type=LowBits(),
    )  # fmt: skip
    text: tuple[Path, ...] = option(
        "UTF-8 text from which the retrieval set is made. Repeatable. Default: chapters of a novel.", (),
        type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    )  # fmt: skip
    words: int = option("Words per passage.", 60, low=20)
    queries: int = option("Maximum number of queries and documents.", 1000, low=2)
    seed: int = option("Seed of the choice of sentences.", 0, low=0)


@command("ipex-lookahead bench retrieval -m path/to/embedder --low-bit sym_int8")
def retrieval(
    what: Retrieval,
    to: Report,
    model: str = option("Folder, .gguf file, short name or hub id.", None, "-m", type=Model(), required=True),
    threads: int | None = threads_option,
) -> None:
    """Cosine to float32 and nDCG@10 of formats of an embedding model.

    The reference has the weights of the file as float32. The set is made from a text: one sentence of each passage is
    taken out and becomes the query for the rest of the passage.
    """
    to.check()
    made = retrieval_set(
        [read_text(file) for file in what.text or (PACKAGED_TEXT,)], what.words, what.seed, what.queries
    )
    formats = list(dict.fromkeys(name for given in what.low_bits or [FORMATS] for name in given))
    rows: list[dict[str, Any]] = []
    reference: tuple[Floats, Floats] | None = None
    for low_bit in ["fp32", *(name for name in formats if name != "fp32")]:
        queries, documents, facts = vectors_of(model, low_bit, threads, made)
        reference = reference or (queries, documents)
        rows.append(row(low_bit, queries, documents, reference, facts))
    headings = ("format", "MB", "nDCG@10", "first", "cosine\nmean", "cosine\nleast")
    print_table(
        headings,
        [
            (one["format"], "-" if one["bytes"] is None else f"{one['bytes'] / 1e6:,.1f}", f"{one['ndcg']:.4f}",
             f"{one['first']:.3f}", f"{one['cosine_mean']:.6f}", f"{one['cosine_least']:.6f}")
            for one in rows
        ],
        caption=f"{len(made.queries):,} queries and documents. first: share of queries with the document at rank 1. "
        "cosine: to float32.",
    )  # fmt: skip
    to.write({"model": model, "queries": len(made.queries), "words": what.words, "seed": what.seed, "rows": rows}, None)


def retrieval_set(texts: Sequence[str], words: int, seed: int, most: int) -> RetrievalSet:
    """Return queries and documents from texts; the same arguments give the same set. Raises InputError for too few.

    Args:
        texts: texts.
        words: least number of words of a passage, which ends with a sentence.
        seed: of the choice of sentences.
        most: maximum number of queries; they are evenly spread over the passages.
    """
    found = [passage for text in texts for passage in _passages(text, words)]
    if len(found) > most:
        found = [found[at * len(found) // most] for at in range(most)]
    choose = random.Random(seed)
    queries, documents = [], []
    for sentences in found:
        at = choose.choice([n for n, sentence in enumerate(sentences) if len(sentence.split()) >= MIN_WORDS])
        queries.append(sentences[at])
        documents.append(" ".join(sentences[:at] + sentences[at + 1 :]))
    if len(queries) < 2:
        raise InputError(
            f"the text has {len(queries)} passages of {words} words", hint="give a longer text with --text"
        )
    return RetrievalSet(queries, documents)


def _passages(text: str, words: int) -> list[list[str]]:
    """Return passages as lists of sentences, each with a sentence for a query and at least one other."""
    found, passage, count = [], [], 0
    for sentence in _SENTENCE.split(" ".join(text.split())):
        passage.append(sentence)
        count += len(sentence.split())
        if count >= words:
            if len(passage) > 1 and any(len(one.split()) >= MIN_WORDS for one in passage):
                found.append(passage)
            passage, count = [], 0
    return found


def vectors_of(
    model: str, low_bit: str, threads: int | None, made: RetrievalSet
) -> tuple[Floats, Floats, dict[str, Any]]:
    """Return the vectors of queries and documents, float32 [n, dimensions] of length 1, and facts of the model."""
    import numpy as np

    from ipex_lookahead.embedding.model import EmbeddingModel

    with EmbeddingModel.open(model, load_in_low_bit=low_bit, threads=threads) as opened:
        if opened.purpose != "embedding":
            raise InputError(f"{model} is for {opened.purpose}", hint="give an embedding model")
        with progress_bar(2 * len(made.queries), low_bit) as advance:
            found = []
            for texts, task in ((made.queries, "query"), (made.documents, "document")):
                parts = []
                for batch in batches(opened.inputs(texts, task=task)):
                    parts.append(opened.vectors(batch, normalize=True))
                    for _ in batch:
                        advance()
                found.append(np.concatenate(parts))
        return found[0], found[1], opened.describe()


def row(
    low_bit: str, queries: Floats, documents: Floats, reference: tuple[Floats, Floats], facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the figures of a format."""
    import numpy as np

    ranks = ranks_of(queries, documents)
    cosines = np.concatenate(
        [
            np.sum(one.astype(np.float64) * other, axis=1)
            for one, other in zip((queries, documents), reference, strict=True)
        ]
    )
    gains = [1 / math.log2(1 + rank) if rank <= RANKS else 0.0 for rank in ranks]
    return {
        "format": low_bit,
        "bytes": facts.get("weight_bytes"),
        "ndcg": sum(gains) / len(gains),
        "first": ranks.count(1) / len(ranks),
        "cosine_mean": float(cosines.mean()),
        "cosine_least": float(cosines.min()),
    }


def ranks_of(queries: Floats, documents: Floats) -> list[int]:
    """Return the rank of the relevant document of each query, from 1; equal scores count against it."""
    import numpy as np

    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    own = np.diagonal(scores)[:, None]
    return np.sum(scores >= own, axis=1).tolist()  # type: ignore[no-any-return]
