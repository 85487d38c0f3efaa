"""``/v1/rerank``, ``/v2/rerank`` and ``/rerank``: shapes, order, fields and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipex_lookahead.embedding.model import probabilities
from tests.serving.embedding.test_vectors import ask
from tests.support.fake_embedding import score

DOCUMENTS = ["xyz", "cat", "dogs and cats", "act"]
"""Common letters with "cat": 0, 3, 3, 3."""


def probability(document: str, query: str = "cat") -> float:
    return float(probabilities(np.array([score(f"{query}|{document}")], np.float32))[0])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_jinas_and_coheres_shape(rank, path):
    found = ask(rank, path, model="reranking", query="cat", documents=DOCUMENTS)
    assert [one["index"] for one in found["results"]] == [1, 2, 3, 0], "descending, equal ones in the given order"
    assert [one["relevance_score"] for one in found["results"]] == [probability(DOCUMENTS[i]) for i in (1, 2, 3, 0)]
    assert "document" not in found["results"][0]
    tokens = sum(len("cat|" + one) for one in DOCUMENTS)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert found["model"] == "reranking"
    assert found["meta"]["billed_units"] == {"search_units": 1}


def test_fields(rank):
    objects = [{"text": one} for one in DOCUMENTS]
    found = ask(rank, "/v1/rerank", query="cat", documents=objects, top_n=1, return_documents=True)["results"]
    assert found == [{"index": 1, "relevance_score": 0.5, "document": {"text": "cat"}}]
    found = ask(rank, "/v1/rerank", query="cat", documents=["cat", "x"], raw_scores=True)["results"]
    assert [one["relevance_score"] for one in found] == [0.0, -3.0]
    (found,) = ask(rank, "/v1/rerank", query="c", documents=["cat"], instruction="at", raw_scores=True)["results"]
    assert found["relevance_score"] == 0.0
    answer = rank.post("/v2/rerank", json={"query": "c", "documents": ["d"], "max_tokens_per_doc": 10})
    assert answer.headers["x-ignored-fields"] == "max_tokens_per_doc"


def test_text_embeddings_inference(rank):
    found = ask(rank, "/rerank", query="cat", texts=["xyz", "cat"])
    assert found == [{"index": 1, "score": 0.5}, {"index": 0, "score": probability("xyz")}]
    found = ask(rank, "/rerank", query="cat", texts=["xyz", "cat"], raw_scores=True, return_text=True)
    assert found == [{"index": 1, "score": 0.0, "text": "cat"}, {"index": 0, "score": -3.0, "text": "xyz"}]
    error = ask(rank, "/rerank", 400, query="cat", texts=["x" * 70])
    assert "maximum is 64" in error["error"]
    assert error["error_type"] == "Validation"
    assert ask(rank, "/rerank", query="cat", texts=["x" * 70], truncate=True)
    assert "reranker" in rank.get("/info").json()["model_type"]


def test_long_documents_are_cut_by_default(rank):
    assert ask(rank, "/v1/rerank", query="cat", documents=["x" * 70])["results"]
    said = ask(rank, "/v1/rerank", 400, query="cat", documents=["x" * 70], truncate=False)["error"]["message"]
    assert "maximum is 64" in said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"query": "x"}, "give the documents in documents, or in texts"),
        ({"query": "x", "documents": ["a"], "texts": ["a"]}, "and not in both"),
        ({"query": "x", "documents": []}, "documents: it is empty"),
        ({"query": "x", "documents": ["x"] * 2049}, "2,049 entries"),
        ({"documents": ["x"]}, "query: Field required"),
        ({"query": "x", "documents": ["x"], "top_n": 0}, "top_n: "),
        ({"query": "x", "documents": [{"title": "x"}]}, "documents"),
    ],
)
def test_errors(rank, body, said):
    assert said in ask(rank, "/v1/rerank", 400, **body)["error"]["message"]
    assert said in ask(rank, "/v2/rerank", 400, **body)["message"]


def test_an_embedding_path_names_the_right_use(rank):
    error: Any = ask(rank, "/v1/embeddings", 400, input="x")["error"]
    assert "'reranking' is a reranking model, for /v1/rerank" in error["message"]
