"""Packed layers in the place of float layers: what is replaced, what is left, and the way to and from a checkpoint."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from ipex_lookahead.engines.torch.linear_backends import LinearBackends, same_bits
from ipex_lookahead.engines.torch.load import ParametersOnMeta
from ipex_lookahead.engines.torch.low_bit_linear import (
    LowBitLinear,
    is_plain_linear,
    load_packed,
    module_weights,
    packed_bytes,
    packed_from_torch,
    replace_linears,
)
from ipex_lookahead.engines.weights import WeightPlan, random_matrix
from ipex_lookahead.errors import InputError, LowBitFormatError
from ipex_lookahead.formats import dequantize

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

NATIVE = LinearBackends(only="native", threads=2)


def weight_of(low_bit: str, n_out: int, n_in: int):
    return random_matrix((n_out, n_in), low_bit, 32, np.random.default_rng(0))


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


def test_linear_layers_of_whisper_are_known_by_their_name():
    """OpenAI's package has a subclass that casts its weight to the input's dtype; others may compute anything."""
    theirs = type("Linear", (nn.Linear,), {"__module__": "whisper.model"})
    others = type("Linear", (nn.Linear,), {"__module__": "whisperer.model"})
    assert is_plain_linear(theirs(4, 4))
    assert not is_plain_linear(others(4, 4))


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
    values = torch.randn(5, 7).to(dtype)
    packed = packed_from_torch(values.t())
    assert packed.shape == (7, 5)
    assert np.array_equal(dequantize(packed), values.t().float().numpy())


def test_other_dtypes_are_refused():
    with pytest.raises(LowBitFormatError, match="float64"):
        packed_from_torch(torch.zeros(2, 2, dtype=torch.float64))
