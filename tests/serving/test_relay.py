"""The application without a socket, and what decides where a prompt is sent."""

from __future__ import annotations

import asyncio
import json

import pytest

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.relay import HttpRequest, opening, relayed
from tests.serving.test_chat import ASKED, HOT

JSON = [(b"content-type", b"application/json"), (b"host", b"localhost")]


def relay(app, asked):
    async def all_of():
        return [part async for part in relayed(app, asked)]

    return asyncio.run(all_of())


@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_the_same(client, server, stream):
    given = {"messages": ASKED, "max_tokens": 8, "stream": stream, **HOT}
    asked = HttpRequest("POST", "/v1/chat/completions", b"", JSON, json.dumps(given).encode())
    (status, headers), *pieces = relay(make_app(server), asked)
    direct = client.post("/v1/chat/completions", json=given)
    assert status == direct.status_code == 200
    assert dict(headers)[b"content-type"].decode() == direct.headers["content-type"]

    def said(text: str) -> list[str]:
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: {", "{"))]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        return [json.dumps(choice) for choice in choices]

    assert said(b"".join(pieces).decode()) == said(direct.text) != []


def test_queries_and_errors_arrive(server):
    (status, _), *pieces = relay(make_app(server), HttpRequest("GET", "/nowhere", b"a=1", JSON, b""))
    assert status == 404
    assert json.loads(b"".join(pieces))["error"]["message"]


def test_closing_it_is_a_client_that_leaves():
    heard = []

    async def app(scope, receive, send):
        heard.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        try:
            heard.append((await receive())["type"])
        except asyncio.CancelledError:
            heard.append("cancelled")
            raise

    async def leave():
        parts = relayed(app, HttpRequest("POST", "/", b"", [], b"body"))
        assert (await anext(parts))[0] == 200
        assert await anext(parts) == b"x"
        await parts.aclose()

    asyncio.run(leave())
    assert heard in ([b"body", "http.disconnect"], [b"body", "cancelled"])


def test_what_the_application_raises_is_raised():
    async def app(scope, receive, send):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        relay(app, HttpRequest("GET", "/", b"", [], b""))


def test_turns_of_a_conversation_have_one_opening():
    system = {"role": "system", "content": "Be brief"}
    one, other = ({"role": "user", "content": text} for text in ("Hi", "Ho"))

    def of(**fields):
        return opening(json.dumps(fields).encode())

    first = of(messages=[system, one], temperature=0)
    assert first == of(messages=[system, one, {"role": "assistant", "content": "x"}, other], stream=True)
    assert len({first, of(messages=[system, other]), of(messages=[one]), of(messages=[one], system="Be brief")}) == 4
    assert of(prompt="x" * 5000) == of(prompt="x" * 5000 + "y") != of(prompt="y")
    assert of(prompt=[1, 2]) != of(prompt=[1, 3])
    assert of(input=[one]) == of(input=[one, other])
    for body in (b"", b"{", b"[]", b"4", b'{"messages": []}', b'{"model": "x"}', b"[" * 100_000):
        assert opening(body) == ""
