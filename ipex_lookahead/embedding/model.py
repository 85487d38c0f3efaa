"""Embedding models and rerankers: texts to vectors, documents to scores, without torch.

A vector or score depends on its own text alone: it has the same bits alone, in any batch and in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ipex_lookahead.embedding.backends import Backend, open_backend
from ipex_lookahead.embedding.inputs import TextInput
from ipex_lookahead.embedding.pooling import check_finite, cut, normalized, pooled, probabilities
from ipex_lookahead.embedding.purpose import Purpose, purpose_of
from ipex_lookahead.engines.load_weights import Progress
from ipex_lookahead.engines.weights import check_low_bit
from ipex_lookahead.errors import ContextLengthError, InputError, ServiceError, marked
from ipex_lookahead.hub import resolve_model

if TYPE_CHECKING:
    from typing_extensions import Self

Floats = npt.NDArray[np.float32]
DOCUMENT_TASKS = ("document", "passage", "corpus")
"""Names of the prompt of documents, as sentence-transformers looks for it."""

__all__ = [
    "EmbeddingModel",
    "Embeddings",
    "Ranked",
    "TextInput",
    "probabilities",
    "purpose_of",
]


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """Vectors of texts.

    Attributes:
        vectors: float32 [texts, dimensions].
        tokens: number of tokens of all texts, special ones included.
    """

    vectors: Floats
    tokens: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document's place in a ranking.

    Attributes:
        index: index of the document in the given list.
        score: its relevance; higher is better. A logit: ``probabilities`` maps it to 0 to 1.
    """

    index: int
    score: float


