"""What passes through the server in front, and what becomes of requests when a worker or a client ends."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from ipex_lookahead.serving.gate import OWNER, SECRET
from ipex_lookahead.serving.keys import Keys
from tests.serving.conftest import LIMITS
from tests.serving.router import conftest
from tests.serving.router.conftest import PATIENCE

get = partial(httpx.get, timeout=PATIENCE)
post = partial(httpx.post, timeout=PATIENCE)
CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**HI, "stream": True}
PIECES = [b"data: 1\n\n", b"\x00\xff" * 40_000, b": x\n\n", b"data: [DONE]\n\n"]


class Script:
    """A worker that answers with given pieces, and keeps what it was sent.

    Args:
        pieces: of the body.
        status, kind: of the answer.
        gate: the answer goes on behind the first piece when it is set; None: at once.
    """

    def __init__(
        self, *pieces: bytes, status: int = 200, kind: bytes = b"text/event-stream", gate: threading.Event | None = None
    ) -> None:
        self.pieces, self.status, self.kind, self.gate = pieces or (b"{}",), status, kind, gate
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.scopes.append(scope)
        self.bodies.append(body)
        headers = [
            (b"content-type", self.kind),
            (b"x-ignored-fields", b"one, two"),
            (b"x-request-id", b"of-the-worker"),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for at, piece in enumerate(self.pieces):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            while at == 0 and self.gate is not None and not self.gate.is_set():
                coming = asyncio.ensure_future(receive())
                await asyncio.wait({coming}, timeout=0.01)
                if coming.done() and coming.result()["type"] == "http.disconnect":
                    self.left.set()
                    return
                coming.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def header(self, name: str) -> bytes | None:
        return dict(self.scopes[-1]["headers"]).get(name.encode())


def test_an_answer_passes_unchanged(fleet):
    one = Script(*PIECES)
    running = fleet({"one": one})
    answer = post(running.url + CHAT + "?a=1&b=%20", json=STREAM, headers={"x-request-id": "mine", "x-own": "kept"})
    assert answer.content == b"".join(PIECES)
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-ignored-fields"] == "one, two"
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert len(answer.headers.get_list("date")) == 1
    assert json.loads(one.bodies[0]) == STREAM
    assert (one.scopes[0]["path"], one.scopes[0]["query_string"]) == (CHAT, b"a=1&b=%20")
    assert one.header("x-own") == b"kept"
    assert one.header("x-request-id") == b"mine"
    assert one.header(SECRET) == conftest.SECRET.encode()


def test_a_stream_is_not_buffered(fleet):
    gate = threading.Event()
    running = fleet({"one": Script(b"data: first\n\n", b"data: last\n\n", gate=gate)})
    with httpx.stream("POST", running.url + CHAT, json=STREAM, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        assert next(parts) == b"data: first\n\n"
        gate.set()
        assert b"".join(parts) == b"data: last\n\n"


@pytest.mark.parametrize(
    ("method", "path", "given", "model"),
    [
        ("POST", CHAT, {**HI, "model": "two"}, "two"),
        ("POST", "/completions", {"prompt": "x", "model": "two"}, "two"),
        ("POST", "/v1/messages", {**HI, "model": "claude-opus", "max_tokens": 1}, "one"),
        ("POST", "/v1/messages/count_tokens", {**HI, "model": "two"}, "two"),
        ("POST", "/v1/responses", {"input": "x"}, "one"),
        ("POST", "/api/chat", {**HI, "model": "two:latest"}, "two"),
        ("POST", "/completion", {"prompt": "x", "model": "two"}, "two"),
        ("POST", "/tokenize", {"content": "x", "model": "two"}, "two"),
        ("POST", "/tokenize", {"content": "x"}, "one"),
        ("POST", CHAT, {**HI, "model": 7}, "one"),
        ("POST", CHAT, ["no object"], "one"),
        ("GET", "/props", {"model": "two"}, "two"),
        ("GET", "/tokenizer_info", {}, "one"),
    ],
)
def test_the_model_of_a_request(fleet, method, path, given, model):
    apps = {"one": Script(b"{}", kind=b"application/json"), "two": Script(b"{}", kind=b"application/json")}
    running = fleet(apps)
    sent = {"params": given} if method == "GET" else {"json": given}
    assert httpx.request(method, running.url + path, timeout=PATIENCE, **sent).status_code == 200
    assert [name for name, app in apps.items() if app.scopes] == [model]


def test_an_unknown_model_loads_none(fleet):
    running = fleet({"one": Script()}, strict_model=True)
    for path, error in ((CHAT, "error"), ("/api/chat", None)):
        answer = post(running.url + path, json={**HI, "model": "three"})
        assert answer.status_code == 404
        said = answer.json()["error"]["message"] if error else answer.json()["error"]
        assert said == "there is no model 'three'; this server has one"
    assert post(running.url + "/nowhere", json=HI).status_code == 404
    assert get(running.url + CHAT).status_code == 405
    assert running.workers == []


@pytest.mark.parametrize("body", [b"{", b'{"a": 1, "a": 2}', b"\xff", b"[" * 5000])
def test_a_body_that_is_not_json_is_refused_in_front(fleet, body):
    running = fleet({"one": Script()})
    answer = post(running.url + CHAT, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] in ("invalid_json", "invalid_value")
    assert running.workers == []


def test_a_compressed_body_arrives_whole(fleet):
    one = Script()
    running = fleet({"one": one})
    body = gzip.compress(json.dumps(HI).encode())
    answer = post(running.url + CHAT, content=body, headers={"content-encoding": "gzip"})
    assert answer.status_code == 200
    assert json.loads(one.bodies[0]) == HI
    assert one.header("content-encoding") is None


def test_keys_stay_in_front_and_the_worker_gets_their_owner(fleet):
    key, one = "k" * 20, Script()
    keys = Keys([key])
    running = fleet({"one": one}, keys=keys)
    assert post(running.url + CHAT, json=HI).status_code == 401
    forged = {OWNER: "another", SECRET: "guessed"}
    assert post(running.url + CHAT, json=HI, headers={"authorization": f"Bearer {key}", **forged}).status_code == 200
    assert [value for name, value in one.scopes[0]["headers"] if name == OWNER.encode()] == [keys.owner(key).encode()]
    assert [value for name, value in one.scopes[0]["headers"] if name == SECRET.encode()] == [conftest.SECRET.encode()]
    assert one.header("authorization") is None
    assert len(one.scopes) == 1


def test_requests_that_come_at_once_on_one_connection_are_answered_in_order(fleet):
    running = fleet({"one": Script(b"1", kind=b"a/b"), "two": Script(b"2", kind=b"a/b")})
    made = socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])), PATIENCE)
    for name in ("two", "one"):
        body = json.dumps({**HI, "model": name}).encode()
        made.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    found = b""
    while found.count(b"\r\n0\r\n\r\n") < 2:
        found += made.recv(65536)
    made.close()
    assert found.index(b"\r\n1\r\n2\r\n") < found.index(b"\r\n1\r\n1\r\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_cancelled_at_the_worker(fleet, stream):
    one = Script(b"data: first\n\n", gate=threading.Event())
    running = fleet({"one": one})
    with httpx.stream("POST", running.url + CHAT, json={**HI, "stream": stream}, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        assert next(parts)
        assert running.table.find("one").requests == 1
    assert one.left.wait(PATIENCE)
    wait_until(lambda: running.table.find("one").requests == 0)


def test_a_client_that_reads_nothing_is_dropped(fleet):
    one = Script(*[b"x" * 65536] * 400)
    running = fleet({"one": one}, limits=replace(LIMITS, stalled_seconds=0.3))
    with httpx.stream("POST", running.url + CHAT, json=STREAM, timeout=PATIENCE):
        wait_until(lambda: one.scopes != [] and running.table.find("one").requests == 0)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (CHAT, b'data: {"error":{"message":"the process of the model ended'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"'),
        ("/v1/responses", b'data: {"error":{"message":"the process of the model ended'),
        ("/api/chat", b'{"error":"the process of the model ended'),
    ],
)
def test_a_worker_that_dies_ends_its_streams_with_an_error(fleet, path, event):
    running = fleet({"one": Script(b"data: first\n\n", gate=threading.Event())})
    with httpx.stream("POST", running.url + path, json={**STREAM, "model": "one"}, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        assert next(parts) == b"data: first\n\n"
        running.workers[0].die()
        assert b"".join(parts).startswith(event)
    wait_until(lambda: len(running.workers) == 2 and running.table.find("one").state == "ready")


def test_a_worker_that_dies_before_it_answers_is_a_503(fleet):
    begun = threading.Event()

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.sleep(PATIENCE)

    running = fleet({"one": silent})
    threading.Thread(target=lambda: begun.wait(PATIENCE) and running.workers[0].die()).start()
    answer = post(running.url + CHAT, json=HI)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "worker_lost"


def test_half_an_object_is_a_connection_that_breaks(fleet):
    running = fleet({"one": Script(b'{"a":', gate=threading.Event(), kind=b"application/json")})
    with httpx.stream("POST", running.url + CHAT, json=HI, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        assert next(parts) == b'{"a":'
        running.workers[0].die()
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)


# ---- while a model loads ---------------------------------------------------------------------------------------------


PULSE = replace(LIMITS, ping_seconds=0.02)


@pytest.mark.parametrize(
    ("path", "kind", "first"),
    [
        (CHAT, "text/event-stream", b': loading one\n\ndata: {"id":"chatcmpl-'),
        ("/v1/completions", "text/event-stream", b': loading one\n\ndata: {"id":"cmpl-'),
        ("/v1/messages", "text/event-stream", b': loading one\n\nevent: ping\ndata: {"type":"ping"}\n\n'),
        ("/v1/responses", "text/event-stream", b": loading one\n\n"),
        ("/completion", "text/event-stream", b": loading one\n\n"),
        ("/api/chat", "application/x-ndjson", b'{"model":"one","created_at":"'),
        ("/api/generate", "application/x-ndjson", b'{"model":"one","created_at":"'),
    ],
)
def test_a_stream_has_events_while_its_model_loads(fleet, path, kind, first):
    running = fleet({"one": Script(*PIECES)}, loads=False, limits=PULSE)
    given = {**STREAM, "prompt": "x", "model": "one"}
    with httpx.stream("POST", running.url + path, json=given, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        found = next(parts)
        assert found.replace(b" 25 %", b"").startswith(first)
        wait_until(lambda: running.workers != [])
        running.workers[0].loaded.set()
        found += b"".join(parts)
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert found.endswith(b"".join(PIECES))
    if kind == "application/x-ndjson":
        waiting = json.loads(found.splitlines()[0])
        assert waiting["done"] is False
        assert waiting.get("response", waiting.get("message")) in ("", {"role": "assistant", "content": ""})


def test_a_quick_load_adds_no_event(fleet):
    running = fleet({"one": Script(*PIECES)})
    assert post(running.url + CHAT, json=STREAM).content == b"".join(PIECES)


def test_an_error_of_the_worker_behind_events_is_an_event(fleet):
    said = b'{"error":{"message":"no"}}'
    running = fleet({"one": Script(said, status=400, kind=b"application/json")}, loads=False, limits=PULSE)
    with httpx.stream("POST", running.url + CHAT, json=STREAM, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        next(parts)
        wait_until(lambda: running.workers != [])
        running.workers[0].loaded.set()
        assert b"".join(parts).endswith(b"data: " + said + b"\n\n")


@pytest.mark.parametrize("stream", [True, False])
def test_a_model_that_cannot_be_loaded_is_an_error(fleet, stream):
    running = fleet({"one": Script()}, loads=False, limits=PULSE)

    def fail() -> None:
        wait_until(lambda: len(running.workers) > 0)
        time.sleep(0.1)
        running.workers[0].failure = "the file is cut"
        running.workers[0].loaded.set()

    threading.Thread(target=fail).start()
    answer = post(running.url + CHAT, json={**HI, "stream": stream})
    said = "the model 'one' could not be loaded: the file is cut"
    if stream:
        assert said in answer.text.splitlines()[-2]
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
        assert answer.json()["error"]["message"].startswith(said)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_model_loads_waits_no_more(fleet, stream):
    running = fleet({"one": Script()}, loads=False, limits=PULSE)
    body = json.dumps({**HI, "stream": stream}).encode()
    made = socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2])), PATIENCE)
    made.sendall(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    wait_until(lambda: len(running.table.find("one").waiting) == 1)
    made.close()
    wait_until(lambda: len(running.table.find("one").waiting) == 0)
    wait_until(lambda: f'status="{200 if stream else 499}"' in get(running.url + "/metrics").text)


# ---- the server's own paths ------------------------------------------------------------------------------------------


def test_own_paths_load_no_model(fleet):
    running = fleet({"one": Script(), "two": Script()})
    assert get(running.url + "/health").json() == {"status": "ok"}
    assert get(running.url + "/ready").json() == {"status": "ready", "running": 0, "waiting": 0}
    assert "<html" in get(running.url + "/").text
    assert get(running.url + "/api/version").json()["version"]
    assert CHAT in get(running.url + "/openapi.json").json()["paths"]
    assert [one["id"] for one in get(running.url + "/v1/models").json()["data"]] == ["one", "two"]
    assert running.workers == []


def test_metrics_have_the_model_of_each_request(fleet):
    figures = b'# HELP ipex_lookahead_x X.\n# TYPE ipex_lookahead_x gauge\nipex_lookahead_x{model="one"} 4.0\n'
    own = b"# HELP ipex_lookahead_http_requests_total R.\nipex_lookahead_http_requests_total 9.0\n"
    running = fleet({"one": Script(figures + own, kind=b"text/plain"), "two": Script()})
    post(running.url + CHAT, json={**HI, "model": "one"})
    post(running.url + CHAT, json={**HI, "model": "nope"})
    said = get(running.url + "/metrics").text
    assert f'http_requests_total{{model="one",path="{CHAT}",status="200"}} 1.0' in said
    assert f'http_requests_total{{model="",path="{CHAT}",status="404"}} 1.0' in said
    assert 'ipex_lookahead_x{model="one"} 4.0' in said
    assert "http_requests_total 9.0" not in said
    assert 'ipex_lookahead_model_state{model="one",state="ready"} 1.0' in said
    assert 'ipex_lookahead_model_state{model="two",state="unloaded"} 1.0' in said


def test_a_stored_response_is_found_at_its_worker(fleet):
    class Keeper(Script):
        def __init__(self, known: str) -> None:
            super().__init__(b'{"id": "%s"}' % known.encode(), kind=b"application/json")
            self.known = known

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            has = scope["method"] == "POST" or self.known in scope["path"]
            self.status = 200 if has else 404
            await super().__call__(scope, receive, send)

    running = fleet({"one": Keeper("resp_1"), "two": Keeper("resp_2")})
    for name in ("one", "two"):
        post(running.url + "/v1/responses", json={"input": "x", "model": name})
    assert get(running.url + "/v1/responses/resp_2").json() == {"id": "resp_2"}
    assert get(running.url + "/v1/responses/resp_1/input_items?cache_salt=x").json() == {"id": "resp_1"}
    assert get(running.url + "/v1/responses/resp_3").status_code == 404
    answer = post(running.url + "/v1/responses", json={"input": "x", "previous_response_id": "resp_2"})
    assert answer.json() == {"id": "resp_2"}


def test_a_server_that_ends_refuses_requests_and_ends_its_workers(fleet):
    gate = threading.Event()
    running = fleet({"one": Script(b"data: first\n\n", b"data: last\n\n", gate=gate)})
    with httpx.stream("POST", running.url + CHAT, json=STREAM, timeout=PATIENCE) as answer:
        parts = answer.iter_bytes()
        assert next(parts) == b"data: first\n\n"
        closing = threading.Thread(target=running.server.close, args=(PATIENCE,))
        closing.start()
        wait_until(lambda: running.table.closed)
        assert post(running.url + CHAT, json=HI).json()["error"]["code"] == "draining"
        assert get(running.url + "/health").status_code == 503
        gate.set()
        assert b"".join(parts) == b"data: last\n\n"
    closing.join(PATIENCE)
    assert running.workers[0].over.is_set()


def wait_until(is_true: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.005)
