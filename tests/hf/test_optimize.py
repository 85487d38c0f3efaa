"""``optimize_model`` and its kin on models of transformers: layers replaced in place, saved and loaded again."""

from __future__ import annotations

import copy
import io
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors import safe_open
from torch import nn

from ipex_lookahead import AutoModelForCausalLM, wrap
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.engines.torch.low_bit_linear import LowBitLinear
from ipex_lookahead.errors import InputError, LowBitFormatError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.hf.optimize import load_low_bit, low_memory_init, optimize_model, save_low_bit
from tests.support.families import build
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.tiny import write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])


def packed(model: nn.Module) -> dict[str, str]:
    return {name: m.low_bit for name, m in model.named_modules() if isinstance(m, LowBitLinear)}


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int8"])
def test_linear_layers_are_packed_in_place_and_the_model_goes_on_as_it_was(low_bit):
    model = build("llama")
    before = logits(model)
    assert optimize_model(model, low_bit) is model
    assert len(packed(model)) == 2 * 7 + 1
    assert set(packed(model).values()) == {low_bit}
    difference = (logits(model) - before).abs().max() / before.abs().max()
    assert 0 < difference < (0.03 if low_bit == "sym_int8" else 0.5)
    out = model.generate(IDS, max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 11)


def test_ipex_llms_arguments():
    model = optimize_model(
        build("llama"), low_bit="sym_int4", optimize_llm=False, modules_to_not_convert=["lm_head", "v_proj"],
        cpu_embedding=True, torch_dtype="auto", lightweight_bmm=True, replace_embedding=False,
    )  # fmt: skip
    assert len(packed(model)) == 12
    assert not any("v_proj" in name or "lm_head" in name for name in packed(model))
    half = optimize_model(build("llama"), torch_dtype=torch.bfloat16)
    assert half.model.norm.weight.dtype == torch.bfloat16
    assert {b.dtype for name, b in half.named_buffers() if name.endswith("inv_freq")} == {torch.float32}
    assert optimize_model(build("llama"), group_size=64).model.layers[0].mlp.up_proj.group_size == 64


def test_float_formats_and_none_pack_nothing():
    model = optimize_model(build("gpt2"), low_bit="bf16")
    assert packed(model) == {}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    same = build("gpt2")
    before = logits(same)
    assert torch.equal(logits(optimize_model(same, low_bit=None)), before)


def test_wrap_puts_lookahead_on_it():
    model = optimize_model(build("llama"))
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False)
    wrapped = wrap(model, deterministic=True)
    assert torch.equal(wrapped.generate(IDS, max_new_tokens=12, do_sample=False, lookahead=3), plain)
    assert wrapped.low_bit == "sym_int4"


@pytest.mark.parametrize("low_bit", ["sym_int4", "asym_int4", "sym_int8"])
@pytest.mark.parametrize("how", ["deepcopy", "torch.save"])
def test_packed_models_are_copied_and_pickled(how, low_bit, tmp_path):
    model = optimize_model(build("llama"), low_bit, modules_to_not_convert=["v_proj"], threads=1)
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        twin = torch.load(file, weights_only=False)
    assert packed(twin) == packed(model)
    assert torch.equal(logits(twin), logits(model))
    with torch.no_grad():
        twin.model.norm.weight.zero_()
    assert logits(model).any()
    assert not logits(twin).any()
    twin.save_low_bit(tmp_path / "saved")  # of the twin, not of the first
    with safe_open(tmp_path / "saved" / "model.safetensors", "pt") as saved:
        assert not saved.get_tensor("model.norm.weight").any()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
def test_a_saved_model_computes_the_same(family, tmp_path):
    model = optimize_model(build(family))
    model.save_low_bit(tmp_path / "saved")
    with low_memory_init():
        fresh = transformers.AutoModelForCausalLM.from_config(build(family).config)
    assert {p.device.type for p in fresh.parameters() if p.dim() > 1} == {"meta"}
    again = load_low_bit(fresh, tmp_path / "saved")
    assert again is fresh
    assert packed(again) == packed(model)
    assert torch.equal(logits(again), logits(model))
    ours = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", engine="torch", progress=False)
    assert torch.equal(ours(IDS).logits, logits(model))
    again.save_low_bit(tmp_path / "twice")
    names = ("model.safetensors", "config.json")
    assert all((tmp_path / "twice" / n).read_bytes() == (tmp_path / "saved" / n).read_bytes() for n in names)


