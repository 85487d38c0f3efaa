"""A client's grammar is tried where it can do no harm, and what is tried keeps nobody else waiting."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from ipex_lookahead.conversation import compiling, grammar
from ipex_lookahead.conversation.compiling import Cancelled, Client, GrammarProcess, NotCompiled, RefusedError
from ipex_lookahead.conversation.grammar import Compiler, Grammars
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.server import Server
from tests.serving.conftest import LIMITS, serving
from tests.support.grammar_attacks import LINKS, chain
from tests.support.raw_http import connected, post

PATIENCE = 60.0
SLOW = {"type": "integer", "multipleOf": 999983}
"""It takes 13 s and 370 MiB."""


@pytest.fixture
def compiler(server: Server) -> Iterator[Compiler]:
    served = server.served
    made = Compiler(served.tokenizer, served.tokens, served.eos_ids)
    yield made
    made.close()


def integers(least: int) -> str:
    return f'{{"grammars": [{{"json_schema": {{"type": "integer", "minimum": {least}, "maximum": {least}}}}}]}}'


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (SLOW, "more than 0.3 s of processor time, 128 MiB"),
        (chain(3000, LINKS[0]), "signal 11"),
        (chain(1600, LINKS[1]), "signal 11"),
        ({"$ref": "#"}, "no text satisfies it"),
        ({"type": "string", "pattern": "^(?=.*[0-9]).+$"}, "look-around, including look-ahead and look-behind, is not"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_takes_too_much_is_refused_and_the_next_is_compiled(compiler, schema, said, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_SECONDS", 0.3)
    grammars = Grammars(compiler)
    with pytest.raises(RefusedError, match=said):
        grammars.json_schema(schema)
    grammars.json_schema({"type": "boolean"})


def test_what_ends_the_process_is_refused(compiler):
    """The library crashes on these bounds, which our own checks keep from it elsewhere."""
    with pytest.raises(RefusedError, match="signal 11"):
        compiler.compile(integers(-(2**63)), Client())
    compiler.compile(integers(5), Client())


def test_a_request_of_many_slow_grammars_is_refused_after_some(compiler, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_SECONDS", 0.05)
    grammars = Grammars(compiler, Client())
    for n in range(compiling.MAX_STOPPED):
        with pytest.raises(RefusedError, match="processor time"):
            grammars.json_schema({**SLOW, "title": str(n)})
    with pytest.raises(InputError, match="4 grammars of this request reached the limits"):
        grammars.json_schema({"const": 1})
    Grammars(compiler, Client()).json_schema({"const": 1})


@pytest.mark.parametrize("text", ['start: "a"{1000000}', "start: /(a{1000}){1000}/"])
def test_what_outgrows_the_limits_at_once_is_refused_before_the_first_token(compiler, text):
    with pytest.raises(RefusedError, match="cannot be compiled: it"):
        Grammars(compiler).lark(text)


def test_a_client_that_leaves_ends_its_trial(compiler, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_SECONDS", 600.0)
    client, caught = Client(), []

    def compile_it() -> None:
        with pytest.raises(Cancelled) as raised:
            Grammars(compiler, client).json_schema(SLOW)
        caught.append(raised.value)

    thread = threading.Thread(target=compile_it)
    thread.start()
    wait_until(lambda: len(trials(compiler)) == 1)
    client.leave()
    thread.join(PATIENCE)
    assert caught
    wait_until(lambda: not trials(compiler))
    with pytest.raises(Cancelled):  # one that has left begins none
        Grammars(compiler, client).json_schema({"const": 1})


def test_a_process_that_was_killed_is_started_anew(compiler):
    Grammars(compiler).json_schema({"const": 1})
    os.kill(compiler._process._worker._process.pid, signal.SIGKILL)
    Grammars(compiler).json_schema({"const": 2})


def test_the_latest_are_kept_for_their_owner(compiler, monkeypatch):
    tried: list[str] = []

    def count(self: Any, text: str, client: Client) -> int:
        tried.append(client.owner)
        if "refused" in text:
            raise RefusedError("no", hint="try another")
        return 0

    monkeypatch.setattr(GrammarProcess, "tried", count)
    monkeypatch.setattr(grammar, "MAX_KEPT_BYTES", 3 * grammar._SIZE)
    first = Grammars(compiler, Client("a"))
    made = first.json_schema({"const": 1})
    assert first.json_schema({"const": 1}) is made
    assert tried == ["a"]
    assert Grammars(compiler, Client("b")).json_schema({"const": 1}) is not made, "how fast it comes says nothing"
    for _ in range(2):
        with pytest.raises(RefusedError, match="no") as caught:
            first.json_schema({"const": "refused"})
        assert caught.value.hint == "try another"
    assert tried == ["a", "b", "a"], "reasons are kept too"
    with pytest.raises(NotCompiled):
        Grammars(compiler, Client("a", waits=False)).json_schema({"const": 2})
    for n in range(5):
        first.json_schema({"const": n + 10})
    assert compiler._kept_bytes <= 3 * grammar._SIZE
    assert first.json_schema({"const": 1}) is not made


def test_what_cannot_be_tried_now_is_not_kept_as_refused(compiler, monkeypatch):
    monkeypatch.setattr(GrammarProcess, "tried", lambda *_: (_ for _ in ()).throw(InputError("no process")))
    with pytest.raises(InputError, match="no process"):
        Grammars(compiler).json_schema({"const": 1})
    monkeypatch.undo()
    Grammars(compiler).json_schema({"const": 1})


def test_a_token_takes_bounded_time(compiler, server, monkeypatch):
    """An ambiguous grammar compiles at once; what a token takes grows by the square of the text's length."""
    monkeypatch.setattr(grammar, "MAX_STEP_SECONDS", 0.05)
    monkeypatch.setattr(grammar, "SECONDS_PER_TOKEN", 0.0)
    process, _ = Grammars(compiler).lark('start: s\ns: s s s | s s | "a" |').constrain(0)
    (a,) = server.served.encode("a")
    logits = np.zeros(server.served.vocab_size, np.float32)

    def answered() -> None:
        for count in range(2000):
            process(np.full(count, a, np.int64), logits.copy())

    with pytest.raises(InputError, match="too complex to continue: a token may take"):
        answered()


