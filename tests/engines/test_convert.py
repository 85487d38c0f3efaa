"""``quantize`` tensor by tensor: the folder that a loaded model saves, in the memory of one matrix."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.convert import convert
from ipex_lookahead.engines.loading import LoadRequest
from tests.architectures.test_mixtral import with_router
from tests.support import family_table, tiny_families
from tests.support.tiny import write_tiny_gguf, write_tiny_llama


def contents(folder: Path) -> dict[str, Any]:
    checkpoint = open_checkpoint(folder)
    found: dict[str, Any] = {
        name: (checkpoint.info(name), [(key, array.tobytes()) for key, array in checkpoint.read(name).arrays()])
        for name in checkpoint.names()
    }
    found |= {"config": checkpoint.config, "generation": checkpoint.generation_config, "marker": checkpoint.low_bit}
    checkpoint.close()
    return found


def check(source: Path, tmp_path: Path, **asked: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        source,
        load_in_low_bit=asked.get("low_bit"),
        group_size=asked.get("group_size", 32),
        mixed_precision=asked.get("mixed_precision", False),
        progress=False,
    )
    expected = contents(model.save_low_bit(tmp_path / "saved"))
    label = convert(LoadRequest(source, **asked), tmp_path / "converted")
    assert contents(tmp_path / "converted") == expected
    assert label == model.low_bit


@pytest.mark.parametrize(
    "asked",
    [
        {"low_bit": "sym_int4"},
        {"low_bit": "sym_int4", "group_size": 64, "mixed_precision": True},
        {"low_bit": "gguf_q4k_m"},
        {"low_bit": "mixed_fp4"},
        {"low_bit": "bf16"},
        {},
    ],
    ids=str,
)
def test_a_folder_becomes_what_a_loaded_model_saves(tmp_path: Path, asked: dict[str, Any]) -> None:
    check(write_tiny_llama(tmp_path / "tiny", tie=False, attention_bias=True), tmp_path, **asked)


@pytest.mark.parametrize("quant", ["Q4_1", "F16"])
def test_a_gguf_file_becomes_what_a_loaded_model_saves(tmp_path: Path, quant: str) -> None:
    check(write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant), tmp_path)
    check(write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant), tmp_path / "again", low_bit="q4_k")


@pytest.mark.parametrize("family", ["gemma3_text", "phi3", "gpt_oss", "mixtral"])
def test_families_whose_tensors_lie_otherwise(tmp_path: Path, family: str) -> None:
    """Norms without their 1, parts of fused tensors, experts in blocks, routers in floats."""
    model = tiny_families.build(family, family_table.variants(family)[0])
    check(tiny_families.write_folder(tmp_path / "model", model), tmp_path, low_bit="sym_int8")


@pytest.mark.parametrize("asked", [{}, {"low_bit": "sym_int4"}], ids=str)
def test_a_router_in_low_bits_is_saved_in_floats(tmp_path: Path, asked: dict[str, Any]) -> None:
    check(with_router(tmp_path, gguf.GGMLQuantizationType.Q8_0), tmp_path, **asked)
    checkpoint = open_checkpoint(tmp_path / "converted")
    assert {checkpoint.info(name).format for name in checkpoint.spec.routers()} == {"fp32"}
    checkpoint.close()


def test_one_matrix_at_a_time(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "tiny", vocab=4096, hidden=256, layers=12, intermediate=1024, tie=False)
    largest = 4096 * 256 * 4
    assert (source / "model.safetensors").stat().st_size > 12 * largest
    tracemalloc.start()
    try:
        convert(LoadRequest(source, "sym_int4", threads=1), tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 2 * largest
    finally:
        tracemalloc.stop()
