"""A server as a process, clients that keep to the rules, and what must hold whatever others send meanwhile."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.serving.failures import KINDS
from tests.serving.test_serve import PATIENCE, started, wait_for
from tests.support.raw_http import Answer, Refused, events, exchange, head, post
from tests.support.server_attacks import KEY, NONE

HONEST = {"authorization": "Bearer an-honest-key-of-ours"}
MOST_GROWTH = 256 << 20
"""Bytes; a body may be 8 MiB, and what Python makes of one comes to ten times that."""
_SETTLES = 60.0
"""Seconds in which memory may come back."""
_SPOKEN = frozenset({"content", "text", "delta", "partial_json", "arguments", "name", "finish_reason", "stop_reason",
                     "completion_tokens", "output_tokens", "done_reason", "eval_count"})  # fmt: skip
_HI = [{"role": "user", "content": "Count to ten."}]
_POINT = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
_LONG = {"max_tokens": 48, "stream": True}
HONEST_REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": _HI, "temperature": 0, "stream_options": {"include_usage": True}, **_LONG}),
    ("/v1/chat/completions", {"messages": _HI, "temperature": 1, "seed": 7, **_LONG}),
    ("/v1/completions", {"prompt": "One, two,", "temperature": 0, **_LONG}),
    ("/v1/responses", {"input": "Yes?", "max_output_tokens": 48, "stream": True, "temperature": 0,
                       "text": {"format": {"type": "json_schema", "name": "p", "schema": _POINT}}}),
    ("/v1/messages", {"messages": _HI, "tool_choice": {"type": "any"}, "temperature": 0,
                      "tools": [{"name": "f", "input_schema": _POINT}], **_LONG}),
    ("/api/chat", {"model": "tiny", "messages": _HI, "options": {"num_predict": 48, "temperature": 0}}),
]  # fmt: skip


def check_error(path: str, answer: Answer, method: str = "POST") -> None:
    """Raise AssertionError for an error that is not told as the API at this path tells errors."""
    assert answer.headers["content-type"] == "application/json", answer
    assert answer.headers["x-content-type-options"] == "nosniff", answer
    if method == "HEAD":
        assert answer.body == b""
        return
    found = answer.json
    if path.startswith("/api/"):
        assert set(found) == {"error"}, answer
        assert isinstance(found["error"], str), answer
        assert found["error"], answer
        return
    error = found["error"]
    assert error["type"] == KINDS.get(answer.status, "api_error"), answer
    assert isinstance(error["message"], str), answer
    assert error["message"], answer
    if path.startswith("/v1/messages"):
        assert (set(found), found["type"], set(error)) == ({"type", "error"}, "error", {"type", "message"}), answer
    else:
        assert (set(found), set(error)) == ({"error"}, {"message", "type", "param", "code"}), answer


def check_text(answer: Answer) -> None:
    """Raise AssertionError for an answer, or an event of a stream, that says to be JSON and is none."""
    kind = answer.headers.get("content-type", "")
    lines = [answer.body] if kind == "application/json" else []
    if kind.startswith("text/event-stream"):
        lines = [line[6:] for line in answer.body.splitlines() if line.startswith(b"data: {")]
    elif kind == "application/x-ndjson":
        lines = answer.body.splitlines()
    for line in filter(None, lines):
        try:
            value = json.loads(line.decode(), parse_constant=_no_number)
        except ValueError as error:
            raise AssertionError(f"{error}: {line[:300]!r}") from None
        assert not has_surrogate(value), answer


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def heard(stream: Iterable[Any]) -> dict[str, str]:
    """All that a client is told by a stream, but for names and times; in whatever pieces it came."""
    found: dict[str, list[str]] = {}

    def listen(value: Any, name: str = "") -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                listen(inner, key)
        elif isinstance(value, list):
            for inner in value:
                listen(inner, name)
        elif name in _SPOKEN and value is not None:
            found.setdefault(name, []).append(str(value))

    for said in stream:
        assert said.get("type") != "error", said
        assert said.get("error") is None, said
        listen(said)
    return {name: "".join(said) for name, said in found.items()}


@dataclass
class Attacked:
    """A server that is being attacked, while honest clients stream from it.

    Attributes:
        port, pid: the server's.
        attack: what is going on now.
        faults: what went wrong for the honest.
        gaps: the longest silence in an honest stream, by attack, in seconds.
        answered: honest answers that were what they are alone; the times that one was told to come again.
        log: lines that the server has written.
    """

    port: int
    pid: int
    attack: str = "none"
    faults: list[str] = field(default_factory=list)
    gaps: dict[str, float] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    def honest(self, number: int) -> dict[str, str]:
        """What an honest client hears. One that is told to come again does."""
        path, body = HONEST_REQUESTS[number]
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return heard(self._timed(events(self.port, post(path, body, HONEST))))
            except Refused as refused:
                if refused.answer.status != 429 or time.monotonic() > until:
                    raise
                check_error(path, refused.answer)
                self.answered["told to come again"] += 1
                time.sleep(min(1.0, float(refused.answer.headers["retry-after"])))

    def _timed(self, stream: Iterator[tuple[float, Any]]) -> Iterator[Any]:
        before = self.attack
        for gap, said in stream:
            for name in {before, self.attack}:
                self.gaps[name] = max(self.gaps.get(name, 0.0), gap)
            before = self.attack
            yield said

    def wait_for_honest(self, answers: int) -> None:
        """Wait until so many more honest answers have come."""
        wanted, until = self.answered["the same"] + answers, time.monotonic() + PATIENCE
        while self.answered["the same"] < wanted:
            assert time.monotonic() < until, f"beside {self.attack} nobody honest is answered: {self.answered}"
            time.sleep(0.05)

    @contextmanager
    def honest_clients(self, count: int = 2) -> Iterator[None]:
        """Clients that stream, one answer after the other, until the attacks are over."""
        alone = [self.honest(number) for number in range(len(HONEST_REQUESTS))]
        ended = threading.Event()

        def stream(first: int) -> None:
            number = first
            while not ended.is_set():
                number = (number + 1) % len(HONEST_REQUESTS)
                try:
                    said = self.honest(number)
                except Exception as error:  # whatever an honest client meets is a finding
                    self.faults.append(f"beside {self.attack}: {type(error).__name__}: {error}")
                    continue
                if said != alone[number]:
                    self.faults.append(f"beside {self.attack}: {said}, and alone {alone[number]}")
                self.answered["the same"] += 1

        clients = [threading.Thread(target=stream, args=(first,), daemon=True) for first in range(count)]
        for client in clients:
            client.start()
        try:
            yield
        finally:
            ended.set()
            for client in clients:
                client.join(PATIENCE)
        assert not any(client.is_alive() for client in clients), "an honest stream does not end"
        assert not self.faults, self.faults[:3]
        assert self.answered["the same"] >= count

    def send(self, name: str, sent: bytes, allowed: set[int], **how: Any) -> Answer | None:
        """An attack of one request: its answer has an allowed status, and an error the known shape."""
        self.attack = name
        answer = exchange(self.port, sent, **how)
        status = NONE if answer is None else answer.status
        method, path = (sent.split(b"\r\n", 1)[0].decode("latin-1") + "  ").split(" ")[:2]
        assert status in allowed, f"{name}: {answer} instead of {sorted(allowed)}"
        if answer is not None:
            check_text(answer)
            if status >= 400:
                check_error(path, answer, method)
        return answer

    def rest(self) -> None:
        """Wait until nothing is being answered."""
        until = time.monotonic() + PATIENCE
        while True:
            answer = exchange(self.port, head("GET", "/metrics", HONEST))
            assert answer is not None
            counts = re.findall(rb"^ipex_lookahead_num_requests_(?:running|waiting) (\S+)$", answer.body, re.M)
            assert len(counts) == 2
            if not any(map(float, counts)):
                return
            assert time.monotonic() < until, "a request that nobody waits for is still being answered"
            time.sleep(0.05)


@contextmanager
def attacked(
    model: str, folder: Path, *options: str, keys: Sequence[str] = (), planted: str = ""
) -> Iterator[Attacked]:
    """Start a server with honest clients; look, when the attacks are over, at its memory, its health and its end.

    Args:
        model: what it serves.
        folder: for the file of its keys.
        options: further ones of the command.
        keys: further ones.
        planted: a fault: Python that the server runs first.
    """
    known = folder / "keys"
    known.write_text(
        "".join(f"{key}\n" for key in (*(one["authorization"].split()[1] for one in (HONEST, KEY)), *keys))
    )
    limits = (
        "--served-model-name",
        "tiny",
        "--slots",
        "8",
        "--queue",
        "16",
        "--cache-memory",
        "64M",
        "--drain-seconds",
        "5",
    )
    process, url = started("-m", model, "--api-key-file", str(known), *limits, *options, planted=planted)
    assert process.stderr is not None
    said: list[str] = []
    listening = threading.Thread(target=lambda: said.extend(process.stderr), daemon=True)  # a full pipe would hold it
    listening.start()
    try:
        wait_for(process, url)
        made = Attacked(urlsplit(url).port or 0, process.pid, log=said)
        with made.honest_clients():
            made.wait_for_honest(10)
            before = made.memory()
            yield made
            made.attack = "none"
        made.rest()
        until = time.monotonic() + _SETTLES
        while (grown := made.memory() - before) > MOST_GROWTH and time.monotonic() < until:
            time.sleep(0.5)
        assert grown < MOST_GROWTH, f"{grown >> 20} MiB did not come back"
        health = exchange(made.port, head("GET", "/health", {}))
        assert health is not None
        assert health.status == 200
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
        listening.join(PATIENCE)
        process.stderr.close()
    assert process.returncode == -signal.SIGTERM, "".join(said)[-3000:]
    assert "Traceback" not in "".join(said), "".join(said)[-3000:]
    gaps = {name: round(gap, 3) for name, gap in sorted(made.gaps.items(), key=lambda one: -one[1])[:12]}
    print({"honest": dict(made.answered), "memory grown, MiB": grown >> 20, "longest gap, s": gaps})
