"""A tiny model with random weights behind the server, in this process; and a service that does what a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import QueueFullError
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Event, Request, Service
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.connection import MOST_CONNECTIONS, MOST_WITHOUT_HEAD, impatient
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings
from tests.support.chat_tokenizer import write_chat_llama

LIMITS = replace(Limits(), ping_seconds=60.0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_chat_llama(tmp_path_factory.mktemp("served") / "tiny", context=2048)


@pytest.fixture(scope="session")
def model(folder: Any) -> TextModel:
    return load_text_model(str(folder), engine="native", threads=1, progress=False)


@pytest.fixture(scope="session")
def server(model: TextModel) -> Iterator[Server]:
    made = Server(Settings(names=("tiny", "other-name"), drafting={"lookahead": 3}, limits=LIMITS))
    made.ready(model, lambda one: Service(one, slots=4))
    yield made
    made.close(0.0)


@pytest.fixture(scope="session")
def client(server: Server) -> Iterator[TestClient]:
    """Asks the application itself, without a socket."""
    with TestClient(make_app(server), raise_server_exceptions=False) as made:
        yield made


@dataclass
class FakeTicket:
    request: Request
    tell: Callable[[Event], None]
    id: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        self.cancelled.set()

    def say(self, *tokens: int) -> None:
        self.tell(Event("tokens", tokens=list(tokens), origins=[None] * len(tokens)))

    def finish(self, reason: str = "stop") -> None:
        self.tell(Event("finish", reason=reason, stats=GenerationStats(prompt_tokens=len(self.request.prompt))))


class FakeService:
    """Takes requests; ``taken`` says that one has come, and the test tells what becomes of it."""

    def __init__(self, most: int = 100) -> None:
        self.state = "ready"
        self.running = self.waiting = self.steps = self.tokens = self.kv_bytes = self.state_bytes = (
            self.cached_pages
        ) = 0
        self.tickets: list[FakeTicket] = []
        self.taken = threading.Semaphore(0)
        self.most = most
        self.closed_with: float | None = None

    def check_room(self, count: int, key: str = "") -> None:
        """There is, until ``submit`` says otherwise."""

    def submit(self, request: Request, on_event: Any) -> FakeTicket:
        if len(self.tickets) >= self.most:
            raise QueueFullError("7 requests are waiting, as many as may", retry_after=2.5, hint="try again later")
        ticket = FakeTicket(request, on_event, len(self.tickets))
        self.tickets.append(ticket)
        self.taken.release()
        return ticket

    def next(self) -> FakeTicket:
        """The ticket that has come last, waited for."""
        assert self.taken.acquire(timeout=60), "no request has come"
        return self.tickets[-1]

    def close(self, drain: float = 0.0) -> None:
        self.closed_with = drain
        self.state = "closed"
        for ticket in self.tickets:
            ticket.finish("cancelled")


@contextmanager
def serving(model: TextModel, slots: int = 4, **settings: Any) -> Iterator[TestClient]:
    """Ask a server of its own without a socket."""
    made = Server(Settings(**{"names": ("tiny",), "limits": LIMITS, **settings}))
    made.ready(model, lambda one: Service(one, slots=slots))
    try:
        with TestClient(make_app(made), raise_server_exceptions=False) as client:
            yield client
    finally:
        made.close(0.0)


@dataclass
class Live:
    """A server on a socket of this machine."""

    url: str
    port: int
    server: Server
    service: FakeService

    def ask(self, path: str, body: Any) -> tuple[FakeTicket, Callable[[], httpx.Response]]:
        """Send a request. Returns its ticket, and a function that waits for the answer."""
        pool = ThreadPoolExecutor(1)
        answer = pool.submit(httpx.post, self.url + path, json=body, timeout=60)
        pool.shutdown(wait=False)
        return self.service.next(), lambda: answer.result(60)


@pytest.fixture
def live(model: TextModel) -> Iterator[Callable[..., Live]]:
    """``live(limits=..., keys=...)`` serves a ``FakeService`` on a free port until the test ends."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(
        service: FakeService | None = None,
        small_buffers: bool = False,
        connections: tuple[int, int] = (MOST_CONNECTIONS, MOST_WITHOUT_HEAD),
        **settings: Any,
    ) -> Live:
        service = service or FakeService()
        server = Server(Settings(**{"names": ("tiny",), "limits": LIMITS, **settings}))
        server.ready(model, lambda one: service)  # type: ignore[arg-type, return-value]
        bound = bind("127.0.0.1", 0)
        if small_buffers:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        config = uvicorn.Config(
            make_app(server),
            log_config=None,
            http=impatient(server.settings.limits.head_seconds, *connections),
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        made = uvicorn.Server(config)
        thread = threading.Thread(target=made.run, args=([bound],), daemon=True)
        thread.start()
        running.append((made, thread))
        return Live(url(bound), bound.getsockname()[1], server, service)

    yield start
    for made, thread in running:
        made.should_exit = made.force_exit = True
        thread.join(60)
