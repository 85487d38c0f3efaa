"""Folders of ipex-llm's: every format, how tensors are laid out, what is refused. The real ones: tests/ipex_llm."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.checkpoints import IpexLlmCheckpoint, open_checkpoint
from ipex_lookahead.checkpoints.ipex_llm import KINDS, NOT_READ
from ipex_lookahead.checkpoints.ipex_llm_blocks import BLOCKS
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import dequantize
from tests.support.ipex_llm_folder import SIZES, decoded, random_blocks, write_ipex_llm, write_pickles

SMALL: dict[str, Any] = {"vocab": 12, "hidden": 64, "intermediate": 64, "heads": 2, "kv_heads": 1, "layers": 1}
OF_256: dict[str, Any] = SMALL | {"hidden": 256, "intermediate": 256, "heads": 4, "kv_heads": 2}


def sizes_for(name: str) -> dict[str, Any]:
    return OF_256 if SIZES[name][0] == 256 else SMALL


def opened(folder: Path) -> IpexLlmCheckpoint:
    new = folder.with_name(folder.name + "-converted")
    found = open_checkpoint(convert_ipex_llm(folder, new))
    assert isinstance(found, IpexLlmCheckpoint)
    return found


def check_values(checkpoint: IpexLlmCheckpoint, values: dict[str, Any]) -> None:
    assert set(checkpoint.names()) == set(values)
    for name in checkpoint.names():
        info, weight = checkpoint.info(name), checkpoint.read(name)
        assert (weight.format, weight.shape, weight.group_size) == (info.format, info.shape, info.group_size)
        assert np.array_equal(dequantize(weight), values[name]), name


def edit(folder: Path, change: Any) -> None:
    """Change the dict of tensors in a folder's pickle."""
    stored = torch.load(folder / "pytorch_model.bin", weights_only=True)
    change(stored)
    torch.save(stored, folder / "pytorch_model.bin")


def test_every_format_has_its_sizes() -> None:
    assert {name: (block.inputs, block.record.itemsize) for name, block in BLOCKS.items()} == SIZES


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.rotating(15)
def test_values_are_those_of_the_definition(tmp_path: Path, name: str, merged: bool) -> None:
    values = write_ipex_llm(tmp_path / "m", name, merged=merged, **sizes_for(name))
    checkpoint = opened(tmp_path / "m")
    assert checkpoint.saved_as == name
    check_values(checkpoint, values)
    checkpoint.close()


@pytest.mark.parametrize("name", SIZES)
def test_fewer_inputs_than_the_blocks_hold(name: str) -> None:
    """As of qwen2's MLP, which ipex-llm fills up with zeros."""
    block = BLOCKS[name]
    data = random_blocks(name, 6, np.random.default_rng(1))
    whole = decoded(name, data, 3, 2 * block.inputs)
    blocks = np.frombuffer(data, block.record).reshape(3, 2)
    for n_in in (block.inputs + 1, block.inputs + 32, 2 * block.inputs - 3):
        assert np.array_equal(dequantize(block.weight(blocks, n_in)), whole[:, :n_in])


@pytest.mark.parametrize(
    ("saved_as", "name"),
    [("fp8", "fp8_e5m2"), ("woq_int4", "sym_int4"), ("mixed_fp8", "sym_int8"), ("q6_k", "sym_int8")],
)
def test_other_names(tmp_path: Path, saved_as: str, name: str) -> None:
    values = write_ipex_llm(tmp_path / "m", name, saved_as=saved_as, **SMALL)
    check_values(opened(tmp_path / "m"), values)


def test_shards_biases_and_settings_beside_the_config(tmp_path: Path) -> None:
    values = write_ipex_llm(
        tmp_path / "m", "asym_int4", shards=3, settings=True, attention_bias=True, mlp_bias=True, **SMALL
    )
    checkpoint = opened(tmp_path / "m")
    assert checkpoint.config["tie_word_embeddings"] is False  # the output layer has a matrix of its own
    check_values(checkpoint, values)


