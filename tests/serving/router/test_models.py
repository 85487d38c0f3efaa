"""The APIs that list, load and unload the models of a server with several, with fake workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.router.app import RouterServer, make_router_app
from ipex_lookahead.serving.server import Settings
from tests.serving.router.fakes import Fakes

ADMIN = "a-key-of-an-admin"
Ask = Callable[..., Awaitable[httpx.Response]]


def served(test: Callable[[Fakes, Ask], Awaitable[None]], **options: Any) -> None:
    """Run a test with the models ``a`` and ``b``, and a function that sends requests with an admin key."""

    async def run() -> None:
        fakes = Fakes({"a": 10, "b": 10}, **options)
        app = make_router_app(RouterServer(Settings(names=("a", "b"), admin_keys=Keys([ADMIN])), fakes.table))
        headers = {"authorization": f"Bearer {ADMIN}"}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as http:

            async def ask(method: str, path: str, **fields: Any) -> httpx.Response:
                return await http.request(method, path, json=fields or None)

            await test(fakes, ask)
        await fakes.table.close(0.0)

    asyncio.run(run())


async def states(ask: Ask) -> dict[str, str]:
    listed = (await ask("GET", "/v1/models")).json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


async def loaded(ask: Ask) -> list[str]:
    return [one["name"] for one in (await ask("GET", "/api/ps")).json()["models"]]


def test_loading_and_unloading():
    async def test(fakes: Fakes, ask: Ask) -> None:
        assert await states(ask) == {"a": "unloaded", "b": "unloaded"}
        assert (await ask("POST", "/models/load", model="b:latest")).json() == {"success": True}
        assert (await states(ask), await loaded(ask)) == ({"a": "unloaded", "b": "loaded"}, ["b"])
        assert (await ask("GET", "/v1/models/b")).json()["max_model_len"] == 99
        assert (await ask("POST", "/models/load", model="b")).json() == {"success": True}
        assert fakes.names == ["b"], "it is loaded once"
        for model in ("b", "b", "a"):
            assert (await ask("POST", "/models/unload", model=model)).json() == {"success": True}
        assert (await loaded(ask), fakes.started[0].stopped) == ([], 1)
        for path in ("/models/load", "/models/unload"):
            for model in ("c", "claude-opus", "../a"):
                assert (await ask("POST", path, model=model)).status_code == 404
        assert fakes.names == ["b"]

    served(test)


def test_the_progress_of_loading_and_a_failure():
    async def test(fakes: Fakes, ask: Ask) -> None:
        loading = asyncio.ensure_future(ask("POST", "/models/load", model="a"))
        while not fakes.started:
            await asyncio.sleep(0)
        status = (await ask("GET", "/models/a")).json()["status"]
        assert (status["value"], status["progress"]["value"]) == ("loading", 0.25)
        fakes.started[0].fail("out of memory")
        failed = await loading
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "model_failed")
        found = (await ask("GET", "/models/a")).json()
        assert (found["status"], found["error"]) == (
            {"value": "unloaded", "failed": True, "exit_code": 1},
            "out of memory",
        )

    served(test, loads=False)


def test_requests_without_a_prompt_load_and_unload():
    async def test(fakes: Fakes, ask: Ask) -> None:
        for path, said in (("chat", {"message": {"role": "assistant", "content": ""}}), ("generate", {"response": ""})):
            answer = (await ask("POST", f"/api/{path}", model="a", keep_alive="10m")).json()
            assert answer | said | {"model": "a", "done": True, "done_reason": "load"} == answer
            (shown,) = (await ask("GET", "/api/ps")).json()["models"]
            assert not shown["expires_at"].startswith("0001")
            await fakes.pass_time(601)
            assert await loaded(ask) == [], "keep_alive is over"
        await ask("POST", "/api/generate", model="b", keep_alive=-1)
        await fakes.pass_time(1e6)
        (shown,) = (await ask("GET", "/api/ps")).json()["models"]
        assert (shown["name"], shown["expires_at"][:4], shown["context_length"]) == ("b", "0001", 99)
        answer = (await ask("POST", "/api/chat", model="b", messages=[], keep_alive=0)).json()
        assert answer["done_reason"] == "unload"
        await asyncio.sleep(0.01)
        assert await loaded(ask) == []
        before = list(fakes.names)
        assert (await ask("POST", "/api/chat", model="b", keep_alive=0)).json()["done_reason"] == "unload"
        assert (await ask("POST", "/api/chat", model="b", keep_alive="soon")).status_code == 400
        assert fakes.names == before, "nothing is loaded only to be unloaded"

    served(test)


def test_a_model_is_described_without_loading_it():
    async def test(fakes: Fakes, ask: Ask) -> None:
        assert (await ask("POST", "/api/show", model="a")).json()["capabilities"]
        assert [one["name"] for one in (await ask("GET", "/api/tags")).json()["models"]] == ["a", "b"]
        assert (await ask("POST", "/api/show", model="c")).status_code == 404
        assert fakes.names == []

    served(test)


def test_what_is_no_download_is_not_deleted():
    async def test(fakes: Fakes, ask: Ask) -> None:
        for model in ("a", "c", "claude-x"):
            refused = await ask("DELETE", "/api/delete", model=model)
            assert refused.status_code in (400, 404), refused.text
        assert list(await states(ask)) == ["a", "b"]

    served(test)
