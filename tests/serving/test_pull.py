"""Downloading and deleting models over HTTP, on a hub of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ipex_lookahead import hub
from ipex_lookahead.hub.pulled import pulled_models, record_pull
from ipex_lookahead.serving import downloads, ollama_models
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.managed import FixedEntry
from ipex_lookahead.serving.server import Server, Settings
from ipex_lookahead.vision import fetching
from ipex_lookahead.vision.fetching import fetch_vision_part_of
from tests.support.fake_hub import fake_hub

ADMIN = "a-key-of-an-admin"
WEIGHTS = random.Random(1).randbytes(300_000)
FILES = {"m.Q4_0.gguf": WEIGHTS, "README.md": b"---\nlicense: mit\n---\n"}


class FakeModels:
    """A list of models, none of which is loaded."""

    def __init__(self, local: Path) -> None:
        self.listed = {"local": FixedEntry("local", 0, {}, "unloaded", source=str(local))}

    def check_changeable(self) -> None:
        """They are."""

    def entries(self):
        return list(self.listed.values())

    async def add(self, name: str, source: str) -> None:
        self.listed[name] = FixedEntry(name, 1, {}, "unloaded", source=source)

    async def remove(self, name: str) -> None:
        del self.listed[name]


@pytest.fixture
def served(tmp_path, monkeypatch):
    """(the hub, the models, ``ask(method, path, **fields)``) of a server whose hub is on this machine."""
    with fake_hub({"owner/model": dict(FILES)}) as made:
        options = hub.HubOptions(cache_dir=str(tmp_path / "hub"), endpoint=made.endpoint, token=False)
        monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(downloads, "resolve_model", partial(hub.resolve_model, options=options))
        monkeypatch.setattr(downloads, "fetch_vision_part_of", partial(fetch_vision_part_of, options=options))
        monkeypatch.setattr(ollama_models, "removal_of", partial(hub.removal_of, options=options))
        server, models = Server(Settings(admin_keys=Keys([ADMIN]))), FakeModels(tmp_path)
        app = make_app(server)
        app.state.models = models
        client = TestClient(app, raise_server_exceptions=False)

        def ask(method: str, path: str, key: str = ADMIN, **fields):
            return client.request(method, path, json=fields, headers={"authorization": f"Bearer {key}"})

        yield made, models, ask
        server.close(0.0)


def lines(answer) -> list[dict]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(one) for one in answer.text.splitlines()]


def test_a_pulled_model_is_listed_and_deleted(served, tmp_path):
    _, models, ask = served
    found = lines(ask("POST", "/api/pull", model="owner/model:latest"))
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert [found[0], *found[-3:]] == [
        {"status": "pulling manifest"},
        {"status": "verifying sha256 digest"},
        {"status": "writing manifest"},
        {"status": "success"},
    ]
    (whole,) = [one for one in found if one.get("completed") == len(WEIGHTS)]
    assert whole == {
        "status": f"pulling {digest[:12]}",
        "digest": f"sha256:{digest}",
        "total": len(WEIGHTS),
        "completed": len(WEIGHTS),
    }
    assert [one["name"] for one in ask("GET", "/api/tags").json()["models"]] == ["local", "owner/model"]
    assert pulled_models() == ["owner/model"]
    assert ask("POST", "/api/pull", model="owner/model", stream=False).json() == {"status": "success"}
    assert len(models.listed) == 2
    assert ask("DELETE", "/api/delete", name="owner/model:latest").status_code == 200
    assert (list(models.listed), pulled_models()) == (["local"], [])
    assert not list((tmp_path / "hub").glob("models--*"))
    assert ask("DELETE", "/api/delete", model="owner/model").status_code == 404


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2:360m", "smollm2-360m"])
def test_a_name_as_people_type_it_stays_the_models_name(served, name):
    made, models, ask = served
    made.repositories["HuggingFaceTB/SmolLM2-360M-Instruct-GGUF"] = {"smollm2-360m-instruct-q8_0.gguf": WEIGHTS}
    assert ask("POST", "/api/pull", model=f"{name}:latest", stream=False).json() == {"status": "success"}
    (_, found) = ask("GET", "/api/tags").json()["models"]
    assert found["name"] == name
    assert models.listed[name].source == name
    assert ask("DELETE", "/api/delete", model=name).status_code == 200
    assert list(models.listed) == ["local"]


def test_a_failed_download_is_told_and_resumed(served):
    made, models, ask = served
    made.lies["m.Q4_0.gguf"] = b"x" * len(WEIGHTS)
    assert "wrong checksum" in lines(ask("POST", "/api/pull", model="owner/model"))[-1]["error"]
    whole = ask("POST", "/api/pull", model="owner/model", stream=False)
    assert (whole.status_code, "wrong checksum" in whole.json()["error"]) == (500, True)
    assert list(models.listed) == ["local"]
    made.lies.clear()
    assert lines(ask("POST", "/api/pull", model="owner/model"))[-1] == {"status": "success"}


@pytest.mark.parametrize(
    ("method", "fields", "status", "says"),
    [
        ("POST", {"model": "/etc/passwd"}, 400, "is a path"),
        ("POST", {"model": "../secrets"}, 400, "no model named"),
        ("POST", {"model": "owner/model:../../x.gguf"}, 400, "outside"),
        ("POST", {"model": "a\0b"}, 400, "no model named"),
        ("POST", {"model": "x" * 100_000}, 400, "100,000 characters"),
        ("POST", {"model": "http://169.254.169.254/latest"}, 400, "only huggingface.co"),
        ("POST", {}, 400, "give the name"),
        ("POST", {"model": 7}, 400, "model"),
        ("DELETE", {"model": "local"}, 400, "local path"),
        ("DELETE", {"model": "../local"}, 404, "there is no model"),
        ("DELETE", {"model": "claude-opus"}, 404, "there is no model"),
        ("DELETE", {"model": "models--owner--model"}, 404, "there is no model"),
        ("DELETE", {"model": "x" * 100_000}, 400, "100,000 characters"),
        ("DELETE", {}, 400, "give the name"),
    ],
    ids=str,
)
def test_names_that_are_refused(served, method, fields, status, says):
    made, models, ask = served
    answer = ask(method, "/api/pull" if method == "POST" else "/api/delete", **fields)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text
    assert (list(models.listed), made.asked) == (["local"], [])


def test_only_an_admin_pulls_and_deletes(served):
    made, models, ask = served
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        assert ask(method, path, key="another-key-of-16", model="owner/model").status_code == 403
    assert (list(models.listed), made.asked) == (["local"], [])


def test_a_download_ends_with_its_last_follower(monkeypatch):
    """Two requests share a download; it goes on for one of them and ends without."""
    ended = threading.Event()

    def endless(source, *, progress, observe):
        try:
            observe(hub.Progress("listing"))
            for done in itertools.count():
                observe(hub.Progress("downloading", "m", "sha256:0", done, 1 << 60))
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(downloads, "resolve_model", endless)

    async def follow() -> None:
        running = downloads.Downloads()
        first, second = running.follow("owner/model"), running.follow("owner/model")
        found = await asyncio.gather(anext(first), anext(second))
        assert found == [hub.Progress("listing")] * 2
        await first.aclose()
        assert (await anext(second)).stage == "downloading"
        assert running.has("owner/model")
        await second.aclose()
        assert not running.has("owner/model")
        assert await asyncio.to_thread(ended.wait, 60)

    asyncio.run(follow())


def test_the_list_of_pulled_models(tmp_path, monkeypatch):
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path))
    for name in ("b/b", "a/a", "b/b"):
        record_pull(name)
    assert pulled_models() == ["b/b", "a/a"]
    for damage in ("", "[1]", '{"models": 3}', '{"models": [1, "a/a"]}'):
        (tmp_path / "pulled.json").write_text(damage)
        assert pulled_models() == (["a/a"] if "a/a" in damage else [])


def test_states_of_models(served):
    _, models, ask = served
    local = models.listed["local"]
    facts = {"max_model_len": 2048, "meta": {"low_bit": "sym_int4", "architecture": "llama"}}
    models.listed["on"] = replace(local, name="on", state="ready", memory_bytes=5, facts=facts, expires_at=2e9)
    models.listed["coming"] = replace(local, name="coming", state="loading", progress=(1, 4))
    models.listed["broken"] = replace(local, name="broken", state="failed", error="no memory")
    (loaded,) = ask("GET", "/api/ps").json()["models"]
    assert (loaded["name"], loaded["size"], loaded["context_length"]) == ("on", 5, 2048)
    assert loaded["expires_at"].startswith("2033-05-18T03:33:20")
    assert loaded["details"]["family"] == "llama"
    listed = {one["id"]: one for one in ask("GET", "/v1/models").json()["data"]}
    assert {name: one["status"]["value"] for name, one in listed.items()} == {
        "local": "unloaded", "on": "loaded", "coming": "loading", "broken": "unloaded"
    }  # fmt: skip
    assert listed["coming"]["status"]["progress"]["value"] == 0.25
    assert (listed["broken"]["status"]["failed"], listed["broken"]["error"]) == (True, "no memory")
    assert listed["on"]["max_model_len"] == 2048


def test_keep_alive():
    from ipex_lookahead.serving.ollama import keep_alive_seconds

    given = {0: 0, 300: 300, 2.5: 2.5, "5m": 300, "1h30m": 5400, "500ms": 0.5, "0": 0, "1.5h": 5400, "90": 90}
    assert {one: keep_alive_seconds(one) for one in given} == given
    assert [keep_alive_seconds(one) for one in (-1, "-1", "-1m", -0.5)] == [float("inf")] * 4
    assert keep_alive_seconds(None) is None
    assert keep_alive_seconds(10**400) > 1e9
    for wrong in ("", "soon", "5 m", "5x", "m", "1.2.3", True, [], {}, "9" * 99, "٣m"):
        with pytest.raises(ApiError, match="keep_alive"):
            keep_alive_seconds(wrong)


def test_a_model_that_takes_images_comes_with_its_vision_part(served, monkeypatch, caplog):
    made, _, ask = served
    assert lines(ask("POST", "/api/pull", model="owner/model"))[-1] == {"status": "success"}
    monkeypatch.setattr(fetching, "takes_images", lambda model: True)
    assert lines(ask("POST", "/api/pull", model="owner/model"))[-1] == {"status": "success"}, "it answers texts"
    assert "owner/model takes no images: owner/model has no mmproj file" in caplog.text
    made.repositories["owner/model"]["mmproj-F16.gguf"] = b"x" * 70_000
    found = lines(ask("POST", "/api/pull", model="owner/model"))
    assert any(one.get("completed") == 70_000 for one in found)
    assert "mmproj-F16.gguf" in made.fetched()
