"""What the routes of embedding and reranking models share: checks of a request, and vectors as JSON."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from fastapi import Request, Response

from ipex_lookahead.serving.embedding.batcher import Values, Wanted
from ipex_lookahead.serving.embedding.embedder import Embedder
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body
from ipex_lookahead.serving.handling import GONE, server_of
from ipex_lookahead.serving.managed import LATEST
from ipex_lookahead.serving.server import Server
from ipex_lookahead.serving.sse import ClientGoneError

_LARGE = 16384
"""Numbers that are written as JSON in a thread, so that other requests go on meanwhile."""
DIMENSIONS = "length of the vectors, for models trained for it (Matryoshka): the first numbers, normalized again"
TASK = "name of one of the model's prompts, such as `query` or `document`, which is put before each text"
LOW, HIGH = 1, 1 << 16
"""Bounds of ``dimensions``."""


def checked(request: Request, body: Body, model: str | None, wanted: str) -> tuple[Server, Embedder]:
    """Return the server and its embedding or reranking model; see ``serving.handling.checked``.

    Raises ApiError for another model, a model of another purpose, and as :meth:`Body.check`.
    """
    server = server_of(request)
    if model is not None and model not in server.names:
        model = model.removesuffix(LATEST)
    server.check_name(model)
    embedder = server.embedder(wanted)
    body.check(strict=server.settings.strict_fields)
    request.scope["ignored"] = body.ignored()
    return server, embedder


def check_count(server: Server, param: str, given: Sequence[Any]) -> None:
    """Raise ApiError for an empty list, and for one with more entries than the limit."""
    if not given:
        raise refused(param, "it is empty; give at least one text")
    if len(given) > (most := server.limits.embedding_inputs):
        raise refused(param, f"it has {len(given):,} entries; the limit is {most:,}: send several requests")


async def embedded(
    request: Request,
    server: Server,
    embedder: Embedder,
    param: str,
    texts: Sequence[str | Sequence[int]],
    write: Callable[[Values, int], bytes],
    *,
    task: str | None = None,
    dimensions: int | None = None,
    normalize: bool | None = True,
    truncate: bool = False,
) -> Response:
    """Answer with the vectors of texts.

    Args:
        request: the request.
        server: the server.
        embedder: its model.
        param: the field with the texts.
        texts: texts and lists of token ids.
        write: returns the answer's JSON for the vectors and the number of tokens.
        task: name of a prompt of the model.
        dimensions: length of the vectors; None: the model's.
        normalize: whether vectors have length 1; None: as the model's files say.
        truncate: whether texts are cut that are too long.

    Raises ApiError.
    """
    check_count(server, param, texts)
    model = embedder.model
    inputs = await server.prepare(lambda: model.inputs(texts, task=task, truncate=truncate))
    wanted = Wanted(dimensions=dimensions, normalize=normalize)
    try:
        values = await embedder.values(request, server.limits, server.metrics, inputs, wanted)
    except ClientGoneError:
        return Response(status_code=GONE)
    tokens = sum(len(one.ids) for one in inputs)
    content = await asyncio.to_thread(write, values, tokens) if values.size > _LARGE else write(values, tokens)
    return Response(content, media_type="application/json")


def numbers(row: Values) -> str:
    """Return float32 [n] as a JSON list with 9 digits for each number, from which readers get the same float32."""
    return _form(len(row)) % tuple(row.tolist())


@cache
def _form(count: int) -> str:
    return f"[{','.join(['%.9g'] * count)}]"


def base64_of(row: Values) -> str:
    """Return float32 [n] as OpenAI's base64: little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode()


def spelled(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False)