KEYS = Keys(["greedy-key-of-sixteen", "modest-key-of-sixteen"])


@pytest.fixture
def keyed(model: TextModel) -> Iterator[TestClient]:
    with serving(model, keys=KEYS) as client:
        yield client


def test_one_keys_grammars_keep_out_no_other_request(keyed, monkeypatch):
    """All of the greedy key's slots are taken, and more wait for them."""
    go_on, begun, tried = threading.Event(), threading.Semaphore(0), GrammarProcess.tried

    def hold(self: Any, text: str, client: Client) -> int:
        if client.owner == KEYS.owner("greedy-key-of-sixteen"):
            begun.release()
            assert go_on.wait(PATIENCE)
        return tried(self, text, client)

    def said(who: str, **fields: Any) -> int:
        headers = {"authorization": f"Bearer {who}-key-of-sixteen"}
        body = {"prompt": "x", "max_tokens": 1, **fields}
        return int(keyed.post("/v1/completions", json=body, headers=headers).status_code)

    assert said("greedy", json_schema={"const": 1}) == 200
    monkeypatch.setattr(GrammarProcess, "tried", hold)
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(said, "greedy", json_schema={"const": 10 + n}) for n in range(8)]
        for _ in range(LIMITS.compiling):
            assert begun.acquire(timeout=PATIENCE)
        assert said("modest", json_schema={"const": 2}) == 200
        assert said("greedy") == 200
        assert said("greedy", json_schema={"const": 1}) == 200, "it is compiled already"
        assert not begun.acquire(blocking=False)
        go_on.set()
        assert [one.result(PATIENCE) for one in held] == [200] * 8


def test_a_client_that_hangs_up_frees_its_slot(live, monkeypatch):
    monkeypatch.setattr(compiling, "MAX_SECONDS", 600.0)
    running = live()
    compiler = running.server.served.compiler
    for _ in range(LIMITS.compiling + 1):
        with connected(running.port) as made:
            made.sendall(post("/v1/completions", {"prompt": "x", "json_schema": SLOW}, {}))
            wait_until(lambda: len(trials(compiler)) == 1)
        wait_until(lambda: not trials(compiler))


def trials(compiler: Compiler) -> list[int]:
    """Processes that are forked of a compiler's."""
    worker = compiler._process._worker
    if worker is None:
        return []
    pid = worker._process.pid
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == pid and int(stat.parent.name) != pid and fields[0] != "Z":  # of its process group
            found.append(int(stat.parent.name))
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)
