"""Adapters in files: each changed matrix equals the merged model's, and what cannot be applied is refused by name."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import re

import numpy as np
import pytest
import torch

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.adapter import adaptable
from ipex_lookahead.architectures.spec import named_tensors
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.adapters import adapters_next_to, is_adapter, open_adapter, read_adapter
from ipex_lookahead.checkpoints.tensor_names import renamed
from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import dequantize
from tests.support.adapter_files import (
    llama_changes,
    llama_gguf_changes,
    random_changes,
    write_gguf_adapter,
    write_peft,
)
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf as write_family_gguf
from tests.support.tiny import TinyLlama, write_tiny_gguf, write_tiny_llama
from tests.support.tiny_families import build

TINY = TinyLlama()


@pytest.fixture(scope="module")
def spec():
    return spec_for(TINY.config("float32"))


@pytest.fixture
def changes():
    return llama_changes(TINY.shapes())


# ---- what the matrices are -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["llama", "phi3", "qwen3_next", "gemma3", "granitemoehybrid", "lfm2", "glm4", "qwen3_5_text"]
)
def test_each_matrix_is_the_difference_of_the_merged_and_the_base_model(family, tmp_path):
    """Fused and interleaved rows, prefixes of larger models, patterns and rsLoRA; oracle: transformers' own saving."""
    model = copy.deepcopy(build(family, next(iter(variants(family)))))
    model.save_pretrained(tmp_path / "base")
    base = open_checkpoint(tmp_path / "base")
    known = adaptable(base.spec)
    files = {tensor.hf.name for _, tensor in named_tensors(base.spec) if tensor.name in known}
    linears = {
        name: one
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and renamed(f"{name}.weight") in files
    }
    made = random_changes({name: tuple(one.weight.shape) for name, one in linears.items()})
    first, second = [*made][:2]
    made[first] = (made[first][0][:2], made[first][1][:, :2])
    adapter = write_peft(
        tmp_path / "adapter", made, use_rslora=True, lora_alpha=6, rank_pattern={f"^{re.escape(first)}": 2},
        alpha_pattern={second.partition("layers.")[2]: 3, "nothing": 9},
    )  # fmt: skip
    with torch.no_grad():
        for name, (a, b) in made.items():
            scale = (3 if name == second else 6) / len(a) ** 0.5
            linears[name].weight += torch.from_numpy(scale * b @ a)
    model.save_pretrained(tmp_path / "merged")
    merged = open_checkpoint(tmp_path / "merged")
    found = read_adapter(adapter, base.spec, "x")
    assert found.matrices.keys() == known.keys()
    for name, one in found.matrices.items():
        difference = dequantize(merged.read(name)) - dequantize(base.read(name))
        assert np.abs(difference - np.float32(one.scale) * one.b @ one.a).max() < 1e-6, name


