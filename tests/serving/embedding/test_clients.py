"""Clients for embeddings and reranking as people have them, unmodified, each where it is installed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import uvicorn

from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.run import bind, url
from tests.serving.embedding.conftest import embedding_server
from tests.serving.embedding.test_ranking import probability
from tests.serving.embedding.test_vectors import unit
from tests.support.fake_embedding import FakeEmbedding

TEXTS = ["one", "two"]


@contextmanager
def served(model: FakeEmbedding) -> Iterator[str]:
    with embedding_server(model) as server:
        bound = bind("127.0.0.1", 0)
        running = uvicorn.Server(uvicorn.Config(make_app(server), log_config=None, lifespan="off"))
        thread = threading.Thread(target=running.run, args=([bound],), daemon=True)
        thread.start()
        yield url(bound)
        running.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(FakeEmbedding()) as found:
        yield found


@pytest.fixture(scope="module")
def ranking() -> Iterator[str]:
    with served(FakeEmbedding("reranking")) as found:
        yield found


def same(found: Any, *texts: str, dimensions: int = 8) -> bool:
    return np.array_equal(np.array(found, np.float32), np.stack([unit(text, dimensions) for text in texts]))


def test_openai(address):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    with openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0) as client:
        found = client.embeddings.create(model="embedding", input=TEXTS)  # in base64, which the client decodes
        assert same([one.embedding for one in found.data], *TEXTS)
        assert found.usage.prompt_tokens == 6
        found = client.embeddings.create(model="embedding", input="one", dimensions=4, encoding_format="float")
        assert same([found.data[0].embedding], "one", dimensions=4)
        with pytest.raises(openai.BadRequestError, match="maximum is 64"):
            client.embeddings.create(model="embedding", input="x" * 70)
        with pytest.raises(openai.BadRequestError, match="for text serve a text model"):
            client.chat.completions.create(model="embedding", messages=[{"role": "user", "content": "Hi"}])
        assert client.models.retrieve("embedding").purpose == "embedding"


def test_langchain(address):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    client = langchain.OpenAIEmbeddings(
        model="embedding", base_url=address + "/v1", api_key="any", check_embedding_ctx_length=False
    )
    assert same(client.embed_documents(TEXTS), *TEXTS)
    assert same([client.embed_query("one")], "one")


def test_llama_index(address):
    reason = "llama-index-embeddings-openai-like is not installed"
    module = pytest.importorskip("llama_index.embeddings.openai_like", reason=reason)
    client = module.OpenAILikeEmbedding(model_name="embedding", api_base=address + "/v1", api_key="any")
    assert same(client.get_text_embedding_batch(TEXTS), *TEXTS)


def test_ollama(address):
    ollama = pytest.importorskip("ollama", reason="the ollama client is not installed")
    client = ollama.Client(address)
    found = client.embed(model="embedding", input=TEXTS, truncate=True, dimensions=4, keep_alive="5m")
    assert same(found.embeddings, *TEXTS, dimensions=4)
    assert found.prompt_eval_count == 6
    assert same([client.embeddings(model="embedding", prompt="one").embedding], "one")
    assert client.show("embedding").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError, match="maximum is 64"):
        client.embed(model="embedding", input="x" * 70, truncate=False)


def test_cohere(ranking):
    cohere = pytest.importorskip("cohere", reason="the cohere client is not installed")
    documents = ["xyz", "cat", "at"]
    for client in (cohere.ClientV2("any", base_url=ranking), cohere.Client("any", base_url=ranking)):
        found = client.rerank(model="reranking", query="cat", documents=documents, top_n=2)
        assert [one.index for one in found.results] == [1, 2]
        assert [one.relevance_score for one in found.results] == [probability("cat"), probability("at")]
