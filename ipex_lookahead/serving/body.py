"""Request bodies: bounded, decompressed and parsed. Every API's body passes :func:`bounded` and :func:`parsed`.

The standard library's JSON parser takes more than JSON: NaN, infinities, lone surrogates, UTF-16, and of two equal keys
the last. It also takes nesting that ``json.dumps``, which has fewer stack frames left, cannot write again. Here each of
these is a 400 that names the field.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from ipex_lookahead.conversation.calls.base import MAX_DEPTH
from ipex_lookahead.files.safe_json import (
    LONE_SURROGATE_ESCAPE,
    depth_exceeds,
    finite,
    has_long_number,
    has_surrogate,
    integer,
    refuse_constant,
)
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.limits import Limits

CODINGS = ("gzip", "x-gzip", "deflate")
"""Values of Content-Encoding that are read."""
LARGE = 256 << 10
"""Bytes of a body that is counted and parsed in a thread, so that streams go on meanwhile."""
_MARKS = re.compile(rb'"[^"]*"?|[\[{,]')
"""Of a JSON text without escapes: strings, beginnings of objects and lists, and commas."""
_TOKENS = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:)?|[\[\]{},]', re.DOTALL)
"""Strings (as keys with a colon), brackets and commas of a JSON text."""
_DISCARDED_SECONDS = 5.0
_SHOWN_PARTS = 8
"""Parts of a field's path that an error shows; paths of nested lists are long."""
_SURROGATE = "holds a lone surrogate, which is not a character; send valid Unicode"
_DEEP = f"is nested deeper than {MAX_DEPTH} levels"


class JsonRoute(APIRoute):
    """A route with a body parsed by :func:`parsed`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given our own request."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handled


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.to_thread(parsed, body) if len(body) > LARGE else parsed(body)


# ---- JSON ------------------------------------------------------------------------------------------------------------


def parsed(text: bytes | str, place: str = "") -> Any:
    """Return the value of a JSON text.

    Args:
        text: UTF-8, with or without a byte order mark.
        place: the field that holds the text; "" for a body.

    Raises:
        ApiError: a 400 for a value that JSON or Unicode does not have, for the same key twice, and for nesting deeper
            than ``MAX_DEPTH``. It names the field.
        json.JSONDecodeError, UnicodeDecodeError: the text is not JSON.
        RecursionError: a body that is not an object is nested too deeply.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    given = (data.decode("utf-8") if isinstance(text, bytes) else text).removeprefix("\ufeff")
    parser = _Parser()
    try:
        value = json.loads(
            given,
            object_pairs_hook=parser.object,
            parse_constant=parser.or_fault(refuse_constant),
            parse_float=parser.or_fault(finite),
            parse_int=parser.or_fault(integer) if has_long_number(data) else None,
        )
    except RecursionError:
        if not (path := _deep_path(given)):
            raise
        raise _fault(path, _DEEP, place) from None
    if (
        parser.faults
        or (LONE_SURROGATE_ESCAPE.search(data) and has_surrogate(value))  # two escapes may be one character
        or (_may_exceed(given) and depth_exceeds(value, MAX_DEPTH))
    ):
        raise _fault(*_first_fault(value), place)
    return value


