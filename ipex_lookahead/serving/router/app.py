"""The application of a server with several models: its own paths, and those that workers answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ipex_lookahead.serving import (
    chat,
    completions,
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
from ipex_lookahead.serving.app import make_app, protect
from ipex_lookahead.serving.embedding import ollama as ollama_embed
from ipex_lookahead.serving.embedding import ranking, vectors
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.metrics import PREFIX, HttpMetrics, together
from ipex_lookahead.serving.router.client import WorkerLostError, fetch
from ipex_lookahead.serving.router.entries import ModelEntry, Worker
from ipex_lookahead.serving.router.proxy import forward
from ipex_lookahead.serving.router.table import ModelTable
from ipex_lookahead.serving.server import Served, Server, Settings

EMBEDDING = (vectors, ranking, ollama_embed)
"""The APIs of embedding and reranking models."""
FORWARDED = (chat, completions, responses, stored, messages, ollama, llama_server, tokens, *EMBEDDING)
"""The APIs that workers answer."""
_OWN = ("/api/version",)
"""Paths of those that need no model."""
_SCRAPE_SECONDS = 5.0
router = APIRouter()


class RouterServer(Server):
    """The state of a server with several models. It has no model of its own.

    Args:
        settings: how it serves.
        table: its models.
        closed: called when the workers have ended; after a signal the process ends without ``finally``.
    """

    def __init__(self, settings: Settings, table: ModelTable, closed: Callable[[], None] = lambda: None) -> None:
        super().__init__(settings)
        self.table = table
        self._closed = closed
        self.metrics = HttpMetrics(by_model=True)  # type: ignore[assignment]
        self.metrics.collect(_TableFigures(table))

    @property
    def state(self) -> str:
        """One of "ready", "draining" and "closed"."""
        return "ready" if not self.draining else "draining" if not self.table.closed else "closed"

    @property
    def takes_images(self) -> bool:
        """Whether a model takes images, or may: one that has not been loaded yet."""
        return any(entry.facts.get("meta", {}).get("images", True) is not None for entry in self.table.entries())

    @property
    def served(self) -> Served:
        """No model. Raises ApiError."""
        raise ApiError(404, "this path needs a model")

    def close(self, drain: float) -> None:
        """Refuse new requests, let running ones finish for ``drain`` seconds, and end the workers. Waits."""
        self.draining = True
        loop = self.table.loop
        if loop is not None and loop.is_running():
            asyncio.run_coroutine_threadsafe(self.table.close(drain), loop).result()
        self.table.closed = True
        self._closed()
        super().close(drain)


def make_router_app(server: RouterServer) -> FastAPI:
    """Return the application of a server with several models; its state is ``app.state.server``."""
    single = make_app(Server(server.settings))
    app = FastAPI(title=single.title, version=single.version, docs_url=None, redoc_url=None)
    app.state.server, app.state.models = server, server.table
    for own_router in (router, web.router, pdf.router, models.router, ollama_models.router):
        app.include_router(own_router)
    own = {route.path for route in app.routes if isinstance(route, APIRoute)}
    for api in FORWARDED:
        for route in api.router.routes:
            if isinstance(route, APIRoute) and route.path not in own:
                app.add_route(route.path, _forwarding(route), sorted(route.methods or ()), include_in_schema=False)
    app.openapi = single.openapi  # type: ignore[method-assign]
    protect(app, server)
    return app


def _forwarding(route: APIRoute) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers the requests of a worker's route."""

    async def forwarding(request: Request) -> Response:
        request.scope["route"] = route  # for the metrics
        return await forward(request)

    return forwarding


def _server(request: Request) -> RouterServer:
    found: RouterServer = request.app.state.server
    return found


def _alive(server: RouterServer) -> None:
    if server.state != "ready":
        seconds = server.limits.loading_retry_seconds
        said = f"the server is shutting down; ask again in {seconds} s"
        raise ApiError(503, said, code=server.state, headers={"retry-after": str(seconds)})


