"""Responses that are remembered can be fetched, listed and deleted, by the key that made them alone."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from tests.serving.test_chat import HOT
from tests.serving.test_responses import TOOLS, generation, streamed, user


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_given_again_until_it_is_deleted(client, stream):
    metadata = {"metadata": {"a": "é"}, "instructions": "Be brief"}
    made = streamed(client, **metadata)[-1]["response"] if stream else generation(client, **metadata)
    path = f"/v1/responses/{made['id']}"
    assert client.get(path).json() == made
    assert client.get(path.removeprefix("/v1")).json() == made
    later = generation(client, input="Yes?", previous_response_id=made["id"])
    assert client.delete(path).json() == {"id": made["id"], "object": "response", "deleted": True}
    for method in (client.get, client.delete):
        answer = method(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    for fields in ({"previous_response_id": made["id"]}, {"input": [{"id": made["output"][0]["id"]}]}):
        assert client.post("/v1/responses", json={"input": "Hi", **fields}).status_code == 400
    assert client.get(f"/v1/responses/{later['id']}").json() == later
    items = client.get(f"/v1/responses/{later['id']}/input_items").json()["data"]
    assert [item["role"] for item in items] == ["user", "assistant", "user"], "a later one keeps what it went on from"


def test_input_items_come_in_pages(client):
    call = {"type": "function_call", "call_id": "c", "name": "w", "arguments": '{"a": 1}'}
    result = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    first = generation(client, input=[user("Hi"), call, result], tools=TOOLS)
    made = generation(client, input="Yes?", previous_response_id=first["id"])
    path = f"/v1/responses/{made['id']}/input_items"

    def page(**fields: Any) -> Any:
        answer = client.get(path, params=fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    whole = page(order="asc")
    kinds = [item["type"] for item in whole["data"]]
    assert kinds == ["message", "function_call", "function_call_output", *["message"] * (len(kinds) - 3)]
    assert [item["content"][0]["type"] for item in (whole["data"][0], whole["data"][-1])] == ["input_text"] * 2
    assert whole["data"][3] == first["output"][0]
    assert (whole["object"], whole["has_more"]) == ("list", False)
    ids = [item["id"] for item in whole["data"]]
    assert len(set(ids)) == len(ids)
    assert [item["id"] for item in page()["data"]] == ids[::-1]
    found: list[str] = []
    more, after = True, {}
    while more:
        part = page(order="asc", limit=2, **after)
        found += [item["id"] for item in part["data"]]
        assert (part["first_id"], part["last_id"]) == (part["data"][0]["id"], part["data"][-1]["id"])
        more, after = part["has_more"], {"after": part["last_id"]}
    assert found == ids
    for param, value in (("limit", 0), ("limit", 101), ("limit", "x"), ("order", "up"), ("after", "msg_0")):
        answer = client.get(path, params={param: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_what_was_not_stored_is_not_there(client):
    salted, unstored = generation(client, cache_salt="a"), generation(client, store=False)
    for number in (salted["id"], unstored["id"], "resp_0", "é"):
        assert client.get(f"/v1/responses/{number}").status_code == 404
        assert client.get(f"/v1/responses/{number}/input_items").status_code == 404
    assert client.get(f"/v1/responses/{salted['id']}", params={"cache_salt": "a"}).json() == salted
    answer = client.get(f"/v1/responses/{salted['id']}", params={"cache_salt": "a", "stream": True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


def test_another_keys_response_is_not_there(server, monkeypatch):
    monkeypatch.setattr(server.settings, "keys", Keys(["a", "b"]))
    with TestClient(make_app(server), raise_server_exceptions=False) as both:
        own, other = ({"authorization": f"Bearer {name}"} for name in ("a", "b"))
        given = {"input": "Hi", "max_output_tokens": 4, **HOT}
        made = both.post("/v1/responses", json=given, headers=own).json()
        path = f"/v1/responses/{made['id']}"
        for where, method in ((path, "GET"), (f"{path}/input_items", "GET"), (path, "DELETE")):
            assert both.request(method, where, headers=other).status_code == 404
        assert both.get(path, headers=own).json() == made
