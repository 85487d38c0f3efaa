"""``/health``, ``/ready``, ``/metrics`` and ``/version``: for operators of the server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from ipex_lookahead.serving.handling import server_of

router = APIRouter()


@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
async def health(request: Request) -> dict[str, str]:
    """200 while the server answers; 503 while it loads, drains or is closed. Needs no key."""
    server_of(request).check_ready()
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """As ``/health``, with how much there is to do. Needs no key."""
    running, waiting = server_of(request).counts
    return {"status": "ready", "running": running, "waiting": waiting}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(server_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/version")
async def version() -> dict[str, str]:
    """Of this package."""
    from ipex_lookahead import __version__

    return {"version": __version__}