def test_a_model_with_weights_is_filled_too(tmp_path):
    model = optimize_model(build("llama", seed=1))
    save_low_bit(model, tmp_path / "saved")
    assert torch.equal(logits(load_low_bit(build("llama", seed=2), tmp_path / "saved")), logits(model))


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_runs_on_the_native_engine(tied, tmp_path):
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    model = optimize_model(build("llama", tie_word_embeddings=tied))
    model.save_low_bit(tmp_path / "saved")
    native = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", progress=False, threads=1)
    assert (native.engine.name, native.low_bit) == ("native", "sym_int4")
    assert (native(IDS).logits - logits(model)).abs().max() < 0.05 * logits(model).abs().max()


def test_models_that_are_none_of_transformers(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.BatchNorm1d(96), nn.Linear(96, 32))

    torch.manual_seed(0)
    model, x = optimize_model(make(), "sym_int8"), torch.randn(3, 64)
    assert len(packed(model)) == 2
    model.save_low_bit(tmp_path / "saved")
    with low_memory_init():
        fresh = make()
    assert torch.equal(load_low_bit(fresh, tmp_path / "saved")(x), model(x))
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["ipex_lookahead"]["low_bit"] == "sym_int8"


def test_bad_requests_say_what_to_do(tmp_path):
    model = build("llama")
    with pytest.raises(LowBitFormatError, match="sym_int9"):
        optimize_model(model, "sym_int9")
    with pytest.raises(InputError, match="'low_bits'; did you mean 'low_bit'"):
        optimize_model(model, low_bits="sym_int4")
    with pytest.raises(InputError, match="'revision'; it takes low_bit"):
        optimize_model(model, revision="main")
    with pytest.raises(InputError, match="modules_to_not_convert"):
        optimize_model(model, modules_to_not_convert="lm_head")
    with pytest.raises(LowBitFormatError, match="int8"):
        optimize_model(model, torch_dtype="int8")
    assert packed(model) == {}, "a refused call changes nothing"
    with pytest.raises(InputError, match="not a str"):
        optimize_model("meta-llama/Llama-2-7b")
    with pytest.raises(InputError, match="SimpleNamespace") as caught:
        optimize_model(SimpleNamespace(unet=nn.Linear(2, 2)))
    assert "optimize_model(model.unet)" in caught.value.hint
    with pytest.raises(InputError, match="can be packed .0: Conv1d"):
        optimize_model(nn.Sequential(nn.Conv1d(2, 2, 1)))
    with pytest.raises(InputError, match="no linear layers"):
        optimize_model(nn.Sequential(nn.LayerNorm(2)))
    with low_memory_init():
        empty = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(InputError, match="no weights yet"):
        optimize_model(empty)
    with pytest.raises(InputError, match="no such folder"):
        load_low_bit(model, tmp_path / "none")
    with pytest.raises(ModelFormatError, match="save_low_bit"):
        load_low_bit(model, write_tiny_llama(tmp_path / "float"))
    optimize_model(nn.Sequential(nn.Linear(32, 32))).save_low_bit(tmp_path / "other")
    with pytest.raises(InputError, match="another architecture"):
        load_low_bit(model, tmp_path / "other")


def test_models_of_this_package_are_packed_already(tmp_path):
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    model = AutoModelForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "m"), progress=False, load_in_4bit=True)
    with pytest.raises(InputError, match="packed when it was loaded .sym_int4.") as caught:
        optimize_model(model)
    assert "load_in_low_bit" in caught.value.hint


def test_a_folder_of_ipex_llms_fills_a_model(tmp_path):
    """Its ``optimize_model``'s, converted: the output layer is packed, the embedding beside it is not."""
    sizes = {"hidden": 64, "intermediate": 64, "layers": 1, "vocab": 96}
    values = write_ipex_llm(tmp_path / "theirs", "sym_int5", settings=True, **sizes)
    folder = convert_ipex_llm(tmp_path / "theirs", tmp_path / "converted")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = False
    plain = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).eval()
    plain.load_state_dict({name: torch.from_numpy(value) for name, value in values.items()})
    with low_memory_init():
        model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    load_low_bit(model, folder)
    assert len(packed(model)) == 8
    assert set(packed(model).values()) == {"sym_int5"}
    assert torch.allclose(logits(model), logits(plain), rtol=0.02, atol=0.02 * logits(plain).abs().max().item())
    with pytest.raises(UnsupportedModelError, match="convert|pickle"):
        load_low_bit(model, tmp_path / "theirs")


def test_transformers_own_loading_within_low_memory_init(tmp_path):
    """As ipex-llm's example of saving and loading does it: from_pretrained on the saved folder, then load_low_bit."""
    model = optimize_model(build("llama"))
    model.save_low_bit(tmp_path / "saved")
    with low_memory_init():
        fresh = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", torch_dtype="auto")
    assert torch.equal(logits(load_low_bit(fresh, tmp_path / "saved")), logits(model))
