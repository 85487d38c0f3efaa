"""Checkpoints of text encoders: every spelling of a folder, GGUF files with the folder's weights, and damaged files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.architectures import encoder_type
from ipex_lookahead.checkpoints.encoders import is_encoder, open_encoder
from ipex_lookahead.engines.weights import check_shape
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.text_encoders import CASES, HIDDEN, LAYERS, build, write_folder, write_gguf

pytest.importorskip("transformers", minversion="5.23")

Tensors = dict[str, torch.Tensor]
IN_GGUF = [name for name, case in CASES.items() if case.gguf]


def weights(path: Path) -> dict[str, Any]:
    """Return an encoder's weights by the path of their field in the description."""
    checkpoint = open_encoder(path)
    try:
        spec: Any = checkpoint.spec
        return {field: checkpoint.read(tensor.name).codes for field, tensor in spec.named_tensors()}
    finally:
        checkpoint.close()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[field], other[field]) for field in one)


def check_shapes(checkpoint: Any) -> None:
    """Check the shape of every tensor, as loading does."""
    for tensor in checkpoint.spec.tensors():
        check_shape(checkpoint, tensor)


# ---- folders ---------------------------------------------------------------------------------------------------------


def old_norms(config: dict[str, Any], tensors: Tensors) -> Tensors:
    """As the first BERTs have them."""
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    found: Tensors = {}
    for name, value in tensors.items():
        for own, old in names.items():
            name = name.replace(own, old)
        found[name] = value
    return found


def prefixed(prefix: str) -> Any:
    return lambda config, tensors: {prefix + name: value for name, value in tensors.items()}


def with_buffers(config: dict[str, Any], tensors: Tensors) -> Tensors:
    more = {"embeddings.position_ids": torch.arange(64)[None], "cls.predictions.bias": torch.zeros(3)}
    return {**tensors, **more}


SPELLINGS = [
    ("bert", old_norms), ("bert", prefixed("bert.")), ("bert", with_buffers), ("xlm-roberta", prefixed("roberta.")),
    ("modernbert", prefixed("model.")), ("gemma", prefixed("model.")), ("nomic", prefixed("nomic_bert.")),
    ("gte", prefixed("new.")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change"), SPELLINGS)
def test_a_folder_may_spell_its_tensors_as_other_programs_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, change: Any
) -> None:
    model = build(name)
    plain, other = write_folder(tmp_path / "plain", name, model), tmp_path / "other"
    with caplog.at_level(logging.WARNING):
        assert same(weights(plain), weights(write_folder(other, name, model, change=change)))
    assert not caplog.records  # no pooler or other part of a head is reported


def test_a_classifier_counts_if_the_class_classifies_texts(tmp_path: Path) -> None:
    name = "bert-labels"
    model = build(name)
    cases = [(None, 3), ("BertForSequenceClassification", 3), ("BertForTokenClassification", 0), ("BertModel", 0)]
    for number, (kind, labels) in enumerate(cases):

        def change(config: dict[str, Any], tensors: Tensors, kind: str | None = kind) -> None:
            config["architectures"] = kind and [kind]

        checkpoint = open_encoder(write_folder(tmp_path / str(number), name, model, change=change))
        assert checkpoint.config["num_labels"] == labels


def test_both_kinds_of_ropes_of_modernbert_have_two_spellings(tmp_path: Path) -> None:
    model = build("modernbert")
    bases = [{"global_rope_theta": 700.0, "local_rope_theta": 30.0}]
    bases += [{"rope_parameters": {"full_attention": {"rope_theta": 700.0}, "sliding_attention": {"rope_theta": 30.0}}}]
    bases += [{**bases[1], "global_rope_theta": 5.0}]  # transformers 5 has the last word
    found = []
    for number, keys in enumerate(bases):
        folder = write_folder(tmp_path / str(number), "modernbert", model, change=lambda c, t, k=keys: c.update(k))
        config = open_encoder(folder).config
        found.append((config["rope_theta"], config["rope_local_base_freq"]))
    assert found == [(700.0, 30.0)] * 3


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "bert"}, "bert"),
        ({"model_type": "bert", "position_embedding_type": "absolute"}, "bert"),
        ({"model_type": "bert", "position_embedding_type": "alibi"}, "jina_bert"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "gemma_embedding"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": False}, None),
        ({"model_type": "llama"}, None),
        ({"model_type": ["bert"]}, None),
        ({}, None),
    ],
)
def test_a_config_tells_encoders_from_decoders(tmp_path: Path, config: dict[str, Any], kind: str | None) -> None:
    assert encoder_type(config) == kind
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert is_encoder(tmp_path) == (kind is not None)


