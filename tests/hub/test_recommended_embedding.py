"""The recommended embedding and reranking models: their names, and what is downloaded of their repositories."""

from __future__ import annotations

import pytest

from ipex_lookahead.errors import InputError
from ipex_lookahead.hub.choosing import GGUF_TYPES, choose, type_in
from ipex_lookahead.hub.names import HubName, parse_name
from ipex_lookahead.hub.recommended import find_recommended, near_names, recommended_models
from ipex_lookahead.hub.recommended_embedding import purpose_of_name, recommended_embedding_models

MODELS = recommended_embedding_models()


def test_there_are_six_with_plain_facts():
    assert len(MODELS) == 6
    assert not MODELS.keys() & recommended_models().keys()
    for one in MODELS.values():
        found = parse_name(one.name)
        assert isinstance(found, HubName)
        assert found.file is None or type_in(found.file) in GGUF_TYPES
        assert one.purpose in ("embedding", "reranking")
        assert bool(one.dimensions) == (one.purpose == "embedding")
        assert one.source
        assert one.license
        assert (one.download == 0) == ("not verified" in one.source), "a size has a source"
        if type_in(found.file or "") == "Q8_0":
            assert one.download == 0 or 1.05 < one.download / one.parameters < 1.15, "8.5 bits and the tokenizer"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen3-embedding-0.6b", "qwen3-embedding-0.6b"),
        ("Qwen3-Embedding", "qwen3-embedding-0.6b"),
        ("qwen3-embedding:0.6b", "qwen3-embedding-0.6b"),
        ("all-minilm", "all-minilm-l6-v2"),
        ("embeddinggemma", "embeddinggemma-300m"),
        ("bge-m3:latest", "bge-m3"),
        ("bge-reranker-v2-m3", "bge-reranker-v2-m3"),
    ],
)
def test_names_as_people_type_them(name, meant):
    found = find_recommended(name)
    assert found is not None
    assert found.model.name == meant
    assert (found.said == "") == (name == meant)


def test_text_models_come_first_and_short_words_are_no_names():
    found = find_recommended("qwen3")
    assert found is not None
    assert found.model.name in recommended_models()
    assert find_recommended("bge") is None
    assert near_names("bge") == ["bge-m3", "bge-reranker-v2-m3"]
    with pytest.raises(InputError) as caught:
        parse_name("bge")
    assert caught.value.hint == "choose one of bge-m3, bge-reranker-v2-m3"


def test_the_purpose_of_a_name():
    assert purpose_of_name("bge-m3") == purpose_of_name(MODELS["bge-m3"].model) == "embedding"
    assert purpose_of_name("bge-reranker-v2-m3") == "reranking"
    assert purpose_of_name("qwen3-4b") == ""


def test_the_modules_of_sentence_transformers_are_downloaded():
    files = {
        "config.json": 1, "model.safetensors": 9, "modules.json": 1, "sentence_bert_config.json": 1,
        "config_sentence_transformers.json": 1, "tokenizer.json": 1, "README.md": 1, "pytorch_model.bin": 9,
        "1_Pooling/config.json": 1, "2_Dense/config.json": 1, "2_Dense/model.safetensors": 2,
        "2_Dense/pytorch_model.bin": 2, "onnx/model.onnx": 9, "onnx/config.json": 1, "vocab.txt": 1,
    }  # fmt: skip
    name = parse_name("owner/repo")
    assert isinstance(name, HubName)
    assert set(choose(name, files).files) == {
        "config.json", "model.safetensors", "modules.json", "sentence_bert_config.json",
        "config_sentence_transformers.json", "tokenizer.json", "README.md", "1_Pooling/config.json",
        "2_Dense/config.json", "2_Dense/model.safetensors",
    }  # fmt: skip
    del files["modules.json"]
    assert not any("/" in path for path in choose(name, files).files), "the folders are those of modules.json"
