"""Ollama's ``/api/tags``, ``/api/ps``, ``/api/pull`` and ``/api/delete``: the models of the server and of the hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.hub import Progress, parse_name, removal_of
from ipex_lookahead.hub.pulled import forget_pull, record_pull
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.downloads import Downloads, downloadable
from ipex_lookahead.serving.failures import ApiError, from_ours, refused
from ipex_lookahead.serving.fields import Body, no_effect, supported
from ipex_lookahead.serving.handling import GONE, require_admin, server_of
from ipex_lookahead.serving.managed import LATEST, Entry, Models, RouterModels, exact, models_of
from ipex_lookahead.serving.model_files import ModelFiles
from ipex_lookahead.serving.models import STARTED
from ipex_lookahead.serving.ollama import keep_alive_seconds, when
from ipex_lookahead.serving.purposes import EMBEDDING, PATHS, TEXT
from ipex_lookahead.serving.sse import ClientGoneError, EventStream, line, unless_gone

router = APIRouter(route_class=JsonRoute)
NEVER = "0001-01-01T00:00:00Z"
"""``expires_at`` of a model that stays loaded, in Ollama's format."""
_NAME = "the name"
_LOADED = ("ready", "draining")
_SHOW = "/api/show"
PROMPTS = {
    "/api/chat": ("messages",),
    "/api/generate": ("prompt", "suffix"),
    "/api/embed": ("input",),
    "/api/embeddings": ("prompt",),
}
"""Path -> the fields without which a request only loads or unloads a model."""


class PullRequest(Body):
    """A request to download a model."""

    model: str | None = supported("a short name of `ipex-lookahead pull`, `owner/repo` or `owner/repo:FILE`")
    name: str | None = supported("older name of the same field")
    stream: bool | None = supported("newline-delimited JSON with the progress; default: true")
    insecure: Any = no_effect("checksums are always verified")


class DeleteRequest(Body):
    """A request to delete a downloaded model."""

    model: str | None = supported("a name of `/api/tags`")
    name: str | None = supported("older name of the same field")


@router.get("/api/tags")
async def tags(request: Request) -> dict[str, Any]:
    """All models, loaded or not."""
    entries = models_of(request).entries()
    return {"models": await asyncio.to_thread(lambda: [one for entry in entries for one in _with_adapters(entry)])}


@router.get("/api/ps")
async def running(request: Request) -> dict[str, Any]:
    """The loaded models."""
    entries = [entry for entry in models_of(request).entries() if entry.state in _LOADED]
    return {"models": await asyncio.to_thread(lambda: [_loaded(entry) for entry in entries])}


@router.post("/api/pull")
async def pull(request: Request, body: PullRequest) -> Response:
    """Download a model and serve it. Needs an admin key."""
    require_admin(request)
    body.check()
    models = models_of(request)
    models.check_changeable()
    wanted = _wanted(body.model or body.name)
    try:
        name = await asyncio.to_thread(downloadable, wanted)
    except LookaheadError as error:
        raise from_ours(error) from None
    lines = _pulled(models, _downloads(request), name)
    if body.stream is not False:
        limits = server_of(request).limits
        kind = "application/x-ndjson"
        return EventStream(
            lines, lambda: None, path=request.url.path, stalled_seconds=limits.stalled_seconds, kind=kind
        )
    try:
        return JSONResponse(await unless_gone(request.receive, _last(lines)))
    except ClientGoneError:
        return Response(status_code=GONE)


@router.delete("/api/delete")
async def delete(request: Request, body: DeleteRequest) -> Response:
    """Unload a model, remove it from the list and delete its downloaded files. Needs an admin key."""
    require_admin(request)
    body.check()
    models = models_of(request)
    entry = exact(models, _wanted(body.model or body.name))
    models.check_changeable()
    if _downloads(request).has(entry.source):
        raise ApiError(409, f"the model {entry.name!r} is being downloaded; end the download first", code="busy")
    try:
        if isinstance(parse_name(entry.source), Path):
            said = f"the model {entry.name!r} is a local path; only downloaded models can be deleted"
            raise ApiError(400, said, code="not_downloaded")
        removal = await asyncio.to_thread(removal_of, entry.source)
    except LookaheadError as error:
        raise from_ours(error) from None
    await models.remove(entry.name)
    try:
        await asyncio.to_thread(removal.execute)
        await asyncio.to_thread(forget_pull, entry.name)
    except LookaheadError as error:
        raise from_ours(error) from None
    return Response()


def _wanted(name: str | None) -> str:
    if not name:
        raise refused("model", "give the name of a model")
    if len(name) > 512:
        raise refused("model", f"the name has {len(name):,} characters; the limit is 512")
    return name


def _downloads(request: Request) -> Downloads:
    found: Downloads | None = getattr(request.app.state, "downloads", None)
    if found is None:
        found = request.app.state.downloads = Downloads()
    return found


