"""What a model is for, and the paths that models of each purpose answer."""

from __future__ import annotations

from collections.abc import Iterable

from ipex_lookahead.serving.failures import ApiError

TEXT, EMBEDDING, RERANKING = "text", "embedding", "reranking"
PATHS = {
    EMBEDDING: ("/v1/embeddings", "/embeddings", "/embedding", "/embed", "/api/embed", "/api/embeddings"),
    RERANKING: ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"),
}
"""Purpose -> its paths. ``/info`` is answered by models of both; all other paths of models are for text."""
INFO = "/info"
_KINDS = {TEXT: "a text model", EMBEDDING: "an embedding model", RERANKING: "a reranking model"}
_USES = {
    TEXT: "/v1/chat/completions, /v1/messages and the other text APIs",
    EMBEDDING: "/v1/embeddings, /api/embed and /embed",
    RERANKING: "/v1/rerank, /v2/rerank and /rerank",
}
_EXAMPLES = {TEXT: "qwen3-4b", EMBEDDING: "qwen3-embedding-0.6b", RERANKING: "bge-reranker-v2-m3"}
_NEEDED_BY = {TEXT: "text", EMBEDDING: "embeddings", RERANKING: "reranking"}


def purpose_at(path: str) -> str:
    """Return the purpose of the models that answer a path; "" for a path of all of them."""
    if path == INFO:
        return ""
    return next((purpose for purpose, paths in PATHS.items() if path in paths), TEXT)


def misdirected(name: str, purpose: str, wanted: str, others: Iterable[str] = ()) -> ApiError:
    """Return the error of a request that a model of another purpose would have to answer.

    Args:
        name: the model.
        purpose: its purpose.
        wanted: the purpose of the request's path; "": embedding or reranking.
        others: names of the server's models with that purpose.
    """
    wanted = wanted or EMBEDDING
    found = list(others)
    said = f"{name!r} is {_KINDS[purpose]}, for {_USES[purpose]}; for {_NEEDED_BY[wanted]} "
    if found:
        said += f"use the model {' or '.join(map(repr, found))}"
    else:
        said += f"serve {_KINDS[wanted]}, such as: ipex-lookahead serve -m {_EXAMPLES[wanted]}"
    return ApiError(400, said, param="model", code="wrong_model_purpose")


def none_serves(wanted: str) -> ApiError:
    """Return the error of a request without a model's name to a server without a model for it."""
    wanted = wanted or EMBEDDING
    said = f"this server has no model for {_NEEDED_BY[wanted]}; add {_KINDS[wanted]}, such as: -m {_EXAMPLES[wanted]}"
    return ApiError(400, said, param="model", code="wrong_model_purpose")