BAD: list[tuple[str, str, Any, type[Exception]]] = [
    ("bert", "hidden_size", None, ModelFormatError),
    ("bert", "hidden_size", "48", ModelFormatError),
    ("bert", "hidden_size", 50, ModelFormatError),
    ("bert", "num_attention_heads", 0, ModelFormatError),
    ("bert", "num_attention_heads", 16, UnsupportedModelError),  # heads of 4 values
    ("bert", "head_dim", 64, UnsupportedModelError),
    ("bert", "num_key_value_heads", 1, UnsupportedModelError),
    ("bert", "layer_norm_eps", float("nan"), ModelFormatError),
    ("bert", "layer_norm_eps", 0, ModelFormatError),
    ("bert", "type_vocab_size", -1, ModelFormatError),
    ("bert", "type_vocab_size", 7, ModelFormatError),
    ("bert", "max_position_embeddings", 1 << 40, ModelFormatError),
    ("bert", "max_position_embeddings", 63, ModelFormatError),
    ("bert", "hidden_act", "tanh", UnsupportedModelError),
    ("bert", "position_embedding_type", "relative_key", UnsupportedModelError),
    ("bert", "is_decoder", True, UnsupportedModelError),
    ("bert", "quantization_config", {"quant_method": "strange"}, UnsupportedModelError),
    ("xlm-roberta", "pad_token_id", 80, ModelFormatError),
    ("xlm-roberta", "pad_token_id", -1, ModelFormatError),
    ("nomic", "rope_parameters", {"rope_type": "longrope"}, ModelFormatError),
    ("nomic", "rope_parameters", [], ModelFormatError),
    ("nomic-old", "activation_function", "gelu", UnsupportedModelError),
    ("nomic-old", "prenorm", True, UnsupportedModelError),
    ("nomic-old", "n_positions", "many", ModelFormatError),
    ("nomic-old", "max_trained_positions", [1], ModelFormatError),
    ("nomic-old", "moe_every_n_layers", 2, UnsupportedModelError),
    ("distilbert", "n_heads", 0, ModelFormatError),
    ("distilbert", "dim", "64", ModelFormatError),
    ("distilbert", "activation", "tanh", UnsupportedModelError),
    ("modernbert", "local_attention", 1, ModelFormatError),
    ("modernbert", "global_attn_every_n_layers", 0, ModelFormatError),
    ("modernbert", "layer_types", ["full_attention"], ModelFormatError),
    ("modernbert", "layer_types", {"a": 1}, ModelFormatError),
    ("modernbert", "rope_parameters", {"full_attention": 3}, ModelFormatError),
    ("modernbert", "global_rope_theta", "x", ModelFormatError),
    ("modernbert", "local_rope_theta", -1, ModelFormatError),
    ("modernbert-score", "classifier_pooling", "max", UnsupportedModelError),
    ("modernbert", "norm_bias", 1, ModelFormatError),
    ("gemma", "sliding_window", 1, ModelFormatError),
    ("gemma", "attn_logit_softcapping", 50.0, UnsupportedModelError),
]


@pytest.mark.parametrize(("name", "key", "value", "error"), BAD)
def test_a_bad_value_is_named(tmp_path: Path, name: str, key: str, value: Any, error: type[Exception]) -> None:
    def change(config: dict[str, Any], tensors: Tensors) -> None:
        config[key] = value

    folder = write_folder(tmp_path, name, build(name), change=change)
    with pytest.raises(error) as raised:
        check_shapes(open_encoder(folder))
    assert any(word in str(raised.value) for word in (key, "has shape", "head", "max_position_embeddings"))


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path: Path) -> None:
    name = "encoder.layer.1.output.dense.weight"

    def lose(config: dict[str, Any], tensors: Tensors) -> None:
        del tensors[name]

    def turn(config: dict[str, Any], tensors: Tensors) -> None:
        tensors[name] = tensors[name].T

    for number, (change, said) in enumerate([(lose, "no tensor has this name"), (turn, "has shape")]):
        checkpoint = open_encoder(write_folder(tmp_path / str(number), "bert", build("bert"), change=change))
        with pytest.raises(ModelFormatError, match=f"{name}.*: {said}"):
            check_shapes(checkpoint)


def test_a_tensor_of_a_similar_model_is_refused(tmp_path: Path) -> None:
    name = "encoder.layer.0.attention.self.layer_norm_q.weight"

    def add(config: dict[str, Any], tensors: Tensors) -> None:
        tensors[name] = torch.ones(HIDDEN)

    folder = write_folder(tmp_path, "jina-v2", build("jina-v2"), change=add)
    with pytest.raises(UnsupportedModelError, match=f"{tmp_path.name}: tensor {name} is of a kind of model"):
        open_encoder(folder)


