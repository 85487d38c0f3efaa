"""A server as a process: bind, load, serve, end."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.connection import impatient
from ipex_lookahead.serving.server import Server

log = logging.getLogger(__name__)
_MOST_CONNECTIONS = 512
_AFTER_DRAIN = 5.0
"""Seconds that clients have to take the last of their answers."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises InputError where that address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{host} port {port} cannot be listened on: {said}", hint="choose another --port") from None
    bound.setblocking(False)
    return bound


def url(bound: socket.socket) -> str:
    """Where people find it."""
    host, port = bound.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def serve(server: Server, bound: socket.socket, load: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until ``limits.drain_seconds`` have passed or all answers are out.

    Args:
        server: its state.
        bound: see :func:`bind`.
        load: makes the server ready, in a thread of its own: until it has, every question is answered with 503.

    Raises:
        Exception: what ``load`` raised; the server has ended then.
    """
    config = uvicorn.Config(
        make_app(server),
        log_config=None,
        access_log=False,
        server_header=False,
        http=impatient(server.limits.head_seconds),
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=int(server.limits.drain_seconds + _AFTER_DRAIN),
        lifespan="off",
        ws="none",
    )
    running = _Draining(config, server)
    failures: list[BaseException] = []

    def loading() -> None:
        try:
            load()
        except BaseException as error:
            failures.append(error)
            running.should_exit = True

    thread = threading.Thread(target=loading, name="ipex-lookahead loading", daemon=True)
    thread.start()
    # Ctrl-C is how people end a server: uvicorn raises it again when it is done, and nothing has gone wrong.
    with contextlib.suppress(KeyboardInterrupt):
        running.run([bound])
    running.drain().join()
    if failures:
        raise failures[0]


class _Draining(uvicorn.Server):
    """Ends the service as soon as a signal says so: what comes later is refused, what is there may end."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._thread: threading.Thread | None = None

    def drain(self) -> threading.Thread:
        """Begin to end the service, once; in a thread, since that waits."""
        self._server.draining = True
        if self._thread is None:
            seconds = self._server.limits.drain_seconds
            self._thread = threading.Thread(target=self._server.close, args=(seconds,), daemon=True)
            self._thread.start()
        return self._thread

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain; a second Ctrl-C does not wait."""
        self.drain()
        super().handle_exit(sig, frame)
