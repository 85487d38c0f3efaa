"""The adapters of LangChain and LlamaIndex, on small stand-ins for the bases that these libraries provide."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23")

from ipex_lookahead import LLM
from tests.support.embedding_folders import TEXTS, qwen3, tokenizer, write_qwen3_embedding

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_qwen3_embedding(tmp_path_factory.mktemp("qwen3"), qwen3(tokenizer().get_vocab_size())))


def load(name: str, monkeypatch: pytest.MonkeyPatch, bases: dict[str, dict[str, Any]]) -> Any:
    for module, names in bases.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(sys.modules[module]).update(names)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_langchain(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = load("langchain_embeddings", monkeypatch, {"langchain_core.embeddings": {"Embeddings": object}})
    embeddings = made.LookaheadEmbeddings(folder, dimensions=16, threads=1, progress=False)
    with LLM(folder, threads=1, progress=False) as llm:
        assert np.array_equal(embeddings.embed_documents(TEXTS), llm.embed(TEXTS, task="document", dimensions=16))
        assert np.array_equal(embeddings.embed_query("x"), llm.embed("x", task="query", dimensions=16))
    made.main(["--model", folder, *TEXTS[:2]], standalone_mode=False)
    assert sorted(line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()) == sorted(TEXTS[:2])


class Base:
    """What the adapter uses of LlamaIndex's BaseEmbedding."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name

    def get_query_embedding(self, query: str) -> Any:
        return self._get_query_embedding(query)  # type: ignore[attr-defined]

    def get_text_embedding_batch(self, texts: list[str]) -> Any:
        return self._get_text_embeddings(texts)  # type: ignore[attr-defined]


def test_llama_index(folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bases = {
        "llama_index.core.base.embeddings.base": {"BaseEmbedding": Base},
        "pydantic": {"PrivateAttr": lambda: None},
    }
    made = load("llama_index_embeddings", monkeypatch, bases)
    embedding = made.LookaheadEmbedding(folder, threads=1, progress=False)
    assert embedding.model_name == folder
    with LLM(folder, threads=1, progress=False) as llm:
        assert np.array_equal(embedding.get_text_embedding_batch(TEXTS), llm.embed(TEXTS, task="document"))
        assert np.array_equal(embedding._get_text_embedding("x"), llm.embed("x", task="document"))
        assert np.array_equal(embedding.get_query_embedding("x"), llm.embed("x", task="query"))
    made.main(["--model", folder, *TEXTS[:2]], standalone_mode=False)
    assert sorted(line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()) == sorted(TEXTS[:2])