@pytest.mark.parametrize(("kind", "error"), [("F32", 0), ("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 2e-2)])
def test_a_gguf_adapter_has_the_same_matrices_as_the_folder(kind, error, spec, changes, tmp_path):
    folder = read_adapter(write_peft(tmp_path / "a", changes), spec, "x")
    theirs = llama_gguf_changes(changes, TINY.heads, TINY.kv_heads)
    file = read_adapter(write_gguf_adapter(tmp_path / "a.gguf", theirs, kind=kind), spec, "x")
    assert (file.digest == folder.digest) is (error == 0)
    for name, one in folder.matrices.items():
        other = file.matrices[name]
        assert other.scale == one.scale == 2
        for ours, read in ((one.a, other.a), (one.b, other.b)):
            assert np.abs(ours - read).max() <= error * np.abs(ours).max()


def test_value_heads_have_the_order_of_the_loaded_model(tmp_path):
    """GGUF files of Qwen3.5 store value head i of group g at i * groups + g, a folder at g * heads / groups + i."""
    model = build("qwen3_5_text", next(iter(variants("qwen3_5_text"))))
    model.save_pretrained(tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    config = checkpoint.config
    grouped, tiled = checkpoint.spec, spec_for({**config, "linear_value_heads": "tiled"})
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    assert heads > groups > 1
    layer = config["layer_types"].index("linear_attention")
    theirs = {
        "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha", "in_proj_b": "ssm_beta",
        "out_proj": "ssm_out",
    }  # fmt: skip
    modules = {name: getattr(model.model.layers[layer].linear_attn, name).weight.shape for name in theirs}
    made = random_changes({name: tuple(shape) for name, shape in modules.items()})
    order = [g * (heads // groups) + i for i in range(heads // groups) for g in range(groups)]

    def moved(rows, size, skipped=0):
        index = [*range(skipped), *(skipped + one * size + at for one in order for at in range(size))]
        return np.ascontiguousarray(rows[index])

    in_file = {}
    for name, (a, b) in made.items():
        size, skipped = (1, 0) if name[-1] in "ab" else (value, 2 * groups * key if name == "in_proj_qkv" else 0)
        b, a = (b, moved(a.T, value).T) if name == "out_proj" else (moved(b, size, skipped), a)
        in_file[f"blk.{layer}.{theirs[name]}"] = (np.ascontiguousarray(a), b)
    prefix = f"model.layers.{layer}.linear_attn."
    folder = write_peft(tmp_path / "a", {prefix + name: one for name, one in made.items()})
    file = write_gguf_adapter(tmp_path / "a.gguf", in_file, architecture="qwen35")
    for one in (grouped, tiled):
        assert read_adapter(folder, one, "x").digest == read_adapter(file, one, "x").digest
    changed = read_adapter(folder, tiled, "x").matrices
    assert np.array_equal(changed[f"{prefix}in_proj_z.weight"].b, in_file[f"blk.{layer}.attn_gate"][1])
    assert np.array_equal(changed[f"{prefix}out_proj.weight"].a, in_file[f"blk.{layer}.ssm_out"][0])


def test_granite_4_without_mamba_layers_is_granite_in_gguf_files(tmp_path):
    model = build("granitemoehybrid", next(iter(variants("granitemoehybrid"))))
    model.save_pretrained(tmp_path / "m")
    of_folder, of_gguf = (
        open_checkpoint(one).spec for one in (tmp_path / "m", write_family_gguf(tmp_path / "m.gguf", model))
    )
    assert (of_folder.model_type, of_gguf.model_type) == ("granitemoehybrid", "granite")
    modules = {
        name: tuple(one.weight.shape)
        for name, one in model.named_modules()
        if isinstance(one, torch.nn.Linear) and ".shared_mlp." in name
    }
    folder = write_peft(tmp_path / "a", random_changes(modules))
    first, second = (read_adapter(folder, one, "x").matrices for one in (of_folder, of_gguf))
    assert first.keys() == second.keys()
    assert all((first[name].b == second[name].b).all() for name in first)
    gate = of_gguf.layers[0].feed_forward.gate.weight.shape
    file = write_gguf_adapter(tmp_path / "a.gguf", random_changes({"blk.0.ffn_gate": gate}), architecture="granite")
    assert read_adapter(file, of_folder, "x").digest == read_adapter(file, of_gguf, "x").digest


def test_an_alpha_of_zero_means_a_scale_of_one(spec, changes, tmp_path, caplog):
    theirs = llama_gguf_changes(changes, TINY.heads, TINY.kv_heads)
    with caplog.at_level(logging.WARNING):
        found = read_adapter(write_gguf_adapter(tmp_path / "a.gguf", theirs, alpha=0), spec, "x")
    assert {one.scale for one in found.matrices.values()} == {1}
    assert "use_rslora or alpha_pattern" in caplog.text


def test_the_lists_in_the_config_are_those_of_the_tensors(spec, changes, tmp_path):
    first = {name: one for name, one in changes.items() if ".layers.1." in name}
    for config in (
        {"layers_to_transform": [1]}, {"layers_to_transform": 1, "layers_pattern": "layers"},
        {"target_modules": ".*_proj"}, {"target_modules": "all-linear"}, {"exclude_modules": ["lm_head"]},
        {"target_modules": [*first]}, {"lora_alpha": 7.5, "r": 4},
    ):  # fmt: skip
        assert len(read_adapter(write_peft(tmp_path / "a", first, **config), spec, "x").matrices) == 7
    for config in (
        {"layers_to_transform": [0]}, {"target_modules": ["q_proj"]}, {"exclude_modules": ["q_proj"]},
    ):  # fmt: skip
        with pytest.raises(ModelFormatError, match="is not one of the modules that adapter_config.json lists"):
            read_adapter(write_peft(tmp_path / "a", first, **config), spec, "x")


def test_parts_of_vision_models_are_named_and_passed_over(spec, changes, tmp_path, caplog):
    seen = random_changes({"model.vision_tower.blocks.0.proj": (8, 8)})
    with caplog.at_level(logging.WARNING):
        found = read_adapter(write_peft(tmp_path / "a", {**changes, **seen}), spec, "x")
    assert len(found.matrices) == len(changes)
    assert "2 tensors of vision or audio parts are not used" in caplog.text
    write_peft(tmp_path / "b", changes, new_option_of_peft={"x": 1})
    read_adapter(tmp_path / "b", spec, "x")
    assert "ignoring unknown options of PEFT: new_option_of_peft" in caplog.text


# ---- what is refused -------------------------------------------------------------------------------------------------

Q = "model.layers.0.self_attn.q_proj"
A, B = np.ones((4, 64), np.float32), np.ones((64, 4), np.float32)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; LORA"),
        ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "replaces whole modules"),
        ({"bias": "all"}, "changes the biases"),
        ({"lora_bias": True}, "adds biases"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "parameters of experts"),
        ({"trainable_token_indices": [1]}, "rows of the embedding"),
        ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
        ({"layer_replication": [[0, 2]]}, "repeats layers"),
        ({"use_qalora": True}, "QA-LoRA"),
        ({"use_bdlora": {"nblocks": 2}}, "BD-LoRA"),
        ({"kasa_config": {"beta": 1}}, "KaSA"),
        *(
            ({"init_lora_weights": name}, "changed the weights of the model")
            for name in ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "PiSSA")
        ),
        ({"init_lora_weights": "mica"}, "'mica', which is not supported"),
    ],
)
def test_options_of_peft_that_change_the_computation(config, why, spec, tmp_path):
    with pytest.raises(UnsupportedModelError, match=why):
        read_adapter(write_peft(tmp_path / "a", {Q: (A, B)}, **config), spec, "x")


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal"])
def test_initializations_that_leave_the_model_alone(start, spec, tmp_path):
    assert read_adapter(write_peft(tmp_path / "a", {Q: (A, B)}, init_lora_weights=start), spec, "x").ranks == (4,)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{Q}.lora_magnitude_vector", "magnitude of DoRA"),
        ("model.embed_tokens.lora_embedding_A", "changes an embedding"),
        (f"{Q}.lora_B.bias", "is a bias"),
        ("model.embed_tokens.weight", "replaces a whole matrix"),
        ("lm_head.lora_A.weight", "no lora_B next to it"),
        (f"{Q}.lora_C.weight", "is not a tensor of a LoRA adapter"),
        ("x", "is not a tensor of a LoRA adapter"),
    ],
)
def test_other_tensors(name, why, spec, tmp_path):
    more = {f"base_model.model.{name}": np.ones((4, 64), np.float32)}
    with pytest.raises((UnsupportedModelError, ModelFormatError), match=why):
        read_adapter(write_peft(tmp_path / "a", {Q: (A, B)}, tensors=more, target_modules=".*"), spec, "x")


