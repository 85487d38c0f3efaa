"""LangChain's Embeddings on an embedding model in this process; needs `pip install langchain-core`.

python examples/langchain_embeddings.py --model all-minilm-l6-v2 --query "Why is the sky blue?" TEXT ...
"""

from __future__ import annotations

import sys
from typing import Any

import click
from langchain_core.embeddings import Embeddings

from ipex_lookahead import LLM
from ipex_lookahead.cli.running import run_command


class LookaheadEmbeddings(Embeddings):
    """Vectors for LangChain's vector stores: queries and documents each get the model's own prompt.

    Args:
        model: a folder, a GGUF file, a short name or a Hugging Face id.
        dimensions: number of leading values to keep, for models with vectors that may be cut.
        options: further arguments of ``LLM``, such as ``low_bit`` and ``threads``.
    """

    def __init__(self, model: str, *, dimensions: int | None = None, **options: Any) -> None:
        self.llm = LLM(model, **options)
        self.dimensions = dimensions

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each document."""
        return self.llm.embed(texts, task="document", dimensions=self.dimensions).tolist()

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query."""
        return self.llm.embed(text, task="query", dimensions=self.dimensions).tolist()


@click.command()
@click.argument("texts", nargs=-1, required=True)
@click.option("--model", default="all-minilm-l6-v2", help="A folder, a .gguf file, a short name or a hub id.")
@click.option("--query", default="Why is the sky blue?")
def main(texts: tuple[str, ...], model: str, query: str) -> None:
    """Sort texts by their similarity to a query."""
    embeddings = LookaheadEmbeddings(model)
    target = embeddings.embed_query(query)
    vectors = embeddings.embed_documents(list(texts))
    scores = [sum(a * b for a, b in zip(target, vector, strict=True)) for vector in vectors]
    for score, text in sorted(zip(scores, list(texts), strict=True), reverse=True):
        print(f"{score:.4f}  {text}")


if __name__ == "__main__":
    sys.exit(run_command(main))
