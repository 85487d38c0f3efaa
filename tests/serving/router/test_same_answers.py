"""A model's answers through the server in front are those of its worker alone, in every API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.gate import SECRET as HEADER
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS
from tests.serving.router.conftest import PATIENCE, SECRET

HI = [{"role": "user", "content": "Hi"}]
LONG = [{"role": "user", "content": "word " * 5000}]
CASES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 8, "unknown": 1}),
    ("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 8, "stream": True}),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 8, "stream": True}),
    ("POST", "/v1/messages", {"messages": HI, "max_tokens": 8, "stream": True}),
    ("POST", "/v1/messages", {"messages": HI, "max_tokens": 8, "model": "claude-3"}),
    ("POST", "/v1/messages/count_tokens", {"messages": HI}),
    ("POST", "/v1/responses", {"input": "Hi", "max_output_tokens": 8, "stream": True}),
    ("POST", "/api/chat", {"model": "tiny", "messages": HI, "options": {"num_predict": 8}}),
    ("POST", "/api/generate", {"model": "tiny", "prompt": "Hi", "stream": False, "options": {"num_predict": 8}}),
    ("POST", "/completion", {"prompt": "x", "n_predict": 8, "stream": True}),
    ("POST", "/tokenize", {"content": "Hi there"}),
    ("GET", "/tokenizer_info", None),
    ("GET", "/props", None),
    ("GET", "/v1/responses/resp_none", None),
    ("POST", "/v1/chat/completions", {"messages": HI, "temperature": "hot"}),
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("POST", "/v1/chat/completions", {"messages": HI, "model": "other"}),
    ("POST", "/v1/messages", {"messages": LONG, "max_tokens": 8}),
    ("POST", "/v1/chat/completions", [1]),
    ("POST", "/v1/chat/completions", {"messages": HI, "stream": "yes"}),
    ("GET", "/v1/chat/completions", None),
    ("POST", "/nowhere", {}),
]
_DIFFERS = re.compile(
    rb'(?<=[a-z]_|l-)[0-9a-f]{24,}|"(?:created|created_at|completed_at)":(?:\d+|"[^"]*")|"\w*(?:_ms|_per_second|_duration)":[\d.]+'
)
"""Random ids and times of an answer."""
_TEXT = re.compile(rb'"(?:content|text|delta|response|type|error|stop)":"((?:[^"\\]|\\.)*)"')


def comparable(answer: httpx.Response) -> bytes:
    """Return an answer without ids and times; of a stream, the joined texts: its events depend on the time."""
    if answer.headers["content-type"].startswith(("text/event-stream", "application/x-ndjson")):
        kinds = [kind for kind in re.findall(rb"^event: (.*)$", answer.content, re.M) if b"delta" not in kind]
        return b"".join([*kinds, b"|", *(text for text in _TEXT.findall(answer.content) if b"delta" not in text)])
    return _DIFFERS.sub(b"*", answer.content)


@pytest.fixture
def worker(model: Any) -> Iterator[Any]:
    made = Server(Settings(names=("tiny",), limits=LIMITS, drafting={"lookahead": 0}, secret=SECRET))
    made.ready(model, lambda one: Service(one, slots=2))
    yield make_app(made)
    made.close(0.0)


def test_answers_are_the_same(fleet, worker):
    running = fleet({"tiny": worker})

    def asked(client: httpx.Client, url: str, method: str, path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        headers = {HEADER: SECRET, "x-request-id": "mine"}
        answer = client.request(method, url + path, json=body, headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name not in ("date", "content-length")}
        return answer.status_code, kept, comparable(answer)

    with httpx.Client(timeout=PATIENCE) as client:
        through = [asked(client, running.url, *case) for case in CASES]
    transport = httpx.HTTPTransport(uds=running.workers[0].address)
    with httpx.Client(transport=transport, timeout=PATIENCE) as direct:
        alone = [asked(direct, "http://127.0.0.1", *case) for case in CASES]
    for case, front, own in zip(CASES, through, alone, strict=True):
        assert front == own, case
    assert {status for status, _, _ in alone} >= {200, 400, 404, 405}
