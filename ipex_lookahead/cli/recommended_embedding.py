"""The recommended embedding and reranking models, for ``pull``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.hub.recommended_embedding import recommended_embedding_models

COMMANDS = {"embedding": "embed", "reranking": "rank"}
"""Purpose of a model -> the command that uses it."""


def embedding_facts() -> list[dict[str, Any]]:
    """Return the list for ``--json``; a size that is not verified is None."""
    found = []
    for one in recommended_embedding_models().values():
        facts = asdict(one)
        del facts["drafter"]
        facts |= {"download_bytes": facts.pop("download") or None, "dimensions": one.dimensions or None}
        found.append(facts)
    return found


def print_recommended_embedding() -> None:
    """Print the list."""
    columns: dict[str, str | Callable[[Any], object]] = {
        "name": "{name}",
        "for": "{purpose}",
        "license": "{license}",
        "size\nMB": lambda one: "-" if one["download_bytes"] is None else f"{one['download_bytes'] / 1e6:,.0f}",
        "dimensions": lambda one: one["dimensions"] or "-",
        "tokens": "{max_length:,}",
    }
    click.echo("\nEmbedding and reranking models, for embed, rank and serve:")
    print_rows(columns, embedding_facts(), caption="tokens: maximum of a text. -: not verified, or none.")
