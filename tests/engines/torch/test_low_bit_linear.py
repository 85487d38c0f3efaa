"""Packed linear layers in torch models: right with every backend, and put where float layers were."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from ipex_lookahead.engines.api import Batch
from ipex_lookahead.engines.torch import linear_backends
from ipex_lookahead.engines.torch.engine import TorchEngine
from ipex_lookahead.engines.torch.linear_backends import (
    BACKENDS,
    FEW_ROWS,
    LinearBackends,
    has_native_layers,
    same_bits,
    torch_threads_with_native,
)
from ipex_lookahead.engines.torch.linear_kernels import GenericKernel, NativeKernel, reference
from ipex_lookahead.engines.torch.low_bit_linear import (
    LowBitLinear,
    replace_linears,
)
from ipex_lookahead.engines.weights import WeightPlan, random_matrix
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.formats import FORMATS, dequantize

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

ALL = sorted(FORMATS)
INTEGER = ["sym_int4", "asym_int4", "sym_int8"]


def weight_of(low_bit: str, n_out: int, n_in: int, group: int = 32, seed: int = 0):
    return random_matrix((n_out, n_in), low_bit, group, np.random.default_rng(seed))


def backends(name: str, dtype: torch.dtype = torch.float32) -> LinearBackends:
    return LinearBackends(only=name, threads=2, dtype=dtype)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- the module ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_bit", ALL)
@pytest.mark.parametrize("name", BACKENDS["cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.rotating(40)
def test_every_backend_multiplies(low_bit, name, dtype):
    weight = weight_of(low_bit, 33, 95, 32 if FORMATS[low_bit].group_sizes == (0,) else 64)
    bias = randn(33, seed=1)
    layer = LowBitLinear(weight, bias, backends=backends(name, dtype))
    x = randn(2, 3, 95).to(dtype)
    y = layer(x)
    expected = reference(weight, x) + bias
    assert layer.backend == name
    assert y.shape == (2, 3, 33)
    assert y.dtype == dtype
    assert float((y.float() - expected).norm() / expected.norm()) < 0.02
    assert same_bits(layer.packed(), weight)


@settings(max_examples=60, deadline=None)
@given(
    low_bit=st.sampled_from(INTEGER),
    group=st.sampled_from([32, 64]),
    n_out=st.integers(1, 50),
    n_in=st.integers(1, 150),
    seed=st.integers(0, 99),
)
def test_dequantising_on_a_device_gives_the_formats_own_bits(low_bit, group, n_out, n_in, seed):
    weight = weight_of(low_bit, n_out, n_in, group, seed)
    kernel = GenericKernel(weight, torch.device("cpu"))
    assert kernel.rows(0, n_out).numpy().tobytes() == dequantize(weight).tobytes()
    assert same_bits(kernel.weight(), weight)


def test_the_generic_kernel_holds_a_part_of_the_weight_at_a_time(monkeypatch):
    monkeypatch.setattr("ipex_lookahead.engines.torch.linear_kernels.CPU_CHUNK", 64 * 5)
    kernel = GenericKernel(weight_of("sym_int4", 33, 64), torch.device("cpu"))
    asked = []
    whole = kernel.rows
    monkeypatch.setattr(kernel, "rows", lambda start, end: asked.append((start, end)) or whole(start, end))
    x = randn(2, 3, 64)
    assert torch.allclose(kernel.run(x), functional.linear(x, whole(0, 33)), atol=1e-6)
    assert max(end - start for start, end in asked) == 5
    assert asked[-1] == (30, 33)


@settings(max_examples=30, deadline=None)
@given(
    low_bit=st.sampled_from(ALL),
    n_out=st.integers(1, 70),
    n_in=st.integers(1, 130),
    rows=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_the_native_kernel_gives_a_row_the_same_bits_in_any_company(low_bit, n_out, n_in, rows, seed):
    layer = LowBitLinear(weight_of(low_bit, n_out, n_in, seed=seed), backends=NATIVE)
    x = randn(rows, n_in, seed=seed)
    together = layer(x)
    alone = torch.cat([layer(x[i : i + 1]) for i in range(rows)])
    assert together.numpy().tobytes() == alone.numpy().tobytes()


NATIVE = LinearBackends(only="native", threads=2)


def test_layers_share_one_pool_and_many_threads_may_call():
    layers = [LowBitLinear(weight_of("sym_int4", 48, 64, seed=s), backends=NATIVE) for s in range(4)]
    assert len({id(layer.kernel.layer.raw) for layer in layers}) == 4
    inputs = [randn(s + 1, 64, seed=s) for s in range(4)]
    expected = [layer(x) for layer, x in zip(layers, inputs, strict=True)]
    wrong = []

    def work(number: int) -> None:
        for _ in range(100):
            if not torch.equal(layers[number](inputs[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_inputs_of_any_strides_and_of_no_rows():
    layer = LowBitLinear(weight_of("sym_int4", 48, 64), backends=NATIVE)
    x = randn(64, 5).t()
    assert torch.equal(layer(x), layer(x.contiguous()))
    assert torch.equal(layer(randn(3, 1, 64)[:, 0][::2]), layer(randn(3, 64).view(3, 1, 64)[:, 0][::2]))
    assert layer(randn(0, 64)).shape == (0, 48)
    assert layer(randn(64)).shape == (48,)


def test_a_wrong_input_is_refused_though_its_values_would_fit():
    layer = LowBitLinear(weight_of("sym_int4", 48, 64), backends=NATIVE)
    with pytest.raises(InputError, match="64"):
        layer(randn(2, 32))
    with pytest.raises(InputError, match="64"):
        layer.kernel.run(randn(2, 32))
    with pytest.raises(EngineError, match="loaded for the CPU"):
        layer(torch.empty(2, 64, device="meta"))
    with pytest.raises(InputError, match="bias"):
        LowBitLinear(weight_of("sym_int4", 48, 64), randn(47), backends=NATIVE)


@pytest.mark.parametrize("name", BACKENDS["cpu"])
def test_changing_a_models_dtype_does_not_touch_packed_weights(name):
    weight = weight_of("asym_int4", 48, 64)
    layer = LowBitLinear(weight, randn(48), backends=backends(name)).to(torch.bfloat16)
    assert same_bits(layer.packed(), weight)
    assert layer.weight.dtype == torch.bfloat16
    assert layer(randn(1, 64).bfloat16()).dtype == torch.bfloat16
    assert same_bits(layer.half().packed(), weight)


def test_a_packed_model_is_not_saved_without_its_weights():
    model = nn.Sequential(LowBitLinear(weight_of("sym_int4", 48, 64), backends=NATIVE))
    with pytest.raises(InputError, match="state_dict") as caught:
        model.state_dict()
    assert "save_low_bit" in caught.value.hint


# ---- which backend ------------------------------------------------------------------------------------------------


def test_the_native_kernel_comes_first_on_the_cpu():
    found = LinearBackends(threads=2)
    assert LowBitLinear(weight_of("sym_int4", 16, 32), backends=found).backend == "native"
    assert found.describe()["linear"] == {"sym_int4": "native"}
    assert found.describe()["threads"] == 2
    assert found.describe()["declined"] == []


def test_a_kernel_that_computes_something_else_is_passed_over(monkeypatch, caplog):
    run = NativeKernel.run
    monkeypatch.setattr(NativeKernel, "run", lambda self, x: run(self, x).roll(1, -1))
    found = LinearBackends(threads=1)
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        layers = [LowBitLinear(weight_of("sym_int4", 16, 32), backends=found) for _ in range(3)]
    assert {layer.backend for layer in layers} == {"generic"}
    [declined] = found.describe()["declined"]
    assert declined["backend"] == "native"
    assert "wrong by" in declined["reason"]
    assert len([r for r in caplog.records if "native" in r.getMessage()]) == 1


@pytest.mark.parametrize("broken", ["weight", "nan", "raises"])
def test_other_ways_to_fail_a_self_test(monkeypatch, broken):
    if broken == "weight":
        monkeypatch.setattr(NativeKernel, "weight", lambda self: weight_of("sym_int4", 64, 256, seed=5))
    elif broken == "nan":
        monkeypatch.setattr(NativeKernel, "run", lambda self, x: torch.full((*x.shape[:-1], 64), float("nan")))
    else:
        monkeypatch.setattr(linear_backends, "LinearPool", lambda threads: 1 / 0)
        monkeypatch.setattr(linear_backends, "TEST_SHAPES", ((64, 256),))
    if broken == "raises":
        with pytest.raises(ZeroDivisionError):  # no error of a library: ours to mend, not to hide
            LinearBackends().kernel(weight_of("sym_int4", 16, 32))
        return
    found = LinearBackends()
    assert found.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    with pytest.raises(EngineError, match="self-test"):
        LinearBackends(only="native").kernel(weight_of("sym_int4", 16, 32))


def test_without_a_compiled_core_the_generic_kernel_serves(monkeypatch):
    monkeypatch.setattr("ipex_lookahead.engines.native.core._native", None)
    found = LinearBackends()
    assert found.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    assert "not built" in found.describe()["declined"][0]["reason"]


def test_a_backend_of_another_device_is_refused():
    for device, there_is in (("cpu", "native, generic"), ("xpu", "generic")):
        with pytest.raises(EngineError, match=f"'other' for {device}; there is {there_is}$"):
            LinearBackends(device, only="other")


# ---- torch's own threads --------------------------------------------------------------------------------------------


def test_torch_keeps_to_one_thread_where_few_rows_pass_native_layers():
    weight = weight_of("sym_int4", 32, 32)
    plain, packed, generic = (
        nn.Sequential(layer)
        for layer in (
            nn.Linear(32, 32),
            LowBitLinear(weight, backends=NATIVE),
            LowBitLinear(weight, backends=backends("generic")),
        )
    )
    assert [has_native_layers(model) for model in (plain, packed, generic)] == [False, True, False]
    assert torch_threads_with_native(1) == torch_threads_with_native(FEW_ROWS) == 1
    assert torch_threads_with_native(FEW_ROWS + 1) is None


def test_an_engine_with_native_layers_gives_torch_its_threads_back():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=64, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    replace_linears(model, WeightPlan("sym_int4"), backends=NATIVE)
    seen = []
    model.transformer.ln_f.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    engine = TorchEngine(model, threads=2)
    seen.clear()
    tokens = np.arange(3, dtype=np.int32)
    engine.forward(Batch([engine.new_cache()], [3], tokens, tokens - 1))
    assert seen == [1]
    assert torch.get_num_threads() == 2