@pytest.mark.parametrize(
    ("family", "module", "why"),
    [
        ("llama", "lm_head", "lm_head takes no adapter"),
        ("llama", "model.layers.0.mlp.experts.3.up_proj", "experts of a mixture"),
        ("qwen3_moe", "model.layers.0.mlp.experts.0.up_proj", "experts of a mixture"),
        ("qwen3_moe", "model.layers.0.mlp.gate", "router"),
        ("deepseek_v2", "model.layers.0.self_attn.kv_b_proj", "kv_b of latent attention"),
        ("qwen2_moe", "model.layers.0.mlp.shared_expert.up_proj", "shared expert"),
    ],
)
def test_matrices_that_take_no_adapter(family, module, why, tmp_path):
    model = build(family, next(iter(variants(family))))
    model.save_pretrained(tmp_path / "m")
    spec = open_checkpoint(tmp_path / "m").spec
    with pytest.raises(UnsupportedModelError, match=why):
        read_adapter(write_peft(tmp_path / "a", random_changes({module: (64, 64)})), spec, "x")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({Q: (A[:, :32], B)}, r"of shape \[64, 32\], which is \[64, 64\] in my model: .* trained for someone/base"),
        ({"model.layers.7.mlp.up_proj": (A, B)}, "changes model.layers.7.mlp.up_proj.weight, which my model does not"),
        ({"model.visual.x": (A, B)}, "changes no matrix of a text model"),
    ],
)
def test_adapters_of_another_model(change, says, spec, tmp_path):
    with pytest.raises((InputError, ModelFormatError), match=says):
        read_adapter(write_peft(tmp_path / "a", change), spec, "x", model="my model")


