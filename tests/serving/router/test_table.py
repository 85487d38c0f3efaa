"""Which models are loaded, and when: with workers that are no processes and a clock that the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from ipex_lookahead.errors import DownloadError, InputError
from ipex_lookahead.runtime.places import Places
from ipex_lookahead.serving.failures import ApiError
from ipex_lookahead.serving.router.entries import ModelEntry
from ipex_lookahead.serving.router.table import MAX_RESIDENCE_SECONDS, ModelTable
from tests.serving.router.fakes import Fakes, settle


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **named), 60))

    return run


@in_loop
async def test_a_model_is_loaded_when_it_is_requested_and_stays():
    fakes = Fakes({"a": 10, "b": 10})
    assert fakes.states() == {"a": "unloaded", "b": "unloaded"}
    lease = await fakes.table.use("b")
    assert lease.worker is fakes.started[0]
    assert fakes.states() == {"a": "unloaded", "b": "ready"}
    lease.close()
    lease.close()
    assert fakes.table.find("b").requests == 0
    (await fakes.table.use("b")).close()
    assert fakes.names == ["b"]
    assert fakes.table.find("b").facts == {"max_model_len": 99}


@in_loop
async def test_names():
    fakes = Fakes({"a": 1, "b": 1, "claude-own": 1})
    assert [fakes.table.find(name).name for name in (None, "b", "b:latest", "claude-x", "claude-own")] == [
        "a", "b", "b", "a", "claude-own",
    ]  # fmt: skip
    with pytest.raises(ApiError, match="there is no model 'c'; this server has a, b, claude-own") as error:
        fakes.table.find("c")
    assert (error.value.status, error.value.code) == (404, "model_not_found")
    strict = Fakes({"a": 1}, strict=True)
    with pytest.raises(ApiError, match="there is no model 'claude-x'"):
        strict.table.find("claude-x")


@in_loop
async def test_requests_wait_for_a_model_that_loads():
    fakes = Fakes({"a": 10}, loads=False)
    waits = [asyncio.ensure_future(fakes.table.use("a")) for _ in range(3)]
    await settle()
    assert fakes.states() == {"a": "loading"}
    assert not any(one.done() for one in waits)
    fakes.started[0].load()
    await asyncio.gather(*waits)
    assert fakes.names == ["a"]
    assert fakes.table.find("a").requests == 3


@in_loop
async def test_the_least_recently_used_idle_model_makes_room():
    fakes = Fakes({"a": 10, "b": 10, "c": 10}, budget=20)
    for name in ("a", "b", "a"):
        (await fakes.table.use(name)).close()
        await fakes.pass_time(10)
    (await fakes.table.use("c")).close()
    assert fakes.states() == {"a": "ready", "b": "unloaded", "c": "ready"}
    assert fakes.started[1].stopped == 1


@in_loop
async def test_a_running_answer_is_never_cut_and_new_requests_wait_behind_it():
    fakes = Fakes({"a": 10, "b": 10}, budget=10)
    running = await fakes.table.use("a")
    await fakes.pass_time(MAX_RESIDENCE_SECONDS)
    other = asyncio.ensure_future(fakes.table.use("b"))
    await settle()
    assert fakes.states() == {"a": "draining", "b": "loading"}
    late = asyncio.ensure_future(fakes.table.use("a"))
    await fakes.pass_time(1000)
    assert not other.done()
    assert not late.done()
    assert fakes.started[0].stopped == 0
    running.close()
    lease = await other
    assert fakes.names == ["a", "b"]
    lease.close()
    await fakes.pass_time(MAX_RESIDENCE_SECONDS)
    (await late).close()
    assert fakes.names == ["a", "b", "a"]


@in_loop
async def test_draining_ends_when_the_request_that_needs_the_memory_leaves():
    fakes = Fakes({"a": 10, "b": 10}, budget=10)
    running = await fakes.table.use("a")
    await fakes.pass_time(MAX_RESIDENCE_SECONDS)
    other = asyncio.ensure_future(fakes.table.use("b"))
    await settle()
    late = asyncio.ensure_future(fakes.table.use("a"))
    await settle()
    other.cancel()
    (await late).close()
    running.close()
    assert fakes.states() == {"a": "ready", "b": "unloaded"}
    assert fakes.names == ["a"]


@in_loop
async def test_two_models_that_swap_are_served_by_arrival_and_neither_starves():
    """Two clients each of two models, which send their next request when they have an answer."""
    fakes = Fakes({"a": 10, "b": 10}, budget=10)
    served: list[str] = []

    async def client(name: str) -> None:
        for _ in range(20):
            lease = await fakes.table.use(name)
            served.append(name)
            await settle()
            lease.close()

    clients = [asyncio.ensure_future(client(name)) for name in "aabb"]
    while not all(one.done() for one in clients):
        await fakes.pass_time(1.0)
    assert sorted(served) == ["a"] * 40 + ["b"] * 40
    first = served.index("b")
    assert 2 <= first <= 6, "the other model's turn comes after the requests that were there before it"
    assert fakes.names == ["a", "b"] * (len(fakes.names) // 2)


@in_loop
async def test_a_later_small_model_does_not_overtake_one_that_waits_for_memory():
    fakes = Fakes({"a": 10, "big": 20, "small": 5}, budget=20)
    running = await fakes.table.use("a")
    await fakes.pass_time(MAX_RESIDENCE_SECONDS)
    big, small = (asyncio.ensure_future(fakes.table.use(name)) for name in ("big", "small"))
    await settle()
    assert fakes.names == ["a"], "small would fit, and big would wait for it too"
    running.close()
    (await big).close()
    await fakes.pass_time(MAX_RESIDENCE_SECONDS)
    (await small).close()
    assert fakes.names == ["a", "big", "small"]


@in_loop
async def test_a_loaded_model_stays_for_as_long_as_loading_took():
    fakes = Fakes({"a": 10, "b": 10}, budget=10, loads=False)
    first = asyncio.ensure_future(fakes.table.use("a"))
    await settle()
    fakes.now += 8.0  # it takes to load
    fakes.started[0].load()
    lease = await first
    other = asyncio.ensure_future(fakes.table.use("b"))
    await fakes.pass_time(7.5)
    (await fakes.table.use("a")).close()
    assert fakes.states() == {"a": "ready", "b": "loading"}
    await fakes.pass_time(0.5)
    assert fakes.states() == {"a": "draining", "b": "loading"}
    lease.close()
    await settle()
    assert fakes.names == ["a", "b"]
    other.cancel()


@in_loop
async def test_an_idle_model_makes_room_two_seconds_after_its_last_answer():
    fakes = Fakes({"a": 10, "b": 10}, budget=10, loads=False)
    first = asyncio.ensure_future(fakes.table.use("a"))
    await settle()
    fakes.now += 50.0
    fakes.started[0].load()
    lease = await first
    await fakes.pass_time(1.0)
    lease.close()
    other = asyncio.ensure_future(fakes.table.use("b"))
    await fakes.pass_time(1.5)
    assert fakes.names == ["a"]
    await fakes.pass_time(0.5)
    assert fakes.names == ["a", "b"]
    other.cancel()


@in_loop
async def test_a_model_larger_than_the_budget():
    with pytest.raises(InputError, match=r"the model 'a' needs 3\.0 GiB of memory, and the budget .* is 2\.0 GiB"):
        Fakes({"a": 3 << 30}, budget=2 << 30)
    fakes = Fakes({"a": None}, budget=10, locate=lambda entry: 11)
    with pytest.raises(ApiError, match="needs") as error:
        await fakes.table.use("a")
    assert (error.value.status, error.value.code) == (400, "model_too_large")
    with pytest.raises(ApiError, match="needs"):
        await fakes.table.use("a")
    assert fakes.started == []


@in_loop
async def test_a_model_is_downloaded_first():
    asked: list[str] = []

    def locate(entry: ModelEntry) -> int:
        asked.append(entry.name)
        if len(asked) == 1:
            raise DownloadError("no network", hint="connect it")
        return 10

    fakes = Fakes({"a": None, "b": 10}, budget=10, locate=locate)
    waits = asyncio.ensure_future(fakes.table.use("a"))
    await asyncio.sleep(0)
    assert fakes.states()["a"] == "downloading"
    with pytest.raises(ApiError, match="the model 'a' could not be loaded: no network; connect it; .* in 1 s"):
        await waits
    assert fakes.states()["a"] == "failed"
    await fakes.pass_time(1.0)
    (await fakes.table.use("a")).close()
    assert fakes.table.find("a").memory_bytes == 10
    assert asked == ["a", "a"]


@in_loop
async def test_too_many_waiting_requests_are_refused_by_key():
    fakes = Fakes({"a": 10}, loads=False)
    fakes.table.find("a").places = Places(1, 3, 1, 1)
    waits = [asyncio.ensure_future(fakes.table.use("a", key)) for key in ("x", "x", "y", "y")]
    await settle()
    with pytest.raises(ApiError, match="this key has 2 running and queued requests") as error:
        await fakes.table.use("a", "x")
    assert error.value.status == 429
    assert int(error.value.headers["retry-after"]) >= 1
    fakes.started[0].load()
    for lease in await asyncio.gather(*waits):
        lease.close()
    (await fakes.table.use("a", "x")).close()


@in_loop
async def test_a_request_does_not_wait_longer_than_the_limit():
    fakes = Fakes({"a": 10}, loads=False, wait_seconds=0.05)
    with pytest.raises(ApiError, match=r"the model 'a' is not loaded after 0\.05 s; send the request again") as error:
        await fakes.table.use("a")
    assert (error.value.status, error.value.code) == (503, "loading")
    assert error.value.headers["retry-after"] == "5"
    fakes.started[0].load()
    await settle()
    (await fakes.table.use("a")).close()
    assert fakes.names == ["a"]


@in_loop
async def test_a_model_that_fails_is_tried_again_after_longer_and_longer_times():
    fakes = Fakes({"a": 10}, loads=False)
    for delay in (1, 2, 4):
        waits = [asyncio.ensure_future(fakes.table.use("a")) for _ in range(2)]
        await settle()
        fakes.started[-1].fail("the file is cut")
        for one in waits:
            with pytest.raises(ApiError, match=f"could not be loaded: the file is cut; .* in {delay} s") as error:
                await one
        assert (error.value.status, error.value.code) == (503, "model_failed")
        assert error.value.headers["retry-after"] == str(delay)
        assert fakes.states() == {"a": "failed"}
        count = len(fakes.started)
        with pytest.raises(ApiError, match="the file is cut"):
            await fakes.table.use("a")
        assert len(fakes.started) == count
        await fakes.pass_time(delay)
    fakes.loads = True
    (await fakes.table.use("a")).close()
    assert fakes.table.find("a").error == ""


@in_loop
async def test_a_worker_that_dies_is_started_again_and_one_that_dies_again_is_not():
    fakes = Fakes({"a": 10})
    lease = await fakes.table.use("a")
    fakes.started[0].die()
    await settle()
    assert fakes.names == ["a", "a"]
    assert fakes.states() == {"a": "ready"}
    lease.close()
    assert fakes.table.find("a").requests == 0, "its lease was of the dead worker"
    fakes.started[1].die()
    await settle()
    assert fakes.states() == {"a": "failed"}
    assert fakes.table.find("a").error == "its worker ended (signal 9)"
    await fakes.pass_time(10)
    (await fakes.table.use("a")).close()
    await fakes.pass_time(60)
    fakes.started[2].die()
    await settle()
    assert fakes.names == ["a"] * 4, "it had served for a minute"


@in_loop
async def test_an_idle_model_is_unloaded():
    fakes = Fakes({"a": 10, "b": 10})
    fakes.table.find("a").idle_unload = 30.0
    for name in "ab":
        (await fakes.table.use(name)).close()
    assert fakes.table.find("b").expires_at is None
    assert fakes.table.find("a").expires_at is not None
    lease = await fakes.table.use("a")
    await fakes.pass_time(100)
    assert fakes.states() == {"a": "ready", "b": "ready"}
    lease.close()
    await fakes.pass_time(29)
    assert fakes.states() == {"a": "ready", "b": "ready"}
    await fakes.pass_time(1)
    assert fakes.states() == {"a": "unloaded", "b": "ready"}
    fakes.table.set_keep_alive("b", 0)
    await settle()
    assert fakes.states() == {"a": "unloaded", "b": "unloaded"}
    fakes.table.set_keep_alive("a", float("inf"))
    await fakes.table.load("a")
    await fakes.pass_time(1000)
    fakes.table.set_keep_alive("a", None)
    await settle()
    assert fakes.states() == {"a": "unloaded", "b": "unloaded"}


@in_loop
async def test_unload_lets_answers_finish_and_requests_come_after_it():
    fakes = Fakes({"a": 10})
    lease = await fakes.table.use("a")
    unloads = asyncio.ensure_future(fakes.table.unload("a"))
    await settle()
    late = asyncio.ensure_future(fakes.table.use("a"))
    await settle()
    assert fakes.states() == {"a": "draining"}
    assert not unloads.done()
    lease.close()
    await unloads
    (await late).close()
    assert fakes.names == ["a", "a"]
    await fakes.table.unload("a")
    await fakes.table.unload("a")
    assert fakes.states() == {"a": "unloaded"}


@in_loop
async def test_a_model_that_loads_can_be_unloaded():
    fakes = Fakes({"a": 10}, loads=False)
    waits = asyncio.ensure_future(fakes.table.use("a"))
    await settle()
    waits.cancel()
    await settle()
    assert fakes.states() == {"a": "loading"}
    await fakes.table.unload("a")
    assert fakes.states() == {"a": "unloaded"}
    assert fakes.table.find("a").error == ""


@in_loop
async def test_models_are_added_and_removed():
    fakes = Fakes({"a": 10}, budget=10, locate=lambda entry: len(entry.source))
    added = await fakes.table.add("b", "four")
    assert (added.name, added.memory_bytes) == ("b", 4)
    with pytest.raises(InputError, match="there are two models 'b'"):
        await fakes.table.add("b", "other")
    with pytest.raises(InputError, match="needs"):
        await fakes.table.add("c", "x" * 11)
    lease = await fakes.table.use("b")
    removes = asyncio.ensure_future(fakes.table.remove("b"))
    await settle()
    with pytest.raises(ApiError, match="there is no model 'b'"):
        fakes.table.find("b")
    lease.close()
    await removes
    assert fakes.states() == {"a": "unloaded"}
    assert fakes.started[0].stopped == 1


@in_loop
async def test_close_lets_answers_finish_for_its_time_and_ends_all_workers():
    fakes = Fakes({"a": 10, "b": 10, "c": 10})
    leases = [await fakes.table.use(name) for name in "ab"]
    fakes.loads = False
    waits = asyncio.ensure_future(fakes.table.use("c"))
    await settle()
    closes = asyncio.ensure_future(fakes.table.close(5.0))
    with pytest.raises(ApiError, match="the server is shutting down"):
        await waits
    with pytest.raises(ApiError, match="the server is shutting down"):
        await fakes.table.use("a")
    leases[0].close()
    await settle()
    assert not closes.done()
    assert [one.stopped for one in fakes.started] == [0, 0, 0]
    fakes.now += 5.0
    await closes
    assert all(one.stopped for one in fakes.started)
    assert set(fakes.states().values()) == {"unloaded"}


def test_two_models_with_one_name():
    with pytest.raises(InputError, match="there are two models 'a'"):
        ModelTable([ModelEntry("a", "x"), ModelEntry("b", "y", aliases=["a"])], start=None)  # type: ignore[arg-type]
