"""A client of OpenAI's chat completions that records when each piece of an answer came, and how a request failed.

Of the standard library: what comes between the socket and the clock is known, and any server can be measured.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path

_LINE = 1 << 20
"""Most bytes of one line of a stream."""
_BODY = 8 << 20
"""Most bytes that are read of an answer that is no stream."""


class RequestFailed(Exception):
    """A request that was not answered to its end. ``kind`` is one of few, to be counted by."""

    def __init__(self, kind: str, said: str = "") -> None:
        super().__init__(f"{kind}: {said}" if said else kind)
        self.kind = kind
        self.said = said


@dataclass(frozen=True, slots=True)
class ChatServer:
    """A server that speaks OpenAI's API.

    Attributes:
        url: with or without the ending ``/v1``; http or https.
        model: what requests call the model.
        key: sent as ``Authorization: Bearer``; none if empty. Never shown.
        timeout: seconds of silence after which a request has failed.
        row_invariant: the server says that an answer does not depend on what else is computed.
    """

    url: str
    model: str = ""
    key: str = ""
    timeout: float = 600.0
    row_invariant: bool = False

    def __repr__(self) -> str:
        return f"ChatServer({self.url!r}, {self.model!r})"

    def open(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """The beginning of an answer, of any status, on a connection of its own, which ends with it.

        Raises RequestFailed ("not reached", "silent", "not HTTP").
        """
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        headers = {"connection": "close", "accept": "text/event-stream, application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        connection = kind(str(parts.hostname), parts.port, timeout=self.timeout)
        try:
            connection.request(method, parts.path.rstrip("/").removesuffix("/v1") + path, body, headers)
            return connection.getresponse()  # it holds the connection, which is closed with it
        except BaseException as error:
            connection.close()
            raise _failure(error, "not reached") from error

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The chunks of a chat completion, each as soon as it is there. A generator that is closed leaves the server.

        Raises RequestFailed ("HTTP 429" and the like, "not reached", "silent", "error in the stream", "cut off",
        "not a stream").
        """
        whole = {"model": self.model, **body, "stream": True, "stream_options": {"include_usage": True}}
        with self.open("POST", "/v1/chat/completions", json.dumps(whole).encode()) as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}", _said(answer))
            if not answer.getheader("content-type", "").startswith("text/event-stream"):
                raise RequestFailed("not a stream", f"the answer is {answer.getheader('content-type')!r}")
            for data in _events(answer):
                if data == b"[DONE]":
                    return
                chunk = _object(data)
                if "error" in chunk:
                    raise RequestFailed("error in the stream", _message(chunk))
                yield chunk
        raise RequestFailed("cut off", "the stream ended without [DONE]")


def find_server(url: str, *, model: str | None = None, key: str = "", timeout: float = 600.0) -> ChatServer:
    """The server at a URL, by its list of models. Without ``model`` the first of them is taken.

    Raises InputError where it cannot be reached, refuses the key, or has no such model.
    """
    server = ChatServer(url, key=key, timeout=timeout)
    try:
        with server.open("GET", "/v1/models") as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}", _said(answer))
            listed = _object(answer.read(_BODY)).get("data")
    except RequestFailed as error:
        hint = "send a key of it with --api-key-file" if error.kind in ("HTTP 401", "HTTP 403") else ""
        raise InputError(f"{url}/v1/models: {error}", hint=hint or "is the server there, and the URL right?") from error
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}/v1/models: {error}") from error
    models = {one["id"]: one for one in listed or () if isinstance(one, dict) and isinstance(one.get("id"), str)}
    if not models:
        raise InputError(f"{url}/v1/models names no model")
    if model is not None and model not in models:
        raise InputError(f"{url} has no model {model!r}; it has {', '.join(models)}")
    name = model or next(iter(models))
    meta = models[name].get("meta")
    return ChatServer(url, name, key, timeout, isinstance(meta, dict) and meta.get("row_invariant") is True)


def read_key(file: Path) -> str:
    """The first key of a file as ``serve --api-key-file`` reads it. Raises InputError where there is none."""
    try:
        lines = [line.strip() for line in given_path(file).read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", hint="check --api-key-file") from None
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(f"{file} holds no key", hint="write it on a line of its own, in ASCII")
    return key


def said_in(chunk: dict[str, Any]) -> str:
    """The new text of a chunk, thoughts included: whoever reads sees both."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict):
        return ""
    return "".join(text for name in ("reasoning_content", "content") if isinstance(text := delta.get(name), str))


def _events(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """The data of server-sent events, one line each as this API has them."""
    while True:
        try:
            line = answer.readline(_LINE)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _failure(error, "cut off") from error
        if not line:
            return
        if len(line) == _LINE:
            raise RequestFailed("not a stream", f"a line has more than {_LINE} bytes")
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _failure(error: BaseException, kind: str) -> BaseException:
    """What became of a request, where it is that; whatever else came goes on as it is."""
    if isinstance(error, TimeoutError):
        return RequestFailed("silent", "nothing came within --timeout")
    if isinstance(error, http.client.HTTPException) and kind != "cut off":
        return RequestFailed("not HTTP", f"{type(error).__name__} {error}".strip())
    if isinstance(error, OSError | ValueError | http.client.HTTPException):
        return RequestFailed(kind, getattr(error, "strerror", None) or str(error) or type(error).__name__)
    return error


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestFailed("not a stream" if data else "cut off", f"{data[:60]!r} is no JSON object")
    return found


def _said(answer: http.client.HTTPResponse) -> str:
    """Why a request was refused, as far as the server says."""
    try:
        body = answer.read(_BODY)
        return _message(json.loads(body))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return answer.reason


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