class _Fault:
    """Takes the place of a value that is refused, until the path to it is known."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


class _Parser:
    """Hooks for ``json.loads`` that put faults where refused values are."""

    def __init__(self) -> None:
        self.faults = 0

    def or_fault(self, read: Callable[[str], Any]) -> Callable[[str], Any]:
        def hook(text: str) -> Any:
            try:
                return read(text)
            except ValueError as error:
                return self._fault(str(error))

        return hook

    def object(self, pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    return self._fault(f"has the key {key[:60]!r} twice")
                seen.add(key)
        given = found.get("arguments")  # of an earlier call: JSON inside JSON
        if isinstance(given, str) and (problem := _problem_of_arguments(given)):
            found["arguments"] = self._fault(problem)
        return found

    def _fault(self, problem: str) -> _Fault:
        self.faults += 1
        return _Fault(problem)


def _problem_of_arguments(text: str) -> str:
    """Why no chat template can be given the arguments of an earlier call; "" for JSON, and for text that is none.

    Models write text that is not JSON too, which the template then gets as text.
    """
    deep = _may_exceed(text)
    if not deep and not LONE_SURROGATE_ESCAPE.search(text.encode("utf-8", "surrogatepass")):
        return ""
    try:
        value = json.loads(text)
    except RecursionError:
        return _DEEP
    except ValueError:
        return ""
    return _DEEP if deep and depth_exceeds(value, MAX_DEPTH) else _SURROGATE if has_surrogate(value) else ""


def _may_exceed(text: str) -> bool:
    return text.count("[") + text.count("{") > MAX_DEPTH


def _first_fault(value: Any) -> tuple[str, str]:
    """(path, problem) of the first value that is refused, in the order of the text."""
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending:
        path, one = pending.pop()
        if isinstance(one, _Fault):
            return _joined(path), one.problem
        if isinstance(one, str) and has_surrogate(one):
            return _joined(path), _SURROGATE
        if isinstance(one, dict | list):
            if len(path) == MAX_DEPTH:
                return _joined(path), _DEEP
            inner = one.items() if isinstance(one, dict) else enumerate(one)
            inside = [((*path, str(key)), each) for key, each in inner]
            if isinstance(one, dict) and has_surrogate(list(one)):
                return _joined(next(where for where, _ in inside if has_surrogate(where[-1]))), _SURROGATE
            pending.extend(reversed(inside))
    raise AssertionError("a value was found to be refused, and is not there")


def _deep_path(text: str) -> str:
    """The path to where a text that the parser could not read is nested too deeply; "" where it is not an object."""
    path: list[str | int] = []
    for token in _TOKENS.finditer(text):
        mark = token[0][0]
        if mark in "[{":
            if len(path) == MAX_DEPTH:
                break
            path.append(0 if mark == "[" else "")
        elif mark in "]}" and path:
            path.pop()
        elif mark == "," and path and isinstance(path[-1], int):
            path[-1] += 1
        elif token[2] and path:
            path[-1] = token[1][1:-1]
    return _joined(tuple(map(str, path))) if path and isinstance(path[0], str) else ""


def _joined(path: tuple[str, ...]) -> str:
    return ".".join(part[:100] for part in path[:_SHOWN_PARTS])


def _fault(path: str, problem: str, place: str) -> ApiError:
    where = ".".join(filter(None, (place, path)))
    return ApiError(400, f"{where or 'the request'}: it {problem}", param=where or None, code="invalid_value")


# ---- bytes -----------------------------------------------------------------------------------------------------------


def parts(body: bytes, limits: Limits) -> str:
    """What a JSON text has too many of, in words: objects and lists, or values in them; "" for neither.

    It is looked through and not read: that would be done with all of it before other threads run.
    """
    containers = commas = 0
    for number, mark in enumerate(_MARKS.finditer(body.replace(rb"\\", b"").replace(rb"\"", b""))):
        first = mark[0][:1]
        containers += first in b"[{"
        commas += first == b","
        if containers > limits.containers:
            return f"{limits.containers:,} objects and lists"
        if commas >= limits.values or number > 4 * limits.values:  # a value has two strings, a bracket and a comma
            return f"{limits.values:,} values"
    return ""


async def discard(receive: Receive, headers: Headers, limits: Limits) -> None:
    """Read for a moment what a refused client still sends.

    TCP resets a connection that is closed with unread bytes, and the answer is lost with it. A client that waits for
    leave to send has nothing under way.
    """
    if "expect" in headers:
        return

    async def rest() -> None:
        read, more = 0, True
        while more and read <= 2 * limits.body_bytes:
            message = await receive()
            read += len(message.get("body", b""))
            more = message.get("more_body", False)

    with suppress(asyncio.TimeoutError, TimeoutError):
        await asyncio.wait_for(rest(), _DISCARDED_SECONDS)


def coding_of(headers: Headers) -> str:
    """Return how the body is compressed; "" for a body that is not.

    Raises:
        ApiError: a 415 for a coding that is not read, or for several.
    """
    given = ", ".join(headers.getlist("content-encoding")).strip().lower()
    if given in ("", "identity"):
        return ""
    if given not in CODINGS:
        said = f"Content-Encoding: {given[:60]!r} is not supported; send gzip, deflate or an uncompressed body"
        accepted = {"accept-encoding": "gzip, deflate"}
        raise ApiError(415, said, param="Content-Encoding", code="unsupported_encoding", headers=accepted)
    return given


class _Inflater:
    """Decompresses a body piece by piece, and never makes more than ``limit`` bytes and one.

    Args:
        coding: one of ``CODINGS``. "deflate" is zlib's format or, as some clients send it, the bare one.
        limit: bytes of the whole body.
    """

    def __init__(self, coding: str, limit: int) -> None:
        self._coding, self._room = coding, limit + 1
        self._begin = b""
        self._stream: Any = None

    def put(self, piece: bytes, *, last: bool) -> bytes:
        """Return what a piece decompresses to. Raises ApiError for bytes that are not in the coding."""
        try:
            return self._put(piece, last)
        except zlib.error as error:
            raise self._broken(str(error)) from None

    def _put(self, piece: bytes, last: bool) -> bytes:
        if self._stream is None:
            self._begin += piece
            if len(self._begin) < 2 and not last:
                return b""
            piece, self._stream = self._begin, zlib.decompressobj(self._window())
        if self._room == 0:
            return b""
        made: bytes = self._stream.decompress(piece, self._room)
        self._room -= len(made)
        if self._stream.unused_data:
            raise self._broken("it has bytes after its end")
        if last and self._room and not self._stream.eof:
            raise self._broken("it ends too early")
        return made

    def _window(self) -> int:
        """zlib's number for the format: a zlib header is two bytes, a multiple of 31, with method 8."""
        if self._coding != "deflate":
            return 16 + zlib.MAX_WBITS
        head = self._begin[:2]
        zlibs = len(head) == 2 and head[0] & 0x0F == 8 and int.from_bytes(head, "big") % 31 == 0
        return zlib.MAX_WBITS if zlibs else -zlib.MAX_WBITS

    def _broken(self, problem: str) -> ApiError:
        said = f"Content-Encoding: the body is not valid {self._coding}: {problem}"
        return ApiError(400, said, param="Content-Encoding", code="invalid_body")


