"""Adapters in every API: two at once give what each gives alone, and names, scales and slots keep them apart."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.server import Server, Settings
from tests.support.adapter_files import llama_changes, write_peft

ADMIN = {"authorization": "Bearer the-admin-key"}
TOKENS = 12
PROMPT = "once upon a time"
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def files(folder, tmp_path_factory):
    """Three adapters of the tiny model: one, two and three."""
    opened = open_checkpoint(folder)
    shapes = {tensor.name: tensor.shape for tensor in opened.spec.tensors()}
    opened.close()
    made = tmp_path_factory.mktemp("adapters")
    return {
        name: write_peft(made / name, llama_changes(shapes, seed=seed))
        for seed, name in enumerate(("one", "two", "three"), 1)
    }


@pytest.fixture(scope="module")
def model(folder, files):
    loaded = load_text_model(str(folder), engine="native", threads=1, progress=False)
    for name in ("one", "two"):
        loaded.runtime.adapters.load(files[name], name)
    return loaded


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    slots = tmp_path_factory.mktemp("slots")
    limits = replace(Limits(), ping_seconds=60.0)
    admin = Keys(["the-admin-key"])
    settings = Settings(names=("tiny",), drafting={"lookahead": 3}, limits=limits, admin_keys=admin, slot_folder=slots)
    made = Server(settings)
    made.ready(model, lambda one: Service(one, slots=4))
    yield made
    made.close(0.0)


@pytest.fixture(scope="module")
def client(server):
    with TestClient(make_app(server), raise_server_exceptions=False) as made:
        yield made


@pytest.fixture(scope="module")
def expected(folder, files):
    """The answer to PROMPT as a text and as a question, by each adapter alone: name -> (text, answer).

    They come from models of their own, which have no other adapter, without a server and without lookahead.
    """
    found = {}
    for name in ("tiny", "one", "two"):
        alone = load_text_model(str(folder), engine="native", threads=1, progress=False)
        adapter = None
        if name != "tiny":
            alone.runtime.adapters.load(files[name], name)
            adapter = alone.runtime.adapters.applied(name)
        question = alone.tokenizer.prompt_ids(MESSAGES, {"add_generation_prompt": True}, "")
        params = SamplingParams(TOKENS, ignore_eos=True, temperature=0.0)
        found[name] = tuple(
            alone.tokenizer.decode(alone.generate(ids, params, adapter=adapter))
            for ids in (alone.tokenizer.encode(PROMPT, add_special_tokens=False), question)
        )
    assert len({*found.values()}) == 3, "the adapters change the answers"
    return found


SAMPLED = {"ignore_eos": True, "temperature": 0}
APIS = {
    "/v1/completions": lambda name: {"prompt": PROMPT, "max_tokens": TOKENS, **SAMPLED, "model": name},
    "/completion": lambda name: {"prompt": PROMPT, "n_predict": TOKENS, **SAMPLED, "model": name},
    "/v1/chat/completions": lambda name: {"messages": MESSAGES, "max_tokens": TOKENS, **SAMPLED, "model": name},
    "/v1/responses": lambda name: {"input": PROMPT, "max_output_tokens": TOKENS, **SAMPLED, "model": name},
    "/v1/messages": lambda name: {"messages": MESSAGES, "max_tokens": TOKENS, **SAMPLED, "model": name},
    "/api/chat": lambda name: {"messages": MESSAGES, **_ollama(name)},
    "/api/generate": lambda name: {"prompt": PROMPT, **_ollama(name)},
}


def _ollama(name):
    return {"model": f"{name}:latest", "stream": False, "options": {"num_predict": TOKENS, **SAMPLED}}


def text_of(path, body):
    if path == "/completion":
        return body["content"]
    if path.startswith("/api/"):
        return body["response"] if path == "/api/generate" else body["message"]["content"]
    if path == "/v1/responses":
        return body["output"][0]["content"][0]["text"]
    if path == "/v1/messages":
        return body["content"][0]["text"]
    choice = body["choices"][0]
    return choice["text"] if path == "/v1/completions" else choice["message"]["content"]


def test_two_adapters_and_the_model_at_once_in_every_api(client, expected):
    asked = [(path, name) for path in APIS for name in ("one", "tiny", "two")]

    def post(one):
        path, name = one
        return client.post(path, json=APIS[path](name))

    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(post, asked))
    for (path, name), answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200, (path, answer.text)
        assert text_of(path, answer.json()) == expected[name][path not in ("/v1/completions", "/completion")], path
        assert answer.json()["model"].removesuffix(":latest") == name


def test_an_unknown_name_is_refused_in_every_api(client):
    for path, body in APIS.items():
        answer = client.post(path, json=body("three"))
        assert answer.status_code == 404, path
        assert "there is no model 'three'; this server has tiny, one, two" in answer.text, path


def test_adapters_are_listed_as_models(client):
    listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert list(listed) == ["tiny", "one", "two"]
    assert [listed[name].get("parent") for name in listed] == [None, "tiny", "tiny"]
    assert listed["one"]["max_model_len"] == listed["tiny"]["max_model_len"]
    assert client.get("/v1/models/two").json() == listed["two"]
    tags = {one["name"]: one for one in client.get("/api/tags").json()["models"]}
    assert [tags[name]["details"]["parent_model"] for name in ("tiny", "one", "two")] == ["", "tiny", "tiny"]
    assert len({one["digest"] for one in tags.values()}) == 3
    assert client.post("/api/show", json={"model": "one"}).status_code == 200


def test_fingerprints_differ_by_adapter_and_scale(client):
    def fingerprint(**more):
        body = {"messages": MESSAGES, "max_tokens": 1, **more}
        return client.post("/v1/chat/completions", json=body).json()["system_fingerprint"]

    one = fingerprint(model="one")
    assert one == fingerprint(lora=[{"id": 0, "scale": 1}]) == fingerprint(model="one", lora=[])
    assert len({one, fingerprint(model="two"), fingerprint(), fingerprint(lora=[{"id": 0, "scale": 0.5}])}) == 4


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/v1/chat/completions"])
def test_the_list_of_scales_of_llama_server(path, client, expected):
    def text(lora, name="tiny"):
        answer = client.post(path, json={**APIS[path](name), "lora": lora})
        assert answer.status_code == 200, answer.text
        return text_of(path, answer.json())

    chat = path.endswith("chat/completions")
    assert text([{"id": 1, "scale": 1}, {"id": 0, "scale": 0}]) == expected["two"][chat]
    assert text([{"id": 0, "scale": 0}]) == text([]) == expected["tiny"][chat]
    assert text([{"id": 0, "scale": 0}], "one") == expected["tiny"][chat]
    half = text([{"id": 0, "scale": 0.5}])
    assert half == text([{"id": 0, "scale": 0.5}], "one")
    assert half not in (expected["one"][chat], expected["tiny"][chat])
    for lora, says in (
        ([{"id": 2, "scale": 1}], "there is no adapter 2; adapters are 0 to 1"),
        ([{"id": -1, "scale": 1}], "there is no adapter -1"),
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 2}], "it combines one and two; one adapter at a time"),
        ([{"id": 0}], "lora.0.scale"),
        ([{"id": 0, "scale": 1, "path": "x"}], "no such field"),
        ([{"id": 0, "scale": "1"}], "lora.0.scale"),
    ):
        answer = client.post(path, json={**APIS[path]("tiny"), "lora": lora})
        assert (answer.status_code, says in answer.text) == (400, True), answer.text
    answer = client.post(path, json={**APIS[path]("two"), "lora": [{"id": 0, "scale": 1}]})
    assert "model is the adapter 'two', and lora is about 'one'" in answer.text


def test_scales_for_all_requests(client, expected):
    def text(name="tiny"):
        return text_of("/completion", client.post("/completion", json=APIS["/completion"](name)).json())

    assert client.post("/lora-adapters", json=[{"id": 0, "scale": 1}]).status_code == 401
    assert client.post("/lora-adapters", json=[{"id": 0, "scale": 1}], headers=ADMIN).json() == {"success": True}
    try:
        assert [(one["id"], one["name"], one["scale"]) for one in client.get("/lora-adapters").json()] == [
            (0, "one", 1.0), (1, "two", 0.0),
        ]  # fmt: skip
        assert text() == expected["one"][0]
        assert text("two") == expected["two"][0], "a request that names an adapter gets it"
        answer = client.post("/lora-adapters", json=[{"id": 5, "scale": 1}], headers=ADMIN)
        assert (answer.status_code, "there is no adapter 5" in answer.text) == (400, True)
    finally:
        client.post("/lora-adapters", json=[], headers=ADMIN)
    assert text() == expected["tiny"][0]


def test_adapters_are_loaded_and_unloaded_over_http(client, files, tmp_path):
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    body = {"lora_name": "three", "lora_path": str(files["three"])}
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF")
    assert client.post(load, json=body).status_code == 401
    assert client.post(load, json=body, headers=ADMIN).text == "Success: LoRA adapter 'three' added successfully."
    first = client.post("/completion", json=APIS["/completion"]("three"))
    assert first.status_code == 200
    for wrong, says in (
        (body, "is in use"),
        ({**body, "lora_name": "tiny", "load_inplace": True}, "is in use"),
        ({"lora_name": "x", "lora_path": str(tmp_path / "absent")}, "absent: no such adapter"),
        ({"lora_name": "x", "lora_path": "qwen3"}, "qwen3: no such adapter"),
        ({"lora_name": "x", "lora_path": str(damaged)}, "lora_path: "),
        ({"lora_name": "", "lora_path": "y"}, "lora_name"),
    ):
        answer = client.post(load, json=wrong, headers=ADMIN)
        assert (answer.status_code, says in answer.text) == (400, True), answer.text
    replaced = client.post(load, json={**body, "lora_path": str(files["two"]), "load_inplace": True}, headers=ADMIN)
    assert replaced.status_code == 200
    second = client.post("/completion", json=APIS["/completion"]("three"))
    assert second.json()["content"] != first.json()["content"]
    assert client.post(unload, json={"lora_name": "three"}, headers=ADMIN).status_code == 200
    assert client.post(unload, json={"lora_name": "three"}, headers=ADMIN).status_code == 404
    assert client.post("/completion", json=APIS["/completion"]("three")).status_code == 404
    assert client.post("/completion", json=APIS["/completion"]("two")).status_code == 200


def test_a_saved_slot_is_of_its_adapter(client):
    body = {**APIS["/completion"]("one"), "id_slot": 2}
    client.post("/completion", json=body)
    saved = client.post("/slots/2?action=save", json={"filename": "text"})
    assert saved.status_code == 200, saved.text
    for name in ("tiny", "two"):
        refused = client.post("/slots/2?action=restore", json={"filename": "text", "model": name})
        assert (refused.status_code, "belongs to another model" in refused.text) == (400, True), refused.text
    restored = client.post("/slots/2?action=restore", json={"filename": "text", "model": "one"})
    assert restored.json()["n_restored"] == saved.json()["n_saved"]
    assert client.post("/slots/2?action=erase").json()["n_erased"] == saved.json()["n_saved"]


def test_a_prompt_that_one_adapter_has_read_is_not_a_hit_for_another(client):
    def cached(name, text):
        answer = client.post("/v1/completions", json={**APIS["/v1/completions"](name), "prompt": text})
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    text = "a prompt of more than one page of tokens, of which each is a byte of text in this vocabulary; " * 3
    assert cached("one", text) == 0
    assert cached("two", text) == cached("tiny", text) == 0
    assert cached("one", text) == cached("two", text) > 0


def test_streams_name_the_adapter(client):
    body = {**APIS["/v1/chat/completions"]("one"), "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    assert {json.loads(line)["model"] for line in lines} == {"one"}


def test_two_tenants_with_an_adapter_each(folder, files, expected):
    """Keys of their own, the same prompt again and again, at once: the prefix cache and the drafts stay apart."""
    model = load_text_model(str(folder), engine="native", threads=1, progress=False)
    for name in ("one", "two"):
        model.runtime.adapters.load(files[name], name)
    limits = replace(Limits(), ping_seconds=60.0)
    settings = Settings(names=("tiny",), drafting={"lookahead": "auto"}, limits=limits, keys=Keys(["key-1", "key-2"]))
    served = Server(settings)
    served.ready(model, lambda one: Service(one, slots=2))
    try:
        with TestClient(make_app(served)) as tenants, ThreadPoolExecutor(2) as pool:

            def answers(name, key):
                headers = {"authorization": f"Bearer {key}"}
                body = APIS["/v1/chat/completions"](name)
                return [tenants.post("/v1/chat/completions", json=body, headers=headers).json() for _ in range(6)]

            found = list(pool.map(answers, ("one", "two"), ("key-1", "key-2")))
        for name, of_tenant in zip(("one", "two"), found, strict=True):
            assert {text_of("/v1/chat/completions", one) for one in of_tenant} == {expected[name][1]}
    finally:
        served.close(0.0)
