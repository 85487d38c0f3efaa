"""A server as a process: bind, load, serve, end."""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.connection import MOST_CONNECTIONS, impatient
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.server import Server

log = logging.getLogger(__name__)
_AFTER_DRAIN = 5.0
"""Seconds that clients have to take the last of their answers."""
_AFTER_SECOND_SIGNAL = 1
"""The same after a second signal."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises InputError if the address is not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            hint = f"use --port {port + 1 if port < 65535 else port - 1}, or --port 0 for any free port"
            raise InputError(f"port {port} on {host} is already in use", hint=hint) from None
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot listen on {host} port {port}: {said}", hint="check --host and --port") from None
    # Accepted sockets inherit it. asyncio and uvloop set it only if the socket names its protocol, which this one does
    # not. Without it the body of an answer waits for the client's delayed acknowledgment of the head: 40 ms.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    bound.setblocking(False)
    return bound


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for HTTPS: the certificate chain and the private key."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise InputError if the files cannot be used."""
        for file in (self.certificate, self.key):
            if not file.is_file():
                raise InputError(f"{file}: no such file", hint="check --tls-cert and --tls-key")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.certificate, self.key, password=lambda: b""
            )
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            said = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"{self.certificate} and {self.key} are not a certificate and its private key: {said}",
                hint="use PEM files, and a key without a password",
            ) from None


def url(bound: socket.socket, tls: Tls | None = None) -> str:
    """Return the URL of the server."""
    host, port = bound.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'http' if tls is None else 'https'}://{shown}:{port}"


def serve(
    server: Server,
    bound: socket.socket,
    load: Callable[[], None],
    *,
    app: FastAPI | None = None,
    tls: Tls | None = None,
    reload_keys: Callable[[], tuple[Keys, Keys]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish running answers for at most ``limits.drain_seconds``.

    Requests while the model loads, or after the signal, get status 503.

    Args:
        server: the state of the server.
        bound: a listening socket, see :func:`bind`.
        load: loads the model and makes the server ready; runs in its own thread.
        app: the application; None: that of :func:`make_app`.
        tls: files for HTTPS.
        reload_keys: reads API keys and admin keys again on SIGHUP; if it raises InputError, the old keys stay valid.

    Raises:
        Exception: the error of ``load``, after the server has ended.
    """
    config = uvicorn.Config(
        make_app(server) if app is None else app,
        log_config=None,
        access_log=False,
        server_header=False,
        http=impatient(server.limits.head_seconds),
        timeout_graceful_shutdown=int(server.limits.drain_seconds + _AFTER_DRAIN),
        lifespan="off",
        loop="asyncio" if bound.family == socket.AF_UNIX else "auto",  # uvloop takes no listening Unix sockets
        ws="none",
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
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
    if reload_keys is not None:
        signal.signal(signal.SIGHUP, lambda *_: _reload(server, reload_keys))
    # uvicorn raises KeyboardInterrupt again after it has ended, but Ctrl-C is the regular way to end a server.
    with contextlib.suppress(KeyboardInterrupt):
        running.run([bound])
    running.drain().join()
    if failures:
        raise failures[0]


def _reload(server: Server, read: Callable[[], tuple[Keys, Keys]]) -> None:
    try:
        settings = server.settings
        settings.keys, settings.admin_keys = read()
        log.warning("reloaded the keys: %d API keys, %d admin keys", len(settings.keys), len(settings.admin_keys))
    except InputError as error:
        log.warning("the keys were not reloaded: %s", error)


class _Draining(uvicorn.Server):
    """Ends the service on a signal: running requests may finish, new requests get status 503 meanwhile."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._thread: threading.Thread | None = None

    def drain(self, then: Callable[[], None] = lambda: None) -> threading.Thread:
        """Start to end the service, once, in a thread that waits for it; return the thread."""
        self._server.draining = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._close, args=(then,), daemon=True)
            self._thread.start()
        return self._thread

    def _close(self, then: Callable[[], None]) -> None:
        try:
            self._server.close(self._server.limits.drain_seconds)
        finally:
            then()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, cancel answers on the second, close connections on the third."""
        if self._thread is None:
            self.drain(lambda: None if self.should_exit else super(_Draining, self).handle_exit(sig, frame))
        elif not self.should_exit:
            self.config.timeout_graceful_shutdown = _AFTER_SECOND_SIGNAL
            threading.Thread(target=self._server.close, args=(0.0,), daemon=True).start()
            super().handle_exit(sig, frame)
        else:
            self.force_exit = True
            for one in list(self.server_state.connections):
                one.loop.call_soon_threadsafe(one.transport.abort)
