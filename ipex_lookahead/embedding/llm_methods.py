"""Methods of ``LLM`` for embedding models and rerankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.embedding.model import EmbeddingModel, Ranked
from ipex_lookahead.errors import InputError, LookaheadError, ServiceError, in_python
from ipex_lookahead.runtime.loading import progress_bar


def opened_vectors(
    name: str,
    path: Path,
    low_bit: str | None,
    threads: int | None,
    max_length: int | None,
    progress: bool,
    of_text: Mapping[str, Any],
) -> EmbeddingModel:
    """Load an embedding model or a reranker for an LLM.

    ``of_text``: arguments for text models. Raises InputError if one is given, else as ``EmbeddingModel.open``.
    """
    if given := [argument for argument, value in of_text.items() if value]:
        raise InputError(f"{given[0]} is for models that generate text, and {name} does not; leave it out")
    with progress_bar(progress) as report:
        try:
            opened = EmbeddingModel.open(
                path, load_in_low_bit=low_bit, threads=threads, max_length=max_length, progress=report
            )
        except LookaheadError as error:
            spelled = {"load_in_low_bit": "low_bit", "max_length": "max_context"}
            error.respell(lambda argument, value: in_python(spelled.get(argument, argument), value))
            raise
    opened.name = name
    return opened


class VectorMethods:
    """Methods that use an :class:`EmbeddingModel`."""

    name: str
    _vectors: EmbeddingModel | None = None
    _close: Any

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        task: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool = True,
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of texts, for an embedding model. A vector has the same bits alone and in any batch.

        Args:
            texts: a text, or a list of texts or of token ids.
            task: name of the model's prompt for these texts, such as "query" or "document"; None: its default.
            prompt: text before each text, instead of a task's.
            dimensions: number of leading values to keep, for models with vectors that may be cut (Matryoshka).
            normalize: whether vectors have length 1; None: as the model's files state, and True if they do not.
            truncate: cut texts that are too long; False: raise ContextLengthError.

        Returns:
            float32 [texts, dimensions]; of a single text, [dimensions].

        Raises:
            InputError: the model makes no vectors, or an invalid argument.
            ServiceError: the LLM is closed.
        """
        options: dict[str, Any] = {"dimensions": dimensions, "normalize": normalize, "truncate": truncate}
        found = self._vector_model("embed").embed(texts, task=task, prompt=prompt, **options).vectors
        return found[0] if isinstance(texts, str) else found

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        truncate: bool = True,
    ) -> list[Ranked]:
        """Return documents by their relevance for a query, the best first, for a reranker.

        Args:
            query: the query.
            documents: the documents.
            top_n: number of documents to return; None: all.
            instruction: what makes a document relevant, for models with a place for it, such as Qwen3-Reranker.
            truncate: cut documents that are too long; False: raise ContextLengthError.

        Returns:
            The ``index`` and the ``score`` of each document. Scores are logits; the sigmoid gives probabilities.

        Raises as :meth:`embed`.
        """
        model = self._vector_model("rank")
        return model.rank(query, documents, top_n=top_n, instruction=instruction, truncate=truncate)

    def _vector_model(self, method: str) -> EmbeddingModel:
        self._check_open()
        if self._vectors is None:
            kind = "an embedding model" if method == "embed" else "a reranker"
            raise InputError(
                f"{self.name} generates text; {method} needs {kind}",
                hint="`ipex-lookahead pull` lists recommended ones",
            )
        return self._vectors

    def _check_open(self) -> None:
        if not self._close.alive:
            raise ServiceError(f"LLM({self.name!r}) is closed", hint="create a new LLM")

    def _check_generates(self) -> None:
        """Raise InputError if the model generates no text."""
        if self._vectors is None:
            return
        kind, use = ("an embedding model", "embed") if self._vectors.purpose == "embedding" else ("a reranker", "rank")
        raise InputError(f"{self.name} is {kind} and generates no text", hint=f"use {use}, or another model")
