"""``bench agent``: against a scripted server with a prefix cache, and against ``serve`` with restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.bench import agent
from ipex_lookahead.bench.chat_client import ChatServer
from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import InputError
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.http_replies import chat_server, chunk, events

SCRIPTED = ["--prompt-tokens", "900,1200", "--result-tokens", "200", "--turns", "4", "--cold", "1,2,9", "--json"]


class Cached:
    """A server with a cache: it counts words as tokens, and knows the prompts that it was sent, salts apart.

    Args:
        answer: Returns the text of the answer for a prompt and the number of its cached tokens.
    """

    def __init__(self, answer: Callable[[list[str], int], str] = lambda words, cached: words[-1]) -> None:
        self.answer, self.bodies = answer, list[dict[str, Any]]()
        self._known: list[tuple[str | None, list[str]]] = []

    def __call__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        words = json.dumps([body["tools"], body["messages"]]).split()
        salt = body.get("cache_salt")
        cached = max((_common(known, words) for one, known in self._known if one == salt), default=0)
        self._known.append((salt, words))
        usage = {"prompt_tokens": len(words), "prompt_tokens_details": {"cached_tokens": cached}}
        text = chunk(self.answer(words, cached))
        events(handler, ": ping", text, "data: " + json.dumps({"choices": [], "usage": usage}), "data: [DONE]")


def _common(a: list[str], b: list[str]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Restarted:
    """A server that is only counted when it is restarted: its cache survives."""

    restarts = True

    def __init__(self, server: ChatServer) -> None:
        self.server, self.calls = server, list[str]()

    def start(self) -> ChatServer:
        self.calls.append("start")
        return self.server

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def serving() -> Iterator[Callable[..., str]]:
    """``serving(say, facts)`` is the address of a server with one model of these facts."""
    with ExitStack() as running:
        yield lambda say, facts: running.enter_context(chat_server(say, [{"id": "m", **facts}]))


INVARIANT = {"max_model_len": 4000, "meta": {"row_invariant": True}}


def test_states_of_the_cache_by_turn(serving):
    server = Cached()
    servers = Restarted(ChatServer(serving(server, INVARIANT), "m", row_invariant=True))
    lengths = agent.Lengths([900], 4, 200, [1, 2, 9], 5, 60.0)
    report = agent.measure(servers, lengths)
    assert servers.calls == ["start", *["stop", "start"] * 4, "stop"]
    assert (report["model"], report["turns"], report["max_new_tokens"], report["identical"]) == ("m", 4, 5, "3/3")
    (size,) = report["sizes"]
    assert [row["turn"] for row in size["turns"]] == [1, 2, 3, 4]
    assert [row["cold_cached"] for row in size["turns"]] == [pytest.approx(0, abs=10)] * 2 + [None] * 2
    assert all(row[f"{state}_ms"] > 0 for row in size["turns"] for state in ("warm", "restarted"))
    before = size["turns"][0]["prompt_tokens"]
    assert before == pytest.approx(900, rel=0.05)
    for row in size["turns"][1:]:  # each turn finds the one before, in its own task
        assert row["warm_cached"] == pytest.approx(before, abs=10)
        assert row["restarted_cached"] == pytest.approx(row["warm_cached"], abs=10)
        before = row["prompt_tokens"]
    salted = [body for body in server.bodies if "cache_salt" in body]
    assert [len(body["messages"]) for body in salted] == [4]
    assert all(body["max_tokens"] == 5 for body in server.bodies[4:])


def test_a_server_of_another_kind_gets_other_words_where_it_must_be_cold(serving, capsys):
    server = Cached()
    assert run(["bench", "agent", "--url", serving(server, {}), *SCRIPTED]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out.splitlines()[-1])
    assert [size["prompt_tokens"] for size in report["sizes"]] == [900, 1200]
    assert report["identical"] == "0/0"
    assert [row["cold_cached"] for row in report["sizes"][1]["turns"]] == [pytest.approx(0, abs=10)] * 2 + [None] * 2
    assert {row["restarted_ms"] for row in report["sizes"][0]["turns"]} == {None}
    assert not any("cache_salt" in body for body in server.bodies)
    assert said.err.count("time to first token") == 2


def test_an_answer_that_the_cache_changes(serving, capsys):
    server = Cached(lambda words, cached: "a" if cached < 20 else "b")
    assert run(["bench", "agent", "--url", serving(server, INVARIANT), *SCRIPTED]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["identical"] == "2/6"
    assert "answers from a filled cache differ" in said.err


def test_a_salt_that_has_no_effect_is_an_error(serving, capsys):
    server = Cached()
    known = server.__call__

    def unsalted(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        known(handler, {name: value for name, value in body.items() if name != "cache_salt"})

    assert run(["bench", "agent", "--url", serving(unsalted, INVARIANT), *SCRIPTED]) == 1
    assert "turn 2 must be cold, and the server found" in capsys.readouterr().err


def test_the_first_call_of_a_tool_and_the_end_of_an_answer_count(serving):
    def say(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        empty = {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        more = {"tool_calls": [{"index": 0}]} if body["tools"] else {}
        ended = {"choices": [{"delta": more, "finish_reason": None if more else "stop"}], "usage": {"prompt_tokens": 3}}
        events(handler, *("data: " + json.dumps(one) for one in (empty, ended)), "data: [DONE]")

    server = ChatServer(serving(say, {}), "m")
    for tools in ([], [1]):
        found = agent.read(server, {"messages": [], "tools": tools})
        assert (found.prompt_tokens, found.cached, found.text) == (3, None, "")
    with pytest.raises(InputError, match="sends no usage"):
        agent.read(ChatServer(serving(lambda one, _: events(one, chunk("a"), "data: [DONE]"), {}), "m"), {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--url", "http://a", "--", "--slots", "2"], "--slots is an option of the server to start"),
        (["--url", "nowhere"], "not the URL of a server"),
        (["--prompt-tokens", "0"], "must be positive integers"),
        (["--turns", "1"], "--turns"),
    ],
    ids=str,
)
def test_wrong_usage(given, said, capsys):
    assert run(["bench", "agent", *given]) == 2
    assert said in capsys.readouterr().err


def test_a_conversation_beyond_the_context(serving, capsys):
    server = Cached()
    facts = {"max_model_len": 1000, "meta": {"row_invariant": True}}
    assert run(["bench", "agent", "--url", serving(server, facts), *SCRIPTED]) == 1
    assert "the server's context is 1000" in capsys.readouterr().err
    assert {body["max_tokens"] for body in server.bodies} == {1}  # nothing was measured


def test_the_lengths_follow_the_context(serving, capsys):
    facts = {"max_model_len": 2000, "meta": {"row_invariant": True}}
    assert run(["bench", "agent", "--url", serving(Cached(), facts), "--turns", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ([size["prompt_tokens"] for size in report["sizes"]], report["result_tokens"]) == ([1000], 250)


@pytest.mark.programs
def test_our_server_is_restarted_on_its_cache(tmp_path: Path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folder = write_chat_llama(tmp_path / "tiny", context=20_000)
    given = ["--prompt-tokens", "7000", "--result-tokens", "1500", "--turns", "3", "-n", "4", "--threads", "1"]
    assert run(["bench", "agent", "-m", str(folder), *given, "--json", "--plot", str(tmp_path / "a.svg")]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["identical"] == "3/3"
    (size,) = report["sizes"]
    for before, row in zip(size["turns"], size["turns"][1:], strict=False):
        assert row["restarted_cached"] >= 0.9 * before["prompt_tokens"]
    assert "after a restart" in (tmp_path / "a.svg").read_text()


def test_a_server_that_does_not_start(tmp_path: Path, capsys):
    assert run(["bench", "agent", "-m", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr().err
    assert "serve ended with status" in said
    assert "nothing" in said
