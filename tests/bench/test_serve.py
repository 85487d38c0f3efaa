"""``bench serve``: against our server with a tiny model, and against a server that does what a test says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from ipex_lookahead.bench.chat_client import ChatServer, RequestFailed, find_server, read_key, text_in
from ipex_lookahead.bench.serve import RequestResult, closed_loop, open_loop, sender, summarize
from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import bind, url
from ipex_lookahead.serving.server import Server, Settings
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.http_replies import chat_server, chunk, events

KEY = "a-key-of-sixteen-or-more"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of our server, with a tiny model and a key."""
    folder = write_chat_llama(tmp_path_factory.mktemp("served") / "tiny", context=512)
    server = Server(Settings(names=("tiny",), drafting={"lookahead": 3}, keys=Keys([KEY])))
    server.ready(
        load_text_model(str(folder), engine="native", threads=1, progress=False), lambda one: Service(one, slots=3)
    )
    bound = bind("127.0.0.1", 0)
    made = uvicorn.Server(
        uvicorn.Config(make_app(server), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=made.run, args=([bound],), daemon=True)
    thread.start()
    yield url(bound)
    server.close(0.0)
    made.should_exit = True
    thread.join(60)


@pytest.fixture
def other() -> Iterator[Callable[..., str]]:
    """``other(say)`` is the address of a server that answers chat completions as ``say`` does."""
    with ExitStack() as running:
        yield lambda *given: running.enter_context(chat_server(*given))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": said}) + "\n" for said in ("one", "two and two", "three", "fo", "5")))
    return str(file)


@pytest.fixture
def key(tmp_path: Path) -> str:
    (tmp_path / "keys").write_text(f"# whose\n\n{KEY}\nanother-of-sixteen-letters\n")
    return str(tmp_path / "keys")


@pytest.mark.parametrize("load", [["--streams", "3"], ["--rate", "200", "--seed", "7"]], ids=["streams", "rate"])
def test_our_server_under_load(ours, prompts, key, load, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    more = ["--requests", "8", "-n", "6", "--ttft-limit", "60000", "--json", "--plot", str(tmp_path / "a.svg")]
    given = ["bench", "serve", "--url", ours + "/v1/", "--prompts", prompts, "--api-key-file", key, *load, *more]
    assert run(given) == 0
    said = capsys.readouterr()
    report = json.loads(said.out.splitlines()[-1])
    assert report["model"] == "tiny"
    assert report["answered"] == report["requests"] == report["goodput"]["requests"] == 8
    assert report["identical_to_alone"] == "8/8"
    assert report["failures"] == report["failures_alone"] == {}
    assert report["uncounted"] == 0
    assert 8 <= report["tokens"] <= 8 * 6
    assert report["prompt_tokens"] > report["tokens"]
    assert 0 < report["ttft_ms"]["p50"] <= report["ttft_ms"]["p90"] <= report["ttft_ms"]["p99"]
    assert [bar["prompt"] for bar in report["timeline"]] == [0, 1, 2, 3, 4, 0, 1, 2]
    assert "8/8 answers" in said.err
    assert "until the first token" in (tmp_path / "a.svg").read_text()


def test_a_wrong_key_a_wrong_name_and_no_server_are_said(ours, tmp_path, capsys):
    (tmp_path / "wrong").write_text("not-a-key-that-it-knows\n")
    assert run(["bench", "serve", "--url", ours, "--api-key-file", str(tmp_path / "wrong")]) == 1
    assert "--api-key-file" in capsys.readouterr().err
    with pytest.raises(InputError, match="no model 'x'; it has tiny"):
        find_server(ours, model="x", key=KEY)
    free = bind("127.0.0.1", 0)  # bound, never accepted from: nobody else takes the port meanwhile
    with free, pytest.raises(InputError, match="silent"):
        find_server(url(free), timeout=0.2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--url", "127.0.0.1:80"], "not the URL of a server"),
        (["--url", "http://a:b@c"], "not the URL of a server"),
        (["--url", "http://[1"], "not the URL of a server"),
        (["--url", "http://a", "--rate", "1", "--streams", "2"], "give one of them"),
        ([], "--url"),
    ],
    ids=str,
)
def test_wrong_usage(given, said, capsys):
    assert run(["bench", "serve", *given]) == 2
    assert said in capsys.readouterr().err


def fail(handler: BaseHTTPRequestHandler, how: str) -> None:
    if how == "HTTP 429":
        events(handler, '{"error": {"message": "come later"}}', status=429, kind="application/json")
    elif how == "cut off":
        events(handler, chunk("a"))
    elif how == "error in the stream":
        events(handler, chunk("a"), 'data: {"error": {"message": "come later"}}')
    elif how == "not a stream":
        events(handler, '{"choices": []}', kind="application/json")
    elif how == "not JSON":
        events(handler, "data: [1]")
    elif how == "not HTTP":
        handler.wfile.write(b"hello\r\n\r\n")
    elif how == "silent":
        handler.rfile.read(1)  # until the client has gone


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        *(
            (kind, kind)
            for kind in ("HTTP 429", "cut off", "error in the stream", "not a stream", "not HTTP", "silent")
        ),
        ("not JSON", "not a stream"),
    ],
)
def test_failures_have_their_kind(other, how, kind):
    address = other(lambda handler, body: fail(handler, how))
    server = ChatServer(address, "m", timeout=0.3 if how == "silent" else 60.0)
    result = sender(server, ["Hi"], 4)(0, 0.0)
    assert result.failure == kind
    assert how not in ("HTTP 429", "error in the stream") or result.message == "come later"


