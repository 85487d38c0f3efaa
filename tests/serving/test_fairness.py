"""Keys of one server: each has its share, what is over a limit says which one, and nobody is locked out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Event, Request, Service
from ipex_lookahead.runtime.text_model import TextModel
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS

PATIENCE = 60  # before a test gives up; nothing here takes one
KEYS = Keys(["greedy-key-of-sixteen", "modest-key-of-sixteen"])
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}


@pytest.fixture
def server(model: TextModel) -> Iterator[Server]:
    made = Server(Settings(names=("tiny",), limits=LIMITS, keys=KEYS))
    made.ready(model, lambda one: Service(one, slots=2, queue=6, running_per_key=2, queued_per_key=2))
    yield made
    made.close(0.0)


@pytest.fixture
def client(server: Server) -> Iterator[TestClient]:
    with TestClient(make_app(server), raise_server_exceptions=False) as made:
        yield made


class Held:
    """Endless requests of the greedy key; with two of them running the service's thread is held until ``go_on``."""

    def __init__(self, service: Service, count: int) -> None:
        self._submitted, self._here, self._go_on = threading.Event(), threading.Event(), threading.Event()
        owner, params = KEYS.owner("greedy-key-of-sixteen") or "", SamplingParams(1900, ignore_eos=True)
        told = [self._first, self._second, *[lambda event: None] * (count - 2)]
        requests = [Request([65, 66, n], params, key=owner) for n in range(count)]
        self.tickets = [service.submit(request, tell) for request, tell in zip(requests, told, strict=True)]
        self._submitted.set()
        assert self._here.wait(PATIENCE)

    def _first(self, event: Event) -> None:
        self._submitted.wait(PATIENCE)

    def _second(self, event: Event) -> None:
        self._here.set()
        self._go_on.wait(PATIENCE)

    def go_on(self) -> None:
        self._go_on.set()


def generation(client: TestClient, who: str, **more: Any) -> Any:
    headers = {"authorization": f"Bearer {who}-key-of-sixteen"}
    return client.post("/v1/chat/completions", json={**BODY, **more}, headers=headers)


def test_a_key_over_its_limit_is_told_and_others_are_answered(server: Server, client: TestClient) -> None:
    alone = generation(client, "modest").json()["choices"]
    held = Held(server.served.service, 4)
    refused = generation(client, "greedy")
    assert refused.status_code == 429
    assert "this key has 4 running and queued requests" in refused.json()["error"]["message"]
    assert "max-queued-per-key" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    service = server.served.service
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(generation, client, "modest"), pool.submit(generation, client, "modest", temperature=0.7)]
        ends = time.monotonic() + PATIENCE
        while len(service._requests) < 6 and time.monotonic() < ends:
            time.sleep(0.01)
        held.go_on()
        answers = [one.result(PATIENCE) for one in asked]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json()["choices"] == alone
    assert service.preemptions > 0, "the greedy one has made way"
    for ticket in held.tickets:
        ticket.cancel()


@pytest.mark.parametrize(("path", "body"), [("chat/completions", BODY), ("completions", {"prompt": "Hello"})])
def test_what_can_never_run_is_a_400_that_says_so(client: TestClient, path: str, body: Any) -> None:
    headers = {"authorization": "Bearer modest-key-of-sixteen"}
    answer = client.post(f"/v1/{path}", json={**body, "n": 5}, headers=headers)
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert "5 answers in one request" in said
    assert "exceed the limit of" in said
    assert client.post(f"/v1/{path}", json={**body, "n": 4, "max_tokens": 2}, headers=headers).status_code == 200
