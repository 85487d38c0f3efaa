"""An embedding or reranking model without weights: vectors are made of a text's characters, one token each."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.errors import InputError


@dataclass
class Given:
    """One input, as the real model's."""

    ids: np.ndarray
    types: np.ndarray | None = None
    first: int = 0

    def __len__(self) -> int:
        return len(self.ids)


class FakeEmbedding:
    """The methods of ``EmbeddingModel``.

    Attributes:
        batches: of each call, its inputs as texts.
        go: a batch waits until it is set.
        entered: released at the beginning of each batch.
        broken: a batch with this text fails.
    """

    name = "fake"
    prompts = {"query": "q: ", "document": "d: "}

    def __init__(self, purpose: str = "embedding", dimensions: int = 8, max_length: int = 64) -> None:
        self.purpose, self.dimensions, self.max_length = purpose, dimensions, max_length
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)
        self.broken = ""
        self.closed = False

    def inputs(
        self, texts: Sequence[str | Sequence[int]], *, task: str | None = None, truncate: bool = True
    ) -> list[Given]:
        if task is not None and task not in self.prompts:
            raise InputError(argument="task", got=task, allowed=" or ".join(self.prompts))
        before = self.prompts.get(task or "", "")
        return [self._given(before + text if isinstance(text, str) else text, truncate) for text in texts]

    def pairs(
        self, query: str, documents: Sequence[str], *, instruction: str | None = None, truncate: bool = True
    ) -> list[Given]:
        return [self._given(f"{instruction or ''}{query}|{document}", truncate) for document in documents]

    def _given(self, text: str | Sequence[int], truncate: bool) -> Given:
        ids = [ord(letter) for letter in text] if isinstance(text, str) else list(text)
        if len(ids) > self.max_length and not truncate:
            raise InputError(f"a text has {len(ids)} tokens; the model's maximum is {self.max_length}")
        return Given(np.array(ids[: self.max_length], np.int64))

    def vectors(
        self, inputs: Sequence[Given], *, dimensions: int | None = None, normalize: bool | None = None
    ) -> np.ndarray:
        if dimensions is not None and dimensions > self.dimensions:
            raise InputError(argument="dimensions", got=dimensions, allowed=f"1 to {self.dimensions}")
        self._begin(inputs)
        found = np.stack([vector(one.ids, self.dimensions) for one in inputs])[:, :dimensions]
        if normalize:
            found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    def scores(self, inputs: Sequence[Given]) -> np.ndarray:
        self._begin(inputs)
        return np.array([score(text_of(one)) for one in inputs], np.float32)

    def _begin(self, inputs: Sequence[Given]) -> None:
        texts = [text_of(one) for one in inputs]
        self.batches.append(texts)
        self.entered.release()
        assert self.go.wait(60)
        if self.broken and self.broken in texts:
            raise RuntimeError("a broken text")

    def __enter__(self) -> FakeEmbedding:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True


def vector(ids: Any, dimensions: int) -> np.ndarray:
    """The vector of a text before it is normalized, float32 [dimensions]."""
    return np.random.default_rng(list(ids)).standard_normal(dimensions).astype(np.float32)


def score(pair: str) -> float:
    """The logit of a pair "query|document": the number of common letters, less 3."""
    query, _, document = pair.partition("|")
    return len({*query} & {*document}) - 3.0


def text_of(one: Given) -> str:
    return "".join(map(chr, one.ids.tolist()))
