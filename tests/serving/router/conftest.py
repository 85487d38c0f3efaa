"""A server with several models on a socket, with workers that are applications in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.serving.connection import impatient
from ipex_lookahead.serving.router.app import RouterServer, make_router_app
from ipex_lookahead.serving.router.entries import ModelEntry, WorkerError
from ipex_lookahead.serving.router.table import ModelTable
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Settings
from tests.serving.conftest import LIMITS

SECRET = "s" * 64
PATIENCE = 20.0


class Served:
    """An application on a socket, in a thread."""

    def __init__(self, app: Any, **where: Any) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            loop="asyncio",
            server_header=False,
            timeout_graceful_shutdown=1,
            **where,
        )
        self.server = uvicorn.Server(config)
        self.thread: threading.Thread | None = None

    def start(self, *sockets: Any) -> None:
        run = lambda: self.server.run([*sockets] or None)  # noqa: E731
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()

    def end(self) -> None:
        """End at once, in the middle of answers."""
        self.server.should_exit = self.server.force_exit = True
        for one in list(self.server.server_state.connections):
            one.loop.call_soon_threadsafe(one.transport.abort)
        if self.thread is not None:
            self.thread.join(PATIENCE)


class AppWorker:
    """A worker that is an application in this process, on a Unix socket."""

    def __init__(self, app: Any, address: str) -> None:
        self.address, self.secret, self.facts, self.progress = address, SECRET, {"max_model_len": 7}, (1, 4)
        self.loaded, self.over = threading.Event(), threading.Event()
        self.failure = ""
        self._served = Served(app, uds=address)
        self._served.start()

    async def ready(self) -> None:
        while not self.loaded.is_set():
            await asyncio.sleep(0.005)
        if self.failure:
            raise WorkerError(self.failure)

    async def ended(self) -> str:
        while not self.over.is_set():
            await asyncio.sleep(0.005)
        return "signal 9"

    async def stop(self) -> None:
        self.die()

    def die(self) -> None:
        self.loaded.set()
        if not self.over.is_set():
            self._served.end()
            self.over.set()


@dataclass
class Fleet:
    """A server with several models.

    Attributes:
        url: its address.
        table: its models.
        workers: those that were started, in order.
    """

    url: str
    server: RouterServer
    table: ModelTable
    workers: list[AppWorker] = field(default_factory=list)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """``fleet({"a": app}, loads=False, keys=...)`` serves these applications as models until the test ends."""
    made: list[tuple[Fleet, Served]] = []

    def start(
        apps: dict[str, Any],
        *,
        loads: bool = True,
        wait_seconds: float = PATIENCE,
        purposes: dict[str, str] | None = None,
        **settings: Any,
    ) -> Fleet:
        workers: list[AppWorker] = []

        async def worker(entry: ModelEntry) -> AppWorker:
            one = await asyncio.to_thread(AppWorker, apps[entry.name], str(tmp_path / f"{len(workers)}.sock"))
            workers.append(one)
            if loads:
                one.loaded.set()
            return one

        entries = [ModelEntry(name, name, purpose=(purposes or {}).get(name, "text")) for name in apps]
        table = ModelTable(entries, start=worker, wait_seconds=wait_seconds)
        server = RouterServer(Settings(**{"names": [*apps], "limits": LIMITS, **settings}), table)
        served, bound = Served(make_router_app(server), http=impatient(30.0)), bind("127.0.0.1", 0)
        served.start(bound)
        made.append((Fleet(url(bound), server, table, workers), served))
        return made[-1][0]

    yield start
    for one, served in made:
        for worker in one.workers:
            worker.die()
        served.end()
