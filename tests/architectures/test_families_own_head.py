"""Tied by its config, and with an lm_head of its own in the file: the file's is the head, as transformers 5 has it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.hf_folder import write_hf_folder
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import Variant, variants
from tests.support.tiny_families import config_of, distance, kind_of, logits, text, with_weights, write_folder

FLOATS = 1e-2
"""Of the logits' standard deviation: keys and values are float16, and some sums are in another order."""
NEVER_TIED = ("nemotron_h", "bailing_moe_v2", "kimi_linear", "bailing_hybrid")
EACH = pytest.mark.parametrize("model_type", [one for one in model_types() if one not in NEVER_TIED])
"""Of families that transformers ties if the config says so, with models that are tied."""


def tied(model_type: str) -> Any:
    """The family's plainest model, its lm_head being its embedding."""
    plain = variants(model_type)[0]
    values = copy.deepcopy(plain.values)
    base = config_of(model_type, plain).to_dict()
    values["tie_word_embeddings"] = True
    if "text_config" in base:
        values["text_config"] = {**base["text_config"], "tie_word_embeddings": True}
    return with_weights(config_of(model_type, Variant("tied", values)))


def with_head(folder: Path, model: Any, *, equal: bool = False) -> Path:
    """The model's folder, with an lm_head in the file: a copy of the embedding, or one of its own."""
    write_folder(folder, model)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    (embedding,) = (name for name in tensors if name.endswith(("embed_tokens.weight", "embeddings.weight")))
    prefix = "language_model." if embedding.startswith("language_model.") else ""
    assert f"{prefix}lm_head.weight" not in tensors
    head = tensors[embedding].clone()
    if not equal:
        head *= torch.linspace(0.5, 2, len(head))[:, None]
    save_file({**tensors, f"{prefix}lm_head.weight": head}, file, {"format": "pt"})
    return folder


def of_transformers(folder: Path, model: Any) -> Any:
    """What transformers makes of the folder."""
    kind = kind_of(model.config)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@EACH
@pytest.mark.rotating(4)
def test_the_files_head_is_used(tmp_path: Path, model_type: str) -> None:
    model = tied(model_type)
    theirs = of_transformers(with_head(tmp_path, model), model)
    ids = text(theirs)
    expected = logits(theirs, ids)
    assert distance(logits(model, ids), expected) > 0.3  # it is another one, and transformers uses it
    engine = load(tmp_path)
    assert not engine.spec.tied
    assert distance(in_chunks(engine, ids, [len(ids)]), expected) < FLOATS


@EACH
@pytest.mark.rotating(4)
def test_an_equal_one_is_the_embedding(tmp_path: Path, model_type: str) -> None:
    model = tied(model_type)
    checkpoint = open_checkpoint(with_head(tmp_path, model, equal=True))
    checkpoint.close()
    assert checkpoint.spec.tied
    assert checkpoint.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in checkpoint.names()
    assert not checkpoint.own_head
    theirs = of_transformers(tmp_path, model)
    ids = text(theirs)
    assert distance(in_chunks(load(tmp_path), ids, [len(ids)]), logits(theirs, ids)) < FLOATS


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("low_bit", [None, "sym_int8"])
@pytest.mark.rotating(3)
def test_the_torch_engine_uses_it_too(tmp_path: Path, model_type: str, low_bit: str | None) -> None:
    """And a folder that it saves has it."""
    model = tied(model_type)
    theirs = of_transformers(with_head(tmp_path / "folder", model), model)
    ids = torch.from_numpy(text(theirs)[None]).long()
    expected = logits(theirs, ids[0].numpy())
    options: dict[str, Any] = {"engine": "torch", "dtype": "float32", "threads": 1, "progress": False}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", load_in_low_bit=low_bit, **options)
    got = loaded(ids).logits[0].float().numpy()
    assert distance(got, expected) < (1e-4 if low_bit is None else 0.25)
    if low_bit is not None:
        loaded.save_low_bit(tmp_path / "saved")
        again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", **options)
        assert again(ids).logits[0].float().numpy().tobytes() == got.tobytes()


@EACH
@pytest.mark.rotating(4)
def test_what_is_written_keeps_it(tmp_path: Path, model_type: str) -> None:
    """A low-bit folder, and a float one for other programs."""
    model = tied(model_type)
    folder = with_head(tmp_path / "folder", model)
    loaded = AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="sym_int8", threads=1, progress=False)
    ids = torch.from_numpy(text(of_transformers(folder, model))[None, :20]).long()
    expected = loaded(ids).logits.numpy()
    loaded.save_low_bit(tmp_path / "saved")
    again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", threads=1, progress=False)
    assert again(ids).logits.numpy().tobytes() == expected.tobytes()
    checkpoint = open_checkpoint(folder)
    write_hf_folder(checkpoint, tmp_path / "floats")
    floats = open_checkpoint(tmp_path / "floats")
    assert (floats.config["tie_word_embeddings"], floats.own_head) == (False, False)
    ours, theirs = (one.read("lm_head.weight").codes for one in (checkpoint, floats))
    assert ours.tobytes() == theirs.tobytes()
    checkpoint.close()
    floats.close()
