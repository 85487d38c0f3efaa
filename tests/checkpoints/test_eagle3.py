"""Files of EAGLE-3 heads: what fits the target is opened, anything else is refused, and says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.drafters import open_drafter
from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError, UnsupportedModelError
from tests.support.eagle3_folders import Head, Shape
from tests.support.specs import make_spec

TARGET = make_spec(layers=6, hidden=64, vocab=101, context=256)


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["flat", "speculators", "gguf"])
def test_what_a_head_is_and_shares(tmp_path: Path, kind: str) -> None:
    oracle = Head(Shape(norm_before_residual=True, norm_before_fc=True, states=(2, 3, 5)))
    path = getattr(oracle, f"write_{kind}")(tmp_path / "head")
    drafter = open_drafter(path, TARGET)
    spec, features = drafter.spec, drafter.spec.features
    assert (features.layers, features.width, features.feeds_back) == ((2, 3, 5), 192, 1)
    assert features.shares == ("embedding",)
    assert spec.embedding is TARGET.embedding
    assert spec.max_context == TARGET.max_context
    assert spec.head.weight.shape == (40, 64)
    assert drafter.ids.tolist() == oracle.ids.tolist()
    assert drafter.ids.dtype == np.int32
    for tensor in spec.own_tensors():
        assert drafter.checkpoint.info(tensor.name).shape == tensor.shape
        assert drafter.checkpoint.read(tensor.name).shape == tensor.shape
    assert set(drafter.checkpoint.names()) == {tensor.name for tensor in spec.own_tensors()}
    drafter.checkpoint.close()


@pytest.mark.parametrize("kind", ["flat", "speculators", "gguf"])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(target=32), "3 hidden states of 32 values; the model's have 64"),
        (Shape(vocab=90), "a vocabulary of 90 tokens; the model's has 101"),
        (Shape(states=(2, 3, 7)), "reads the state after layer 7; the model has 6"),
        (Shape(hidden=32, heads=2), "no embedding and cannot use the model's: its hidden size is 32"),
        (
            Shape(hidden=32, heads=2, own_embedding=True, own_head=False),
            "no lm_head and cannot use the model's: its hidden size is 32",
        ),
    ],
    ids=["hidden size", "vocabulary", "layers", "embedding", "lm_head"],
)
def test_a_head_for_another_model_is_refused(tmp_path: Path, kind: str, shape: Shape, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_drafter(getattr(Head(shape), f"write_{kind}")(tmp_path / "head"), TARGET)


def test_a_hidden_size_that_the_config_says(tmp_path: Path) -> None:
    folder = Head(Shape()).write_flat(tmp_path, target_hidden_size=128)
    with pytest.raises(InputError, match="is for a hidden size of 128; the model's is 64"):
        open_drafter(folder, TARGET)


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, ModelFormatError, "norm_before_fc is true as well"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, UnsupportedModelError, "as in EAGLE 1"),
        (
            {"eagle_config": {"use_last_layernorm": False}},
            UnsupportedModelError,
            "omits the norm before the lm_head",
        ),
        ({"use_input_layernorm_in_first_layer": False}, UnsupportedModelError, "the norm over the embedding"),
        ({"parallel_draft_step": 4}, UnsupportedModelError, "several tokens per step"),
        ({"eagle_config": 3}, ModelFormatError, "eagle_config"),
        ({"eagle_aux_hidden_state_layer_ids": []}, ModelFormatError, "1 to 16 layer numbers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, -2, 3]}, ModelFormatError, "eagle_aux_hidden_state_layer_ids"),
        ({"eagle_aux_hidden_state_layer_ids": "2"}, ModelFormatError, "eagle_aux_hidden_state_layer_ids"),
        ({"norm_before_residual": 1}, ModelFormatError, "norm_before_residual"),
        ({"draft_vocab_size": 102}, ModelFormatError, "draft_vocab_size"),
        ({"draft_vocab_size": 39}, ModelFormatError, "one per output of the lm_head"),
        ({"model_type": "gemma3_text"}, UnsupportedModelError, "gemma3_text"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"use_sliding_window": True}, ModelFormatError, "use_sliding_window"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "new"}}, ModelFormatError, "rope"),
        ({"quantization_config": {"quant_method": "new"}}, UnsupportedModelError, "quant_method"),
    ],
    ids=str,
)
def test_configs_that_are_refused(tmp_path: Path, config: dict[str, Any], error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        open_drafter(Head(Shape()).write_flat(tmp_path, **config), TARGET)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"])
def test_a_size_that_is_missing(tmp_path: Path, key: str) -> None:
    folder = change_config(Head(Shape()).write_flat(tmp_path), lambda config: config.pop(key))
    with pytest.raises(ModelFormatError, match=key):
        open_drafter(folder, TARGET)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("d2t"), "d2t"),
        (lambda tensors: tensors.pop("fc.weight"), "fc.weight"),
        (lambda tensors: tensors.update(d2t=tensors["d2t"][:-1].clone()), "one per output of the lm_head"),
        (lambda tensors: tensors.update(d2t=tensors["d2t"].float()), "must be I64"),
        (lambda tensors: tensors["d2t"].__setitem__(3, 200), "maps output 3 to token 203; the vocabulary has 101"),
        (lambda tensors: tensors["d2t"].__setitem__(3, -4), "maps output 3 to token -1"),
        (
            lambda tensors: tensors["d2t"].fill_(0)[7:].fill_(-1),
            "maps output 7 to token 6, which is already mapped to output 6",
        ),
        (lambda tensors: tensors["d2t"].__setitem__(0, 2**63 - 1), "maps output 0"),
    ],
)
def test_tensors_that_say_what_cannot_be(tmp_path: Path, change: Any, said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        open_drafter(change_tensors(Head(Shape()).write_flat(tmp_path), change), TARGET)


def test_what_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        open_drafter(tmp_path / "none", TARGET)
    folder = Head(Shape()).write_flat(tmp_path / "head", architectures=["LlamaForCausalLM"])
    open_drafter(folder, TARGET).checkpoint.close()  # as EAGLE's own are
    with pytest.raises(LookaheadError, match="has no head|cannot be|is not"):
        open_drafter(change_config(folder, lambda config: config.pop("draft_vocab_size")), TARGET)
    other = Head(Shape()).write_speculators(tmp_path / "other", speculators_model_type="dflash")
    with pytest.raises(LookaheadError, match="has no head|cannot be|is not"):
        open_drafter(other, TARGET)


def test_a_head_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="draft_vocab_size is 40, which makes this a drafting head"):
        open_checkpoint(Head(Shape()).write_flat(tmp_path / "flat"))
    with pytest.raises(UnsupportedModelError, match="eagle3"):
        open_checkpoint(Head(Shape()).write_gguf(tmp_path / "head.gguf"))


def test_a_pickle_is_not_opened_and_the_hint_converts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Head(Shape()).write_flat(tmp_path)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin, a pickle") as raised:
        open_drafter(folder, TARGET)
    said = raised.value.hint.partition("in Python, ")[2]
    monkeypatch.chdir(folder)
    exec(said, {"safetensors": safetensors, "torch": torch})
    open_drafter(folder, TARGET).checkpoint.close()


def test_what_a_gguf_file_must_say(tmp_path: Path) -> None:
    oracle = Head(Shape())
    for key in ("target_layers", "target_hidden_size"):
        data = oracle.write_gguf(tmp_path / "head.gguf").read_bytes()
        (tmp_path / "head.gguf").write_bytes(data.replace(f"eagle3.{key}".encode(), f"eagle3.{key[::-1]}".encode()))
        with pytest.raises(ModelFormatError, match=rf"eagle3\.{key}"):
            open_drafter(tmp_path / "head.gguf", TARGET)
    oracle.ids[5] = 101
    with pytest.raises(ModelFormatError, match="maps output 5 to token 101"):
        open_drafter(oracle.write_gguf(tmp_path / "beyond.gguf"), TARGET)


def test_a_config_without_what_has_a_usual_value(tmp_path: Path) -> None:
    """No model_type and no context, as some have it, and norms that the tensors alone tell of."""

    def change(config: dict[str, Any]) -> None:
        for key in ("model_type", "max_position_embeddings", "norm_before_fc", "rope_scaling"):
            del config[key]

    folder = change_config(Head(Shape(norm_before_fc=True)).write_flat(tmp_path), change)
    drafter = open_drafter(folder, TARGET)
    assert [norm.weight.shape for norm in drafter.spec.features.norms] == [(192,)]
    drafter.checkpoint.close()
