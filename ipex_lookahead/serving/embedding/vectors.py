"""Embeddings: OpenAI's ``/v1/embeddings``, llama-server's ``/embedding`` and text-embeddings-inference's ``/embed``."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response

from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.embedding.batcher import Values
from ipex_lookahead.serving.embedding.handling import (
    DIMENSIONS,
    HIGH,
    LOW,
    TASK,
    base64_of,
    checked,
    embedded,
    numbers,
    spelled,
)
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, no_effect, refused_unless, required, supported
from ipex_lookahead.serving.handling import server_of
from ipex_lookahead.serving.purposes import EMBEDDING

router = APIRouter(route_class=JsonRoute)
Texts = str | list[str] | list[int] | list[list[int]]
_TRUNCATE = "cut texts that are longer than the model's maximum; default: such a text is an error"
_NORMALIZE = "scale vectors to length 1; default: true"
_SEVERAL = "a text, a list of texts, token ids, or a list of lists of them; up to 2,048"


class EmbeddingRequest(Body):
    """OpenAI's request."""

    input: Texts = required(_SEVERAL)
    model: str | None = supported("a name of `/v1/models`; 404 for other names")
    encoding_format: Literal["float", "base64"] | None = supported(
        "`float`: a list of numbers; `base64`: little-endian float32, which OpenAI's client requests; default: `float`"
    )
    dimensions: int | None = supported(DIMENSIONS, ge=LOW, le=HIGH)
    task: str | None = supported(TASK, max_length=256)
    prompt_name: str | None = supported("another name of `task`", max_length=256)
    truncate: bool | None = supported(_TRUNCATE)
    normalize: bool | None = supported(_NORMALIZE)
    user: Any = no_effect("the API key names the user")


class LlamaEmbeddingRequest(Body):
    """llama-server's request."""

    content: Texts | None = supported(_SEVERAL)
    input: Texts | None = supported("another name of `content`")
    model: str | None = supported("a name of `/v1/models`; 404 for other names")
    embd_normalize: Any = refused_unless("vectors are normalized to Euclidean length 1; -1 switches it off", 2, -1)


class TeiRequest(Body):
    """The request of text-embeddings-inference."""

    inputs: Texts = required(_SEVERAL)
    model: str | None = supported("a name of `/v1/models`, on a server with several models")
    normalize: bool | None = supported(_NORMALIZE)
    truncate: bool | None = supported(_TRUNCATE)
    truncation_direction: Any = refused_unless("texts are cut at their end", "right", "Right")
    prompt_name: str | None = supported(TASK, max_length=256)
    dimensions: int | None = supported(DIMENSIONS, ge=LOW, le=HIGH)


def as_list(given: Texts) -> list[str | list[int]]:
    """Return the texts of a request as a list."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [given]
    return list(given)  # type: ignore[arg-type]


@router.post("/v1/embeddings")
@router.post("/embeddings", include_in_schema=False)
async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
    """Return the vectors of texts."""
    server, embedder = checked(request, body, body.model, EMBEDDING)
    if body.task and body.prompt_name and body.task != body.prompt_name:
        raise refused("prompt_name", "it is another name of task, which has another value; leave one of them out")
    model = spelled(body.model or server.settings.names[0])

    def write(values: Values, tokens: int) -> bytes:
        one = (lambda row: f'"{base64_of(row)}"') if body.encoding_format == "base64" else numbers
        data = ",".join(
            f'{{"object":"embedding","index":{at},"embedding":{one(row)}}}' for at, row in enumerate(values)
        )
        usage = f'{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}'
        return f'{{"object":"list","data":[{data}],"model":{model},"usage":{usage}}}'.encode()

    return await embedded(
        request, server, embedder, "input", as_list(body.input), write,
        task=body.task or body.prompt_name, dimensions=body.dimensions,
        normalize=body.normalize is not False, truncate=body.truncate is True,
    )  # fmt: skip


@router.post("/embedding")
async def llama_embedding(request: Request, body: LlamaEmbeddingRequest) -> Response:
    """Return the vectors of texts in llama-server's shape."""
    server, embedder = checked(request, body, body.model, EMBEDDING)
    given = body.content if body.input is None else body.input
    if given is None:
        raise refused("content", "there is no text; give content, or input")

    def write(values: Values, tokens: int) -> bytes:
        entries = (f'{{"index":{at},"embedding":[{numbers(row)}]}}' for at, row in enumerate(values))
        return f"[{','.join(entries)}]".encode()

    param = "content" if body.input is None else "input"
    normalize = body.embd_normalize != -1
    return await embedded(request, server, embedder, param, as_list(given), write, normalize=normalize)


@router.post("/embed")
async def tei_embed(request: Request, body: TeiRequest) -> Response:
    """Return the vectors of texts as a list of lists."""
    server, embedder = checked(request, body, body.model, EMBEDDING)

    def write(values: Values, tokens: int) -> bytes:
        return f"[{','.join(map(numbers, values))}]".encode()

    return await embedded(
        request, server, embedder, "inputs", as_list(body.inputs), write,
        task=body.prompt_name, dimensions=body.dimensions,
        normalize=body.normalize is not False, truncate=body.truncate is True,
    )  # fmt: skip


@router.get("/info")
async def info(request: Request) -> dict[str, Any]:
    """Facts of the model, as clients of text-embeddings-inference read them."""
    from ipex_lookahead import __version__

    server = server_of(request)
    embedder, limits = server.embedder(), server.limits
    labels: dict[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    facts = embedder.facts
    kinds = {"embedding": {"pooling": str(facts.get("pooling", ""))}} if embedder.purpose == EMBEDDING else None
    return {
        "model_id": server.settings.names[0],
        "model_sha": None,
        "model_dtype": str(facts.get("low_bit", "float32")),
        "model_type": kinds or {"reranker": labels},
        "max_concurrent_requests": embedder.batcher.most,
        "max_input_length": embedder.model.max_length,
        "max_batch_tokens": limits.embedding_tokens,
        "max_client_batch_size": limits.embedding_inputs,
        "auto_truncate": False,
        "tokenization_workers": limits.preparing,
        "version": __version__,
    }