def test_factors_that_gguf_files_hold_in_the_matrices(spec, changes, tmp_path):
    folder = write_peft(tmp_path / "a", changes)
    file = write_gguf_adapter(tmp_path / "a.gguf", {"blk.0.attn_q": (A, B)}, architecture="falcon-h1")
    of_gguf = dataclasses.replace(spec, model_type="falcon_h1")
    of_folder = dataclasses.replace(of_gguf, embedding_multiplier=5.5)
    for path, model, says in (
        (folder, of_gguf, "a PEFT adapter does not fit a falcon_h1 model from a GGUF file"),
        (file, of_folder, "a GGUF adapter does not fit a falcon_h1 model from a folder"),
    ):
        with pytest.raises(InputError, match=says):
            read_adapter(path, model, "x")
    assert read_adapter(folder, of_folder, "x").ranks == (4,)


def test_gguf_adapters_of_another_architecture(spec, tmp_path):
    file = write_gguf_adapter(
        tmp_path / "a.gguf", {"blk.0.attn_q": (A, B)}, architecture="gemma3",
        metadata={"general.base_model.0.repo_url": "https://huggingface.co/google/gemma-3"},
    )  # fmt: skip
    with pytest.raises(InputError, match="trained for google/gemma-3, is for models of the architecture 'gemma3'"):
        read_adapter(file, spec, "x")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"changes": {"token_embd": (A, B)}}, "token_embd.weight: embeddings take no adapter"),
        ({"tensors": {"blk.0.attn_norm.weight": A[0]}}, "attn_norm.weight is not part of a LoRA adapter"),
        ({"metadata": {"adapter.alora.invocation_tokens": [1]}}, "aLoRA"),
        ({"tensors": {"blk.0.attn_k.weight.lora_a": A}}, r"no blk.0.attn_k.weight.lora_b next to it"),
        ({"changes": {"output": (A, B)}}, "does not have|lm_head takes no adapter"),
        ({"changes": {"blk.0.ffn_up_exps": (A, B)}}, "experts of a mixture"),
        ({"changes": {"blk.0.attn_q": (A, B[:, :3])}}, r"A has shape \[4, 64\] and B \[64, 3\]"),
        ({"changes": {"blk.0.attn_q": (A * np.inf, B)}}, "A has a value that is NaN or infinite"),
        ({"changes": {}}, "the adapter has no tensors"),
    ],
)
def test_gguf_adapters_that_are_refused(more, why, spec, tmp_path):
    given = {"changes": {"blk.0.attn_q": (A, B)}, **more}
    with pytest.raises(LookaheadError, match=why):
        read_adapter(write_gguf_adapter(tmp_path / "a.gguf", **given), spec, "x")


def test_files_that_are_no_adapters(spec, tmp_path):
    (tmp_path / "empty").mkdir()
    model = write_tiny_gguf(tmp_path / "m.gguf")
    for path, says in (
        (tmp_path / "absent", "no such adapter"),
        (tmp_path / "empty", "is not an adapter: it has no adapter_config.json"),
        (model, "is not an adapter: general.type"),
        (write_tiny_llama(tmp_path / "m"), "is not an adapter: it has no"),
    ):
        assert not is_adapter(path)
        with pytest.raises(InputError, match=says):
            open_adapter(path)
    folder = write_peft(tmp_path / "a", {Q: (A, B)})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UnsupportedModelError, match="a pickle, which can run code") as caught:
        open_adapter(folder)
    assert "save_file" in caught.value.hint
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ModelFormatError, match="is missing from the folder"):
        open_adapter(folder)


# ---- damaged files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"r": 0}, "r at byte .* from 1 to 4096"),
        ({"r": 8}, r"gives model.layers.0.self_attn.q_proj the rank 8"),
        ({"r": "4"}, "whole number"),
        ({"lora_alpha": 1e300}, "lora_alpha"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"use_rslora": 1}, "true or false"),
        ({"rank_pattern": [4]}, "rank_pattern.*must be an object"),
        ({"rank_pattern": {"q_proj": 2.5}}, "rank_pattern.q_proj"),
        ({"alpha_pattern": {"(a+)+x": 1}}, r"is a regular expression of more than 512 characters"),
        ({"alpha_pattern": {"(?=a)": 1}}, "lookaround"),
        ({"alpha_pattern": {".*a.*b.*": 1}}, "2 repetitions"),
        ({"alpha_pattern": {".?" * 40 + "x": 1}}, "2 repetitions"),
        ({"alpha_pattern": {"(.|.)" * 40 + "x": 1}}, "3 groups"),
        ({"alpha_pattern": {"(": 1}}, "is not a regular expression"),
        ({"rank_pattern": {"[[a]]": 1}}, "a set in a set"),
        ({"target_modules": [1]}, "target_modules"),
        ({"layers_to_transform": "1"}, "layers_to_transform"),
        ({"layers_to_transform": [-1]}, "layers_to_transform"),
    ],
)
def test_configs_that_are_invalid(config, says, spec, tmp_path):
    with pytest.raises(ModelFormatError, match=says):
        read_adapter(write_peft(tmp_path / "a", {Q: (A, B)}, **config), spec, "x")


