"""Models whose matrices get formats by rules: on both engines, saved and loaded, and what is said."""

from __future__ import annotations

import logging
import pickle

import numpy as np
import pytest
import torch

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.requantize import requantized
from ipex_lookahead.engines.weights import WeightPlan, check_low_bit, matrices, quantize_best
from ipex_lookahead.errors import InputError, LowBitFormatError
from ipex_lookahead.formats import dequantize, quantize
from ipex_lookahead.formats.base import PackedWeight
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

IDS = torch.tensor([[1, 5, 9, 20, 3]])
RULES = """
default: sym_int4
rules:
  - {match: head, format: q6_k}
  - {match: embedding, format: sym_int8}
  - {match: "*.down_proj", format: [nf4, fp4], layers: {first: 1}}
  - {match: "*.v_proj", format: q8_0}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "m", hidden=256, intermediate=96, layers=3, tie=False)


@pytest.fixture
def rules(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(RULES)
    return str(file)


def load(model, low_bit, **options):
    return AutoModelForCausalLM.from_pretrained(model, load_in_low_bit=low_bit, threads=1, progress=False, **options)


def formats(model):
    return {name: weight.format for name, weight in model.engine.weights() if len(weight.shape) == 2}


def named(found, part):
    return [name for key, name in found.items() if key.endswith(f"{part}.weight")]


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_rules_of_a_file(engine, folder, rules):
    model = load(folder, rules, engine=engine)
    found = formats(model)
    assert model.low_bit == "mine.yaml"
    assert named(found, "lm_head") == ["q6_k"]
    assert named(found, "embed_tokens") == ["sym_int8" if engine == "native" else "fp32"]
    assert named(found, "down_proj")[0] in ("nf4", "fp4")
    assert named(found, "down_proj")[1:] == ["sym_int4"] * 2
    assert named(found, "v_proj") == ["sym_int8"] * 3
    assert set(named(found, "q_proj")) == {"sym_int4"}


def test_what_is_saved_is_loaded_bit_for_bit(folder, rules, tmp_path):
    model = load(folder, rules)
    saved = model.save_low_bit(tmp_path / "saved")
    assert open_checkpoint(saved).low_bit["low_bit"] == "mine.yaml"
    again = AutoModelForCausalLM.load_low_bit(saved, threads=1, progress=False)
    assert (again.low_bit, formats(again)) == ("mine.yaml", formats(model))
    assert (again(IDS).logits == model(IDS).logits).all()
    copy = pickle.loads(pickle.dumps(model))
    assert (copy(IDS).logits == model(IDS).logits).all()


def test_lookahead_stays_exact_over_a_mixture(folder):
    model = load(folder, "gguf_q4k_m")
    plain = model.generate(IDS, max_new_tokens=24, do_sample=False)
    for lookahead in (3, "auto"):
        assert (model.generate(IDS, max_new_tokens=24, do_sample=False, lookahead=lookahead) == plain).all()


def test_a_matrix_that_no_block_divides_is_named(folder, caplog):
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        found = formats(load(folder, "gguf_q4k_m"))
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "gguf_q4k_m: 3 of 23 matrices have 96 inputs, no whole blocks: sym_int5 for q4_k (2: down_proj), "
        "sym_int8 for q6_k (1: down_proj)",
    ]
    assert named(found, "down_proj") == ["sym_int5", "sym_int5", "sym_int8"]


def test_fallbacks_go_on_until_one_fits():
    plan = WeightPlan("gguf_q4k_m")
    assert plan.target("x.weight", (8, 512)) == ("q4_k",)
    assert plan.target("x.weight", (8, 96)) == ("sym_int5",)
    assert plan.target("x.weight", (8, 100)) == ("fp16",)
    assert WeightPlan("q4_k").target("x.weight", (8, 100)) == ("q4_k",), "a format by name is what was asked for"


def test_mixed_precision_and_the_embedding_go_before_rules(folder, rules):
    found = formats(load(folder, rules, mixed_precision=True, embedding_qtype="q4_k"))
    assert named(found, "lm_head") == ["sym_int8"]
    assert named(found, "embed_tokens") == ["q4_k"]
    found = formats(load(folder, None, embedding_qtype="q2_k"))
    assert [name for name, kind in found.items() if kind != "fp32"] == ["model.embed_tokens.weight"]


def test_an_embedding_that_cannot_have_a_format_of_its_own(tmp_path, folder):
    tied = write_tiny_llama(tmp_path / "tied")
    with pytest.raises(InputError, match="embedding is its output layer too"):
        load(tied, "sym_int4", embedding_qtype="q4_k")
    with pytest.raises(LowBitFormatError, match="unknown low-bit format 'q9'"):
        load(folder, "sym_int4", embedding_qtype="q9")
    assert set(formats(load(tied, "gguf_q4k_m"))) == set(formats(load(tied, "sym_int4")))


def test_what_is_not_converted_is_not_converted_by_rules(folder, rules):
    found = formats(load(folder, rules, modules_to_not_convert=["v_proj"]))
    assert set(named(found, "v_proj")) == {"fp32"}


def test_rules_that_do_not_fit_the_model(folder, tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text("{default: sym_int4, rules: [{match: '*.c_fc', format: q8_0}]}")
    for engine in ("native", "torch"):
        with pytest.raises(LowBitFormatError, match=r"other.yaml: rules\[0\]: '\*.c_fc' matches none of"):
            load(folder, str(file), engine=engine)


def test_a_group_size_that_a_rule_cannot_have(rules, folder):
    with pytest.raises(LowBitFormatError, match="group size 48 does not go with"):
        load(folder, rules, group_size=48)


@pytest.mark.parametrize(("spread", "best"), [("normal", "nf4"), ("powers", "fp4")])
def test_of_several_formats_the_nearest_is_taken(spread, best):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((48, 512)).astype(np.float32)
    if spread == "powers":  # what the grid of fp4 holds
        steps = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / 12
        values = steps[rng.integers(0, 8, values.shape)] * rng.choice(np.array([-1, 1], np.float32), values.shape)
    weight = PackedWeight("fp32", values.shape, values)
    made = {name: quantize(weight, name) for name in ("nf4", "fp4")}
    errors = {name: float(np.square(dequantize(one) - values).sum()) for name, one in made.items()}
    assert min(errors, key=errors.__getitem__) == best
    for names in (("nf4", "fp4"), ("fp4", "nf4")):
        chosen = quantize_best(weight, names, 32)
        assert chosen.format == best
        assert (chosen.codes == made[best].codes).all()


def test_what_rules_round_twice_is_counted(tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "f.gguf", quant="Q4_0"))
    file = tmp_path / "r.yaml"
    file.write_text("{default: sym_int4, rules: [{match: '*.v_proj', format: q8_0}]}")
    found = requantized(checkpoint, WeightPlan(str(file)).of_spec(checkpoint.spec))
    checkpoint.close()
    assert found is not None
    assert (found.source, found.target, found.tensors) == ("sym_int4", "sym_int8", 2)


def test_names_that_loading_takes(rules, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert check_low_bit("mine.yaml") == rules, "a folder that is left later does not matter"
    assert [check_low_bit(name) for name in ("fp8", "gguf_q4k_s", "q4_k")] == ["fp8_e5m2", "gguf_q4k_s", "q4_k"]


def test_a_gguf_file_gets_the_formats_of_a_mixture(tmp_path):
    file = write_tiny_gguf(tmp_path / "f.gguf", quant="F16", hidden=256, intermediate=256, tie=False)
    checkpoint = open_checkpoint(file)
    plan, shapes = WeightPlan("gguf_q4k_m").of_spec(checkpoint.spec), matrices(checkpoint.spec)
    checkpoint.close()
    found = formats(load(file, "gguf_q4k_m"))
    assert {name: (found[name],) for name in shapes} == {name: plan.target(name, s) for name, s in shapes.items()}
    assert found["model.embed_tokens.weight"] == "q4_k"
