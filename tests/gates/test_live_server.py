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

from ipex_lookahead.serving.keys import Keys
from tests.gates import cases, rotating, seed
from tests.support.attacked_server import HONEST, Attacked, attacked
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.raw_http import JSON, connected, head, post
from tests.support.server_attacks import CHAT, FEW, HI, KEY, bodies, damaged_stores, drafted, heads, large, mutated, odd

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc to read memory from")
KEY_OF_HONEST = HONEST["authorization"].split()[1]
LARGE = cases(1, 3)
"""How often each large body is sent."""
MUTATIONS = cases(60, 5_000)
ODD_VALUES = cases(60, 5_000)
DRAFTED = cases(1, 40)
"""Requests for each damaged store, in each API."""
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
    made = write_chat_llama(tmp_path_factory.mktemp("attacked") / "tiny", context=2048)
    return str(made)


@pytest.fixture(scope="module")
def running(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """One server for all attacks; what must hold behind them is looked at when it ends."""
    with attacked(model, tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def server(running: Attacked) -> Iterator[Attacked]:
    yield running
    running.attack = "none"


def test_bodies_that_ask_for_much(server: Attacked) -> None:
    for name, sent, allowed in large():
        for _ in range(LARGE):
            server.send(name, sent, allowed)
            server.wait_for_honest(2)
        server.attack = "none"


def test_requests_that_are_none(server: Attacked) -> None:
    """At once, and some of the heads also by the byte."""
    for name, sent, allowed in [*heads(), *bodies()]:
        server.send(name, sent, allowed)
    short = [one for one in heads() if len(one[1]) < 1000]
    for name, sent, allowed in rotating(short, 6, lambda one: {"name": one[0]}, lambda one: one[0]):
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


def attack_bodies(server: Attacked) -> None:
    """Values that JSON or Unicode has not, in any field, compressed or not; bombs."""
    seen: Counter[int] = Counter()
    for number in range(ODD_VALUES):
        name, sent = odd(number, seed())
        answer = server.send(name, sent, {200, 400, 404, 413})
        assert answer is not None
        seen[answer.status] += 1
    print(dict(seen))
    assert seen[200]
    assert seen[400]


def attack_stores(server: Attacked, store: Path, keys: dict[str, str]) -> None:
    """Drafted requests with a store of each kind that is damaged."""
    for kind, key in keys.items():
        for number in range(DRAFTED):
            for path, body in drafted(number):
                sent = post(path, body, {"authorization": f"Bearer {key}"})
                name = f"a store that is damaged: {kind}"
                answer = server.send(name, sent, {200})
                assert answer is not None
                assert str(store.parent).encode() not in answer.body, name
                assert b'"error"' not in answer.body.replace(b'"error":null', b""), name


BODIES_UNREAD = """
import json
from ipex_lookahead.serving import body
body.parsed = lambda text, place="": json.loads(text)
"""
STORES_TRUSTED = """
from ipex_lookahead.drafting.store import Stores
Stores.open_or_none = Stores.get
"""


def test_bodies_with_odd_values(server: Attacked) -> None:
    attack_bodies(server)


def test_stores_that_are_damaged(model: str, tmp_path: Path) -> None:
    """Each costs its own key the drafts of a store and a line of the log; a good one goes on."""
    store, keys = damaged_stores(model, tmp_path)
    with attacked(model, tmp_path, "--lookahead", "auto", "--store", str(store), keys=list(keys.values())) as server:
        attack_stores(server, store, keys)
    said = "".join(server.log)
    for kind, key in keys.items():
        name = "/dev/full" if kind == "device" else f"{store.name}.{Keys([key]).owner(key)}"
        assert said.count(name) == (kind != "good"), kind
    assert (
        b"ipex-lookahead S"
        in store.with_name(f"{store.name}.{Keys([KEY_OF_HONEST]).owner(KEY_OF_HONEST)}").read_bytes()
    )


@pytest.mark.parametrize(
    ("planted", "found"),
    [(BODIES_UNREAD, "odd value"), (STORES_TRUSTED, "a store that is damaged")],
    ids=["bodies", "stores"],
)
@pytest.mark.rotating(0)
def test_a_planted_fault_is_found(model: str, tmp_path: Path, planted: str, found: str) -> None:
    store, keys = damaged_stores(model, tmp_path)
    options = ("--lookahead", "auto", "--store", str(store))

    def attack() -> None:
        with attacked(model, tmp_path, *options, keys=list(keys.values()), planted=planted) as server:
            if planted == BODIES_UNREAD:
                attack_bodies(server)
            attack_stores(server, store, keys)

    with pytest.raises(AssertionError, match=found):
        attack()


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
