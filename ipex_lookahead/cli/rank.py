"""``ipex-lookahead rank``: documents by their relevance for a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.embed import batches
from ipex_lookahead.cli.embedding_texts import EmbeddingOptions, texts_of
from ipex_lookahead.cli.options import json_alone_option, option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_table

_SHOWN = 60
"""Characters of a document in the table."""


@dataclass
class Ranking:
    """The documents, and what is shown."""

    file: tuple[str, ...] = option(
        "Read documents from this file: one per line, or JSON lines (.jsonl). Repeatable; - is standard input.",
        (),
        type=click.Path(),
        metavar="FILE",
    )
    field: str = option("Field of the document in JSON lines.", "text", metavar="NAME")
    top_n: int | None = option("Show only this number of documents, the best ones.", low=1)
    instruction: str | None = option("What makes a document relevant, for rerankers that take an instruction.")


@command(
    'ipex-lookahead rank -m path/to/embedder "Is it blue?" "Yes." "It rains."',
    'ipex-lookahead rank -m path/to/embedder "Is it blue?" --file documents.txt',
)
@click.argument("query")
@click.argument("documents", nargs=-1)
def rank(
    query: str,
    documents: tuple[str, ...],
    what: Ranking,
    loading: EmbeddingOptions,
    as_json: bool = json_alone_option,
) -> None:
    """Rank DOCUMENTS by their relevance for QUERY, the best first.

    A reranking model scores each pair: the score is a probability, from 0 to 1. With an embedding model the score is
    the cosine of the vectors of query and document.
    """
    given = texts_of(documents, what.file, what.field, "document")
    texts = [one.text for one in given]
    with loading.open() as model:
        scores = scored(model, query, texts, what.instruction)
    order = sorted(range(len(texts)), key=lambda at: -scores[at])[: what.top_n]
    if as_json:
        found = [
            {"index": at, **({} if given[at].id is None else {"id": given[at].id}), "score": scores[at]}
            | {"document": texts[at]}
            for at in order
        ]
        click.echo(json.dumps({"query": query, "results": found}, ensure_ascii=False))
        return
    rows = [(place, f"{scores[at]:.4f}", given[at].id or at, _short(texts[at])) for place, at in enumerate(order, 1)]
    print_table(("rank", "score", "index", "document"), rows)


def scored(model: Any, query: str, documents: Sequence[str], instruction: str | None) -> list[float]:
    """Return the score of each document. Raises InputError for an instruction that the model does not take."""
    import numpy as np

    from ipex_lookahead.errors import InputError

    if model.purpose == "reranking":
        from ipex_lookahead.embedding.model import probabilities

        with progress_bar(len(documents), "ranking") as advance:
            found: list[float] = []
            for batch in batches(model.pairs(query, documents, instruction=instruction)):
                found += probabilities(model.scores(batch)).tolist()
                for _ in batch:
                    advance()
        return found
    if instruction is not None:
        raise InputError("--instruction is for reranking models; this is an embedding model", hint="leave it out")
    with progress_bar(len(documents), "ranking") as advance:
        query_vector = model.vectors(model.inputs([query], task="query"), normalize=True)[0].astype(np.float64)
        found = []
        for batch in batches(model.inputs(documents, task="document")):
            vectors = model.vectors(batch, normalize=True).astype(np.float64)
            found += [float(np.sum(vector * query_vector)) for vector in vectors]
            for _ in batch:
                advance()
    return found


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
