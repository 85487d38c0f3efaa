"""Ollama's ``/api/embed``, and the older ``/api/embeddings`` for one text."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.embedding.batcher import Values
from ipex_lookahead.serving.embedding.handling import DIMENSIONS, HIGH, LOW, checked, embedded, numbers, spelled
from ipex_lookahead.serving.fields import Body, no_effect, required, supported
from ipex_lookahead.serving.ollama import keep_alive_seconds
from ipex_lookahead.serving.purposes import EMBEDDING

router = APIRouter(route_class=JsonRoute)
_MODEL = "a name of `/api/tags`, with or without `:latest`; 404 for other names"
_KEEP_ALIVE = 'how long the model stays loaded: seconds, or text such as "5m"; a server of one model keeps it loaded'
_OPTIONS = "the server sets the context length, and vectors have no sampling"


class OllamaEmbed(Body):
    """Ollama's request."""

    model: str = required(_MODEL)
    input: str | list[str] | None = supported("a text, or a list of up to 2,048 texts")
    truncate: bool | None = supported("cut texts that are longer than the model's maximum; default: true")
    dimensions: int | None = supported(DIMENSIONS, ge=LOW, le=HIGH)
    keep_alive: int | float | str | None = supported(_KEEP_ALIVE)
    options: Any = no_effect(_OPTIONS)


class OllamaEmbeddings(Body):
    """Ollama's older request."""

    model: str = required(_MODEL)
    prompt: str | None = supported("the text; it is cut if it is longer than the model's maximum")
    keep_alive: int | float | str | None = supported(_KEEP_ALIVE)
    options: Any = no_effect(_OPTIONS)


@router.post("/api/embed")
async def embed(request: Request, body: OllamaEmbed) -> Response:
    """Return the normalized vectors of texts."""
    began = time.perf_counter_ns()
    keep_alive_seconds(body.keep_alive)  # raises
    server, embedder = checked(request, body, body.model, EMBEDDING)
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not body.input or texts is None:  # such a request loads the model
        return JSONResponse({"model": body.model, "embeddings": []})

    def write(values: Values, tokens: int) -> bytes:
        found = f'{{"model":{spelled(body.model)},"embeddings":[{",".join(map(numbers, values))}],'
        took = time.perf_counter_ns() - began
        return f'{found}"total_duration":{took},"load_duration":0,"prompt_eval_count":{tokens}}}'.encode()

    truncate = body.truncate is not False
    return await embedded(
        request, server, embedder, "input", texts, write, dimensions=body.dimensions, truncate=truncate
    )


@router.post("/api/embeddings")
async def embeddings(request: Request, body: OllamaEmbeddings) -> Response:
    """Return the vector of one text."""
    keep_alive_seconds(body.keep_alive)  # raises
    server, embedder = checked(request, body, body.model, EMBEDDING)
    if not body.prompt:  # such a request loads the model
        return JSONResponse({"embedding": []})

    def write(values: Values, tokens: int) -> bytes:
        return f'{{"embedding":{numbers(values[0])}}}'.encode()

    return await embedded(request, server, embedder, "prompt", [body.prompt], write, truncate=True)
