"""``/v1/models`` and llama-server's ``/models/load`` and ``/models/unload``: the models, and their states."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request

from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.fields import Body, required
from ipex_lookahead.serving.handling import require_admin
from ipex_lookahead.serving.managed import LATEST, Entry, exact, models_of

router = APIRouter(route_class=JsonRoute)
_WORDS = {"ready": "loaded", "draining": "loaded", "failed": "unloaded"}
"""States with another name in llama-server's API, which has neither ``draining`` nor ``failed``."""
STARTED = int(time.time())
"""``created`` of models that have not been loaded, in seconds since 1970."""


class ModelChange(Body):
    """A request to load or unload a model."""

    model: str = required("a name of `/v1/models`")


@router.get("/v1/models")
@router.get("/models", include_in_schema=False)
async def models(request: Request) -> dict[str, Any]:
    """All names and states of models, and the adapters of each."""
    entries = models_of(request).entries()
    return {"object": "list", "data": [*map(_listed, entries), *(one for entry in entries for one in _adapters(entry))]}


@router.get("/v1/models/{name:path}")
@router.get("/models/{name:path}", include_in_schema=False)
async def model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    entry = models_of(request).find(name)
    known = {one["id"]: one for one in _adapters(entry)}
    return known.get(name) or known.get(name.removesuffix(LATEST)) or _listed(entry)


@router.post("/models/load")
async def load(request: Request, body: ModelChange) -> dict[str, bool]:
    """Load a model. The answer is sent once the model is ready. Needs an admin key."""
    require_admin(request)
    body.check()
    models = models_of(request)
    await models.load(exact(models, body.model).name)
    return {"success": True}


@router.post("/models/unload")
async def unload(request: Request, body: ModelChange) -> dict[str, bool]:
    """Unload a model once its running answers have ended. Needs an admin key."""
    require_admin(request)
    body.check()
    models = models_of(request)
    await models.unload(exact(models, body.model).name)
    return {"success": True}


def _listed(entry: Entry) -> dict[str, Any]:
    """A model as ``/v1/models`` lists it: what it reported itself when it was last loaded, and its state."""
    own = {"id": entry.name, "object": "model", "created": STARTED, "owned_by": "ipex-lookahead"}
    more = {"memory_bytes": entry.memory_bytes, "aliases": list(entry.aliases), "error": entry.error or None}
    own |= {"purpose": entry.purpose} if entry.purpose else {}
    return {**own, **entry.facts, "id": entry.name, "state": entry.state, "status": _status(entry), **more}


def _adapters(entry: Entry) -> list[dict[str, Any]]:
    """Return a model's adapters in vLLM's shape: ``parent`` is the name of the model."""
    model = _listed(entry)
    same = ("object", "created", "owned_by", "purpose", "state", "status", "max_model_len", "meta")
    kept: dict[str, Any] = {name: model[name] for name in same if name in model}
    return [{"id": name, **kept, "root": name, "parent": entry.name} for name in entry.adapters]


def _status(entry: Entry) -> dict[str, Any]:
    """A state in llama-server's words, and in addition the end of ``keep_alive``."""
    status: dict[str, Any] = {"value": _WORDS.get(entry.state, entry.state)}
    done, total = entry.progress
    if entry.state == "failed":
        status |= {"failed": True, "exit_code": 1}
    if entry.state == "loading" and total:
        value = round(done / total, 3)
        status["progress"] = {"stages": ["text_model"], "current": "text_model", "value": value}
    if entry.expires_at is not None:
        status["expires_at"] = round(entry.expires_at)
    return status