def test_pickles_are_refused_with_the_class_that_reads_them(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "bert", build("bert"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError) as raised:
        open_encoder(folder)
    assert "transformers.AutoModel.from_pretrained" in str(raised.value.hint)


def test_a_decoder_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match="'llama' is not a supported text encoder; supported are bert"):
        open_encoder(tmp_path)


# ---- GGUF ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_has_the_weights_of_the_folder(tmp_path: Path, name: str) -> None:
    model = build(name)
    folder, file = write_folder(tmp_path / "folder", name, model), write_gguf(tmp_path / "m.gguf", name, model)
    assert is_encoder(file)
    assert same(weights(folder), weights(file))
    one, other = open_encoder(folder), open_encoder(file)
    for key in ("num_labels", "rope_theta", "rms_norm_eps", "layer_types", "local_attention", "classifier_pooling"):
        in_heads = key == "classifier_pooling" and not CASES[name].scores
        if not in_heads and (key != "rope_theta" or CASES[name].gguf != "bert"):
            assert one.config.get(key) == pytest.approx(other.config.get(key)), key


def test_queries_keys_and_values_may_be_one_tensor_or_three(tmp_path: Path) -> None:
    def split(tensors: dict[str, Any]) -> None:
        for layer in range(LAYERS):
            whole = tensors.pop(f"blk.{layer}.attn_qkv.weight")
            for number, part in enumerate("qkv"):
                tensors[f"blk.{layer}.attn_{part}.weight"] = whole[number * HIDDEN : (number + 1) * HIDDEN]

    model = build("nomic-old")
    one = write_gguf(tmp_path / "one.gguf", "nomic-old", model)
    three = write_gguf(tmp_path / "three.gguf", "nomic-old", model, change=split)
    assert same(weights(one), weights(three))


def test_the_gate_may_be_part_of_a_tensor_or_not(tmp_path: Path) -> None:
    def split(tensors: dict[str, Any]) -> None:
        for layer in range(LAYERS):
            gate, up = np.split(tensors[f"blk.{layer}.ffn_up.weight"], 2)
            tensors |= {f"blk.{layer}.ffn_gate.weight": gate, f"blk.{layer}.ffn_up.weight": up}

    model = build("jina-v2")
    one = write_gguf(tmp_path / "one.gguf", "jina-v2", model)
    two = write_gguf(tmp_path / "two.gguf", "jina-v2", model, change=split)
    assert same(weights(one), weights(two))


def test_a_classifier_without_its_pooler_is_refused(tmp_path: Path) -> None:
    def lose(tensors: dict[str, Any]) -> None:
        del tensors["cls.weight"], tensors["cls.bias"]

    file = write_gguf(tmp_path / "m.gguf", "xlm-roberta-score", build("xlm-roberta-score"), change=lose)
    with pytest.raises(UnsupportedModelError, match="without the pooler") as raised:
        open_encoder(file)
    assert "folder" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("name", "metadata", "error", "said"),
    [
        ("bert", {"bert.attention.causal": True}, UnsupportedModelError, "bert.attention.causal is True"),
        ("bert", {"general.architecture": "llama"}, UnsupportedModelError, "not a supported text encoder"),
        ("bert", {"bert.context_length": 70}, ModelFormatError, "position_embd.weight"),
        ("bert", {"bert.embedding_length": 32}, ModelFormatError, "token_embd.weight"),
        ("modernbert", {"modern-bert.attention.sliding_window": 1}, ModelFormatError, "sliding_window"),
        ("modernbert", {"modern-bert.hidden_activation": "tanh"}, UnsupportedModelError, "hidden_activation"),
        ("modernbert", {"modern-bert.hidden_activation": [1, 2]}, UnsupportedModelError, "hidden_activation"),
        ("modernbert", {"modern-bert.classifier.pooling_type": 4}, ModelFormatError, "must be 1 .mean. or 2 .cls."),
        ("modernbert", {"modern-bert.attention.sliding_window_pattern": 1 << 20}, ModelFormatError, "pattern"),
        ("gemma", {"gemma-embedding.attention.sliding_window": 1}, ModelFormatError, "sliding_window"),
    ],
)
def test_bad_metadata_are_named(
    tmp_path: Path, name: str, metadata: dict[str, Any], error: type[Exception], said: str
) -> None:
    file = write_gguf(tmp_path / "m.gguf", name, build(name), metadata=metadata)
    with pytest.raises(error, match=said):
        open_encoder(file)
