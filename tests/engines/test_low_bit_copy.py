"""A four-bit copy of a loaded engine is what quantising would give; what cannot be copied is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.engines.low_bit_copy import check_gains, low_bit_copy
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import dequantize, quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.numpy_engine import tiny_numpy_engine
from tests.support.tiny import write_tiny_llama


def load(folder: Path, low_bit: str | None = "sym_int8", **kwargs: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit=low_bit, threads=1, progress=False, **kwargs)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab": 96, "hidden": 64, "layers": 3, "tie": request.param, "attention_bias": not request.param}
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), context=128, **sizes)


@pytest.mark.parametrize("low_bit", ["sym_int8", "bf16", None])
def test_the_copy_holds_the_models_weights_in_four_bits(folder: Path, low_bit: str | None) -> None:
    model = load(folder, low_bit)
    copy = low_bit_copy(model.engine)
    own, drafts = dict(model.engine.weights()), dict(copy.weights())
    assert own.keys() == drafts.keys()
    for name, weight in own.items():
        kept = len(weight.shape) == 1 or ("embed" in name and "lm_head.weight" in own)
        expected = weight if kept else quantize(PackedWeight("fp32", weight.shape, dequantize(weight)), "sym_int4")
        assert drafts[name].format == expected.format
        assert np.array_equal(drafts[name].codes, expected.codes)
        assert (drafts[name].scales is None) == (expected.scales is None)
        assert expected.scales is None or np.array_equal(drafts[name].scales, expected.scales)
    assert copy.describe()["threads"] == 1
    assert copy.describe()["weight_bytes"] < model.engine.describe()["weight_bytes"]


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4"])
def test_a_four_bit_model_gains_nothing(folder: Path, low_bit: str) -> None:
    with pytest.raises(InputError, match=f"no faster than this model in {low_bit}; load it in"):
        load(folder, low_bit, speculative=True)
    with pytest.raises(InputError, match=f"no faster than this model in {low_bit}"):
        low_bit_copy(load(folder, low_bit).engine)


def test_an_engine_that_keeps_its_weights_is_refused() -> None:
    with pytest.raises(InputError, match="the numpy engine cannot return its weights"):
        low_bit_copy(tiny_numpy_engine(vocab=24, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32))


def test_formats_that_gain() -> None:
    for low_bit in ("sym_int8", "bf16", "fp16", "fp32"):
        check_gains(low_bit)
