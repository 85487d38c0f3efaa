"""Latent attention: what a position costs, files of other layouts, quantised folders, and sizes that do not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.spec import LatentAttention
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.engines.native.decoder import kv_bytes_per_token
from ipex_lookahead.formats import dequantize
from tests.support.family_configs import checked
from tests.support.family_engines import in_chunks, load
from tests.support.family_table import FAMILIES, variants
from tests.support.gguf_families import write_gguf
from tests.support.quantized_float_folders import fp8
from tests.support.tiny_families import build, text, write_folder

PLAIN = variants("deepseek_v3")[0]
IDS = np.arange(3, 60, dtype=np.int32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "folder", build("deepseek_v3", PLAIN))


def read(folder: Path, model_type: str, **values: Any) -> dict[str, Any]:
    return checked(folder, model_type, **{**FAMILIES[model_type].base, **values})


def mixer_of(path: Path) -> LatentAttention:
    checkpoint = open_checkpoint(path)
    checkpoint.close()
    mixer = checkpoint.spec.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    return mixer


def test_a_position_costs_one_latent_and_one_key(folder: Path) -> None:
    """Whatever the number of heads: a key [rotated and latent], and the latent again as values."""
    checkpoint = open_checkpoint(folder)
    checkpoint.close()
    assert kv_bytes_per_token(checkpoint.spec, "fp16") == 2 * 2 * (16 + 32 + 32)
    assert kv_bytes_per_token(checkpoint.spec, "int8") == 2 * (16 + 32 + 32 + 8)


def test_yarns_temperature_is_in_the_scale_of_scores(tmp_path: Path) -> None:
    """``mscale_all_dim`` multiplies queries and keys, the ratio of both numbers cos and sin."""
    rope = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    plain = spec_for(read(tmp_path, "deepseek_v3", rope_parameters=rope)).layers[0].mixer
    both = spec_for(read(tmp_path, "deepseek_v3", rope_parameters=rope | {"mscale": 0.707, "mscale_all_dim": 0.707}))
    mixer, magnitude = both.layers[0].mixer, 0.0707 * np.log(40) + 1
    assert isinstance(plain, LatentAttention)
    assert isinstance(mixer, LatentAttention)
    assert (plain.scale, mixer.rope.factor) == (40**-0.5, 1.0)
    assert mixer.scale == pytest.approx(40**-0.5 * magnitude**2)
    assert plain.rope.factor == pytest.approx(0.1 * np.log(40) + 1)


@pytest.mark.parametrize("low_bit", [None, "sym_int4"])
def test_files_of_before_heads_had_matrices_of_their_own(tmp_path: Path, low_bit: str | None) -> None:
    """Keys of sizes as heads have them, and both matrices of all heads in one: the same bytes come out."""
    model = build("deepseek_v3", PLAIN)
    config = model.config

    def older(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in ("key_length_mla", "value_length_mla"):
            keys[f"deepseek2.attention.{name.removesuffix('_mla')}"] = keys.pop(f"deepseek2.attention.{name}")
        keys["deepseek2.attention.head_count_kv"].value = config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            k = tensors.pop(f"blk.{layer}.attn_k_b.weight").swapaxes(1, 2)
            both = np.concatenate([k, tensors.pop(f"blk.{layer}.attn_v_b.weight")], axis=1)
            tensors[f"blk.{layer}.attn_kv_b.weight"] = np.ascontiguousarray(both.reshape(-1, both.shape[-1]))

    new = write_gguf(tmp_path / "new.gguf", model)
    old = write_gguf(tmp_path / "old.gguf", model, change=older)
    assert np.array_equal(in_chunks(load(old, low_bit), IDS, [20]), in_chunks(load(new, low_bit), IDS, [20]))
    quantised = write_gguf(tmp_path / "old-q8.gguf", model, quant="Q8_0", change=older)
    checkpoint = GgufCheckpoint(quantised)
    k_b = mixer_of(quantised).k_b[1].weight.name
    assert checkpoint.info(k_b).format == "fp32"  # its inputs are the file's rows
    assert checkpoint.info(k_b).decoded_from == "Q8_0"
    given = dequantize(GgufCheckpoint(new).read(k_b))
    assert np.abs(dequantize(checkpoint.read(k_b)) - given).max() < 0.02
    checkpoint.close()


def test_q8_0_keeps_matrices_of_heads_in_blocks(tmp_path: Path) -> None:
    """v_b's rows are 32 latents long, a block each; k_b's of 24 have none."""
    file = write_gguf(tmp_path / "m.gguf", build("deepseek_v3", PLAIN), quant="Q8_0")
    checkpoint, mixer = GgufCheckpoint(file), mixer_of(file)
    assert [checkpoint.info(one[3].weight.name).format for one in (mixer.k_b, mixer.v_b)] == ["fp16", "sym_int8"]
    checkpoint.close()


def test_glm_flashs_files_are_of_deepseeks_family(tmp_path: Path) -> None:
    model = build("glm4_moe_lite", variants("glm4_moe_lite")[0])
    file = write_gguf(tmp_path / "m.gguf", model)
    folder = write_folder(tmp_path / "folder", model)
    ids = text(model)
    assert np.array_equal(in_chunks(load(file), ids, [57]), in_chunks(load(folder), ids, [57]))
    checkpoint = GgufCheckpoint(file)
    assert checkpoint.config["model_type"] == "deepseek_v3"
    checkpoint.close()


def test_a_folder_of_fp8_blocks_is_the_floats_that_it_stands_for(folder: Path, tmp_path: Path) -> None:
    """``kv_b_proj`` too, of which one part of each head has inputs for rows: as DeepSeek-V3 is published."""
    kind, rng = fp8(16, 16), np.random.default_rng(0)
    stored = load_file(folder / "model.safetensors")
    packed, floats = dict(stored), dict(stored)
    for name, values in stored.items():
        if values.ndim != 2 or "_proj" not in name or "experts" in name:
            continue
        made = kind.pack(values.numpy(), rng)
        stem = name.removesuffix("weight")
        packed.update({stem + part: tensor for part, tensor in made.tensors.items()})
        floats[name] = floats[name].new_tensor(made.values)
    for target, tensors in (("fp8", packed), ("floats", floats)):
        shutil.copytree(folder, tmp_path / target)
        save_file(tensors, tmp_path / target / "model.safetensors", {"format": "pt"})
    path = tmp_path / "fp8" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    path.write_text(json.dumps(config))
    eight, plain = open_checkpoint(tmp_path / "fp8"), open_checkpoint(tmp_path / "floats")
    mixer = mixer_of(tmp_path / "fp8")
    for linear in (mixer.q, mixer.kv_a, mixer.o, *mixer.k_b, *mixer.v_b):
        name = linear.weight.name
        assert eight.info(name).shape == eight.read(name).shape == linear.weight.shape
        assert np.array_equal(dequantize(eight.read(name)), dequantize(plain.read(name))), name
    eight.close()
    plain.close()


def test_an_importance_matrix_says_nothing_of_matrices_of_heads(folder: Path) -> None:
    """transformers makes keys and values of the latents: nothing there has what comes into them here."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    from ipex_lookahead.engines.torch.importance import measure_importance

    checkpoint = open_checkpoint(folder)
    checkpoint.close()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sums = measure_importance(model, checkpoint.spec, IDS.tolist(), window=32).sums
    routers = {f"blk.{i}.ffn_gate_inp.weight" for i in range(2)}
    heads = {f"blk.{i}.attn_{part}_b.weight" for i in range(2) for part in "kv"}
    matrices = {one.gguf.name: one.shape[1] for one in checkpoint.spec.tensors() if one.is_matrix}
    assert {*sums} == {*matrices} - routers - heads - {"token_embd.weight"}
    assert all(values.shape[-1] == matrices[name] for name, values in sums.items())