def test_llama_cpps_mixture(tmp_path: Path) -> None:
    """The size of a matrix says which of the formats it is in; an embedding lies beside an empty tensor."""
    rng = np.random.default_rng(3)
    values = write_ipex_llm(tmp_path / "m", "q4_k", saved_as="gguf_q4k_m", merged=False, **OF_256)
    names = {"model.layers.0.mlp.down_proj.weight": "q6_k", "lm_head.weight": "q5_k"}

    def change(stored: dict[str, Any]) -> None:
        for name, kind in names.items():
            rows = values[name].shape[0]
            data = random_blocks(kind, rows, rng)
            stored[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            values[name] = decoded(kind, data, rows, 256)
        data = random_blocks("q4_k", 12, rng)
        stored["model.embed_tokens.weight"] = torch.zeros(0, 0)
        stored["model.embed_tokens.qweight"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        values["model.embed_tokens.weight"] = decoded("q4_k", data, 12, 256)

    edit(tmp_path / "m", change)
    checkpoint = opened(tmp_path / "m")
    assert {checkpoint.info(name).format for name in checkpoint.names()} == {"q4_k", "q5_k", "q6_k", "fp16"}
    check_values(checkpoint, values)


def test_mixed_fp4_is_told_by_its_scales(tmp_path: Path) -> None:
    values = write_ipex_llm(tmp_path / "m", "sym_int4", saved_as="mixed_fp4", merged=False, **SMALL)
    name = "model.layers.0.mlp.up_proj.weight"

    def change(stored: dict[str, Any]) -> None:
        blocks = np.frombuffer(random_blocks("fp4", 64, np.random.default_rng(9)), BLOCKS["fp4"].record).copy()
        blocks["scale"] &= 0x7FFF
        values[name] = decoded("fp4", blocks.tobytes(), 64, 64)
        stored[name] = torch.frombuffer(bytearray(blocks.tobytes()), dtype=torch.uint8)

    edit(tmp_path / "m", change)
    checkpoint = opened(tmp_path / "m")
    assert checkpoint.info(name).format == "fp4"
    assert checkpoint.info("lm_head.weight").format == "sym_int4"
    check_values(checkpoint, values)

    def too_few(stored: dict[str, Any]) -> None:
        stored["lm_head.weight"] = torch.zeros(12 * 34, dtype=torch.uint8)

    edit(tmp_path / "m", too_few)
    with pytest.raises(UnsupportedModelError, match=r"lm_head.weight is in sym_int4 or in fp4.*its 0 scales"):
        open_checkpoint(convert_ipex_llm(tmp_path / "m", tmp_path / "again"))


def test_qwen2s_padding(tmp_path: Path) -> None:
    """Rows of gate and up, and columns of down, up to a multiple of 256."""
    folder = tmp_path / "m"
    values = write_ipex_llm(folder, "nf4", merged=True, attention_bias=True, **SMALL | {"intermediate": 192})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))

    def change(stored: dict[str, Any]) -> None:
        del stored["model.layers.0.self_attn.o_proj.bias"]  # qwen2 has none there
        for part in ("gate", "up"):
            name = f"model.layers.0.mlp.{part}_proj.weight"
            stored[name] = torch.cat([stored[name], torch.zeros(64 * 17, dtype=torch.bfloat16)])
        name = "model.layers.0.mlp.down_proj.weight"
        rows = stored[name].reshape(64, 3 * 17)
        stored[name] = torch.cat([rows, torch.zeros(64, 17, dtype=torch.bfloat16)], dim=1).reshape(-1)

    edit(folder, change)
    del values["model.layers.0.self_attn.o_proj.bias"]
    check_values(opened(folder), values)


def test_a_pickle_is_refused_with_the_command(tmp_path: Path) -> None:
    write_ipex_llm(tmp_path / "m", "sym_int4", **SMALL)
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin, a pickle") as caught:
        open_checkpoint(tmp_path / "m")
    assert caught.value.hint.endswith(f"ipex-lookahead convert-ipex-llm {tmp_path / 'm'} NEW-FOLDER")


@pytest.mark.parametrize("name", [*NOT_READ, "sym_int9", 4, None])
def test_a_format_that_is_not_read(tmp_path: Path, name: Any) -> None:
    write_ipex_llm(tmp_path / "m", "sym_int4", **SMALL)
    folder = convert_ipex_llm(tmp_path / "m", tmp_path / "n")
    config = json.loads((folder / "config.json").read_text()) | {"bigdl_transformers_low_bit": name}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "bigdl_config.json").write_text(json.dumps({"bigdl_transformers_low_bit": name}))
    error = UnsupportedModelError if name in NOT_READ else ModelFormatError
    with pytest.raises(error, match=re.escape(str(name) if isinstance(name, str) else "must be a string")):
        open_checkpoint(folder)
    assert not set(NOT_READ) & set(KINDS)


