"""LlamaIndex's BaseEmbedding on an embedding model in this process; needs `pip install llama-index-core`.

    python examples/llama_index_embeddings.py --model all-minilm-l6-v2 --query "Why is the sky blue?" TEXT ...

``Settings.embed_model = LookaheadEmbedding("all-minilm-l6-v2")`` makes indexes use it.
"""

from __future__ import annotations

import sys
from typing import Any

import click
from llama_index.core.base.embeddings.base import BaseEmbedding
from pydantic import PrivateAttr

from ipex_lookahead import LLM
from ipex_lookahead.cli.running import run_command


class LookaheadEmbedding(BaseEmbedding):
    """Vectors for LlamaIndex: queries and documents each get the model's own prompt.

    Args:
        model: a folder, a GGUF file, a short name or a Hugging Face id.
        options: further arguments of ``LLM``, such as ``low_bit`` and ``threads``.
    """

    _llm: Any = PrivateAttr()

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model_name=model)
        self._llm = LLM(model, **options)

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._llm.embed(query, task="query").tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._llm.embed(text, task="document").tolist()

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._llm.embed(texts, task="document").tolist()


@click.command()
@click.argument("texts", nargs=-1, required=True)
@click.option("--model", default="all-minilm-l6-v2", help="A folder, a .gguf file, a short name or a hub id.")
@click.option("--query", default="Why is the sky blue?")
def main(texts: tuple[str, ...], model: str, query: str) -> None:
    """Sort texts by their similarity to a query."""
    embedding = LookaheadEmbedding(model)
    target = embedding.get_query_embedding(query)
    vectors = embedding.get_text_embedding_batch(list(texts))
    scores = [sum(a * b for a, b in zip(target, vector, strict=True)) for vector in vectors]
    for score, text in sorted(zip(scores, list(texts), strict=True), reverse=True):
        print(f"{score:.4f}  {text}")


if __name__ == "__main__":
    sys.exit(run_command(main))
