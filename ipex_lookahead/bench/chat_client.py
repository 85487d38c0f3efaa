"""A client of OpenAI's chat completions for measurements.

It uses the standard library only, so that little code runs between the socket and the clock.
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
"""Maximum bytes of one line of a stream."""
_BODY = 8 << 20
"""Maximum bytes of an answer that is not a stream."""


class RequestFailed(Exception):
    """A request without a complete answer.

    Attributes:
        kind: One of few kinds, for counting.
        message: The details.
    """

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message


@dataclass(frozen=True, slots=True)
class ChatServer:
    """A server with OpenAI's API.

    Attributes:
        url: http or https, with or without the suffix ``/v1``.
        model: Name of the model in requests.
        key: Sent as ``Authorization: Bearer`` if not empty. Never shown.
        timeout: Seconds without data after which a request fails.
        row_invariant: The server reports that answers do not depend on other requests.
        context: Maximum tokens of prompt plus answer; None if the server does not report it.
    """

    url: str
    model: str = ""
    key: str = ""
    timeout: float = 600.0
    row_invariant: bool = False
    context: int | None = None

    def __repr__(self) -> str:
        return f"ChatServer({self.url!r}, {self.model!r})"

    def open(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        """Send a request on a new connection and return the response, which closes the connection.

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
            return connection.getresponse()
        except BaseException as error:
            connection.close()
            raise _failure(error, "not reached") from error

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the chunks of a chat completion as they arrive. Closing the generator closes the connection.

        Raises RequestFailed ("HTTP 429" and the like, "not reached", "silent", "error in the stream", "cut off",
        "not a stream").
        """
        whole = {"model": self.model, **body, "stream": True, "stream_options": {"include_usage": True}}
        with self.open("POST", "/v1/chat/completions", json.dumps(whole).encode()) as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}", _reason(answer))
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
    """Return the server at a URL; ``model`` is by default the first in its list of models.

    Raises InputError if the server cannot be reached, rejects the key, or does not have the model.
    """
    server = ChatServer(url, key=key, timeout=timeout)
    try:
        with server.open("GET", "/v1/models") as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}", _reason(answer))
            listed = _object(answer.read(_BODY)).get("data")
    except RequestFailed as error:
        hint = "give a key of this server with --api-key-file" if error.kind in ("HTTP 401", "HTTP 403") else ""
        raise InputError(
            f"{url}/v1/models: {error}", hint=hint or "check that the server is running and that the URL is correct"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}/v1/models: {error}") from error
    models = {one["id"]: one for one in listed or () if isinstance(one, dict) and isinstance(one.get("id"), str)}
    if not models:
        raise InputError(f"{url}/v1/models names no model")
    if model is not None and model not in models:
        raise InputError(f"{url} has no model {model!r}; it has {', '.join(models)}")
    name = model or next(iter(models))
    meta, context = models[name].get("meta"), models[name].get("max_model_len")
    invariant = isinstance(meta, dict) and meta.get("row_invariant") is True
    return ChatServer(url, name, key, timeout, invariant, context if type(context) is int else None)


def read_key(file: Path) -> str:
    """Return the first key of a file in the format of ``serve --api-key-file``. Raises InputError."""
    try:
        lines = [line.strip() for line in given_path(file).read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}", hint="check --api-key-file") from None
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not key or not key.isascii() or not key.isprintable():
        raise InputError(f"{file} has no key", hint="write it on its own line, in ASCII")
    return key


def text_in(chunk: dict[str, Any]) -> str:
    """Return the new text of a chunk, thoughts included."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    delta = first.get("delta") if isinstance(first, dict) else None
    if not isinstance(delta, dict):
        return ""
    return "".join(text for name in ("reasoning_content", "content") if isinstance(text := delta.get(name), str))


def _events(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the data of server-sent events, which are one line each."""
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
    """Return the failure of a request for an exception, or the exception itself if it is another error."""
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
        raise RequestFailed("not a stream" if data else "cut off", f"{data[:60]!r} is not a JSON object")
    return found


def _reason(answer: http.client.HTTPResponse) -> str:
    """Return the server's reason for an error status."""
    try:
        body = answer.read(_BODY)
        return _message(json.loads(body))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return answer.reason


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)[:300]
