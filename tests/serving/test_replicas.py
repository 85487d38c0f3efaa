"""The front before replicas of several models, with handles in place of Ray's."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from ipex_lookahead.serving.replicas import Front


class Handle:
    """Ray's handle of a model's replicas: answers with the model's name, and lists it."""

    def __init__(self, name: str) -> None:
        self.name, self.handle = name, self

    def options(self, **_: Any) -> Handle:
        return self

    async def remote(self, sent: Any) -> Any:
        yield 200, [(b"content-type", b"application/json"), (b"x-replica", self.name.encode())]
        listed = {"object": "list", "data": [{"id": self.name}], "models": [{"name": self.name}]}
        yield json.dumps(listed if sent.path.endswith(("/models", "/tags", "/ps")) else {"by": self.name}).encode()


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    exceptions = types.ModuleType("ray.exceptions")
    exceptions.RayError = type("RayError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    front = Front(["a", "owner/b"], Handle("a"), Handle("owner/b"))

    async def body_of(answer: Response) -> Any:
        if not hasattr(answer, "body_iterator"):
            return json.loads(bytes(answer.body))
        return json.loads(b"".join([part async for part in answer.body_iterator]))

    def asking(method: str, path: str, body: Any = None, query: str = "") -> tuple[int, Any]:
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": query.encode(),
                 "scheme": "http", "server": ("localhost", 80)}  # fmt: skip
        given = body if isinstance(body, bytes) else json.dumps(body or {}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": given, "more_body": False}

        async def run() -> tuple[int, Any]:
            answer = await front(Request(scope, receive))
            return answer.status_code, await body_of(answer)

        return asyncio.run(run())

    return asking


@pytest.mark.parametrize(
    ("body", "by"),
    [
        ({"model": "a"}, "a"),
        ({"model": "owner/b"}, "owner/b"),
        ({"model": "owner/b:latest"}, "owner/b"),
        ({"name": "owner/b"}, "owner/b"),
        ({"model": "default"}, "a"),
        ({"model": "claude-x"}, "a"),
        ({}, "a"),
        ({"model": 7}, "a"),
        (b"no json", "a"),
    ],
    ids=str,
)
def test_a_request_goes_to_its_model(ask: Any, body: Any, by: str) -> None:
    assert ask("POST", "/v1/chat/completions", body) == (200, {"by": by})


def test_paths_and_queries_name_models(ask: Any) -> None:
    assert ask("GET", "/v1/models/owner/b") == (200, {"by": "owner/b"})
    assert ask("GET", "/props", query="model=owner%2Fb") == (200, {"by": "owner/b"})
    assert ask("GET", "/props") == (200, {"by": "a"})


def test_an_unknown_model(ask: Any) -> None:
    status, said = ask("POST", "/v1/chat/completions", {"model": "c" * 1000})
    assert (status, said["error"]["code"]) == (404, "model_not_found")
    assert len(said["error"]["message"]) < 400
    assert isinstance(ask("POST", "/api/chat", {"model": "c"})[1]["error"], str)


def test_lists_have_all_models(ask: Any) -> None:
    assert [one["id"] for one in ask("GET", "/v1/models")[1]["data"]] == ["a", "owner/b"]
    for path in ("/api/tags", "/api/ps"):
        assert [one["name"] for one in ask("GET", path)[1]["models"]] == ["a", "owner/b"]
