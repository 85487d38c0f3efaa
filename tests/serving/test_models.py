"""Requests that change a server's models: who may send them, and what a server of one model answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.run import _reload
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import FakeService

USER, ADMIN = "a-key-of-a-user-01", "a-key-of-an-admin"
CHANGES = (("POST", "/models/load"), ("POST", "/models/unload"))


@pytest.fixture
def asking(model):
    """``asking(keys=...)(method, path, key)`` sends a request about ``tiny`` to a server with these keys."""
    servers = []

    def make(keys: Keys, admin_keys: Keys):
        made = Server(Settings(names=("tiny",), keys=keys, admin_keys=admin_keys))
        made.ready(model, lambda one: FakeService())  # type: ignore[arg-type, return-value]
        servers.append(made)
        client = TestClient(make_app(made), raise_server_exceptions=False)

        def ask(method: str, path: str, key: str = "", name: str = "tiny"):
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return client.request(method, path, json={"model": name}, headers=headers)

        return ask

    yield make
    for one in servers:
        one.close(0.0)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_only_an_admin_key_changes_models(method, path, asking):
    ask = asking(Keys(), Keys())
    assert ask(method, path).status_code == 403
    assert "--admin-key-file" in ask(method, path).text
    for keys in (Keys(), Keys([USER])):
        ask = asking(keys, Keys([ADMIN]))
        assert ask(method, path).status_code == 401
        assert ask(method, path, "an-unknown-key-00").status_code == (401 if keys else 403)
        assert ask(method, path, USER).status_code == 403
        assert ask(method, path, ADMIN).status_code not in (401, 403)


def test_an_admin_key_is_an_api_key_too(asking):
    ask = asking(Keys([USER]), Keys([ADMIN]))
    assert [ask("GET", "/v1/models", key).status_code for key in ("", USER, ADMIN)] == [401, 200, 200]


def test_one_model_stays_loaded(asking):
    ask = asking(Keys(), Keys([ADMIN]))
    (listed,) = ask("GET", "/models").json()["data"]
    assert (listed["id"], listed["status"]) == ("tiny", {"value": "loaded"})
    for _ in range(2):
        assert ask("POST", "/models/load", ADMIN).json() == {"success": True}
    for method, path in CHANGES:
        assert ask(method, path, ADMIN, "no-such-model").status_code == 404
    refused = ask("POST", "/models/unload", ADMIN)
    assert refused.status_code == 400
    assert "--models-dir" in refused.json()["error"]["message"]


def test_admin_keys_are_read_again():
    server = Server(Settings(keys=Keys([USER]), admin_keys=Keys([ADMIN])))
    _reload(server, lambda: (Keys([USER]), Keys(["another-admin-key"])))
    assert server.settings.admin_keys.owner("another-admin-key")
    assert not server.settings.admin_keys.owner(ADMIN)


def test_a_missing_file_names_its_option():
    with pytest.raises(InputError, match="cannot be read") as caught:
        Keys.of_file(Path("/nowhere/keys"), "--admin-key-file")
    assert "--admin-key-file" in caught.value.hint
