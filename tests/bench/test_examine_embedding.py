"""``doctor`` of an embedding model, and ``info``, ``list`` and ``pull`` of one: what it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.bench.examine_embedding import embedding_lines, embedding_problems, examine_embedding
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.embedding.model import EmbeddingModel

pytest.importorskip("transformers", minversion="5.23")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    from tests.support.embedding_folders import qwen3, tokenizer, write_qwen3_embedding

    made = tmp_path_factory.mktemp("doctor") / "embedder"
    made.mkdir()
    return write_qwen3_embedding(made, qwen3(tokenizer().get_vocab_size()))


def test_vectors_are_compared_alone_and_in_a_batch(folder, monkeypatch):
    found = examine_embedding(str(folder), None, 1)
    assert (found["purpose"], found["texts"], found["equal"]) == ("embedding", 10, 10)
    assert embedding_problems(found) == []
    assert "10 of 10 vectors have the same bits alone and in a batch" in embedding_lines(found)[1]
    vectors = EmbeddingModel.vectors
    monkeypatch.setattr(EmbeddingModel, "vectors", lambda self, given: vectors(self, given) * np.float32(len(given)))
    assert embedding_problems(examine_embedding(str(folder), None, 1)) == [
        "10 of 10 texts give other bits in a batch than alone"
    ]
    missing = examine_embedding(str(folder / "missing"), None, 1)
    assert "the model: " in embedding_problems(missing)[0]
    assert "cannot run" in embedding_lines(missing)[0]


def test_facts_of_embedding_models(folder, tmp_path, capsys):
    facts = describe(folder)
    assert (facts["purpose"], facts["pooling"], facts["engine"]) == ("embedding", "lasttoken", "native")
    assert facts["prompts"] == ["document", "query"]
    from tests.support.text_encoders import build, write_folder

    encoder = write_folder(tmp_path / "bert", "bert", build("bert"))
    facts = describe(encoder)
    assert (facts["purpose"], facts["engine"], facts["architecture"]) == ("embedding", "native", "bert")
    assert "problem" not in facts
    assert facts["bytes"] == sum(one["bytes"] for one in facts["formats"].values())
    assert run(["info", str(folder)]) == 0
    assert "embedding" in capsys.readouterr().out
    assert run(["info", str(encoder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["purpose"] == "embedding"
