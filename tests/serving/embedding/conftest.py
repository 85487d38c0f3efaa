"""Servers of a fake embedding model and a fake reranker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.embedding.batcher import Batcher
from ipex_lookahead.serving.embedding.embedder import Embedder
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS
from tests.support.fake_embedding import FakeEmbedding


@contextmanager
def embedding_server(model: FakeEmbedding, capacity: dict[str, Any] | None = None, **settings: Any) -> Iterator[Server]:
    made = Server(Settings(**{"names": (model.purpose,), "limits": LIMITS, **settings}))
    made.ready_to_embed(Embedder(model, lambda one: Batcher(one, **(capacity or {}))))
    model.batches.clear()
    while model.entered.acquire(blocking=False):
        pass
    try:
        yield made
    finally:
        model.go.set()
        made.close(0.0)


@pytest.fixture
def asking() -> Iterator[Callable[..., TestClient]]:
    """``asking(model, limits=...)`` returns a client of a server of its own."""
    with ExitStack() as stack:

        def start(model: FakeEmbedding, **settings: Any) -> TestClient:
            app = make_app(stack.enter_context(embedding_server(model, **settings)))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield start


@pytest.fixture
def fake() -> FakeEmbedding:
    return FakeEmbedding()


@pytest.fixture
def embed(asking: Any, fake: FakeEmbedding) -> TestClient:
    return asking(fake)


@pytest.fixture
def rank(asking: Any) -> TestClient:
    return asking(FakeEmbedding("reranking"))
