"""Reranking: the shapes of Jina, Cohere and llama-server, and that of text-embeddings-inference for ``texts``."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from ipex_lookahead.embedding.pooling import probabilities
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.embedding.batcher import Wanted
from ipex_lookahead.serving.embedding.handling import check_count, checked
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, ignored, no_effect, refused_unless, required, supported
from ipex_lookahead.serving.handling import GONE
from ipex_lookahead.serving.purposes import RERANKING
from ipex_lookahead.serving.sse import ClientGoneError

router = APIRouter(route_class=JsonRoute)
_PIECES = "documents longer than the model's maximum are cut, and not scored in pieces"


class TextDocument(Body):
    """A document as an object."""

    text: str = required("the document")


class RerankRequest(Body):
    """The request of Jina's and Cohere's API, or with `texts` that of text-embeddings-inference."""

    query: str = required("the query")
    documents: list[str | TextDocument] | None = supported("texts, or objects with `text`; up to 2,048")
    texts: list[str] | None = supported(
        "the documents in the shape of text-embeddings-inference, which the answer has too"
    )
    model: str | None = supported("a name of `/v1/models`; 404 for other names")
    top_n: int | None = supported("number of results, the best first; default: all", ge=1)
    return_documents: bool | None = supported("return the documents in the results; default: false")
    raw_scores: bool | None = supported("logits instead of probabilities; default: false")
    return_text: bool | None = supported("with `texts`: return the texts in the results; default: false")
    truncate: bool | None = supported(
        "cut pairs that are longer than the model's maximum; default: true, with `texts` false: such a pair is an error"
    )
    truncation_direction: Any = refused_unless("documents are cut at their end", "right", "Right")
    instruction: str | None = supported("what the reranker looks for, for models with an instruction", max_length=4096)
    max_tokens_per_doc: Any = ignored(_PIECES)
    max_chunks_per_doc: Any = ignored(_PIECES)
    truncate_prompt_tokens: Any = ignored("the limit is the model's maximum", -1)
    rank_fields: Any = ignored("a document is its `text`", ["text"])
    priority: Any = no_effect("keys and requests get equal shares")
    user: Any = no_effect("the API key names the user")


@router.post("/v1/rerank")
@router.post("/v2/rerank")
@router.post("/rerank")
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(request: Request, body: RerankRequest) -> Response:
    """Score documents for a query; the results are in descending order."""
    server, embedder = checked(request, body, body.model, RERANKING)
    if (body.documents is None) == (body.texts is None):
        raise refused("documents", "give the documents in documents, or in texts, and not in both")
    if body.texts is not None:
        param, documents = "texts", body.texts
    else:
        param = "documents"
        documents = [one if isinstance(one, str) else one.text for one in body.documents or ()]
    check_count(server, param, documents)
    model = embedder.model
    truncate = body.texts is None if body.truncate is None else body.truncate
    inputs = await server.prepare(
        lambda: model.pairs(body.query, documents, instruction=body.instruction, truncate=truncate)
    )
    try:
        raw = await embedder.values(request, server.limits, server.metrics, inputs, Wanted(scores=True))
    except ClientGoneError:
        return Response(status_code=GONE)
    scores = raw if body.raw_scores else probabilities(raw)
    order = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    if body.texts is not None:
        found = [{"index": at, "score": float(scores[at])} for at in order]
        return JSONResponse([one | {"text": documents[one["index"]]} for one in found] if body.return_text else found)
    results: list[dict[str, Any]] = [{"index": at, "relevance_score": float(scores[at])} for at in order]
    if body.return_documents:
        results = [one | {"document": {"text": documents[one["index"]]}} for one in results]
    tokens = sum(len(one.ids) for one in inputs)
    return JSONResponse(
        {
            "id": "rerank-" + secrets.token_hex(12),
            "object": "list",
            "model": body.model or server.settings.names[0],
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )
