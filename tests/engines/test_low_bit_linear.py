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

from ipex_lookahead.engines import linear_backends
from ipex_lookahead.engines.base import Batch
from ipex_lookahead.engines.linear_backends import (
    BACKENDS,
    FEW_ROWS,
    LinearBackends,
    has_native_layers,
    same_bits,
    torch_threads_beside_native,
)
from ipex_lookahead.engines.linear_kernels import GenericKernel, NativeKernel, reference
from ipex_lookahead.engines.low_bit_linear import (
    LowBitLinear,
    is_plain_linear,
    load_packed,
    module_weights,
    packed_bytes,
    packed_from_torch,
    replace_linears,
)
from ipex_lookahead.engines.torch import TorchEngine
from ipex_lookahead.engines.torch_load import ParametersOnMeta
from ipex_lookahead.engines.weights import WeightPlan, random_matrix
from ipex_lookahead.engines.xpu_int4 import XpuInt4Kernel
from ipex_lookahead.errors import EngineError, InputError, LowBitFormatError
from ipex_lookahead.formats import FORMATS, dequantize
from tests.support.int4_operator import NEEDS_HALF, int4_product

pytestmark = pytest.mark.usefixtures("one_thread")
pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

ALL = sorted(FORMATS)
INTEGER = ["sym_int4", "asym_int4", "sym_int8"]


def weight_of(low_bit: str, n_out: int, n_in: int, group: int = 32, seed: int = 0):
    return random_matrix((n_out, n_in), low_bit, group, np.random.default_rng(seed))