def bounded(receive: Receive, headers: Headers, limits: Limits, *, is_json: bool = True) -> Receive:
    """Return a ``receive`` that gives the body whole and decompressed.

    Size, number of parts, and time from the first request for it are limited. A compressed body is decompressed as it
    comes, and refused at the first piece that exceeds the limit. The parts of a body that is not JSON are not counted.
    """
    complete, most, seconds = False, limits.body_bytes, limits.body_seconds

    async def limited() -> Message:
        nonlocal complete
        if complete:
            return await receive()
        coding = coding_of(headers)
        inflater = _Inflater(coding, most) if coding else None
        clock, pieces, read, size, more = asyncio.get_running_loop().time, [], 0, 0, True
        end = clock() + seconds
        while more:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - clock()))
            except (asyncio.TimeoutError, TimeoutError):
                raise HTTPException(408, f"the request body was not complete after {seconds:g} s") from None
            if message["type"] != "http.request":
                return message
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            read += len(piece)
            if inflater is not None and read <= most:
                try:
                    piece = await asyncio.to_thread(inflater.put, piece, last=not more)
                except ApiError:
                    if more:
                        await discard(receive, headers, limits)
                    raise
            pieces.append(piece)
            size += len(piece)
            if max(read, size) > most:
                if more:
                    await discard(receive, headers, limits)
                raise HTTPException(413, f"the request body exceeds the limit of {most} bytes")
        complete, body = True, b"".join(pieces)
        if is_json and size > LARGE and (many := await asyncio.to_thread(parts, body, limits)):
            raise HTTPException(413, f"the request has more than {many}")
        return {"type": "http.request", "body": body, "more_body": False}

    return limited