CASES: dict[str, tuple[Any, str]] = {
    "short": (lambda t: t["lm_head.weight"][:-1], r"lm_head.weight.*has 407 bytes.*for a matrix of 12 x 64"),
    "dtype": (lambda t: t["lm_head.weight"].to(torch.int8), "lm_head.weight.*is I8"),
    "shape": (lambda t: t["lm_head.weight"].reshape(12, 34), r"lm_head.weight.*is U8 \[12, 34\]"),
    "float": (lambda t: torch.zeros(12, 63), r"lm_head.weight.*has shape \[12, 63\].*\[12, 64\]"),
    "nan": (lambda t: torch.full((12 * 34,), 0xFF, dtype=torch.uint8), "lm_head.weight at byte.*scale is NaN"),
}


@pytest.mark.parametrize("case", CASES)
def test_tensors_that_do_not_fit(tmp_path: Path, case: str) -> None:
    write_ipex_llm(tmp_path / "m", "sym_int4", **SMALL)
    made, said = CASES[case]
    edit(tmp_path / "m", lambda stored: stored.update({"lm_head.weight": made(stored)}))
    with pytest.raises(ModelFormatError, match=said):
        opened(tmp_path / "m").read("lm_head.weight")


def test_what_is_missing_or_left_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_ipex_llm(tmp_path / "m", "sym_int4", **SMALL)
    edit(tmp_path / "m", lambda stored: stored.update({"model.extra.weight": torch.ones(3)}))
    with caplog.at_level(logging.WARNING):
        opened(tmp_path / "m").close()
    assert "model.extra.weight" in caplog.text
    edit(tmp_path / "m", lambda stored: stored.update({"model.layers.0.mlp.up_proj.g_idx_map": torch.arange(64)}))
    with pytest.raises(UnsupportedModelError, match="reorders inputs"):
        open_checkpoint(convert_ipex_llm(tmp_path / "m", tmp_path / "a"))
    edit(tmp_path / "m", lambda stored: stored.pop("model.layers.0.self_attn.qkv_proj.weight"))
    with pytest.raises(ModelFormatError, match=r"q_proj.weight: no tensor has this name"):
        open_checkpoint(convert_ipex_llm(tmp_path / "m", tmp_path / "b"))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sym_int8", np.float32(1e6), "the maximum is 65504"),
        ("fp8_e5m2", np.float32(1 / 3), "binary16 cannot"),
        ("fp8_e4m3", np.float32(np.inf), "NaN or infinite"),
    ],
)
def test_scales_that_are_not_held(tmp_path: Path, name: str, value: Any, said: str) -> None:
    write_ipex_llm(tmp_path / "m", name, **SMALL)

    def change(stored: dict[str, Any]) -> None:
        stored["lm_head.weight"][68:72] = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8)

    edit(tmp_path / "m", change)
    with pytest.raises(ModelFormatError, match=f"lm_head.weight.*{said}"):
        opened(tmp_path / "m").read("lm_head.weight")


def test_the_engine_runs_it(tmp_path: Path) -> None:
    """Through ``load_low_bit``, on both engines: the same text as from the values in floats."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    from safetensors.numpy import save_file

    from ipex_lookahead import AutoModelForCausalLM

    values = write_ipex_llm(tmp_path / "m", "sym_int5", **SMALL)
    folder = convert_ipex_llm(tmp_path / "m", tmp_path / "n")
    plain = tmp_path / "plain"
    plain.mkdir()
    config = json.loads((folder / "config.json").read_text()) | {"torch_dtype": "float32"}
    del config["bigdl_transformers_low_bit"]
    (plain / "config.json").write_text(json.dumps(config))
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    ids = torch.tensor([[1, 5, 9, 5, 9]])
    settings: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": None}
    for engine in ("native", "torch"):
        model = AutoModelForCausalLM.load_low_bit(folder, engine=engine, progress=False)
        assert model.low_bit == "sym_int5"
        other = AutoModelForCausalLM.from_pretrained(plain, engine=engine, progress=False)
        close = torch.corrcoef(torch.stack([m(ids).logits[0, -1].flatten().float() for m in (model, other)]))[0, 1]
        assert close > 0.999
        if engine == "native":
            text = model.generate(ids, **settings)
            assert torch.equal(text, model.generate(ids, lookahead=3, **settings))
            model.save_low_bit(tmp_path / "saved")
            again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", progress=False)
            assert torch.equal(text, again.generate(ids, **settings))


def test_write_pickles_is_what_torch_reads(tmp_path: Path) -> None:
    """The helper above writes what ``torch.load`` reads, or these tests would be of something else."""
    write_pickles(tmp_path, {"a": torch.ones(2), "b": torch.zeros(3)}, shards=2)
    assert list(torch.load(tmp_path / "pytorch_model-00002-of-00002.bin", weights_only=True)) == ["b"]