class EmbeddingModel:
    """An embedding model or a reranker, made by :meth:`open`. Calls from several threads take turns.

    Attributes:
        name: the name or path that was opened.
        path: the folder or GGUF file.
        purpose: "embedding" or "reranking".
        prompts: name of a task -> text before each text of this task.
    """

    def __init__(self, name: str, path: Path, purpose: Literal["embedding", "reranking"], backend: Backend) -> None:
        self.name, self.path, self.purpose = name, path, purpose
        self._backend: Backend | None = backend
        self._settings = backend.settings
        self._lock = threading.Lock()
        self.prompts: Mapping[str, str] = dict(backend.settings.prompts)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        load_in_low_bit: str | None = None,
        threads: int | None = None,
        max_length: int | None = None,
        purpose: Literal["embedding", "reranking"] | None = None,
        progress: Progress | None = None,
    ) -> EmbeddingModel:
        """Load a folder in sentence-transformers' form, a folder of an encoder or a reranker, or a GGUF file.

        Args:
            path: the folder or file, a short name, or a Hugging Face id.
            load_in_low_bit: format of the weights; None: that of the files.
            threads: number of threads; None: the physical cores that this process may use.
            max_length: largest number of tokens of a text; None: the model's.
            purpose: what to use the model for; None: :func:`purpose_of`.
            progress: see ``engines.load_weights.Progress``.

        Raises:
            InputError: no such model, an invalid argument, or a model that generates text.
            ModelFormatError: the files contradict their format.
            UnsupportedModelError: the model needs a feature that this package lacks.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
            DownloadError: the model could not be downloaded.
        """
        found = resolve_model(str(path), progress=progress is not None)
        if purpose not in (None, "embedding", "reranking"):
            raise InputError(argument="purpose", got=purpose, allowed="'embedding' or 'reranking'")
        use: Purpose = purpose or purpose_of(found)
        if use == "text":
            raise InputError(
                f"{path} generates text: its files state no pooling, so it makes no vectors and ranks no documents",
                hint="choose an embedding model or a reranker, such as Qwen3-Embedding-0.6B;"
                " `ipex-lookahead pull` lists recommended ones",
            )
        low_bit = None if load_in_low_bit is None else check_low_bit(load_in_low_bit)
        backend = open_backend(
            found, reranks=use == "reranking", low_bit=low_bit, threads=threads, max_length=max_length,
            progress=progress,
        )  # fmt: skip
        return cls(str(path), found, use, backend)

    @property
    def dimensions(self) -> int:
        """Length of the vectors by default."""
        return self._settings.dimensions or self._open.outputs

    @property
    def max_length(self) -> int:
        """Largest number of tokens of a text, special ones included."""
        return self._open.maker.max_length

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self._open.maker.tokenizer

    @property
    def similarity(self) -> str:
        """How vectors are compared, by sentence-transformers' names: "cosine" unless the files state another."""
        return self._settings.similarity or "cosine"

    # ---- inputs ------------------------------------------------------------------------------------------------------

    def inputs(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        task: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
    ) -> list[TextInput]:
        """Return the tokens of texts.

        Args:
            texts: texts, or token ids, which are used as they are.
            task: name of the prompt before each text, such as "query" or "document"; None: the model's default. A model
                without prompts has none for "query" and "document" either.
            prompt: text before each text, instead of that of a task.
            truncate: cut texts that are too long before the special tokens at the end; False: raise.

        Raises:
            InputError: an unknown task, or a text that is not valid.
            ContextLengthError: with ``truncate=False``, a text that is too long.
        """
        if isinstance(texts, str):
            raise InputError("texts is a single string; give a list of texts", hint="put the text into a list: [...]")
        _check_list(texts, "texts")
        maker = self._open.maker
        before = self.prompt_of(task) if prompt is None else prompt
        if not isinstance(before, str):
            raise InputError(argument="prompt", got=before, allowed="text before each text")
        first = 0 if not before or self._settings.include_prompt else maker.prompt_rows(before)
        found = []
        for number, text in enumerate(texts):
            try:
                if isinstance(text, str):
                    made = maker.text(before + text, truncate=truncate)
                    found.append(TextInput(made.ids, made.types, first))
                else:
                    found.append(maker.tokens(text, truncate=truncate))
            except InputError as error:
                raise _of_text(error, number, len(texts)) from None
        return found

    def prompt_of(self, task: str | None) -> str:
        """Return the text before each text of a task. Raises InputError for an unknown task."""
        if task is None:
            default = self._settings.default_prompt
            return "" if default is None else self.prompts.get(default, "")
        if task in self.prompts:
            return self.prompts[task]
        if task in DOCUMENT_TASKS:
            return next((self.prompts[name] for name in DOCUMENT_TASKS if name in self.prompts), "")
        if task == "query":
            return ""
        names = list(dict.fromkeys(["query", "document", *self.prompts]))
        raise InputError(argument="task", got=task, allowed=f"one of {', '.join(names)}")

    def pairs(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: str | None = None,
        truncate: bool = True,
    ) -> list[TextInput]:
        """Return the tokens of a query with each document, for :meth:`scores`.

        Args:
            query: the query.
            documents: the documents.
            instruction: what makes a document relevant, for rerankers with a place for it (Qwen3-Reranker); None: the
                model's own.
            truncate: cut documents that are too long; False: raise.

        Raises:
            InputError: the model does not rank, or a text is not valid.
            ContextLengthError: with ``truncate=False``, a pair that is too long.
        """
        self._check("reranking")
        if isinstance(documents, str):
            raise InputError("documents is a single string; give a list of documents")
        _check_list(documents, "documents")
        backend = self._open
        maker, template = backend.maker, backend.template
        if template is None and instruction is not None:
            raise InputError("this model takes no instruction; leave it out")
        found = []
        for number, document in enumerate(documents):
            try:
                if template is None:
                    found.append(maker.pair(query, document, truncate=truncate))
                else:
                    limit = maker.max_length
                    found.append(
                        template.input(maker.tokenizer, query, document, instruction, limit, truncate=truncate)
                    )
            except InputError as error:
                raise _of_text(error, number, len(documents), "document") from None
        return found

    # ---- results -----------------------------------------------------------------------------------------------------

    def vectors(
        self, inputs: Sequence[TextInput], *, dimensions: int | None = None, normalize: bool | None = None
    ) -> Floats:
        """Return the vectors of texts, float32 [n, dimensions].

        Args:
            inputs: results of :meth:`inputs`.
            dimensions: number of leading values to keep, for Matryoshka models; None: the model's.
            normalize: whether vectors have length 1; None: as the files state, and True if they do not.

        Raises:
            InputError: the model is a reranker, or more dimensions than it has.
            NonFiniteError: the weights are damaged.
        """
        self._check("embedding")
        backend, settings = self._open, self._settings
        wanted = settings.dimensions if dimensions is None else dimensions
        if wanted is not None:
            cut(np.empty((1, backend.outputs), np.float32), wanted)  # raises before work
        if not inputs:
            return np.empty((0, wanted or backend.outputs), np.float32)
        modes = settings.modes
        with self._lock:
            rows = backend.rows(inputs, last=modes == ("lasttoken",))
            found = np.stack([pooled(one, modes, given.first) for one, given in zip(rows, inputs, strict=True)])
            for head in backend.heads:
                found = head(found)
        check_finite(found)
        if wanted is not None:
            found = cut(found, wanted)
        given = settings.normalize if normalize is None else normalize
        return found if given is False else normalized(found)

    def scores(self, inputs: Sequence[TextInput]) -> Floats:
        """Return the relevance of pairs, float32 [n]: logits, which :func:`probabilities` maps to 0 to 1.

        Raises:
            InputError: the model does not rank.
            NonFiniteError: the weights are damaged.
        """
        self._check("reranking")
        if not inputs:
            return np.empty(0, np.float32)
        with self._lock:
            return check_finite(self._open.scores(inputs))

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        task: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        truncate: bool = True,
    ) -> Embeddings:
        """Return the vectors of texts; see :meth:`inputs` and :meth:`vectors`. A single text is a list of one."""
        given = self.inputs([texts] if isinstance(texts, str) else texts, task=task, prompt=prompt, truncate=truncate)
        found = self.vectors(given, dimensions=dimensions, normalize=normalize)
        return Embeddings(found, sum(map(len, given)))

    def rank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        truncate: bool = True,
    ) -> list[Ranked]:
        """Return the documents by relevance, the best first; equal ones in the given order.

        Args:
            query: the query.
            documents: the documents.
            top_n: number of documents to return; None: all.
            instruction: as for :meth:`pairs`.
            truncate: as for :meth:`pairs`.
        """
        if top_n is not None and (type(top_n) is not int or top_n < 1):
            raise InputError(argument="top_n", got=top_n, allowed="a whole number of at least 1")
        scores = self.scores(self.pairs(query, documents, instruction=instruction, truncate=truncate))
        order = np.argsort(-scores, kind="stable")[:top_n]
        return [Ranked(int(index), float(scores[index])) for index in order]

    # ---- facts and end -----------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return facts for reports: purpose, dimensions, max_length, pooling, weight_bytes, threads, low_bit."""
        backend = self._open
        facts = {**backend.describe(), "purpose": self.purpose, "max_length": self.max_length}
        if backend.low_bit is not None:
            facts["low_bit"] = backend.low_bit
        if self.purpose == "embedding":
            facts |= {"dimensions": self.dimensions, "pooling": "+".join(self._settings.modes)}
        return facts

    def close(self) -> None:
        """Release the model's memory. Later calls raise ServiceError."""
        with self._lock:
            self._backend = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _open(self) -> Backend:
        backend = self._backend
        if backend is None:
            raise ServiceError(f"EmbeddingModel({self.name!r}) is closed", hint="open it again")
        return backend

    def _check(self, purpose: str) -> None:
        if self.purpose == purpose:
            return
        if purpose == "embedding":
            raise InputError(
                f"{self.name} is a reranker, which scores documents for a query and makes no vectors",
                hint="use rank, or an embedding model",
            )
        raise InputError(
            f"{self.name} is an embedding model, which makes vectors and scores no pairs",
            hint="use embed, or a reranker",
        )


def _check_list(given: object, name: str) -> None:
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Collection):
        raise InputError(f"{name} is of type {type(given).__name__}; it must be a list of texts")


def _of_text(error: InputError, number: int, count: int, what: str = "text") -> InputError:
    """Return the error of one of several texts, with its number."""
    if count == 1:
        return error
    more: dict[str, Any] = {}
    if isinstance(error, ContextLengthError):
        more = {"tokens": error.tokens, "limit": error.limit}
    said, hint = error.spelled(marked)
    return type(error)(f"{what} {number}: {said}", hint=hint, **more)