def test_failures_are_counted_and_the_status_is_1(other, prompts, capsys):
    def say(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if body["messages"][0]["content"] == "three":
            fail(handler, "HTTP 429")
        else:
            events(handler, ": ping", chunk("a"), chunk("b"), "data: [DONE]")

    assert run(["bench", "serve", "--url", other(say), "--prompts", prompts, "--streams", "2", "--json"]) == 1
    said = capsys.readouterr()
    report = json.loads(said.out.splitlines()[-1])
    assert (report["requests"], report["answered"], report["failures"]) == (5, 4, {"HTTP 429": 1})
    assert report["failures_said"] == {"HTTP 429": "come later"}
    assert (report["identical_to_alone"], report["uncounted"], report["tokens"]) == ("4/4", 4, 8)
    assert "error: 1 request failed" in said.err


@pytest.mark.parametrize("promised", [True, False])
def test_an_answer_that_company_changes(other, prompts, promised, capsys):
    under_way = threading.Barrier(2)
    lock, bodies = threading.Lock(), []

    def say(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with lock:
            bodies.append(body)
            together = len(bodies) <= 2
        if together:
            under_way.wait(60)
        events(handler, chunk("b" if together else "a"), "data: [DONE]")

    address = other(say, [{"id": "m", "meta": {"row_invariant": promised}}])
    given = ["--prompts", prompts, "--limit", "2", "--streams", "2", "--json"]
    assert run(["bench", "serve", "--url", address, *given]) == (1 if promised else 0)
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["identical_to_alone"] == "0/2"
    assert ("answers under load differ" in said.err) is promised


def test_a_stream_that_is_closed_leaves_the_server(other):
    left = threading.Event()

    def say(handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        events(handler, chunk("a"))
        assert handler.rfile.read(1) == b""
        left.set()

    chunks = ChatServer(other(say), "m").stream({"messages": []})
    assert text_in(next(chunks)) == "a"
    chunks.close()
    assert left.wait(60)


def test_open_loop_sends_when_it_is_due_and_closed_loop_when_one_has_ended():
    everybody = threading.Barrier(5)

    def together(prompt: int, due: float) -> RequestResult:
        everybody.wait(60)  # nobody waits for an answer before the next is sent
        return RequestResult(prompt, due)

    once, twice = (open_loop(together, range(5), 1000.0, 3) for _ in range(2))
    assert [one.prompt for one in once] == [0, 1, 2, 3, 4]
    gaps = [[b.due - a.due for a, b in zip(run, run[1:], strict=False)] for run in (once, twice)]
    assert gaps[0] == pytest.approx(gaps[1], abs=1e-6)
    assert len({round(gap, 5) for gap in gaps[0]}) > 1

    lock, running, most = threading.Lock(), [0], []
    pairs = threading.Barrier(2)

    def counted(prompt: int, due: float) -> RequestResult:
        with lock:
            running[0] += 1
            most.append(running[0])
        pairs.wait(60)
        with lock:
            running[0] -= 1
        return RequestResult(prompt, due)

    assert [one.prompt for one in closed_loop(counted, [4, 3, 2, 1, 0, 5], 2)] == [4, 3, 2, 1, 0, 5]
    assert max(most) == 2


def test_what_breaks_in_a_thread_is_raised():
    def broken(prompt: int, due: float) -> RequestResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        closed_loop(broken, [0, 1], 1)


def test_figures():
    def one(prompt: int, due: float, *arrivals: float, ended: float, **more: Any) -> RequestResult:
        return RequestResult(prompt, due, list(arrivals), ended, **more)

    loaded = [
        one(0, 10.0, 11.0, 12.0, 14.0, ended=14.0, text="abc", tokens=7, prompt_tokens=2),
        one(1, 11.0, 11.5, ended=12.0, text="x", tokens=1, prompt_tokens=3),
        one(0, 12.0, ended=20.0, failure="silent"),
    ]
    by_themselves = [one(0, 30.0, 31.0, ended=32.0, text="abc"), one(1, 32.0, 33.0, ended=33.0, text="y")]
    found = summarize(loaded, by_themselves, ttft_limit=900.0, itl_limit=499.0)
    assert (found["seconds"], found["tokens"], found["tok_s"], found["prompt_tokens"]) == (10.0, 8, 0.8, 5)
    assert found["ttft_ms"]["p50"] == 750.0
    assert found["itl_ms"] == {"p50": 500.0, "p90": 500.0, "p99": 500.0}
    assert found["gap_ms"]["p50"] == 1500.0
    assert found["goodput"] == {"ttft_limit_ms": 900.0, "itl_limit_ms": 499.0, "requests": 1, "requests_s": 0.1}
    assert found["identical_to_alone"] == "1/2"
    assert summarize(loaded, by_themselves, itl_limit=500.0)["goodput"]["requests"] == 2
    nothing = summarize(loaded[2:], [])
    assert nothing["ttft_ms"] == {"p50": None, "p90": None, "p99": None}
    assert nothing["identical_to_alone"] == "0/0"


def test_keys_and_chunks_of_any_shape(tmp_path):
    (tmp_path / "empty").write_text("# nothing\n")
    for name in ("empty", "not there"):
        with pytest.raises(InputError):
            read_key(tmp_path / name)
    odd: list[Any] = [{}, {"choices": []}, {"choices": [1]}, {"choices": [{"delta": None}]}, {"choices": {}}]
    assert [text_in(one) for one in odd] == [""] * 5
    assert text_in({"choices": [{"delta": {"content": None, "reasoning_content": "so"}}]}) == "so"
    assert KEY not in repr(ChatServer("http://a", key=KEY))
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(RequestFailed, match="not reached"):
            next(ChatServer(f"http://127.0.0.1:{nobody.getsockname()[1]}").stream({}))
