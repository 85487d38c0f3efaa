"""HTTP by hand: any bytes to a server on this machine, and what comes back."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PATIENCE = 300.0
"""Seconds of silence that are a hang, on a machine however busy."""
JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    """A request's head, on a connection that is to end with it."""
    given = {"host": "localhost", "connection": "close", **headers}
    return "\r\n".join([f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in given.items()), "", ""]).encode(
        "latin-1"
    )


def post(path: str, body: Any, headers: Mapping[str, str]) -> bytes:
    """A whole request; a body that is not bytes becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head("POST", path, {**JSON, "content-length": str(len(data)), **headers}) + data


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def exchange(port: int, sent: bytes, *, piece: int = 0, pause: float = 0.0) -> Answer | None:
    """Send it, in pieces of so many bytes, and read the answer; None where the server hung up without any.

    Raises TimeoutError for a server that says nothing.
    """
    with connected(port) as made:
        try:
            for at in range(0, len(sent), piece or len(sent)):
                made.sendall(sent[at : at + (piece or len(sent))])
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass  # refused before all of it was read; the answer is there
        return answer_on(made, sent.split(b" ", 1)[0].decode("latin-1"))


def answer_on(made: socket.socket, method: str = "POST") -> Answer | None:
    """The next answer on a connection; None where it ends without any."""
    found = http.client.HTTPResponse(made, method=method)
    try:
        found.begin()
        body = found.read()
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return None
    return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, body)


def events(port: int, sent: bytes) -> Iterator[tuple[float, Any]]:
    """The JSON of a stream's events or lines, each with the seconds since something, if only a comment, came before it,
    or since the request.

    Raises Refused where the answer is no stream.
    """
    with connected(port) as made:
        last = time.monotonic()
        made.sendall(sent)
        found = http.client.HTTPResponse(made, method="POST")
        found.begin()
        if found.status != 200:
            headers = {name.lower(): value for name, value in found.getheaders()}
            raise Refused(Answer(found.status, headers, found.read()))
        for line in found:
            now = time.monotonic()
            if line.startswith((b"data: {", b"{")):  # Ollama's are bare
                yield now - last, json.loads(line.removeprefix(b"data: "))
            last = now


class Refused(Exception):
    """An answer that is no stream."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"{answer.status}: {answer.body[:300]!r}")
        self.answer = answer
