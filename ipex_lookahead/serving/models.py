"""``/v1/models``: what is served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ipex_lookahead.conversation.thinking import has_switch
from ipex_lookahead.serving.handling import server_of
from ipex_lookahead.serving.server import Server

router = APIRouter()
_REPORTED = ("engine", "isa", "threads", "low_bit", "kv_cache", "weight_bytes", "kv_bytes_per_token", "row_invariant")
"""Facts of the engine that ``meta`` holds."""


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def models(request: Request) -> dict[str, Any]:
    """All names of the model."""
    server = server_of(request)
    return {"object": "list", "data": [_model(server, name) for name in server.settings.names]}


@router.get("/v1/models/{name:path}")
@router.get("/models/{name:path}", include_in_schema=False)
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    server = server_of(request)
    server.known(name)
    return _model(server, name)


def _model(server: Server, name: str) -> dict[str, Any]:
    served = server.served
    return {
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "ipex-lookahead",
        "root": server.settings.names[0],
        "max_model_len": served.max_context,
        "system_fingerprint": server.fingerprint,
        "meta": {
            "n_vocab": served.vocab_size,
            "n_ctx": served.max_context,
            "chat_template": bool(served.template),
            "special_tokens_in_content": "text" if served.keeps_content_apart else "control tokens",
            "sampling": served.sampling,
            "thinking_switch": has_switch(served.template),
            **{fact: served.facts[fact] for fact in _REPORTED if fact in served.facts},
        },
    }
