"""``/v1/embeddings``, ``/embedding``, ``/embed`` and Ollama's paths: shapes, fields and errors."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.limits import Limits
from tests.serving.embedding.conftest import embedding_server
from tests.support.fake_embedding import FakeEmbedding, vector


def unit(text: str, dimensions: int = 8) -> np.ndarray:
    found = vector(map(ord, text), 8)[:dimensions]
    return found / np.linalg.norm(found)


def ask(client: Any, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def same(found: Any, *texts: str, dimensions: int = 8) -> bool:
    return np.array_equal(np.array(found, np.float32), np.stack([unit(text, dimensions) for text in texts]))


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([111, 110, 101], ["one"]),
        ([[111, 110, 101], [116]], ["one", "t"]),
    ],
)
def test_openai_shape_has_the_models_bits(embed, given, texts):
    found = ask(embed, "/v1/embeddings", input=given, model="embedding", user="u")
    assert (found["object"], found["model"]) == ("list", "embedding")
    assert [(one["object"], one["index"]) for one in found["data"]] == [("embedding", n) for n in range(len(texts))]
    assert same([one["embedding"] for one in found["data"]], *texts)
    tokens = sum(map(len, texts))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    packed = ask(embed, "/embeddings", input=given, encoding_format="base64")
    raw = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]]
    assert same(raw, *texts)


def test_dimensions_tasks_and_normalization(embed, fake):
    found = ask(embed, "/v1/embeddings", input="x", dimensions=3, task="query")
    assert same([found["data"][0]["embedding"]], "q: x", dimensions=3)
    found = ask(embed, "/v1/embeddings", input="x", normalize=False, prompt_name="document")
    assert np.array_equal(np.array(found["data"][0]["embedding"], np.float32), vector(map(ord, "d: x"), 8))


def test_a_text_that_is_too_long_is_an_error_unless_it_may_be_cut(embed):
    error = ask(embed, "/v1/embeddings", 400, input="x" * 65)["error"]
    assert "65 tokens" in error["message"]
    assert "maximum is 64" in error["message"]
    found = ask(embed, "/v1/embeddings", input="x" * 65, truncate=True)
    assert same([found["data"][0]["embedding"]], "x" * 64)


def test_llama_servers_shape(embed):
    found = ask(embed, "/embedding", content=["one", "two"])
    assert [one["index"] for one in found] == [0, 1]
    assert same([one["embedding"][0] for one in found], "one", "two")
    (found,) = ask(embed, "/embedding", input="one", embd_normalize=-1)
    assert np.array_equal(np.array(found["embedding"][0], np.float32), vector(map(ord, "one"), 8))
    assert "give content" in ask(embed, "/embedding", 400)["error"]["message"]


def test_text_embeddings_inference(embed):
    assert same(ask(embed, "/embed", inputs="one"), "one")
    assert same(ask(embed, "/embed", inputs=["one", "two"], dimensions=4), "one", "two", dimensions=4)
    assert same(ask(embed, "/embed", inputs="x" * 70, truncate=True), "x" * 64)
    error = ask(embed, "/embed", 400, inputs="x" * 70)
    assert "maximum is 64" in error["error"]
    assert error["error_type"] == "Validation"
    found = embed.get("/info").json()
    assert (found["model_id"], found["max_input_length"], found["max_client_batch_size"]) == ("embedding", 64, 2048)
    assert "embedding" in found["model_type"]


def test_ollamas_shape(embed):
    found = ask(embed, "/api/embed", model="embedding:latest", input=["one", "two"], keep_alive="5m", options={})
    assert same(found["embeddings"], "one", "two")
    assert (found["model"], found["prompt_eval_count"]) == ("embedding:latest", 6)
    assert found["total_duration"] > 0
    assert same(ask(embed, "/api/embed", model="embedding", input="x" * 70)["embeddings"], "x" * 64)
    error = ask(embed, "/api/embed", 400, model="embedding", input="x" * 70, truncate=False)["error"]
    assert "maximum is 64" in error
    found = ask(embed, "/api/embed", model="embedding", input="one", dimensions=2)
    assert same(found["embeddings"], "one", dimensions=2)
    for nothing in ("", [], None):
        assert ask(embed, "/api/embed", model="embedding", input=nothing)["embeddings"] == []
    assert same([ask(embed, "/api/embeddings", model="embedding", prompt="one")["embedding"]], "one")
    assert ask(embed, "/api/embeddings", model="embedding")["embedding"] == []
    assert "not a duration" in ask(embed, "/api/embed", 400, model="embedding", input="x", keep_alive="x")["error"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/embeddings", {"input": []}, "input: it is empty"),
        ("/v1/embeddings", {}, "input: Field required"),
        ("/v1/embeddings", {"input": 5}, "input: "),
        ("/v1/embeddings", {"input": ["x", 1]}, "input"),
        ("/v1/embeddings", {"input": ["x"] * 2049}, "2,049 entries; the limit is 2,048"),
        ("/v1/embeddings", {"input": "x", "dimensions": 9}, "dimensions is 9; it must be 1 to 8"),
        ("/v1/embeddings", {"input": "x", "dimensions": 0}, "dimensions: "),
        ("/v1/embeddings", {"input": "x", "encoding_format": "int8"}, "encoding_format: "),
        ("/v1/embeddings", {"input": "x", "task": "sing"}, "task is 'sing'; it must be query or document"),
        ("/v1/embeddings", {"input": "x", "task": "query", "prompt_name": "document"}, "another name of task"),
        ("/embed", {"inputs": "x", "truncation_direction": "left"}, "texts are cut at their end"),
        ("/embedding", {"content": "x", "embd_normalize": 1}, "normalized to Euclidean length"),
        ("/api/embed", {"input": "x"}, "model: Field required"),
    ],
)
def test_errors_name_the_value_in_the_form_of_the_api(embed, path, body, said):
    error = ask(embed, path, 400, **body)["error"]
    assert said in (error["message"] if isinstance(error, dict) else error)


def test_an_unknown_model_and_unknown_fields(embed):
    assert (
        "this server has embedding" in ask(embed, "/v1/embeddings", 404, input="x", model="other")["error"]["message"]
    )
    answer = embed.post("/v1/embeddings", json={"input": "x", "color": "red"})
    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, "color")


def test_too_many_tokens(asking, fake):
    client = asking(fake, limits=replace(Limits(), embedding_tokens=10))
    assert (
        "12 tokens in 2 texts; the limit is 10"
        in ask(client, "/v1/embeddings", 413, input=["x" * 6] * 2)["error"]["message"]
    )


def test_a_key_is_needed_where_there_are_keys(asking, fake):
    client = asking(fake, keys=Keys(["k" * 20]))
    assert client.post("/v1/embeddings", json={"input": "x"}).status_code == 401
    headers = {"authorization": "Bearer " + "k" * 20}
    assert client.post("/v1/embeddings", json={"input": "x"}, headers=headers).status_code == 200
    assert client.post("/embed", json={"inputs": "x"}).json()["error_type"] == "Validation"


def test_a_full_queue_is_a_429_with_the_time(asking, fake):
    client = asking(fake, capacity={"slots": 1, "queue": 0, "running_per_key": 1, "queued_per_key": 0})
    fake.go.clear()
    first = threading.Thread(target=ask, args=(client, "/v1/embeddings"), kwargs={"input": "x"})
    first.start()
    assert fake.entered.acquire(timeout=30)
    answer = client.post("/embed", json={"inputs": "y"})
    assert (answer.status_code, answer.json()["error_type"]) == (429, "Overloaded")
    assert int(answer.headers["retry-after"]) >= 1
    fake.go.set()
    first.join(30)


def test_a_failure_of_the_model_is_a_500_without_details(embed, fake):
    fake.broken = "bad"
    assert ask(embed, "/v1/embeddings", 500, input="bad")["error"]["message"].startswith("internal error")
    assert ask(embed, "/v1/embeddings", input="good")


def test_text_paths_name_the_right_use(embed):
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    error = ask(embed, "/v1/chat/completions", 400, **chat)["error"]
    assert error["code"] == "wrong_model_purpose"
    assert "'embedding' is an embedding model, for /v1/embeddings" in error["message"]
    assert "serve a text model, such as: ipex-lookahead serve -m " in error["message"]
    assert "embedding model" in ask(embed, "/api/generate", 400, model="embedding", prompt="x")["error"]
    assert "'embedding' is an embedding model" in ask(embed, "/v2/rerank", 400, query="x", documents=["y"])["message"]
    for path in ("/props", "/slots", "/tokenizer_info", "/lora-adapters"):
        assert embed.get(path).status_code == 400, path


def test_a_text_model_names_the_right_one(client):
    for path, body in (
        ("/v1/embeddings", {"input": "x"}),
        ("/embed", {"inputs": "x"}),
        ("/embedding", {"content": "x"}),
    ):
        error = ask(client, path, 400, **body)["error"]
        said = error if isinstance(error, str) else error["message"]
        assert "'tiny' is a text model" in said
        assert "serve an embedding model, such as: ipex-lookahead serve -m qwen3-embedding-0.6b" in said
    assert "serve a reranking model" in ask(client, "/v1/rerank", 400, query="x", documents=["y"])["error"]["message"]
    assert client.get("/info").status_code == 400


def test_lists_tell_what_the_model_is_for(embed, rank, client):
    (one,) = embed.get("/v1/models").json()["data"]
    assert (one["purpose"], one["max_model_len"], one["meta"]["dimensions"]) == ("embedding", 64, 8)
    assert one["system_fingerprint"].startswith("fp_")
    assert embed.get("/v1/models/embedding").json()["purpose"] == "embedding"
    assert rank.get("/v1/models").json()["data"][0]["purpose"] == "reranking"
    assert {one["purpose"] for one in client.get("/v1/models").json()["data"]} == {"text"}
    assert embed.post("/api/show", json={"model": "embedding"}).json()["capabilities"] == ["embedding"]
    assert embed.get("/api/tags").json()["models"][0]["name"] == "embedding"
    assert embed.get("/api/ps").json()["models"][0]["name"] == "embedding"


def test_health_and_figures(embed):
    assert embed.get("/health").json() == {"status": "ok"}
    assert embed.get("/ready").json() == {"status": "ready", "running": 0, "waiting": 0}
    ask(embed, "/v1/embeddings", input=["one", "two"])
    text = embed.get("/metrics").text
    for line in (
        "ipex_lookahead_embedding_texts_total 2.0",
        "ipex_lookahead_embedding_tokens_total 6.0",
        "ipex_lookahead_prompt_tokens_total 6.0",
        'ipex_lookahead_request_success_total{finished_reason="stop"} 1.0',
        "ipex_lookahead_e2e_request_latency_seconds_count 1.0",
        'ipex_lookahead_http_requests_total{path="/v1/embeddings",status="200"} 1.0',
    ):
        assert line in text


def test_large_answers_are_written_outside_the_loop(asking):
    model = FakeEmbedding(dimensions=512, max_length=8)
    found = ask(asking(model), "/embed", inputs=[f"t{n}" for n in range(64)])
    assert np.array(found, np.float32).shape == (64, 512)
    assert json.dumps(found[3][0])


def test_the_texts_of_a_client_that_leaves_are_not_computed(fake):
    """The client leaves while its texts wait for another request's batch."""
    with embedding_server(fake) as server:
        app = make_app(server)
        fake.go.clear()
        left = asyncio.run(_leaves(app, fake))
        assert left == [499]
        fake.go.set()
        assert server.counts == (0, 0)
        assert all("gone" not in batch for batch in fake.batches)
        assert b'finished_reason="abort"} 1.0' in server.metrics.text()


async def _leaves(app: Any, fake: FakeEmbedding) -> list[int]:
    """Return the status of a request that leaves while another one, which leaves later, is in its batch."""
    first = asyncio.ensure_future(_post(app, "first", asyncio.Event()))
    while not fake.entered.acquire(blocking=False):
        await asyncio.sleep(0.002)
    leaves = asyncio.Event()
    second = asyncio.ensure_future(_post(app, "gone", leaves))
    while app.state.server.counts[1] == 0:
        await asyncio.sleep(0.002)
    leaves.set()
    status = await second
    fake.go.set()
    assert await first == 200
    return [status]


async def _post(app: Any, text: str, leaves: asyncio.Event) -> int:
    body, statuses = [json.dumps({"input": text}).encode()], []

    async def receive() -> Any:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http", "method": "POST", "path": "/v1/embeddings", "raw_path": b"/v1/embeddings", "query_string": b"",
        "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    await app(scope, receive, send)
    return int(statuses[0])
