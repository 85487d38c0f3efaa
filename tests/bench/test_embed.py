"""``bench embed`` and ``bench retrieval``: texts of a length, peers that alternate, and a set made from a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.bench import embed as bench_embed
from ipex_lookahead.bench.embed_peers import HttpServer, SentenceTransformers
from ipex_lookahead.bench.retrieval import ranks_of, retrieval_set
from ipex_lookahead.cli.main import run
from ipex_lookahead.embedding.model import EmbeddingModel
from ipex_lookahead.errors import InputError

pytest.importorskip("transformers", minversion="5.23")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    from tests.support.embedding_folders import qwen3, tokenizer, write_qwen3_embedding

    made = tmp_path_factory.mktemp("bench") / "embedder"
    made.mkdir()
    return write_qwen3_embedding(made, qwen3(tokenizer().get_vocab_size()))


def test_texts_have_the_length(folder):
    with EmbeddingModel.open(folder, threads=1) as model:
        for length in (8, 100):
            texts = bench_embed.texts_of(model, length, 4)
            lengths = [len(one) for one in model.inputs(texts)]
            assert len({*texts}) == 4
            assert all(length - 8 <= one <= length for one in lengths)
        with pytest.raises(InputError, match="exceeds the model's maximum of 512"):
            bench_embed.texts_of(model, 513, 1)


class Timed:
    def __init__(self, name: str, log: list[str], *seconds: float) -> None:
        self.name, self._log, self._seconds = name, log, iter(seconds)

    def seconds(self, texts: Any) -> float:
        self._log.append(f"{self.name}{len(texts)}")
        return next(self._seconds)

    def close(self) -> None:
        pass


def test_programs_alternate_and_the_first_batch_is_not_timed():
    log: list[str] = []
    contenders = [Timed("a", log, 9.0, 1.0, 3.0, 2.0), Timed("b", log, 9.0, 4.0, 6.0, 5.0)]
    (row,) = bench_embed.measure(contenders, {16: ["x"] * 3}, [2], 3)
    assert log == ["a2", "b2"] * 4
    assert row == {"tokens": 16, "texts": 2, "seconds": {"a": 2.0, "b": 5.0}}


def test_the_command_reports_its_rows(folder, capsys):
    arguments = ["bench", "embed", "-m", str(folder), "--lengths", "8", "--batches", "1,2", "--repeat", "1"]
    assert run([*arguments, "--threads", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["tokens"], row["texts"]) for row in report["rows"]] == [(8, 1), (8, 2)]
    assert run([*arguments, "--llama-server", sys.executable]) == 1
    assert "--llama-server needs a GGUF file" in capsys.readouterr().err


def test_a_peer_that_does_not_start_is_named(tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(InputError, match="sentence-transformers ended with status 3"):
        SentenceTransformers(program, tmp_path, 1)
    with pytest.raises(InputError, match="a server does not answer"):
        HttpServer("a server", ["/bin/false", "{port}"])


TEXT = "One two three four five six seven. Eight nine ten! Is it so? The cat sat on the warm mat today. " * 20


def test_the_set_is_made_of_the_text_and_the_same_each_time():
    made = retrieval_set([TEXT], 20, 0, 1000)
    assert made == retrieval_set([TEXT], 20, 0, 1000)
    assert made.queries != retrieval_set([TEXT], 20, 1, 1000).queries
    for query, document in zip(made.queries, made.documents, strict=True):
        assert len(query.split()) >= 6
        assert document
        assert len((query + document).split()) >= 20
    assert len(retrieval_set([TEXT], 20, 0, 3).queries) == 3
    with pytest.raises(InputError, match="0 passages of 60 words"):
        retrieval_set(["Too short."], 60, 0, 10)


def test_ranks_count_equal_scores_against_the_document():
    queries = np.eye(3, dtype=np.float32)
    documents = np.array([[1, 0, 0], [0, 0.5, 0.9], [0, 0.5, 0.9]], np.float32)
    assert ranks_of(queries, documents) == [1, 2, 2]


def test_quality_of_formats(folder, capsys):
    arguments = ["bench", "retrieval", "-m", str(folder), "--low-bit", "sym_int8,sym_int4", "--threads", "1"]
    assert run([*arguments, "--queries", "20", "--json"]) == 0
    reference, int8, int4 = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert reference["cosine_mean"] == pytest.approx(1, abs=1e-6)
    assert 1 > int8["cosine_mean"] > int4["cosine_mean"] > 0.5
    assert reference["bytes"] > int8["bytes"] > int4["bytes"]
    assert 0 <= reference["ndcg"] <= 1
