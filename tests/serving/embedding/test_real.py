"""A tiny Qwen3-Embedding with random weights behind the server: bits in batches, and the program with two models."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.serve_embedding import purpose_of_source
from ipex_lookahead.embedding.model import EmbeddingModel
from ipex_lookahead.serving.app import make_app
from ipex_lookahead.serving.embedding.embedder import Embedder
from ipex_lookahead.serving.server import Server, Settings
from tests.serving.conftest import LIMITS
from tests.support.chat_tokenizer import write_chat_llama

pytest.importorskip("transformers", minversion="5.23")
TEXTS = [
    "The capital of China is Beijing.",
    "Gravity is a force.",
    "",
    "naïve café — 日本語 🙂",
    "one two " * 40,
    "yes",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    from tests.support.embedding_folders import qwen3, tokenizer, write_qwen3_embedding

    made = tmp_path_factory.mktemp("embedding") / "embed"
    made.mkdir()
    return write_qwen3_embedding(made, qwen3(tokenizer().get_vocab_size()))


def test_vectors_have_the_same_bits_in_batches_of_several_requests(folder):
    alone = EmbeddingModel.open(folder, threads=1)
    expected = {text: alone.embed([text], task="query").vectors[0] for text in TEXTS}
    server = Server(Settings(names=("embed",), limits=LIMITS))
    server.ready_to_embed(Embedder(EmbeddingModel.open(folder, threads=2)))
    try:
        with TestClient(make_app(server)) as client:

            def asked(number: int) -> None:
                texts = TEXTS[number % 3 :] + TEXTS[: number % 3]
                body = {"input": texts, "task": "query", "model": "embed"}
                found = client.post("/v1/embeddings", json=body).json()["data"]
                for text, one in zip(texts, found, strict=True):
                    assert np.array_equal(np.array(one["embedding"], np.float32), expected[text]), text

            with ThreadPoolExecutor(8) as pool:
                list(pool.map(asked, range(24)))
            facts = client.get("/v1/models").json()["data"][0]
            assert (facts["purpose"], facts["meta"]["pooling"], facts["meta"]["dimensions"]) == (
                "embedding", "lasttoken", 64,
            )  # fmt: skip
            error = client.post("/v1/embeddings", json={"input": "x", "dimensions": 65}).json()["error"]
            assert "dimensions is 65" in error["message"]
            assert error["param"] == "dimensions"
            error = client.post("/v1/embeddings", json={"input": ["x", "one " * 2000]}).json()["error"]
            assert error["code"] == "context_length_exceeded"
            error = client.post("/v1/embeddings", json={"input": [5, 10**6]}).json()["error"]
            assert "1000000" in error["message"]
    finally:
        server.close(0.0)


def test_the_commands_take_its_folder(folder, capsys, tmp_path):
    assert purpose_of_source(str(folder)) == "embedding"
    out = tmp_path / "v.npy"
    assert run(["embed", "-m", str(folder), *TEXTS, "-o", str(out), "--threads", "1"]) == 0
    with EmbeddingModel.open(folder, threads=1) as model:
        assert np.array_equal(np.load(out), model.embed(TEXTS).vectors)
    capsys.readouterr()
    assert run(["rank", "-m", str(folder), "force", *TEXTS, "--top-n", "1", "--threads", "1"]) == 0
    assert "score" in capsys.readouterr().out


@pytest.mark.programs
def test_the_program_serves_a_text_and_an_embedding_model(folder, tmp_path):
    chat = write_chat_llama(tmp_path / "chat", context=512)
    command = [sys.executable, "-m", "ipex_lookahead", "serve", "--port", "0", "--threads", "1", "-m", str(chat)]
    temporary = tempfile.mkdtemp(dir="/tmp")  # short, as the path of a Unix socket has to be
    process = subprocess.Popen(
        [*command, "-m", str(folder), "--cache-memory", "64M"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": temporary},
    )
    try:
        assert process.stderr is not None
        found = re.search(r"serving chat, embed at (http://[\d.:]+)", process.stderr.readline())
        assert found
        listed = httpx.get(f"{found[1]}/v1/models").json()["data"]
        assert {one["id"]: one["purpose"] for one in listed} == {"chat": "text", "embed": "embedding"}
        answer = httpx.post(f"{found[1]}/v1/embeddings", json={"input": TEXTS}, timeout=120).json()
        with EmbeddingModel.open(folder, threads=1) as model:
            vectors = [one["embedding"] for one in answer["data"]]
            assert np.array_equal(np.array(vectors, np.float32), model.embed(TEXTS).vectors)
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        assert httpx.post(f"{found[1]}/v1/chat/completions", json=body, timeout=120).status_code == 200
    finally:
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)
        process.stderr.close()
