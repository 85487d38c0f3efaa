"""Schemas and grammars that take for ever, fill the memory or overflow the stack of what compiles them, put to a server
that listens: each is answered or refused, honest streams hear what they hear alone, and no process is left over."""

from __future__ import annotations

import os
import select
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from tests.gates import cases, seed
from tests.support.attacked_server import HONEST, Attacked, attacked
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.grammar_attacks import bomb
from tests.support.raw_http import Refused, answer_on, connected, exchange, post
from tests.support.server_attacks import KEY

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc to read memory from")
BOMBS = cases(12, 1_500)
SLOW = cases(6, 64)
"""Grammars that take longest, at once, whose clients leave."""
_CRASH = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}
_SLOW = {"type": "integer", "multipleOf": 999983}
_PLAIN = {"prompt": "x", "max_tokens": 1}
_PLANTED = """
from ipex_lookahead.conversation import compiling, grammar
compiling.GrammarProcess.tried = lambda self, text, client: 0
grammar.check_numbers = lambda schema: None
"""
"""A server that compiles whatever it is sent."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """IPEX_LOOKAHEAD_GATE_MODEL, such as "default", or a tiny one."""
    if given := os.environ.get("IPEX_LOOKAHEAD_GATE_MODEL"):
        return given
    made = write_chat_llama(tmp_path_factory.mktemp("bombed") / "tiny", context=2048)
    return str(made)


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with attacked(model, tmp_path_factory.mktemp("server")) as made:
        yield made


def test_bombs_at_random(server: Attacked) -> None:
    seen: Counter[int] = Counter()
    for number in range(BOMBS):
        name, path, body = bomb(number, seed())
        answer = server.send(name, post(path, body, KEY), {200, 400})
        assert answer is not None
        seen[answer.status] += 1
    print(dict(seen))
    assert seen[200]
    assert seen[400]


def test_slow_grammars_keep_nobody_waiting_and_end_with_their_clients(server: Attacked) -> None:
    server.attack = "slow grammars"
    bombs: list[socket.socket] = []
    try:
        for number in range(SLOW):
            made = connected(server.port)
            bombs.append(made)
            made.sendall(post("/v1/completions", {**_PLAIN, "json_schema": {**_SLOW, "title": str(number)}}, KEY))
        for key in (KEY, HONEST):
            answer = exchange(server.port, post("/v1/completions", _PLAIN, key))
            assert answer is not None
            assert answer.status == 200
        schema = {**_PLAIN, "json_schema": {"const": "another key's"}}
        answer = exchange(server.port, post("/v1/completions", schema, HONEST))
        assert answer is not None
        assert answer.status == 200
        waiting = len(bombs) - len(select.select(bombs, [], [], 0)[0])
        assert waiting, "those that came later were answered before"
        bombs[0].settimeout(None)
        refused = answer_on(bombs[0])
        assert refused is not None
        assert refused.status == 400
        assert b"processor time" in refused.body
    finally:
        for made in bombs:
            made.close()
    server.wait_for_honest(2)


@pytest.mark.rotating(0)
def test_a_server_that_compiles_what_it_is_sent_is_caught(model: str, tmp_path: Path) -> None:
    """The gate itself: with its trials left out, the server ends at the first attack."""
    with (
        pytest.raises((AssertionError, ConnectionError, Refused)),
        attacked(model, tmp_path, planted=_PLANTED) as made,
    ):
        made.send("bounds", post("/v1/completions", {**_PLAIN, "json_schema": _CRASH}, KEY), {200, 400})
