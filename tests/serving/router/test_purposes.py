"""Requests to a server with text, embedding and reranking models: each path finds its model, or names it."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_lookahead.serving.app import make_app
from tests.serving.embedding.conftest import embedding_server
from tests.serving.router.conftest import SECRET
from tests.serving.router.test_proxy import CHAT, HI, Script, get, post
from tests.support.fake_embedding import FakeEmbedding

PURPOSES = {"embed": "embedding", "chat": "text", "rank": "reranking"}


def json_script() -> Script:
    return Script(b'{"of": "worker"}', kind=b"application/json")


@pytest.fixture
def scripts() -> dict[str, Script]:
    return {name: json_script() for name in PURPOSES}


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        (CHAT, HI, "chat"),
        (CHAT, {**HI, "model": "claude-fable"}, "chat"),
        ("/v1/embeddings", {"input": "x"}, "embed"),
        ("/embed", {"inputs": "x"}, "embed"),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}, "rank"),
        ("/v2/rerank", {"model": "rank", "query": "x", "documents": ["y"]}, "rank"),
        ("/api/embed", {"model": "embed:latest", "input": "x"}, "embed"),
    ],
)
def test_a_request_without_a_name_finds_a_model_for_its_path(fleet, scripts, path, body, model):
    running = fleet(scripts, purposes=PURPOSES)
    answer = post(running.url + path, json=body)
    assert (answer.status_code, answer.json()) == (200, {"of": "worker"})
    assert [name for name, script in scripts.items() if script.bodies] == [model]


def test_another_models_path_names_the_right_model(fleet, scripts):
    running = fleet(scripts, purposes=PURPOSES)

    def said(path: str, **body: Any) -> Any:
        answer = post(running.url + path, json=body)
        assert answer.status_code == 400
        return answer.json()

    error = said("/v1/embeddings", model="chat", input="x")["error"]
    assert error["message"].endswith("for embeddings use the model 'embed'")
    assert "for text use the model 'chat'" in said(CHAT, model="embed", **HI)["error"]["message"]
    assert "for reranking use the model 'rank'" in said("/v2/rerank", model="embed", query="x", documents=[])["message"]
    assert "'rank' is a reranking model" in said("/api/embed", model="rank", input="x")["error"]
    assert not any(script.bodies for script in scripts.values()), "no model was loaded for it"


def test_a_server_without_such_a_model_names_one_to_add(fleet):
    running = fleet({"chat": json_script()})
    error = post(running.url + "/v1/embeddings", json={"input": "x"}).json()["error"]["message"]
    assert error == "this server has no model for embeddings; add an embedding model, such as: -m qwen3-embedding-0.6b"


def test_lists_show_purposes_of_models_that_are_not_loaded(fleet, scripts):
    running = fleet(scripts, purposes=PURPOSES)
    listed = get(running.url + "/v1/models").json()["data"]
    assert {one["id"]: one["purpose"] for one in listed} == PURPOSES


def test_ollamas_request_without_input_loads_or_unloads_the_model(fleet, scripts):
    running = fleet(scripts, purposes=PURPOSES)
    assert post(running.url + "/api/embed", json={"model": "embed"}).json() == {"model": "embed", "embeddings": []}
    assert running.table.find("embed").state == "ready"
    answer = post(running.url + "/api/embeddings", json={"model": "embed", "keep_alive": 0})
    assert answer.json() == {"embedding": []}
    assert not scripts["embed"].bodies


def test_an_embedding_server_behind_the_router(fleet):
    with embedding_server(FakeEmbedding(), secret=SECRET, names=("embed",)) as server:
        running = fleet({"chat": json_script(), "embed": make_app(server)}, purposes=PURPOSES)
        found = post(running.url + "/api/embed", json={"model": "embed", "input": ["one", "two"]}).json()
        assert [len(one) for one in found["embeddings"]] == [8, 8]
        assert "ipex_lookahead_embedding_texts_total 2.0" in get(running.url + "/metrics").text
