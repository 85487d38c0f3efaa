"""Embedding models and rerankers made of encoders: sentence-transformers' folders and GGUF files, against transformers.

``IPEX_LOOKAHEAD_MINILM`` names the folder of all-MiniLM-L6-v2 for a test with its real weights.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5.23")

import torch
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, processors

from ipex_lookahead.embedding.model import EmbeddingModel, purpose_of
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.tokenization.word_piece import word_piece_core
from tests.support.embedding_folders import cosines, unit, write_modules
from tests.support.text_encoders import VOCAB, build, write_folder, write_gguf
from tests.tokenization.test_encoders import bert_metadata

TEXTS = ["the cat saw a ball", "Cat", "", "a b c d e " * 4, "été ball!", "the mat"]
WORDS = "the cat saw a ball mat b c d e ete ! query : document".split()
MEAN = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def tokenizer() -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*special, *WORDS, *(f"##{letter}" for letter in "abcdefghijklmnopqrst"), *"fghijklmnopqrst"]
    pieces += [f"[unused{number}]" for number in range(VOCAB - len(pieces))]
    core = word_piece_core({piece: i for i, piece in enumerate(pieces)}, "[UNK]", lowercase=True)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return core


def write(folder: Path, name: str, model: Any, *modules: Any, length: int | None = None, **prompts: Any) -> Path:
    """Write a case with a tokenizer and modules; ``modules`` follow the pooling with the mean."""
    write_folder(folder, name, model)
    core = tokenizer()
    core.enable_truncation(7)  # of the file, which sentence-transformers replaces
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40, "pad_token": "[PAD]"}))
    if modules:
        write_modules(folder, ("Transformer", "", None), *modules)
    if length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    if prompts:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def rows(model: Any, ids: list[int], types: list[int] | None = None) -> Any:
    given = {} if types is None else {"token_type_ids": torch.tensor([types])}
    with torch.no_grad():
        return model(torch.tensor([ids]), **given).last_hidden_state[0].numpy()


def encoded(text: str, length: int = 40) -> list[int]:
    core = tokenizer()
    core.enable_truncation(length)
    return core.encode(text).ids


def same(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert cosines(found, expected).min() > 1 - 1e-5


def test_mean_in_the_form_of_early_releases(tmp_path: Path) -> None:
    reference = build("bert")
    write(tmp_path, "bert", reference, ("Pooling", "1_Pooling", MEAN), ("Normalize", "2_Normalize", None), length=12)
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        assert (model.purpose, model.max_length, model.dimensions) == ("embedding", 12, 64)
        found = model.embed(TEXTS)
        same(found.vectors, unit(np.stack([rows(reference, encoded(text, 12)).mean(axis=0) for text in TEXTS])))
        assert found.tokens == sum(len(encoded(text, 12)) for text in TEXTS)
        assert max(len(one) for one in model.inputs(TEXTS)) == 12
        alone = np.concatenate([model.embed(text).vectors for text in TEXTS])
        backwards = np.ascontiguousarray(model.embed(TEXTS[::-1]).vectors[::-1])
        assert found.vectors.tobytes() == alone.tobytes() == backwards.tobytes()
        same(model.embed(TEXTS, dimensions=8).vectors, unit(found.vectors[:, :8]))


@pytest.mark.parametrize(
    ("modes", "pool"),
    [
        ("cls", lambda x: x[0]),
        ("lasttoken", lambda x: x[-1]),
        ("max", lambda x: x.max(axis=0)),
        ("mean_sqrt_len_tokens", lambda x: x.sum(axis=0) / np.sqrt(len(x))),
        ("weightedmean", lambda x: np.average(x, axis=0, weights=range(1, len(x) + 1))),
        (["cls", "mean"], lambda x: np.concatenate([x[0], x.mean(axis=0)])),
    ],
)
def test_poolings_in_the_current_form(tmp_path: Path, modes: Any, pool: Any) -> None:
    """Without the module Normalize, vectors have any length."""
    reference = build("xlm-roberta")
    write(tmp_path, "xlm-roberta", reference, ("Pooling", "1_Pooling", {"pooling_mode": modes}))
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        expected = np.stack([pool(rows(reference, encoded(text))) for text in TEXTS])
        assert np.allclose(model.embed(TEXTS).vectors, expected, atol=2e-5)
        same(model.embed(TEXTS, normalize=True).vectors, unit(expected))


def test_prompts_and_rows_that_pooling_omits(tmp_path: Path) -> None:
    reference = build("bert")
    prompts = {"prompts": {"query": "query : ", "passage": "document : "}, "default_prompt_name": "query"}
    pooling = MEAN | {"include_prompt": False}
    write(tmp_path, "bert", reference, ("Pooling", "1_Pooling", pooling), **prompts, truncate_dim=32)
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        assert model.dimensions == 32
        for task, before in (("query", "query : "), (None, "query : "), ("document", "document : ")):
            inputs = [rows(reference, encoded(before + text))[3:] for text in TEXTS]  # [CLS] query :
            same(model.embed(TEXTS, task=task).vectors, np.stack([one.mean(axis=0) for one in inputs])[:, :32])
        assert model.prompts == prompts["prompts"]


def test_dense_layers(tmp_path: Path) -> None:
    reference = build("gemma")
    generator = np.random.default_rng(5)
    weights = [generator.standard_normal(shape, np.float32) / 8 for shape in ((96, 64), (48, 96))]
    bias = generator.standard_normal(48, np.float32)
    dense = [
        {
            "in_features": 64,
            "out_features": 96,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
        {"in_features": 96, "out_features": 48, "activation_function": "torch.nn.modules.activation.Tanh"},
    ]
    modules = [("Pooling", "1_Pooling", {"pooling_mode": "mean"}), ("Dense", "2_Dense", dense[0])]
    write(tmp_path, "gemma", reference, *modules, ("Dense", "3_Dense", dense[1]), ("Normalize", "4_Normalize", None))
    save_file({"linear.weight": weights[0]}, tmp_path / "2_Dense" / "model.safetensors")
    save_file({"linear.weight": weights[1], "linear.bias": bias}, tmp_path / "3_Dense" / "model.safetensors")
    pooled = np.stack([rows(reference, encoded(text)).mean(axis=0) for text in TEXTS])
    expected = unit(np.tanh(pooled @ weights[0].T @ weights[1].T + bias))
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        found = model.embed(TEXTS).vectors
        same(found, expected)
        assert found.tobytes() == np.concatenate([model.embed(text).vectors for text in TEXTS]).tobytes()
    save_file({"linear.weight": weights[1]}, tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelFormatError, match="linear.weight.*has shape"):
        EmbeddingModel.open(tmp_path)
    (tmp_path / "2_Dense" / "model.safetensors").rename(tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="in a pickle"):
        EmbeddingModel.open(tmp_path)


def test_a_plain_encoder_has_the_mean(tmp_path: Path) -> None:
    reference = build("modernbert")
    write(tmp_path, "modernbert", reference)
    assert purpose_of(tmp_path) == "embedding"
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        same(model.embed(TEXTS).vectors, unit(np.stack([rows(reference, encoded(t)).mean(axis=0) for t in TEXTS])))


@pytest.mark.parametrize(("number", "pool"), [(1, lambda x: x.mean(axis=0)), (2, lambda x: x[0]), (3, lambda x: x[-1])])
def test_gguf_files_state_their_pooling(tmp_path: Path, number: int, pool: Any) -> None:
    reference = build("bert")
    metadata = {"bert.pooling_type": number, **bert_metadata(tokenizer())}
    path = write_gguf(tmp_path / "x.gguf", "bert", reference, metadata=metadata)
    assert purpose_of(path) == "embedding"
    with EmbeddingModel.open(path, threads=2) as model:
        same(model.embed(TEXTS).vectors, unit(np.stack([pool(rows(reference, encoded(t, 60))) for t in TEXTS])))
        assert model.describe()["architecture"] == "bert"


def test_gguf_files_of_embeddinggemma_without_dense_layers_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = build("gemma")
    metadata = {"gemma-embedding.pooling_type": 1, **bert_metadata(tokenizer())}
    path = write_gguf(tmp_path / "x.gguf", "gemma", reference, metadata=metadata)
    with caplog.at_level(logging.WARNING), EmbeddingModel.open(path, threads=1) as model:
        assert "no dense layers" in caplog.text
        assert model.prompt_of("query") == "task: search result | query: "


@pytest.mark.parametrize("name", ["bert-score", "xlm-roberta-score", "modernbert-score"])
def test_cross_encoders(tmp_path: Path, name: str) -> None:
    """Pairs of BERT have the types 0 and 1; a model with one type has none."""
    reference = build(name)
    write(tmp_path, name, reference)
    assert purpose_of(tmp_path) == "reranking"
    query, documents = "the cat", [*TEXTS, "b c d e " * 30]
    core = tokenizer()
    core.enable_truncation(40)
    expected = []
    for document in documents:
        pair = core.encode(query, document)
        given = {"token_type_ids": torch.tensor([pair.type_ids])} if name == "bert-score" else {}
        with torch.no_grad():
            expected.append(reference(torch.tensor([pair.ids]), **given).logits[0, 0].item())
    with EmbeddingModel.open(tmp_path, threads=2) as model:
        assert model.max_length == 40
        inputs = model.pairs(query, documents)
        scores = model.scores(inputs)
        assert np.allclose(scores, expected, atol=2e-5)
        alone = [model.scores([one])[0] for one in inputs]
        assert np.array_equal(scores, np.array(alone))
        assert [one.index for one in model.rank(query, documents)] == np.argsort(-scores, kind="stable").tolist()
        with pytest.raises(InputError, match="takes no instruction"):
            model.rank(query, documents, instruction="x")
        with pytest.raises(InputError, match="document 6: a text has"):
            model.pairs(query, documents, truncate=False)


def test_classifiers_with_several_labels_rank_nothing(tmp_path: Path) -> None:
    write(tmp_path, "bert-labels", build("bert-labels"))
    with pytest.raises(UnsupportedModelError, match="3 labels .* ranks no documents"):
        EmbeddingModel.open(tmp_path)


def test_modules_that_are_not_supported(tmp_path: Path) -> None:
    reference = build("bert")
    write(tmp_path, "bert", reference, ("Pooling", "1_Pooling", {"pooling_mode": "cls"}), ("CNN", "2_CNN", None))
    with pytest.raises(UnsupportedModelError, match="has a module CNN; supported are Transformer"):
        EmbeddingModel.open(tmp_path)
    write_modules(tmp_path, ("Transformer", "../x", None))
    with pytest.raises(ModelFormatError, match="leaves the folder"):
        EmbeddingModel.open(tmp_path)
    write_modules(tmp_path, ("Transformer", "", None), ("Pooling", "1_Pooling", {"pooling_mode": "median"}))
    with pytest.raises(ModelFormatError, match="pooling_mode.*'median'; choose from cls"):
        EmbeddingModel.open(tmp_path)
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelFormatError, match="array of 1 to 32 modules"):
        purpose_of(tmp_path)


def test_weights_in_a_folder_of_their_own(tmp_path: Path) -> None:
    reference = build("bert")
    write(tmp_path / "0_Transformer", "bert", reference, length=12)
    (tmp_path / "0_Transformer" / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 12, "do_lower_case": true}'
    )
    write_modules(tmp_path, ("Transformer", "0_Transformer", None), ("Pooling", "1_Pooling", MEAN))
    with EmbeddingModel.open(tmp_path, threads=1) as model:
        same(model.embed(TEXTS).vectors, np.stack([rows(reference, encoded(t, 12)).mean(axis=0) for t in TEXTS]))


@pytest.mark.skipif("IPEX_LOOKAHEAD_MINILM" not in os.environ, reason="IPEX_LOOKAHEAD_MINILM names no folder")
def test_the_real_minilm() -> None:
    """The published vectors' properties, and transformers' BertModel on the same weights."""
    from transformers import AutoModel, AutoTokenizer

    folder = os.environ["IPEX_LOOKAHEAD_MINILM"]
    theirs, reference = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts = ["The capital of China is Beijing.", "naïve café 日本語", "", "word " * 600]
    expected = []
    for text in texts:
        given = theirs([text], return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            expected.append(reference(**given).last_hidden_state[0].numpy().mean(axis=0))
    with EmbeddingModel.open(folder) as model:
        assert model.max_length == 256  # not the 512 positions
        same(model.embed(texts).vectors, unit(np.stack(expected)))