@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
async def health(request: Request) -> dict[str, str]:
    """200 while the server takes requests; 503 while it ends. Needs no key."""
    _alive(_server(request))
    return {"status": "ok"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, Any]:
    """As ``/health``, with how much there is to do. Needs no key."""
    server = _server(request)
    _alive(server)
    entries = server.table.entries()
    running, waiting = (sum(getter(one) for one in entries) for getter in (_running, _waiting))
    return {"status": "ready", "running": running, "waiting": waiting}


@router.get("/version")
async def version() -> dict[str, str]:
    """Of this package."""
    from ipex_lookahead import __version__

    return {"version": __version__}


@router.get("/lora-adapters")
async def list_adapters(request: Request, model: str | None = None) -> list[dict[str, Any]]:
    """The adapters of a model with their numbers in its requests; of the first model by default."""
    names = _server(request).table.find(model).adapters
    return [{"id": number, "path": name, "name": name, "scale": 0.0} for number, name in enumerate(names)]


@router.post("/lora-adapters")
@router.post("/v1/load_lora_adapter")
@router.post("/v1/unload_lora_adapter")
async def change_adapters(request: Request) -> None:
    """Raise a 400: the adapters of several models are those of their options."""
    await request.body()  # with an unread body the connection would be closed
    said = "this server has several models; in --models FILE each model has its adapters: lora: [NAME=PATH]"
    raise ApiError(400, said, code="several_models")


@router.get("/api/version")
async def ollama_version() -> dict[str, str]:
    """See ``ollama.py``."""
    return await ollama.version()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus: those of this server, and those of each loaded model with the label ``model``."""
    server = _server(request)
    workers = [one.run.worker for one in server.table.entries() if one.state in ("ready", "draining") and one.run]
    texts = await asyncio.gather(*(_figures(one) for one in workers if one is not None))
    return Response(together([server.metrics.text(), *texts]), media_type=CONTENT_TYPE_LATEST)


async def _figures(worker: Worker) -> bytes:
    """Return the metrics of a worker, without its requests, which this server counts itself; empty if it has ended."""
    try:
        text: bytes = await asyncio.wait_for(fetch(worker, "/metrics"), _SCRAPE_SECONDS)
    except (WorkerLostError, asyncio.TimeoutError, TimeoutError):
        return b""
    counted = f"{PREFIX}_http_requests".encode()
    lines = text.splitlines(keepends=True)
    return b"".join(
        one for one in lines if not one.removeprefix(b"# HELP ").removeprefix(b"# TYPE ").startswith(counted)
    )


def _running(entry: ModelEntry) -> int:
    return entry.requests


def _waiting(entry: ModelEntry) -> int:
    return len(entry.waiting)


class _TableFigures(Collector):
    """The states of the models, read on each scrape."""

    def __init__(self, table: ModelTable) -> None:
        self._table = table

    def collect(self) -> Iterable[Any]:
        """See ``prometheus_client``."""
        table = self._table
        state = GaugeMetricFamily(f"{PREFIX}_model_state", "1 for the state of a model.", labels=["model", "state"])
        memory = GaugeMetricFamily(f"{PREFIX}_model_memory_bytes", "Computed memory of a model.", labels=["model"])
        running = GaugeMetricFamily(f"{PREFIX}_model_requests_running", "Requests at its worker.", labels=["model"])
        waiting = GaugeMetricFamily(f"{PREFIX}_model_requests_waiting", "Requests that wait for it.", labels=["model"])
        for entry in table.entries():
            state.add_metric([entry.name, entry.state], 1)
            memory.add_metric([entry.name], entry.memory_bytes or 0)
            running.add_metric([entry.name], entry.requests)
            waiting.add_metric([entry.name], len(entry.waiting))
        yield from (state, memory, running, waiting)
        yield CounterMetricFamily(f"{PREFIX}_model_loads", "Models loaded.", value=table.loads)
        yield CounterMetricFamily(f"{PREFIX}_model_unloads", "Models unloaded.", value=table.unloads)
        yield GaugeMetricFamily(f"{PREFIX}_model_memory_budget_bytes", "--models-memory.", value=table.budget or 0)
