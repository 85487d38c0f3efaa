"""Figures of one server, and of several behind one address."""

from __future__ import annotations

import asyncio
import itertools
import sys
import types
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.serving.metrics import Metrics, together
from ipex_lookahead.serving.replicas import Front


def figures(replica: str, answers: int) -> Metrics:
    made = Metrics({"replica": replica} if replica else {})
    for _ in range(answers):
        made.answered(GenerationStats(), "stop")
    made.requested("/v1/models", 200)
    return made


def answered(text: bytes) -> dict[str | None, float]:
    found = {}
    families = list(text_string_to_metric_families(text.decode()))
    assert len({family.name for family in families}) == len(families), "each family stands once"
    for sample in itertools.chain.from_iterable(family.samples for family in families):
        if sample.name == "ipex_lookahead_request_success_total":
            found[sample.labels.get("replica")] = sample.value
    return found


def test_a_replica_has_its_name_on_all_its_figures_and_a_server_alone_has_none():
    assert answered(figures("", 2).text()) == {None: 2.0}
    text = figures("77", 3).text()
    assert answered(text) == {"77": 3.0}
    assert all('replica="77"' in line for line in text.decode().splitlines() if not line.startswith("#"))


def test_figures_of_several_are_one_text():
    text = together([figures("1", 2).text(), figures("2", 5).text()])
    assert answered(text) == {"1": 2.0, "2": 5.0}


class Handle:
    """Ray's of two replicas, in turn; the third question meets one that has ended."""

    def __init__(self, status: int, error: type[Exception]) -> None:
        self.handle = self
        self._asked = itertools.count()
        self._status, self._error = status, error

    def options(self, **_: Any) -> Handle:
        return self

    async def remote(self, _: Any) -> Any:
        number = next(self._asked)
        if number == 2:
            raise self._error
        name = str(number % 2 + 1)
        headers = [(b"content-type", b"text/plain; version=1.0.0"), (b"x-replica", name.encode())]
        yield self._status, headers
        yield figures(name, 4).text() if self._status == 200 else b'{"error": {}}'


@pytest.mark.parametrize("status", [200, 401])
def test_the_front_tells_the_figures_of_all_replicas(monkeypatch, status):
    class RayError(Exception):
        pass

    ray, exceptions = types.ModuleType("ray"), types.ModuleType("ray.exceptions")
    exceptions.RayError = RayError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)
    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "query_string": b"",
             "scheme": "http", "server": ("localhost", 80)}  # fmt: skip
    answer = asyncio.run(Front(["m"], Handle(status, RayError))(Request(scope)))
    assert answer.status_code == status
    if status == 200:
        assert answered(bytes(answer.body)) == {"1": 4.0, "2": 4.0}
        assert answer.headers["content-type"] == "text/plain; version=1.0.0"
