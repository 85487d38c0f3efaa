"""The ASGI application: the list of APIs and the error responses."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from ipex_lookahead.serving import (
    adapters,
    chat,
    completions,
    health,
    llama_server,
    messages,
    models,
    ollama,
    ollama_models,
    pdf,
    responses,
    stored,
    tokens,
    web,
)
from ipex_lookahead.serving.embedding import ollama as ollama_embed
from ipex_lookahead.serving.embedding import ranking, vectors
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.gate import Gate
from ipex_lookahead.serving.handling import GONE
from ipex_lookahead.serving.managed import OneModel
from ipex_lookahead.serving.server import Server
from ipex_lookahead.serving.sse import ClientGoneError

log = logging.getLogger(__name__)
APIS = (
    chat,
    completions,
    responses,
    stored,
    messages,
    ollama,
    ollama_models,
    vectors,
    ranking,
    ollama_embed,
    llama_server,
    models,
    adapters,
    tokens,
    health,
    web,
    pdf,
)
"""One API a file; each has a ``router``."""


def make_app(server: Server) -> FastAPI:
    """Return the application of a server; its state is ``app.state.server`` and ``app.state.models``."""
    from ipex_lookahead import __version__

    app = FastAPI(
        title="ipex-lookahead",
        version=__version__,
        description="Low-bit LLMs on CPUs. Load does not change an answer.",
        docs_url=None,  # the usual page loads its parts from another server
        redoc_url=None,
    )
    app.state.server, app.state.models = server, OneModel(server)
    for api in APIS:
        app.include_router(api.router)
    protect(app, server)
    return app


def protect(app: FastAPI, server: Server) -> None:
    """Add what an application has in common with that of ``router/app.py``: error responses, the gate, and CORS."""
    for kind in (ApiError, ClientGoneError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _error_response)
    app.add_middleware(Gate, server=server)
    if server.settings.origins:  # outside the gate: a browser's preflight request carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(server.settings.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-ignored-fields", "retry-after"],
        )


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    found = _as_api_error(error)
    if found.status == 500:
        log.error("a request failed", exc_info=error)
    return JSONResponse(found.body(request.url.path), found.status, headers=found.headers)


def _as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ClientGoneError):
        return ApiError(GONE, "the client closed the connection")
    if isinstance(error, RequestValidationError):
        return _of_validation(error)
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, ApiError):  # of a body, which FastAPI turns into a 400 of its own
            return error.__cause__
        if isinstance(error.__cause__, UnicodeDecodeError | RecursionError):
            return invalid_json(error.__cause__)
        said = {404: "no API at this path", 405: "method not allowed at this path"}
        return ApiError(error.status_code, said.get(error.status_code, str(error.detail)), headers=error.headers)
    return ApiError(500, "internal error; the server's log has the details")


def _of_validation(error: RequestValidationError) -> ApiError:
    """Return the first validation error as a sentence that names the field."""
    first: Any = error.errors()[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith(("list[", "dict["))]
    place = place[1:] if place[:1] in (["body"], ["query"]) else place
    if first["type"] == "json_invalid" and isinstance(error.__cause__, json.JSONDecodeError):
        return invalid_json(error.__cause__)
    if isinstance(first.get("input"), bytes) and first["loc"] == ("body",):
        return ApiError(415, "the Content-Type of the request body must be application/json")
    while len(place) > 1 and place[-1] in ("str", "int", "float", "bool", "constrained-str"):
        place.pop()  # which of a union's kinds complained
    param = ".".join(place) or None
    got = "" if first["type"] == "missing" else f"; got {_short(first.get('input'))}"
    return ApiError(400, f"{param or 'the request'}: {first['msg']}{got}", param=param, code="invalid_value")


def invalid_json(error: Exception) -> ApiError:
    """Return the error of a body that is not JSON, with the position."""
    if isinstance(error, json.JSONDecodeError):
        near = error.doc[max(0, error.pos - 10) : error.pos + 10]
        ends = "" if error.doc[error.pos :].strip() else ", where it ends"
        where = f"line {error.lineno}, column {error.colno}{ends}, near {_short(near)}"
        said = f"{error.msg[:1].lower()}{error.msg[1:]} at {where}"
    elif isinstance(error, UnicodeDecodeError):
        said = f"byte {error.start} is not UTF-8"
    else:
        said = "it is nested too deeply"
    return ApiError(400, f"the request body is not valid JSON: {said}", code="invalid_json")


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
