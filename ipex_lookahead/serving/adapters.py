"""Adapters over HTTP: llama-server's ``/lora-adapters``, and vLLM's paths that load and unload adapters."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from ipex_lookahead.errors import LookaheadError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.serving import fields
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.failures import ApiError, from_ours, refused
from ipex_lookahead.serving.fields import AdapterScale, no_effect, required, supported
from ipex_lookahead.serving.handling import require_admin, server_of

router = APIRouter(route_class=JsonRoute)
_NAME = "name of the adapter in requests"


class LoadAdapter(fields.Body):
    """A request for `/v1/load_lora_adapter`."""

    lora_name: str = required(_NAME, min_length=1, max_length=128)
    lora_path: str = required("folder or .gguf file on the server's machine", min_length=1)
    load_inplace: bool | None = supported("true: an adapter of this name is replaced")
    base_model_name: Any = no_effect("the files name it")
    is_3d_lora_weight: Any = no_effect("shapes decide")


class UnloadAdapter(fields.Body):
    """A request for `/v1/unload_lora_adapter`."""

    lora_name: str = required(_NAME)
    lora_int_id: Any = no_effect("the name decides")


@router.get("/lora-adapters")
async def adapters(request: Request) -> list[dict[str, Any]]:
    """Return the adapters with their numbers, and their scales for requests that name the model."""
    server = server_of(request)
    names = server.served.model.runtime.adapters
    return [
        {"id": number, "path": name, "name": name, "scale": server.adapter_scales.get(name, 0.0)}
        for number, name in enumerate(names)
    ]


@router.post("/lora-adapters")
async def set_scales(request: Request, body: Annotated[list[AdapterScale], Body(max_length=256)]) -> dict[str, bool]:
    """Set the scales of requests that name the model; 0 for adapters that are left out. Needs an admin key."""
    require_admin(request)
    for at, one in enumerate(body):
        one.check(f"{at}.")
    server = server_of(request)
    applied = server.applied(None, {one.id: one.scale for one in body})
    server.adapter_scales = {} if applied is None else {applied.adapter.name: applied.scale}
    return {"success": True}


@router.post("/v1/load_lora_adapter")
async def load(request: Request, body: LoadAdapter) -> Response:
    """Load an adapter, which requests use by its name as ``model``. Needs an admin key."""
    require_admin(request)
    body.check()
    server, name = server_of(request), body.lora_name
    if name in server.settings.names or (name in server.names and not body.load_inplace):
        raise refused("lora_name", f"{name!r} is in use; unload that adapter, or choose another name")
    served = server.served
    try:
        await asyncio.to_thread(served.model.runtime.adapters.load, body.lora_path, name, progress=False)
    except (ModelFormatError, UnsupportedModelError) as error:
        raise refused("lora_path", str(error)) from None
    except LookaheadError as error:
        raise from_ours(error) from None
    return Response(f"Success: LoRA adapter '{name}' added successfully.", media_type="text/plain")


@router.post("/v1/unload_lora_adapter")
async def unload(request: Request, body: UnloadAdapter) -> Response:
    """Unload an adapter; running answers with it end with an error. Needs an admin key."""
    require_admin(request)
    body.check()
    server, name = server_of(request), body.lora_name
    loaded = server.served.model.runtime.adapters
    if name not in loaded:
        there = ", ".join(loaded) or "none"
        raise ApiError(404, f"there is no adapter {name[:200]!r}; this server has {there}", param="lora_name")
    try:
        loaded.unload(name)
    except LookaheadError as error:
        raise from_ours(error) from None
    server.adapter_scales.pop(name, None)
    return Response(f"Success: LoRA adapter '{name}' removed successfully.", media_type="text/plain")
