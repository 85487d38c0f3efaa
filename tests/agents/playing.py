"""A server with a scripted model on a socket of this machine, and a record of what agents send to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from ipex_lookahead.decoding.events import Event, OnEvent
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings
from tests.support.scripted_model import ScriptedModel

MODEL = "default"
"""The model's name on the server."""


@dataclass
class Exchange:
    """A request with the head of its answer, and the body of an error."""

    method: str
    path: str
    body: Any
    status: int = 0
    ignored: str = ""
    error: str = ""


@dataclass
class Recorder:
    """An ASGI application around another one; ``exchanges`` has what went through, in the order of the requests."""

    app: Any
    exchanges: list[Exchange] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = scope["query_string"].decode()
        exchange = Exchange(scope["method"], scope["path"] + (given and f"?{given}"), None)
        self.exchanges.append(exchange)
        sent = bytearray()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                sent.extend(message.get("body", b""))
                if not message.get("more_body"):
                    exchange.body = json.loads(sent) if sent[:1] == b"{" else sent.decode("utf-8", "replace") or None
            return message

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = dict(message["headers"])
                exchange.ignored = headers.get(b"x-ignored-fields", b"").decode()
            elif message["type"] == "http.response.body" and exchange.status >= 400:
                exchange.error += message.get("body", b"").decode()
            await send(message)

        await self.app(scope, received, noted)


class NotingService(Service):
    """A service that notes the statistics of each finished request, with its prompt."""

    finished: list[tuple[tuple[int, ...], GenerationStats]]

    def submit(self, request: Request, on_event: OnEvent) -> Request:
        """See :class:`Service`."""

        def noted(event: Event) -> None:
            if event.kind == "finish" and event.stats is not None:
                self.finished.append((tuple(request.prompt), event.stats))
            on_event(event)

        return super().submit(request, noted)


@dataclass
class Playing:
    """A running server.

    Attributes:
        url: its address.
        model: what it plays.
        recorder: what was sent.
        service: its service, with the prompts that it answered.
    """

    url: str
    model: ScriptedModel
    recorder: Recorder
    service: NotingService

    @property
    def refused(self) -> list[Exchange]:
        """The requests to the APIs that were answered with an error."""
        return [one for one in self.recorder.exchanges if one.status >= 400 and one.method == "POST"]


@contextmanager
def playing(model: ScriptedModel, **settings: Any) -> Iterator[Playing]:
    """Serve a scripted model until the block ends."""
    made = Server(Settings(**{"names": (MODEL,), "drafting": {"lookahead": 3}, **settings}))
    services: list[NotingService] = []

    def serve(loaded: Any) -> Service:
        service = NotingService(loaded, slots=4)
        service.finished = []
        services.append(service)
        return service

    made.ready(model.load(), serve)
    recorder = Recorder(make_app(made))
    bound = bind("127.0.0.1", 0)
    config = uvicorn.Config(recorder, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield Playing(url(bound), model, recorder, services[0])
    finally:
        running.should_exit = running.force_exit = True
        thread.join(60)
        made.close(0.0)
