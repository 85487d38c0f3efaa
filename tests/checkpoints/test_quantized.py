"""Folders of GPTQ, AWQ, compressed-tensors and bitsandbytes: the values that each defines, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ipex_lookahead.checkpoints import awq, compressed_tensors, gptq, open_checkpoint
from ipex_lookahead.checkpoints.quantized_layers import may_change_weights
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import FLOATS, dequantize
from tests.support import quantized_float_folders as floats
from tests.support import quantized_folders as folders
from tests.support.family_table import variants
from tests.support.quantized_float_folders import FLOAT_KINDS
from tests.support.quantized_folders import KINDS, ORDERED, Kind, write_quantized, write_tensors
from tests.support.tiny_families import build, write_folder

LAYER = "model.layers.0.self_attn.q_proj"


def each(kinds: list[Kind]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", kinds, ids=[kind.name for kind in kinds])


@each([*KINDS, *ORDERED, *FLOAT_KINDS])
@pytest.mark.rotating(40)
def test_values_are_those_that_the_scheme_defines(tmp_path: Path, kind: Kind) -> None:
    """To the last bit of float32, and every tensor that the model has."""
    values = write_quantized(tmp_path, kind)
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.names()) == [tensor.name for tensor in checkpoint.spec.tensors()]
    for name in checkpoint.names():
        info, weight = checkpoint.info(name), checkpoint.read(name)
        assert (weight.format, weight.shape, weight.group_size) == (info.format, info.shape, info.group_size)
        assert np.array_equal(dequantize(weight), values[name]), name
        if "_proj" in name:
            assert info.format == kind.format
            assert bool(info.decoded_from) == (info.format in FLOATS)
    checkpoint.close()


FUSED = [
    KINDS[0], KINDS[1], folders.awq(32), folders.bnb4("nf4"), folders.gptq(2, 32, False),
    folders.awq(32, layout="gemv"), floats.fp8(24, 64), floats.compressed_fp8("channel"), floats.nvfp4(),
    floats.mxfp4(),
]  # fmt: skip


@pytest.mark.parametrize("kind", FUSED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("model_type", ["phi3", "qwen2", "qwen3_moe", "gemma3_text"])
@pytest.mark.rotating(15)
def test_other_families_with_fused_rows_and_experts(tmp_path: Path, model_type: str, kind: Kind) -> None:
    model = build(model_type, variants(model_type)[0])
    weights = load_file(write_folder(tmp_path / "floats", model) / "model.safetensors")
    values = write_tensors(tmp_path / "low", kind, model.config.to_dict(), weights)
    checkpoint = open_checkpoint(tmp_path / "low")
    found = 0
    for tensor in checkpoint.spec.tensors():
        expected = values[tensor.hf.name] + np.float32(tensor.hf.offset)
        if tensor.hf.rows is not None:
            first, step = tensor.hf.rows
            expected = expected[first::step][: tensor.shape[0]]
            found += 1
        assert np.array_equal(dequantize(checkpoint.read(tensor.name)), expected), tensor.name
    assert found > 0 or model_type != "phi3"


# ---- bad input -------------------------------------------------------------------------------------------------------


def change_settings(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        *inner, last = key.split("__")
        place = config["quantization_config"]
        for one in inner:
            place = place[one]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def change_tensors(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})


GPTQ, AWQ = folders.gptq(4, 32, True), folders.awq(32)
FP8, NVFP4, MXFP4 = floats.fp8(), floats.nvfp4(), floats.mxfp4()
CT8 = floats.compressed_fp8("block", rows=128, columns=128)
PACKED, BNB = folders.compressed(4, "group", 32, False), folders.bnb4("nf4", nested=True)
IN_GROUP = "config_groups__group_0__"


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        (GPTQ, {"quant_method": "aqlm"}, "quant_method is aqlm|quant_method 'aqlm'"),
        (GPTQ, {"quant_method": ...}, "quant_method"),
        (GPTQ, {"quant_method": "torchao"}, "quant_method is torchao|quant_method 'torchao'"),
        (GPTQ, {"quant_method": "hqq"}, "quant_method is hqq|quant_method 'hqq'"),
        (GPTQ, {"bits": 5}, "bits is 5; supported: 2 or 3 or 4 or 8"),
        (GPTQ, {"bits": 4.0}, "bits is 4.0"),
        (GPTQ, {"bits": True}, "bits is True|bits is true"),
        (GPTQ, {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (GPTQ, {"dynamic": {"-:x": {}, "+:y": {"bits": 8}}}, "dynamic is"),
        (GPTQ, {"adapter": {"name": "lora"}}, "adapter is"),
        (GPTQ, {"rotation": "hadamard"}, "rotation is 'hadamard'"),
        (AWQ, {"version": "exllama"}, "version is 'exllama'; supported: 'gemm' or 'gemv' or 'gemv_fast'"),
        (GPTQ, {"new_scale_factor": 7}, "new_scale_factor is 7; this key of gptq is unknown"),
        (GPTQ, {"hadamard": False}, "hadamard is False"),
        (GPTQ, {"act_bits": 8}, "act_bits is 8"),
        (GPTQ, {"data_type": "fp"}, "data_type is 'fp'"),
        (GPTQ, {"extra_config": {"model.layers.0.mlp": {"bits": 8}}}, "extra_config is"),
        (AWQ, {"by": {"whom": [{"input_rotation": "random"}]}}, "by is"),
        (AWQ, {"zero_point": False}, "zero_point is"),
        (AWQ, {"bits": 8}, "bits is 8"),
        (AWQ, {"desc_act": True}, "desc_act is"),
        (PACKED, {"format": "mxfp6-pack-quantized"}, "format is 'mxfp6-pack-quantized'"),
        (
            PACKED,
            {"format": "nvfp4-pack-quantized"},
            "format is 'pack-quantized'; supported: 'nvfp4-pack-quantized'",
        ),
        (PACKED, {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        (PACKED, {IN_GROUP + "weights__type": "float"}, r"config_groups\.group_0\.weights\.type is 'float'"),
        (PACKED, {IN_GROUP + "weights__num_bits": 6}, r"num_bits is 6"),
        (PACKED, {IN_GROUP + "weights__strategy": "block"}, "strategy is 'block'"),
        (PACKED, {IN_GROUP + "weights__x": 1}, r"group_0\.weights\.x is 1"),
        (PACKED, {IN_GROUP + "output_activations": {}}, "output_activations is"),
        (PACKED, {IN_GROUP + "input_activations": {"dynamic": False}}, "input_activations is"),
        (PACKED, {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is"),
        (FP8, {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (FP8, {"scale_fmt": "e8m23"}, "scale_fmt is 'e8m23'"),
        (FP8, {"expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
        (FP8, {"modules_to_convert": ["embed_tokens"]}, "modules_to_convert is"),
        (FP8, {"new_switch": 7}, "new_switch is 7; this key of fp8 is unknown"),
        (CT8, {IN_GROUP + "weights__type": "int"}, r"config_groups\.group_0\.weights\.type is 'int'"),
        (CT8, {IN_GROUP + "weights__symmetric": False}, "symmetric is"),
        (CT8, {IN_GROUP + "input_activations__type": "int"}, r"input_activations\.type is 'int'"),
        (NVFP4, {IN_GROUP + "weights__group_size": 32}, "group_size is 32; supported: 16"),
        (NVFP4, {IN_GROUP + "weights__strategy": "channel"}, "strategy is 'channel'"),
        (BNB, {"load_in_8bit": True}, "load_in_4bit is"),
        (BNB, {"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type is 'int4'"),
        (BNB, {"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight is"),
    ],
)
def test_settings_that_are_not_read_are_refused_with_key_and_value(
    tmp_path: Path, kind: Kind, changes: dict[str, Any], says: str
) -> None:
    write_quantized(tmp_path, kind)
    change_settings(tmp_path, **changes)
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        open_checkpoint(tmp_path)
    assert "config.json" in str(caught.value)
    assert caught.value.hint


AUTO_ROUND: dict[str, Any] = {
    "provider": "auto-round", "autoround_version": "0.12.3", "iters": 200, "hyb_act": False, "data_type": "int",
    "act_bits": 16, "act_group_size": 128, "act_sym": True, "act_dynamic": True, "act_data_type": "int", "amp": True,
    "enable_quanted_input": True, "enable_minmax_tuning": True, "enable_norm_bias_tuning": False, "seqlen": 2048,
    "lr": 0.005, "minmax_lr": 0.005, "gradient_accumulate_steps": 1, "nsamples": 128, "low_gpu_mem_usage": True,
    "to_quant_block_names": "model.layers", "scale_dtype": "torch.float16", "super_bits": None, "model_free": True,
    "super_group_size": None, "extra_config": {}, "dynamic": {"-:.*lm_head.*": {}}, "batch_size": 8,
}  # fmt: skip
"""The keys that its exports to other layouts have carried."""
NOTES: dict[str, Any] = {
    "found_by": "somebody",
    "with_seed": 7,
    "on": ["cuda:0", {"memory_gib": 80}],
    "tool": {"name": "x", "commit": "y"},
}


@pytest.mark.parametrize("notes", [AUTO_ROUND, NOTES], ids=["auto-round", "others"])
@each([GPTQ, AWQ])
def test_notes_on_how_weights_were_found_change_nothing(tmp_path: Path, kind: Kind, notes: dict[str, Any]) -> None:
    values = write_quantized(tmp_path, kind)
    change_settings(tmp_path, **notes)
    checkpoint = open_checkpoint(tmp_path)
    for name in checkpoint.names():
        assert np.array_equal(dequantize(checkpoint.read(name)), values[name]), name
    checkpoint.close()


def test_every_key_that_a_scheme_has_a_word_on_would_else_be_taken_for_one_that_matters() -> None:
    """What those that are refused are called is what tells a setting from a note: the rule knows them all."""
    for settings in (gptq._SETTINGS, awq._SETTINGS, compressed_tensors._SETTINGS):
        for key in {*settings.used, *settings.refused} - {"version"}:
            assert may_change_weights(key, True), key


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        (GPTQ, {"bits": ...}, r"quantization_config\.bits.*is missing|bits: is missing"),
        (GPTQ, {"group_size": 0}, r"quantization_config\.group_size at byte \d+: is 0"),
        (GPTQ, {"sym": "yes"}, r"quantization_config\.sym at byte \d+"),
        (AWQ, {"group_size": ...}, "group_size: is missing"),
        (AWQ, {"w_bit": 4, "q_group_size": 64}, "q_group_size .*but group_size is 32"),
        (PACKED, {"config_groups": {}}, "config_groups"),
        (PACKED, {"config_groups": {"a": 3}}, "config_groups"),
        (PACKED, {"format": ...}, "format: is missing"),
        (PACKED, {IN_GROUP + "weights__group_size": None}, "is missing or -1, but strategy"),
        (PACKED, {IN_GROUP + "weights__symmetric": 3}, r"group_0\.weights\.symmetric at byte"),
        (BNB, {"load_in_4bit": 1}, r"quantization_config\.load_in_4bit at byte"),
        (FP8, {"weight_block_size": [128]}, r"weight_block_size at byte \d+: is \[128\]"),
        (FP8, {"weight_block_size": [128, 0]}, "weight_block_size at byte"),
        (CT8, {IN_GROUP + "weights__block_structure": None}, "block_structure.*is missing"),
        (NVFP4, {IN_GROUP + "weights__group_size": None}, "is missing or -1, but strategy is 'tensor_group'"),
    ],
)
def test_settings_that_cannot_be_are_errors_with_their_place(
    tmp_path: Path, kind: Kind, changes: dict[str, Any], says: str
) -> None:
    write_quantized(tmp_path, kind)
    change_settings(tmp_path, **changes)
    with pytest.raises(ModelFormatError, match=says):
        open_checkpoint(tmp_path)
    change_settings_to(tmp_path, [])
    with pytest.raises(ModelFormatError, match="quantization_config at byte"):
        open_checkpoint(tmp_path)


def change_settings_to(folder: Path, value: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "quantization_config": value}), encoding="utf-8")


def put(part: str, index: Any, value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[f"{LAYER}.{part}"][index] = value

    return change


def replaced(part: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[f"{LAYER}.{part}"] = make(tensors[f"{LAYER}.{part}"]).contiguous()

    return change


def dropped(part: str) -> Callable[[dict[str, Any]], Any]:
    return lambda tensors: tensors.pop(f"{LAYER}.{part}")


THREE, POWERS = folders.gptq(3, 32, True), floats.fp8(dtype="exponents")
GEMV, FAST = (folders.awq(32, layout=layout) for layout in ("gemv", "gemv_fast"))
ORDER, INT8 = folders.gptq(4, 32, True, ordered="shared"), folders.compressed(8, "channel", -1, True, packed=False)


@pytest.mark.parametrize(
    ("kind", "change", "part", "says"),
    [
        (ORDER, put("g_idx", 5, 4), "g_idx", "value 5 is 4; groups are from 0 to 3"),
        (ORDER, put("g_idx", 7, -1), "g_idx", "value 7 is -1"),
        (GPTQ, replaced("g_idx", lambda t: t[:-1]), "g_idx", r"is I32 \[127\]"),
        (GPTQ, replaced("qweight", lambda t: t[:-1]), "qweight", r"is I32 \[15, 128\]; .* I32 \[16, 128\]"),
        (GPTQ, replaced("qweight", lambda t: t.float()), "qweight", "is F32"),
        (GPTQ, replaced("scales", lambda t: t.T), "scales", r"\[128, 4\]"),
        (GPTQ, put("scales", (1, 3), float("nan")), "scales", "value 131 is NaN or infinite"),
        (GPTQ, put("qzeros", (0, 0), 0), "qzeros", "zero point 0 is 1; it must be 8, because sym is true"),
        (GPTQ, dropped("qzeros"), "qweight", "has no qzeros"),
        (GPTQ, dropped("scales"), "qweight", "has no scales"),
        (AWQ, replaced("qzeros", lambda t: t[:, :-1]), "qzeros", r"\[4, 15\]"),
        (AWQ, put("scales", (0, 0), float("inf")), "scales", "NaN or infinite"),
        (AWQ, dropped("scales"), "qweight", "has no scales"),
        (PACKED, put("weight_shape", 0, 64), "weight_shape", r"is \[64, 128\]"),
        (PACKED, dropped("weight_zero_point"), "weight_scale", "has no weight_zero_point"),
        (PACKED, dropped("weight_scale"), "weight_packed", "has no weight_scale"),
        (PACKED, replaced("weight_packed", lambda t: t[:, :-1]), "weight_packed", r"\[128, 15\]"),
        (PACKED, put("weight_scale", (2, 1), float("nan")), "weight_scale", "value 9 is NaN"),
        (INT8, replaced("weight_scale", lambda t: t[:-1]), "weight_scale", r"\[127, 1\]"),
        (INT8, replaced("weight", lambda t: t.short()), "weight", "is I16"),
        (THREE, replaced("qweight", lambda t: t[:-1]), "qweight", r"is I32 \[11, 128\]; .* I32 \[12, 128\]"),
        (THREE, put("qzeros", (0, 0), 0), "qzeros", "zero point 0 is 1; it must be 4, because sym is true"),
        (GEMV, replaced("scales", lambda t: t[:, :-1]), "scales", r"F16 \[128, 31\]; .*\[128, 32\]"),
        (GEMV, dropped("qzeros"), "qweight", "has no qzeros"),
        (FAST, replaced("qweight", lambda t: t.int()), "qweight", r"is I32 .* I16 \[32, 128\]"),
        (FAST, put("qzeros", (0, 0), float("nan")), "qzeros", "value 0 is NaN or infinite"),
        (FP8, put("weight", (1, 2), float("nan")), "weight", "value 130 is NaN"),
        (FP8, put("weight_scale_inv", (0, 0), float("inf")), "weight_scale_inv", "value 0 is NaN or infinite"),
        (FP8, put("weight_scale_inv", (0, 0), 1e34), "weight_scale_inv", r"value 0 is 1e\+34; it must be at most"),
        (FP8, replaced("weight_scale_inv", lambda t: t.int()), "weight_scale_inv", "is I32"),
        (FP8, replaced("weight_scale_inv", lambda t: t.repeat(2, 1)), "weight_scale_inv", r"\[2, 1\]; .* \[1, 1\]"),
        (FP8, replaced("weight", lambda t: t.float()), "weight", "is F32"),
        (FP8, dropped("weight"), "weight_scale_inv", "has no weight"),
        (POWERS, replaced("weight_scale_inv", lambda t: t.fill_(float("nan"))), "weight_scale_inv", "value 0 is 255"),
        (CT8, replaced("weight_scale", lambda t: t[0]), "weight_scale", r"is BF16 \[1\]"),
        (NVFP4, put("weight_global_scale", 0, 0.0), "weight_global_scale", "is 0; scales are divided by it"),
        (NVFP4, put("weight_global_scale", 0, 1e-37), "weight_global_scale", "which makes values infinite"),
        (NVFP4, put("weight_scale", (3, 1), float("nan")), "weight_scale", "value .* is NaN"),
        (NVFP4, dropped("weight_global_scale"), "weight_packed", "has no weight_global_scale"),
        (MXFP4, put("weight_scale", (3, 1), 255), "weight_scale", "value 13 is NaN or infinite"),
        (MXFP4, replaced("weight_packed", lambda t: t[:, :-1]), "weight_packed", r"is U8 \[128, 63\]"),
        (BNB, replaced("weight.absmax", lambda t: t[:-1]), "absmax", r"\[255\]"),
        (BNB, dropped("weight.nested_absmax"), "absmax", "nested_absmax is missing"),
        (BNB, dropped("weight.quant_state.bitsandbytes__nf4"), "weight", "0 quant_state tensors"),
        (BNB, put("weight.quant_map", 3, 0.5), "quant_map", "is not the table of nf4"),
        (BNB, put("weight.nested_absmax", 0, float("inf")), "nested_absmax", "NaN or infinite"),
        (BNB, put("weight.quant_state.bitsandbytes__nf4", 0, 0x5B), "quant_state", "is not valid JSON"),
        (folders.bnb8(), replaced("SCB", lambda t: t[:-1]), "SCB", r"\[127\]"),
        (folders.bnb8(), replaced("weight_format", lambda t: t + 1), "weight_format", "is 1"),
    ],
)
@pytest.mark.rotating(29)
def test_tensors_that_contradict_each_other_are_errors_with_their_place(
    tmp_path: Path, kind: Kind, change: Callable[[dict[str, Any]], Any], part: str, says: str
) -> None:
    write_quantized(tmp_path, kind)
    change_tensors(tmp_path, change)
    with pytest.raises(ModelFormatError, match=says) as caught:
        SafetensorsCheckpoint(tmp_path).read(f"{LAYER}.weight")
    assert part in caught.value.field
    assert caught.value.offset is not None
    assert caught.value.file.endswith("model.safetensors")


def test_a_code_beyond_the_bits_is_an_error(tmp_path: Path) -> None:
    write_quantized(tmp_path, folders.compressed(8, "channel", -1, True, packed=False))
    change_settings(tmp_path, **{IN_GROUP + "weights__num_bits": 4})
    with pytest.raises(ModelFormatError, match=r"weight at byte \d+: value \d+ is -?\d+, which exceeds 4 bits"):
        SafetensorsCheckpoint(tmp_path).read(f"{LAYER}.weight")


@pytest.mark.parametrize("kind", [PACKED, CT8], ids=lambda kind: kind.name)
def test_frozen_is_what_older_releases_called_it(tmp_path: Path, kind: Kind) -> None:
    values = write_quantized(tmp_path, kind)
    change_settings(tmp_path, quantization_status="frozen")
    assert np.array_equal(
        dequantize(SafetensorsCheckpoint(tmp_path).read(f"{LAYER}.weight")), values[f"{LAYER}.weight"]
    )
    change_settings(tmp_path, quantization_status="initialized")
    with pytest.raises(UnsupportedModelError, match="quantization_status is 'initialized'"):
        SafetensorsCheckpoint(tmp_path)


def test_zero_points_of_symmetric_weights_must_be_zero(tmp_path: Path) -> None:
    write_quantized(tmp_path, PACKED)
    change_settings(tmp_path, **{IN_GROUP + "weights__symmetric": True})
    with pytest.raises(ModelFormatError, match="weight_zero_point .*but symmetric is true"):
        SafetensorsCheckpoint(tmp_path).read(f"{LAYER}.weight")


def test_biases_of_zeros_that_quantisers_add_are_passed_over_and_others_refused(tmp_path: Path) -> None:
    import torch

    write_quantized(tmp_path, GPTQ)
    change_tensors(tmp_path, lambda tensors: tensors.update({f"{LAYER}.bias": torch.zeros(128, dtype=torch.float16)}))
    assert f"{LAYER}.bias" not in open_checkpoint(tmp_path).names()
    change_tensors(tmp_path, lambda tensors: tensors.update({f"{LAYER}.bias": torch.ones(128, dtype=torch.float16)}))
    with pytest.raises(UnsupportedModelError, match=rf"{LAYER}\.bias is not zero"):
        open_checkpoint(tmp_path)


def test_zero_points_of_the_first_version_borrow_from_their_neighbours(tmp_path: Path) -> None:
    """A zero point of 0 stored less 1 takes a 1 from the next code of its word, and gives it back."""
    kind = folders.gptq(4, 32, False)
    seen = []

    def pack(values: np.ndarray, rng: np.random.Generator) -> folders.Packed:
        made = kind.pack(np.abs(values) * np.where(np.arange(len(values)) % 3, 1, -1)[:, None], rng)
        seen.append((made.tensors["qzeros"].view(np.uint32) >> 28 == 15).any())
        return made

    values = write_quantized(tmp_path, Kind(kind.name, pack, kind.settings, kind.format))
    assert any(seen)
    checkpoint = open_checkpoint(tmp_path)
    for name in checkpoint.names():
        assert np.array_equal(dequantize(checkpoint.read(name)), values[name]), name
