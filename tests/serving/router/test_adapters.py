"""Adapters of a model behind the router: requests with an adapter's name go to its model's worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS
from tests.serving.router.conftest import PATIENCE, SECRET
from tests.support.adapter_files import llama_changes, write_peft

ADMIN = {"authorization": "Bearer admin"}
ASKED = {"prompt": "once upon a time", "n_predict": 8, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def worker(folder: Any, tmp_path: Any) -> Iterator[Any]:
    opened = open_checkpoint(folder)
    changes = llama_changes({tensor.name: tensor.shape for tensor in opened.spec.tensors()})
    opened.close()
    model = load_text_model(str(folder), engine="native", threads=1, progress=False)
    model.runtime.adapters.load(write_peft(tmp_path / "mine", changes), "mine")
    made = Server(Settings(names=("tiny",), limits=LIMITS, drafting={"lookahead": 0}, secret=SECRET))
    made.ready(model, lambda one: Service(one, slots=2))
    yield make_app(made)
    made.close(0.0)


def test_an_adapter_is_a_name_of_its_model(fleet: Any, worker: Any) -> None:
    running = fleet({"tiny": worker}, admin_keys=Keys(["admin"]))
    running.table.find("tiny").adapters = ("mine",)
    with httpx.Client(timeout=PATIENCE, base_url=running.url) as client:
        answers = {name: client.post("/completion", json={**ASKED, "model": name}).json() for name in ("tiny", "mine")}
        assert answers["mine"]["model"] == "mine"
        assert answers["mine"]["content"] != answers["tiny"]["content"]
        number = client.get("/lora-adapters").json()[0]["id"]
        by_number = client.post("/completion", json={**ASKED, "lora": [{"id": number, "scale": 1}]}).json()
        assert by_number["content"] == answers["mine"]["content"]
        unknown = client.post("/completion", json={**ASKED, "model": "other"})
        assert (unknown.status_code, "this server has tiny, mine" in unknown.text) == (404, True)
        listed = client.get("/v1/models").json()["data"]
        assert [(one["id"], one.get("parent")) for one in listed] == [("tiny", None), ("mine", "tiny")]
        assert client.get("/v1/models/mine").json()["parent"] == "tiny"
        tags = client.get("/api/tags").json()["models"]
        assert [one["name"] for one in tags] == ["tiny", "mine"]
        assert client.request("DELETE", "/api/delete", json={"model": "mine"}, headers=ADMIN).status_code == 404
        assert client.post("/models/unload", json={"model": "mine"}, headers=ADMIN).status_code == 404
        for path, body in (
            ("/lora-adapters", [{"id": 0, "scale": 1}]),
            ("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}),
        ):
            refused = client.post(path, json=body, headers=ADMIN)
            assert (refused.status_code, "in --models FILE each model has its adapters" in refused.text) == (400, True)
