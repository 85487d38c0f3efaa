"""Weights whose inputs have an input order (act order): where they go, that they stay small, and bad orders."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.engines.native.core import available_isas
from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.formats import FORMATS, dequantize
from tests.support.family_engines import on
from tests.support.family_table import variants
from tests.support.native import ids_of, load, one_by_one, run
from tests.support.native_subjects import whole_decoder
from tests.support.quantized_folders import ORDERED, Kind, gptq, write_quantized, write_tensors
from tests.support.tiny_families import build, write_folder

SHARED = [kind for kind in ORDERED if "apart" not in kind.name]
APART = next(kind for kind in ORDERED if "apart" in kind.name)


@pytest.mark.parametrize("kind", SHARED, ids=[kind.name for kind in SHARED])
def test_weights_stay_in_their_low_bit_format(tmp_path: Path, kind: Kind) -> None:
    values = write_quantized(tmp_path, kind)
    for name, weight in load(tmp_path).weights():
        assert np.array_equal(dequantize(weight), values[name]), name
        if "_proj" in name:
            assert weight.format == kind.format
            assert weight.order is not None


def test_where_neighbours_have_other_orders_they_are_floats_with_the_same_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = write_quantized(tmp_path, APART)
    with caplog.at_level(logging.WARNING):
        engine = load(tmp_path)
    assert "6 matrices in zero_int4 are kept in float32" in caplog.text  # k, v and up of two layers
    for name, weight in engine.weights():
        assert np.array_equal(dequantize(weight), values[name]), name
        if "_proj" in name:
            assert weight.format == ("fp32" if name.split(".")[-2] in ("k_proj", "v_proj", "up_proj") else "zero_int4")


def test_experts_have_no_order_and_become_floats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kind = gptq(4, 32, True, ordered="shared")
    model = build("mixtral", variants("mixtral")[0])
    weights = load_file(write_folder(tmp_path / "floats", model) / "model.safetensors")
    values = write_tensors(tmp_path / "low", kind, model.config.to_dict(), weights)
    with caplog.at_level(logging.WARNING):
        engine = load(tmp_path / "low")
    assert "are kept in float32" in caplog.text
    places = {tensor.name: tensor.hf.name for tensor in engine.spec.tensors()}
    for name, weight in engine.weights():
        assert np.array_equal(dequantize(weight), values[places[name]]), name


@pytest.mark.parametrize("kind", [*SHARED, APART], ids=[kind.name for kind in ORDERED])
def test_every_isa_gives_the_same_bytes(tmp_path: Path, kind: Kind) -> None:
    write_quantized(tmp_path, kind)
    expected = None
    for isa in available_isas():
        with on(isa):
            for threads in (1, 3):
                engine = load(tmp_path, threads=threads)
                ids = ids_of(engine, 50)
                got = run(engine, engine.new_cache(), ids).tobytes()
                assert expected in (None, got), isa
                expected = got
                assert one_by_one(engine, ids[:20]).tobytes() == got[: len(got) // 50 * 20]


@pytest.mark.parametrize(
    ("slot", "order", "says"),
    [
        ("mixer.q", range(31), "has 31 entries, not 32"),
        ("feed_forward.down", range(32), "has 32 entries, not 64"),
        ("feed_forward.gate", [*range(31), 32], "not a permutation: 32 at 31"),
        ("mixer.o", [*range(31), -1], "not a permutation: -1 at 31"),
        ("mixer.q", [*range(31), 5], "not a permutation: 5 at 31"),
        ("mixer.k", range(32), "takes no input order"),
    ],
)
def test_orders_that_are_none_are_refused(slot: str, order: Any, says: str) -> None:
    decoder = whole_decoder()
    with pytest.raises(ValueError, match=says):
        decoder.set_order(f"layers.0.{slot}.weight", np.array(order, np.int32))
    with pytest.raises(ValueError, match=r"no weight layers\.2"):
        decoder.set_order("layers.2.mixer.q.weight", np.arange(32, dtype=np.int32))


def test_a_layer_by_itself_refuses_what_it_would_pass_over() -> None:
    weight = FORMATS["sym_int4"].random((16, 64), 32, np.random.default_rng(0))
    ordered = replace(weight, order=np.arange(64, dtype=np.int32)[::-1])
    with pytest.raises(InputError, match="an input order"):
        LinearPool(1).layer(ordered)
    assert np.array_equal(dequantize(ordered), dequantize(weight)[:, ::-1])


def test_a_saved_order_that_is_no_permutation_is_an_error(tmp_path: Path) -> None:
    write_quantized(tmp_path / "theirs", SHARED[0])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", threads=1, progress=False)
    model.save_low_bit(tmp_path / "ours")
    file = tmp_path / "ours" / "model.safetensors"
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    assert metadata[name].startswith("sym_int4 32 192x128 ordered sha256:")
    tensors[f"{name}.order"][7] = 8
    save_file(tensors, file, metadata)
    with pytest.raises(ModelFormatError, match=rf"{name}\.order at byte \d+: is not a permutation"):
        AutoModelForCausalLM.load_low_bit(tmp_path / "ours", threads=1, progress=False)
