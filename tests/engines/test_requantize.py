"""Quantising what is quantised already is said: once, on both engines, and in what is saved; nothing else is."""

from __future__ import annotations

import logging

import pytest

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.requantize import requantized, requantized_elsewhere
from ipex_lookahead.engines.weights import WeightPlan
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    kinds = ("Q4_0", "Q4_1", "Q8_0", "F16")
    return {kind: write_tiny_gguf(folder / f"{kind}.gguf", quant=kind) for kind in kinds} | {
        "folder": write_tiny_llama(folder / "float")
    }


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "already" in record.getMessage()]


def test_what_falls_back_too_is_told_in_one_sentence(caplog, tmp_path):
    """llama.cpp's mixture of a file whose rows no block of 256 divides: two reasons against it, and one line."""
    file = write_tiny_gguf(tmp_path / "x.gguf", quant="Q4_1", hidden=96, heads=4)
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        AutoModelForCausalLM.from_pretrained(file, load_in_low_bit="q4_k_m", threads=1, progress=False)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "already in asym_int4" in line


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_it_is_said_once_and_kept_with_what_is_saved(engine, files, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        model = AutoModelForCausalLM.from_pretrained(
            files["Q4_1"], load_in_low_bit="sym_int4", engine=engine, progress=False
        )
    (said,) = warnings(caplog)
    assert "already in asym_int4 (5.0 bits per weight); sym_int4 made from that is a second rounding" in said
    assert "name no format" in said
    assert model.engine.describe()["requantized_from"] == "asym_int4"
    if engine == "torch":
        return
    saved = model.save_low_bit(tmp_path / "saved")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        again = AutoModelForCausalLM.load_low_bit(saved, progress=False)
    assert warnings(caplog) == [], "loading what was saved rounds nothing"
    assert again.engine.describe()["requantized_from"] == "asym_int4"
    assert open_checkpoint(again.save_low_bit(tmp_path / "copy")).low_bit["requantized_from"] == "asym_int4"


@pytest.mark.parametrize(
    ("file", "low_bit"), [("Q4_1", None), ("Q4_1", "asym_int4"), ("Q4_0", "sym_int4"), ("F16", "sym_int4"),
                          ("folder", "sym_int4"), ("Q8_0", "sym_int8"), ("Q8_0", "fp32")],
)  # fmt: skip
def test_what_loses_nothing_is_no_matter(file, low_bit, files, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "ipex_lookahead"):
        model = AutoModelForCausalLM.from_pretrained(files[file], load_in_low_bit=low_bit, progress=False)
    assert warnings(caplog) == []
    assert "requantized_from" not in model.engine.describe()
    assert "requantized_from" not in open_checkpoint(model.save_low_bit(tmp_path / "out")).low_bit


@pytest.mark.parametrize(
    ("file", "plan", "source", "says"),
    [
        ("Q4_0", WeightPlan("sym_int4", 64, head=EMBEDDING), "sym_int4", "4.5 bits"),
        ("Q8_0", WeightPlan("sym_int4", head=EMBEDDING), "sym_int8", "8.5 bits"),
        ("Q4_0", WeightPlan("sym_int8", head=EMBEDDING), "sym_int4", "larger and not more accurate"),
        ("Q4_0", WeightPlan("bf16", head=EMBEDDING), "sym_int4", "larger and not more accurate"),
        ("Q4_0", WeightPlan("sym_int4", mixed_precision=True, head=EMBEDDING), "sym_int4", "the output layer is"),
        ("Q4_1", WeightPlan("sym_int4", not_converted=("model.",), head=EMBEDDING), None, ""),
        ("Q4_1", WeightPlan(None), None, ""),
    ],
)
def test_which_weights_are_rounded_twice(file, plan, source, says, files):
    checkpoint = open_checkpoint(files[file])
    found = requantized(checkpoint, plan)
    checkpoint.close()
    assert (None if found is None else found.source) == source
    assert says in str(found)


def test_an_embedding_that_stays_is_not_counted(files, tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "untied.gguf", quant="Q4_1", tie=False))
    plan = WeightPlan("sym_int4", head="lm_head.weight")
    every, kept = requantized(checkpoint, plan), requantized(checkpoint, plan, kept=(EMBEDDING,))
    checkpoint.close()
    assert every is not None
    assert kept is not None
    assert every.tensors == kept.tensors + 1


def test_a_program_that_takes_floats_rounds_every_low_bit_file_again(files):
    for file, label, says in (("Q4_0", "sym_int4", "second rounding"), ("Q8_0", "nf4", "nf4 made from that"),
                              ("Q4_0", "bf16", None), ("F16", "sym_int4", None)):  # fmt: skip
        checkpoint = open_checkpoint(files[file])
        found = requantized_elsewhere(checkpoint, label)
        checkpoint.close()
        assert (found is None) == (says is None), (file, label)
        assert says is None or says in str(found)
