"""On a real socket: clients that leave, that do not read, that are refused; and errors in the middle of a stream."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.service import Event
from ipex_lookahead.serving.hosts import Hosts
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import bind
from tests.serving.conftest import LIMITS, FakeService

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100, "temperature": 0}
PATIENCE = 60.0
"""Seconds; httpx waits five where nothing is said, and a busy machine takes longer."""
get = partial(httpx.get, timeout=PATIENCE)
post = partial(httpx.post, timeout=PATIENCE)
streaming = partial(httpx.stream, timeout=PATIENCE)
LETTER = 4 + 64


def connect(live: Any, **fields: Any) -> socket.socket:
    """Ask by hand, so that the connection can be left at any moment."""
    body = json.dumps({**BODY, **fields}).encode()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(PATIENCE)
    made.connect(("127.0.0.1", live.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{live.port}\r\ncontent-type: application/json\r\n"
    made.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return made


def read_until(made: socket.socket, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        new = made.recv(65536)
        assert new, f"the connection ended before {wanted!r}: {found!r}"
        found += new
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("when", ["waiting", "reading the prompt", "answering"])
def test_a_client_that_leaves_is_cancelled(live, stream, when):
    running = live()
    made = connect(running, stream=stream)
    ticket = running.service.next()
    if when == "reading the prompt":
        ticket.tell(Event("prefill", done=130, total=900))
    elif when == "answering":
        ticket.say(LETTER)
    if stream:
        read_until(
            made,
            {"waiting": b"assistant", "reading the prompt": b": prefill 128/900", "answering": b'"content":"'}[when],
        )
    assert not ticket.cancelled.is_set()
    made.close()
    assert ticket.cancelled.wait(PATIENCE)


def test_all_answers_of_a_request_are_cancelled(live):
    running = live()
    made = connect(running, stream=True, n=3)
    for _ in range(3):
        running.service.next()
    made.close()
    assert all(ticket.cancelled.wait(PATIENCE) for ticket in running.service.tickets)


def test_a_reader_that_takes_nothing_is_dropped(live):
    running = live(limits=replace(LIMITS, stalled_seconds=0.5), small_buffers=True)
    made = connect(running, stream=True, return_draft_trace=True)
    ticket = running.service.next()
    for _ in range(400):  # some 2 kB each, and the buffers between hold less than 200
        ticket.say(*[LETTER] * 64)
    assert ticket.cancelled.wait(PATIENCE)
    made.close()


def test_an_answer_that_fails_ends_its_stream_with_an_error(live):
    running = live()
    with streaming("POST", running.url + "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
        ticket = running.service.next()
        ticket.say(LETTER)
        ticket.tell(Event("error", error=LookaheadError("the logits are not finite", hint="report it")))
        data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert data[-1] == {
        "error": {"message": "the logits are not finite; report it", "type": "api_error", "param": None, "code": None}
    }


def test_an_answer_that_fails_is_a_500(live):
    ticket, answer = live().ask("/v1/chat/completions", BODY)
    ticket.tell(Event("error", error=LookaheadError("it broke")))
    assert answer().status_code == 500
    assert answer().json()["error"]["message"] == "it broke"


def test_a_full_queue_is_told_when_to_come_again(live):
    running = live(FakeService(most=2))
    answer = post(running.url + "/v1/chat/completions", json={**BODY, "n": 3})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert all(ticket.cancelled.is_set() for ticket in running.service.tickets), "the first two are not to be answered"


def test_what_is_cut_off_by_the_end_of_the_server_says_so(live):
    running = live()
    with streaming("POST", running.url + "/v1/chat/completions", json={**BODY, "stream": True}) as answer:
        running.service.next().say(LETTER)
        running.server.close(0.0)
        data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert data[-1]["error"]["code"] == "shutting_down"
    later = post(running.url + "/v1/chat/completions", json=BODY)
    assert later.status_code == 503
    assert int(later.headers["retry-after"]) > 0
    assert get(running.url + "/health").status_code == 503
    assert get(running.url + "/ready").status_code == 503


def test_a_service_that_is_about_to_begin_takes_requests(live):
    running = live()
    running.service.state = "loading"
    assert httpx.get(running.url + "/health").status_code == 200
    running.server.draining = True
    assert httpx.get(running.url + "/health").status_code == 503


def test_keys(live):
    running = live(keys=Keys(["first-key-of-sixteen", "second-key-of-sixteen"]))
    asked = {"headers": {"authorization": "Bearer first-key-of-sixteen"}}
    assert get(running.url + "/v1/models", **asked).status_code == 200
    assert get(running.url + "/v1/models", headers={"x-api-key": "second-key-of-sixteen"}).status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic x"}, {"x-api-key": "\xff"}):
        refused = get(running.url + "/v1/models", headers={k: v.encode("latin-1") for k, v in headers.items()})
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert get(running.url + "/metrics").status_code == 401
    assert get(running.url + "/health").status_code == 200
    owners = []
    for key in ("first-key-of-sixteen", "second-key-of-sixteen", "first-key-of-sixteen"):
        with streaming(
            "POST", running.url + "/v1/chat/completions", json={**BODY, "stream": True},
            headers={"authorization": f"bearer {key}"},
        ) as answer:  # fmt: skip
            ticket = running.service.next()
            owners.append(ticket.request.key)
            ticket.finish()
            answer.read()
    assert owners[0] == owners[2] != owners[1]
    assert not any("key-of" in owner for owner in owners)


PAGES = [
    ({}, 200),
    ({"host": "localhost:1"}, 200),
    ({"host": "evil.example"}, 403),
    ({"host": "127.0.0.1.evil.example:80"}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://["}, 403),
    ({"origin": "http://localhost:7", "host": "localhost:7"}, 200),
]


def test_pages_of_others_are_refused(live):
    running = live(hosts=Hosts.of("127.0.0.1"))
    for headers, status in PAGES:
        answer = get(running.url + "/v1/models", headers=headers)
        assert answer.status_code == status, headers
        assert "access-control-allow-origin" not in answer.headers


def test_a_body_that_is_too_large(live):
    running = live(limits=replace(LIMITS, body_bytes=1000))
    url = running.url + "/v1/chat/completions"
    assert post(url, json={**BODY, "user": "x" * 2000}).status_code == 413

    def pieces():
        for _ in range(100):
            yield b" " * 100

    answer = post(url, content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("length", ["chunked", "told"])
def test_a_body_that_is_too_large_is_read_to_its_end(live, length):
    """TCP resets a connection that is closed with unread bytes, and the answer is lost with it."""
    running = live(limits=replace(LIMITS, body_bytes=1 << 18))
    body = b" " * (2 << 18)
    told = f"content-length: {len(body)}" if length == "told" else "transfer-encoding: chunked"
    if length == "chunked":
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n{told}\r\ncontent-type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as made:
        made.sendall(head.encode() + body[: len(body) // 2])
        time.sleep(0.2)  # such a server has answered by now, and this one waits for the rest
        made.sendall(body[len(body) // 2 :])
        answer = read_until(made, b"}")  # the connection may stay open for the next request
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.endswith(b"}")


def test_a_head_that_does_not_come_ends_the_connection(live):
    """Nor that of the next request."""
    running = live(limits=replace(LIMITS, head_seconds=0.1))
    for sent in (b"", b"POST /v1/chat", b"GET /health HTTP/1.1\r\nhost: x"):
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as made:
            made.sendall(sent)
            assert made.recv(1) == b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as made:
        made.sendall(f"GET /health HTTP/1.1\r\nhost: 127.0.0.1:{running.port}\r\n\r\n".encode())
        read_until(made, b"200 OK")
        made.sendall(b"GET /he")
        while made.recv(65536):
            pass  # until it is closed


def test_an_answer_may_take_longer_than_a_head(live):
    running = live(limits=replace(LIMITS, head_seconds=0.05, ping_seconds=0.2))
    made = connect(running, stream=True)
    ticket = running.service.next()
    read_until(made, b": waiting\n\n")
    ticket.finish()
    read_until(made, b"[DONE]")
    made.close()


def test_a_request_has_a_number(live):
    running = live()
    assert get(running.url + "/v1/models", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    assert get(running.url + "/v1/models", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"


def test_an_accepted_connection_sends_small_pieces_at_once():
    """Otherwise each answer on a kept connection waits for a delayed acknowledgment."""
    with bind("127.0.0.1", 0) as bound:
        bound.setblocking(True)
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