async def _pulled(models: Models, downloads: Downloads, name: str) -> AsyncIterator[bytes]:
    """Lines of JSON: the progress of a download, and its end."""
    name = name.removesuffix(LATEST)
    try:
        async with aclosing(downloads.follow(name)) as progress:  # type: ignore[type-var]
            async for one in progress:
                yield line(_progress(one))
        yield line({"status": "writing manifest"})
        if not any(name in (entry.name, *entry.aliases) for entry in models.entries()):
            await models.add(name, name)
        await asyncio.to_thread(record_pull, name)
    except LookaheadError as error:
        raise from_ours(error) from None
    yield line({"status": "success"})


async def _last(lines: AsyncIterator[bytes]) -> Any:
    """The last of lines of JSON."""
    return json.loads([one async for one in lines][-1])


def _progress(one: Progress) -> dict[str, Any]:
    if one.stage == "listing":
        return {"status": "pulling manifest"}
    status = f"pulling {one.digest.partition(':')[2][:12]}" if one.stage == "downloading" else "verifying sha256 digest"
    if one.stage == "checking":
        return {"status": status}
    return {"status": status, "digest": one.digest, "total": one.total, "completed": one.done}


def _listed(entry: Entry) -> dict[str, Any]:
    files, facts = ModelFiles.find(entry.source), entry.facts
    digest = hashlib.sha256(str(facts.get("system_fingerprint", entry.source)).encode()).hexdigest()
    return {
        "name": entry.name,
        "model": entry.name,
        "modified_at": when(STARTED if files is None else files.modified),
        "size": facts.get("meta", {}).get("weight_bytes", 0) if files is None else files.size,
        "digest": digest if files is None else files.digest,
        "details": _details(entry, files),
    }


def _with_adapters(entry: Entry) -> list[dict[str, Any]]:
    """Return a model and its adapters, with the model's name as ``parent_model``."""
    model = _listed(entry)
    found = [model]
    for name in entry.adapters:
        digest = hashlib.sha256(f"{model['digest']} {name}".encode()).hexdigest()
        details = {**model["details"], "parent_model": entry.name}
        found.append({**model, "name": name, "model": name, "digest": digest, "details": details})
    return found


def _loaded(entry: Entry) -> dict[str, Any]:
    expires = NEVER if entry.expires_at is None else when(entry.expires_at)
    context = entry.facts.get("max_model_len", 0)
    more = {"size": entry.memory_bytes or 0, "expires_at": expires, "size_vram": 0, "context_length": context}
    return {**_listed(entry), **more}


def _details(entry: Entry, files: ModelFiles | None) -> dict[str, Any]:
    meta = entry.facts.get("meta", {})
    family = meta.get("architecture") or (files.family if files else "") or "unknown"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": str(meta.get("low_bit") or (files.kind if files else "")),
    }


def _shown(entry: Entry) -> dict[str, Any]:
    files = ModelFiles.find(entry.source)
    config = {} if files is None else files.config()
    family = str(config.get("model_type") or "unknown")
    context = entry.facts.get("max_model_len") or config.get("max_position_embeddings")
    seeing = ["vision"] if entry.facts.get("meta", {}).get("images") else []
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": {**_details(entry, files), "family": family, "families": [family]},
        "model_info": {
            "general.architecture": family,
            f"{family}.context_length": context,
            f"{family}.vocab_size": config.get("vocab_size"),
        },
        "capabilities": [*(["completion", "tools"] if entry.purpose in ("", TEXT) else [entry.purpose]), *seeing],
        "modified_at": when(STARTED if files is None else files.modified),
    }


async def answered_here(models: RouterModels, path: str, body: Mapping[str, Any], key: str) -> Response | None:
    """Answer a request of Ollama's API that needs no worker.

    These are requests without a prompt, which load or unload a model, and ``/api/show`` of a model that is not loaded,
    because clients send it for each listed model.

    Args:
        models: the models of a server that loads them on demand.
        path: of the request.
        body: its fields, which are not checked yet.
        key: its owner.

    Returns None for a request that a worker answers. Raises ApiError.
    """
    name = body.get("model") or body.get("name")
    if not isinstance(name, str) or path not in (*PROMPTS, _SHOW):
        return None
    entry = models.find(name)
    if path == _SHOW:
        return None if entry.state in _LOADED else JSONResponse(await asyncio.to_thread(_shown, entry))
    seconds = keep_alive_seconds(body.get("keep_alive"))
    if any(body.get(field) for field in PROMPTS[path]):
        return None
    lease = None if seconds == 0 else await models.use(entry.name, key)
    models.set_keep_alive(entry.name, seconds)
    if lease is not None:
        lease.close()
    if path in PATHS[EMBEDDING]:
        return JSONResponse({"embedding": []} if path == "/api/embeddings" else {"model": name, "embeddings": []})
    said = {"message": {"role": "assistant", "content": ""}} if path == "/api/chat" else {"response": ""}
    reason = "unload" if seconds == 0 else "load"
    head = {"model": name, "created_at": when(time.time())}
    return JSONResponse({**head, **said, "done": True, "done_reason": reason})