def test_a_matrix_that_is_changed_under_two_names(spec, tmp_path):
    other = Q.replace("model.", "model.language_model.")
    with pytest.raises(ModelFormatError, match=r"changes .*q_proj.weight, which another tensor"):
        read_adapter(write_peft(tmp_path / "a", {Q: (A, B), other: (A, B)}), spec, "x")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite(bad, spec, tmp_path):
    broken = B.copy()
    broken[3, 2] = bad
    with pytest.raises(ModelFormatError, match="NaN or infinite") as caught:
        read_adapter(write_peft(tmp_path / "a", {Q: (A, broken)}), spec, "x")
    assert caught.value.offset is not None


def test_every_shortened_or_flipped_file_is_a_named_error_or_another_adapter(spec, tmp_path):
    """One byte of the config, the header or the GGUF table is changed at a time; the sampled positions cover all."""
    folder = write_peft(tmp_path / "a", {Q: (A[:1], B[:, :1])})
    file = write_gguf_adapter(tmp_path / "a.gguf", {"blk.0.attn_q": (A[:1], B[:, :1])})
    rng = np.random.default_rng(0)
    for part, adapter in (
        (folder / "adapter_config.json", folder), (folder / "adapter_model.safetensors", folder), (file, file),
    ):  # fmt: skip
        whole = part.read_bytes()
        for at in range(0, len(whole), 7):
            for changed in (whole[:at], whole[:at] + bytes([int(rng.integers(256))]) + whole[at + 1 :]):
                part.write_bytes(changed)
                with contextlib.suppress(ModelFormatError, UnsupportedModelError, InputError):
                    assert read_adapter(adapter, spec, "x").nbytes
        part.write_bytes(whole)


# ---- adapters in the place of models, and next to them ---------------------------------------------------------------


def test_an_adapter_given_as_a_model_says_what_it_changes_and_how_to_run_it(changes, tmp_path):
    folder = write_peft(tmp_path / "a", changes)
    theirs = llama_gguf_changes(changes, TINY.heads, TINY.kv_heads)
    named = write_gguf_adapter(tmp_path / "a.gguf", theirs, metadata={"general.base_model.0.name": "Base 1B"})
    unnamed = write_gguf_adapter(tmp_path / "b.gguf", theirs)
    for path, base in ((folder, "someone/base"), (named, "Base 1B"), (unnamed, "")):
        with pytest.raises(UnsupportedModelError, match="is a LoRA adapter, not a model") as caught:
            open_checkpoint(path)
        assert (f"it changes {base}" if base else "do not name the model") in str(caught.value)
        assert f"ipex-lookahead chat -m {base or 'BASE_MODEL'} --lora {path}" in caught.value.hint
    with_config = json.dumps(TINY.config("float32"))
    (folder / "config.json").write_text(with_config)  # some tools save the base model's config with the adapter
    with pytest.raises(UnsupportedModelError, match="is a LoRA adapter, not a model"):
        open_checkpoint(folder)
    (folder / "adapter_config.json").write_text("{")  # its base cannot be read; it is an adapter all the same
    with pytest.raises(UnsupportedModelError, match="do not name the model"):
        open_checkpoint(folder)


def test_adapters_next_to_a_model_are_named(changes, tmp_path, caplog):
    model = write_tiny_llama(tmp_path / "m")
    write_peft(model, changes)
    (tmp_path / "g").mkdir()
    file = write_tiny_gguf(tmp_path / "g" / "m.gguf")
    adapter = write_gguf_adapter(tmp_path / "g" / "x.gguf", llama_gguf_changes(changes, TINY.heads, TINY.kv_heads))
    with caplog.at_level(logging.INFO):
        open_checkpoint(model)
        open_checkpoint(file.parent)  # the folder has one model
    assert f"also holds a LoRA adapter (adapter_config.json), which is not applied; --lora {model}" in caplog.text
    assert f"x.gguf is an adapter, which is not applied; --lora {adapter}" in caplog.text
    assert adapters_next_to(model) == [model]
    assert adapters_next_to(file) == [adapter]
    assert read_adapter(model, open_checkpoint(model).spec, "x").ranks == (4,)