def backends(name: str, dtype: torch.dtype = torch.float32) -> LinearBackends:
    return LinearBackends(only=name, threads=2, dtype=dtype)


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ---- the module -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_bit", ALL)
@pytest.mark.parametrize("name", BACKENDS["cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
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
    monkeypatch.setattr("ipex_lookahead.engines.linear_kernels.CPU_CHUNK", 64 * 5)
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


# ---- which backend --------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("ipex_lookahead.engines.native._native", None)
    found = LinearBackends()
    assert found.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    assert "not built" in found.describe()["declined"][0]["reason"]


@NEEDS_HALF
def test_the_xpu_operator_is_chosen_where_it_works_and_declined_where_it_does_not(monkeypatch):
    """The order and the fallback of an Intel GPU, with the operator restated and the device played by the CPU."""

    def xpu(product):
        found = LinearBackends(dtype=torch.float16)
        found.order = BACKENDS["xpu"]
        found._makers["xpu-int4"] = lambda weight: XpuInt4Kernel(weight, torch.device("cpu"), product)
        return found

    right = xpu(int4_product)
    assert [right.kernel(weight_of(f, 16, 32)).name for f in INTEGER] == ["xpu-int4", "xpu-int4", "generic"]
    wrong_at_one_row = xpu(lambda x, *rest: int4_product(x, *rest) * (1 if len(x) > 1 else 3))
    assert wrong_at_one_row.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    swapped = xpu(lambda x, codes, *rest: int4_product(x, codes.view(torch.uint8).flip(-1).view(torch.int32), *rest))
    assert swapped.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    # PyTorch's own, on a device that it was not made for.
    real = xpu(None)
    assert real.kernel(weight_of("sym_int4", 16, 32)).name == "generic"
    assert real.describe()["declined"][0]["backend"] == "xpu-int4"


def test_a_backend_of_another_device_is_refused():
    with pytest.raises(EngineError, match="native, generic"):
        LinearBackends(only="xpu-int4")


# ---- in the place of float layers -----------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 64)
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))])
        self.norm = nn.LayerNorm(64)
        self.lm_head = nn.Linear(64, 40, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.lm_head(self.norm(x))


def small(seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small().eval()


IDS = torch.arange(12)[None]


@torch.no_grad()
def test_linear_layers_are_replaced_and_embeddings_left():
    model = small()
    before, embedding = model(IDS), model.embed.weight.clone()
    progress = []
    report = replace_linears(
        model, WeightPlan("sym_int8"), backends=NATIVE, progress=lambda *seen: progress.append(seen)
    )
    assert set(report.converted) == {"layers.0", "layers.1.0", "layers.1.2", "lm_head"}
    assert report.left == {}
    assert isinstance(model.lm_head, LowBitLinear)
    assert torch.equal(model.embed.weight, embedding)
    assert float((model(IDS) - before).norm() / before.norm()) < 0.03
    assert [seen[0] for seen in progress] == [0, 1, 2, 3, 4]
    assert {seen[1] for seen in progress} == {4}
    layers = [m for m in model.modules() if isinstance(m, LowBitLinear)]
    assert report.packed_bytes == sum(layer.packed().nbytes for layer in layers) == sum(map(packed_bytes, layers))
    assert replace_linears(model, WeightPlan("sym_int8"), backends=NATIVE).converted == {}


def test_what_is_no_plain_linear_layer_is_left_and_reported():
    class Odd(nn.Linear):
        pass

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_up = nn.Parameter(torch.zeros(2, 8, 8))

    model = nn.ModuleDict(
        {
            "odd": Odd(8, 8),
            "experts": Experts(),
            "router": nn.Linear(8, 2),
            "kept": nn.Linear(8, 8),
            "conv": nn.Conv1d(8, 8, 3),
            "hooked": nn.Linear(8, 8),
            "wide": nn.Linear(8, 8).double(),
            "normal": nn.Linear(8, 8),
            "parametrised": nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
        }
    )
    model["hooked"].register_forward_hook(lambda *_: None)
    report = replace_linears(model, WeightPlan("sym_int4", not_converted=("kep",)), backends=NATIVE)
    assert report.converted == {"normal": "sym_int4"}
    reasons = {
        "odd": "its own kind",
        "experts": "gate_up",
        "router": "experts",
        "kept": "modules_to_not_convert",
        "conv": "Conv1d",
        "hooked": "hooks",
        "wide": "float64",
        "parametrised": "linear layer of its own kind",
    }
    for name, reason in reasons.items():
        assert reason in report.left[name]
    more = replace_linears(nn.Sequential(nn.Linear(4, 4)), WeightPlan("sym_int4"), not_converted=["0.weight"])
    assert more.converted == {}
    plan = WeightPlan(None)
    assert replace_linears(nn.Sequential(nn.Linear(4, 4)), plan).left == {"0": "the plan keeps it as it is"}


def test_a_layer_of_many_names_is_packed_once_and_put_at_all_of_them():
    one = nn.Linear(32, 32)
    model = nn.ModuleList([one, nn.Sequential(one), one])
    report = replace_linears(model, WeightPlan("sym_int4"), backends=NATIVE)
    assert list(report.converted) == ["0"]
    assert model[0] is model[1][0] is model[2]
    assert isinstance(model[0], LowBitLinear)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models(dtype):
    model = small().to(dtype)
    try:
        model(IDS)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} on this CPU: {error}")
    report = replace_linears(model, WeightPlan("asym_int4", group_size=64))
    assert set(report.converted.values()) == {"asym_int4"}
    with torch.no_grad():
        assert model(IDS).dtype == dtype
    assert model.lm_head.weight.dtype == dtype


def test_mixed_precision_gives_the_head_eight_bits():
    model = small()
    report = replace_linears(model, WeightPlan("sym_int4", mixed_precision=True), backends=NATIVE)
    assert report.converted["lm_head"] == "sym_int8"
    assert report.converted["layers.0"] == "sym_int4"


def test_weights_that_cannot_be_packed_are_named():
    model = small()
    model.layers[1][2].weight.data[3, 5] = float("nan")
    with pytest.raises(LowBitFormatError, match=r"layers\.1\.2\.weight") as caught:
        replace_linears(model, WeightPlan("sym_int4"), backends=NATIVE)
    assert caught.value.hint
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(InputError, match="no values"):
        replace_linears(empty, WeightPlan("sym_int4"), backends=NATIVE)


def test_float_weights_go_away_one_by_one():
    import weakref

    model = small()
    floats = [weakref.ref(model.layers[0].weight), weakref.ref(model.layers[1][0].weight)]
    alive = []
    replace_linears(
        model,
        WeightPlan("sym_int4"),
        backends=NATIVE,
        progress=lambda done, *_: alive.append([ref() is not None for ref in floats]),
    )
    assert alive == [[True, True], [False, True], [False, False], [False, False], [False, False]]


@torch.no_grad()
def test_transformers_own_kinds_of_linear_layers():
    transformers = pytest.importorskip("transformers")
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=64, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    before = model(IDS).logits
    report = replace_linears(model, WeightPlan("sym_int8"), backends=NATIVE)
    assert len(report.converted) == 9
    after = model(IDS).logits
    assert float((after - before).norm() / before.norm()) < 0.03
    assert is_plain_linear(falcon.FalconLinear(4, 4))


# ---- to and from a checkpoint ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_model_on_the_meta_device_is_filled_from_anothers_weights():
    model = small()
    replace_linears(model, WeightPlan("asym_int4"), backends=NATIVE)
    expected = model(IDS)
    with torch.device("meta"):
        empty = Small().eval()
    report = load_packed(empty, module_weights(model), backends=NATIVE)
    assert report.missing == []
    assert set(report.converted) == {"layers.0", "layers.1.0", "layers.1.2", "lm_head"}
    assert torch.equal(empty(IDS), expected)
    again = dict(module_weights(empty))
    for name, weight in module_weights(model):
        assert same_bits(again[name], weight), name


@torch.no_grad()
def test_a_gpt2_goes_round():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=64, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    plan = WeightPlan("sym_int4", not_converted=("c_fc",))
    replace_linears(model, plan, backends=NATIVE)
    with ParametersOnMeta():
        empty = transformers.GPT2LMHeadModel(config).eval()
    load_packed(empty, module_weights(model), backends=NATIVE)
    assert torch.equal(empty(IDS).logits, model(IDS).logits)
    assert not isinstance(empty.transformer.h[0].mlp.c_fc, LowBitLinear)


@torch.no_grad()
def test_a_packed_embedding_serves_the_tied_head_and_is_dequantised_for_itself():
    with torch.device("meta"):
        model = Small().eval()
    donor = dict(module_weights(small()))
    donor["embed.weight"] = weight_of("sym_int8", 40, 64)
    report = load_packed(model, donor.items(), backends=NATIVE)
    assert report.converted == {"lm_head": "sym_int8"}
    assert np.array_equal(model.embed.weight.numpy(), dequantize(donor["embed.weight"]))
    assert model(IDS).shape == (1, 12, 40)
    with torch.device("meta"):
        tied = Small().eval()
    load_packed(tied, module_weights(small()), backends=NATIVE)
    assert tied.lm_head.weight is tied.embed.weight


@torch.no_grad()
def test_a_parameter_that_takes_anothers_place_in_memory_is_not_taken_for_it():
    """Parameters go away one by one while others come, and Python gives their ids out again."""
    donor = dict(module_weights(small()))
    names = [f"norms.{i}.weight" for i in range(50)]
    model = Small()
    model.norms = nn.ModuleList(nn.LayerNorm(64) for _ in names)
    tensors = [("embed.weight", donor["embed.weight"])]
    tensors += [(name, packed_from_torch(torch.full((64,), float(i)))) for i, name in enumerate(names)]
    report = load_packed(model, tensors, backends=NATIVE)
    assert report.missing == []
    assert model.lm_head.weight is model.embed.weight
    assert [float(norm.weight[0]) for norm in model.norms] == list(range(50))
    with torch.device("meta"):
        again = Small()
        again.norms = nn.ModuleList(nn.LayerNorm(64) for _ in names)
    load_packed(again, tensors, backends=NATIVE)
    assert again.embed.weight.shape == (40, 64)
    assert [float(norm.weight[0]) for norm in again.norms] == list(range(50))


def test_tensors_that_do_not_fit_are_refused():
    cases = {
        "nothing.weight": (weight_of("fp32", 4, 4), "no tensor"),
        "norm.nothing": (weight_of("fp32", 4, 4), "no tensor"),
        "layers.0.weight": (weight_of("sym_int4", 64, 32), r"\[64, 64\]"),
        "norm.weight": (weight_of("sym_int4", 1, 64), r"\[64\]"),
        "embed.bias": (weight_of("fp32", 4, 4), "no tensor"),
    }
    for name, (weight, message) in cases.items():
        with pytest.raises(InputError, match=message):
            load_packed(small(), [(name, weight)], backends=NATIVE)
    partial = small()
    with torch.device("meta"):
        partial.norm = nn.LayerNorm(64)
    assert load_packed(partial, [], backends=NATIVE).missing == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_tensors_keep_their_bits(dtype):
    values = randn(5, 7).to(dtype)
    packed = packed_from_torch(values.t())
    assert packed.shape == (7, 5)
    assert np.array_equal(dequantize(packed), values.t().float().numpy())


def test_other_dtypes_are_refused():
    with pytest.raises(LowBitFormatError, match="float64"):
        packed_from_torch(torch.zeros(2, 2, dtype=torch.float64))


def test_torch_keeps_to_one_thread_where_few_rows_pass_native_layers():
    plain, packed = small(), small()
    replace_linears(packed, WeightPlan("sym_int4"), backends=NATIVE)
    generic = small()
    replace_linears(generic, WeightPlan("sym_int4"), backends=LinearBackends(only="generic"))
    assert [has_native_layers(model) for model in (plain, packed, generic)] == [False, True, False]
    assert torch_threads_beside_native(1) == torch_threads_beside_native(FEW_ROWS) == 1
    assert torch_threads_beside_native(FEW_ROWS + 1) is None


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
