"""Attacks on a server that listens, while honest clients stream from it: it answers each as promised, never with a 500,
and the honest hear the very bytes that they hear alone; its memory comes back, and it ends when it is told to."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from tests.gates import cases, seed
from tests.support.attacked_server import Attacked, attacked
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.raw_http import JSON, connected, head, post
from tests.support.server_attacks import CHAT, FEW, HI, KEY, bodies, heads, large, mutated
from tests.support.tiny import write_tiny_llama

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc to read memory from")
LARGE = cases(1, 3)
"""How often each large body is sent."""
MUTATIONS = cases(150, 5_000)
SILENT = cases(150, 700)
"""Connections that send half a head; more than there may be."""
GREEDY = cases(2, 12)
TRICKLED = cases(20, 400)
"""Bytes of a body that come one by one."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """IPEX_LOOKAHEAD_GATE_MODEL, such as "default", or a tiny one."""
    if given := os.environ.get("IPEX_LOOKAHEAD_GATE_MODEL"):
        return given
    made = write_tiny_llama(tmp_path_factory.mktemp("attacked") / "tiny", vocab=SIZE, context=2048)
    chat_tokenizer().save_pretrained(made)
    return str(made)


@pytest.fixture
def server(model: str, tmp_path: Path) -> Iterator[Attacked]:
    with attacked(model, tmp_path) as made:
        yield made


def test_bodies_that_ask_for_much(server: Attacked) -> None:
    for name, sent, allowed in large():
        for _ in range(LARGE):
            server.send(name, sent, allowed)
            server.wait_for_honest(2)
        server.attack = "none"


def test_requests_that_are_none(server: Attacked) -> None:
    """At once, and the heads also by the byte."""
    for name, sent, allowed in [*heads(), *bodies()]:
        server.send(name, sent, allowed)
    for name, sent, allowed in heads():
        if len(sent) < 1000:
            server.send(f"{name}, by the byte", sent, allowed, piece=1)


def test_right_requests_made_wrong_at_random(server: Attacked) -> None:
    seen: Counter[int] = Counter()
    for number in range(MUTATIONS):
        name, sent = mutated(number, seed())
        answer = server.send(name, sent, {200, 400, 404, 413, 429})
        assert answer is not None
        seen[answer.status] += 1
    print(dict(seen))
    assert seen[200]
    assert seen[400]


def test_requests_that_do_not_come(server: Attacked) -> None:
    """Half-sent heads and bodies, more of them than there may be connections, do not keep the others out."""
    whole = post(CHAT, FEW, KEY)
    body = json.dumps(FEW).encode() + b" " * TRICKLED
    silent: list[socket.socket] = []
    try:
        for number in range(SILENT):
            made = connected(server.port)
            silent.append(made)
            made.sendall((b"", b"G", whole[:40], whole[: whole.index(b"\r\n\r\n")], whole[:-5])[number % 5])
            if number % 25 == 0:
                server.send("half-sent heads", whole, {200})
        sent = head("POST", CHAT, {**JSON, **KEY, "content-length": str(len(body))}) + body
        server.send("a byte at a time", sent, {200}, piece=1, pause=0.02)
        server.send("leaving in the middle", whole, {200})
    finally:
        for made in silent:
            made.close()


def test_one_that_asks_for_all(server: Attacked) -> None:
    """Eight long answers for each of several requests, whose clients then leave: the honest are answered beside them,
    and the greedy are answered too, or told when to come again."""
    server.attack = "greed"
    fields = {"messages": HI, "n": 8, "max_tokens": 8000, "stream": True, "temperature": 2, "seed": 1}
    made = [connected(server.port) for _ in range(GREEDY)]
    try:
        for one in made:
            one.sendall(post(CHAT, fields, KEY))
        server.wait_for_honest(6)
        told = Counter(one.recv(12) for one in made)
        print({status.decode(): count for status, count in told.items()})
        assert told[b"HTTP/1.1 200"]
        assert set(told) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}
    finally:
        for one in made:
            one.close()
