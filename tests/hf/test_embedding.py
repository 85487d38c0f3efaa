"""``AutoModelForEmbedding``: the methods of SentenceTransformer and CrossEncoder on our models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23")

import torch

from ipex_lookahead import AutoModelForEmbedding
from ipex_lookahead.embedding.model import probabilities
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.embedding import EmbeddingEncoder
from tests.embedding.test_reranking import DOCUMENTS, QUERY, write_folder
from tests.support.embedding_folders import TEXTS, qwen3, tokenizer, unit, write_qwen3_embedding


@pytest.fixture(scope="module")
def reference() -> Any:
    return qwen3(tokenizer().get_vocab_size())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, reference: Any) -> Path:
    return write_qwen3_embedding(tmp_path_factory.mktemp("qwen3"), reference)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> EmbeddingEncoder:
    return AutoModelForEmbedding.from_pretrained(folder, threads=2, trust_remote_code=True)


def test_encode(encoder: EmbeddingEncoder) -> None:
    vectors = encoder.encode(TEXTS, batch_size=2, show_progress_bar=False)
    assert np.array_equal(vectors, encoder.model.embed(TEXTS).vectors)
    assert np.array_equal(encoder.encode(TEXTS[0]), vectors[0])
    assert np.array_equal(encoder.encode_query(TEXTS), encoder.model.embed(TEXTS, task="query").vectors)
    assert np.array_equal(encoder.encode_document(TEXTS), vectors)
    assert np.allclose(encoder.encode(TEXTS, truncate_dim=8, normalize_embeddings=True), unit(vectors[:, :8]))
    tensor = encoder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), vectors)
    assert isinstance(encoder.encode(TEXTS, convert_to_numpy=False), list)
    assert encoder.get_sentence_embedding_dimension() == encoder.get_embedding_dimension() == 64
    assert encoder.max_seq_length == 512
    assert [*encoder.prompts] == ["query", "document"]


def test_similarity(encoder: EmbeddingEncoder) -> None:
    one, other = np.eye(3, 4), np.array([[3.0, 4, 0, 0]])
    assert np.allclose(encoder.similarity(one, other), [[0.6], [0.8], [0]])
    assert encoder.similarity(torch.from_numpy(one), other[0]).shape == (3, 1)


def test_low_bits_by_all_names(folder: Path) -> None:
    with AutoModelForEmbedding.from_pretrained(folder, threads=1, load_in_8bit=True) as made:
        assert made.model.describe()["low_bit"] == "sym_int8"
    with pytest.raises(InputError, match="pass one of them"):
        AutoModelForEmbedding.from_pretrained(folder, load_in_4bit=True, load_in_8bit=True)


def test_arguments_are_not_dropped(encoder: EmbeddingEncoder, folder: Path) -> None:
    with pytest.raises(InputError, match="precision='float32' only, not 'int8'"):
        encoder.encode(TEXTS, precision="int8")
    with pytest.raises(InputError, match="does not know 'normalise'"):
        encoder.encode(TEXTS, normalise=True)
    with pytest.raises(InputError, match="device is 'cuda'"):
        AutoModelForEmbedding.from_pretrained(folder, device="cuda")
    with pytest.raises(InputError, match="does not know 'low_bit'"):
        AutoModelForEmbedding.from_pretrained(folder, low_bit="sym_int4")


def test_predict_and_rank(tmp_path: Path, reference: Any) -> None:
    write_folder(tmp_path, reference)
    with AutoModelForEmbedding.from_pretrained(tmp_path, threads=2) as made:
        logits = made.model.scores(made.model.pairs(QUERY, DOCUMENTS))
        pairs = [(QUERY, document) for document in DOCUMENTS]
        assert np.array_equal(made.predict(pairs), probabilities(logits))
        assert made.predict(pairs[0]) == probabilities(logits)[0]
        assert np.array_equal(made.predict(pairs, activation_fn=torch.nn.Identity()), logits)
        assert np.array_equal(made.predict(pairs, convert_to_tensor=True).numpy(), probabilities(logits))
        ranking = made.rank(QUERY, DOCUMENTS, top_k=2, return_documents=True)
        best = int(np.argmax(logits))
        assert ranking[0] == {"corpus_id": best, "score": float(probabilities(logits)[best]), "text": DOCUMENTS[best]}
        assert len(ranking) == 2
        with pytest.raises(InputError, match="pair 0 is"):
            made.predict(["one text"])


@pytest.mark.programs
def test_it_needs_no_torch(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from ipex_lookahead import AutoModelForEmbedding\n"
        f"print(AutoModelForEmbedding.from_pretrained({str(folder)!r}, threads=1, progress=False).encode('x').shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(64,)\n", done.stderr
