"""``quantize``: what is refused before it loads, what is said, and what replaces what."""

from __future__ import annotations

import json
import re

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.tiny import write_tiny_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_chat_llama(tmp_path_factory.mktemp("models") / "tiny")
    (made / "README.md").write_text("---\nlicense: mit\n---\n")
    return made


@pytest.fixture
def refused(monkeypatch, capsys):
    """What is said where nothing may be loaded, with exit status 2."""
    from ipex_lookahead.engines import convert
    from ipex_lookahead.hf import auto

    def said(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(auto, "load_model_and_tokenizer", lambda *a, **o: pytest.fail("the model was loaded"))
            patch.setattr(convert, "convert", lambda *a, **o: pytest.fail("weights were read"))
            assert run(["quantize", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    return said


def test_rounding_twice_is_refused_with_what_to_do(tmp_path, refused):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_1")
    said = refused(file, tmp_path / "out", "--low-bit", "sym_int4")
    assert "matrices are already in asym_int4 (5.0 bits per weight)" in said
    assert "38.7" in said
    assert "hint: use the float original of this model; or leave --low-bit out to keep asym_int4;" in said
    assert "--allow-requantize" in said
    assert not (tmp_path / "out").exists()


def test_rounding_twice_when_it_is_wanted_is_said_and_kept(tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_1")
    out = tmp_path / "out"
    assert run(["quantize", str(file), str(out), "--low-bit", "sym_int4", "--allow-requantize"]) == 0
    said = capsys.readouterr().err
    assert "name no format: that keeps the file's own" in said
    assert "load_in_low_bit" not in said
    assert run(["info", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["requantized_from"] == "asym_int4"
    assert run(["info", str(out)]) == 0
    assert re.search("requantized from +asym_int4", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("quant", "arguments", "saved"),
    [("Q4_1", [], "asym_int4"), ("Q4_0", ["--low-bit", "sym_int4"], "sym_int4"), ("F16", [], "sym_int4")],
)
def test_what_is_not_rounded_twice(quant, arguments, saved, tmp_path, capsys):
    file, out = write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant), tmp_path / "out"
    assert run(["quantize", str(file), str(out), *arguments]) == 0
    assert f"in {saved}{'' if arguments or quant == 'F16' else ' (unchanged)'} (group size 32)" in (
        capsys.readouterr().out
    )
    checkpoint = open_checkpoint(out)
    assert checkpoint.low_bit["low_bit"] == saved
    if quant != "F16":
        assert (checkpoint.read("model.layers.0.mlp.down_proj.weight").codes == codes(file)).all()
    checkpoint.close()


def codes(file):
    checkpoint = open_checkpoint(file)
    found = checkpoint.read("model.layers.0.mlp.down_proj.weight").codes
    checkpoint.close()
    return found


def test_an_earlier_save_is_replaced_when_that_is_asked_for(folder, tmp_path, refused, capsys):
    out = tmp_path / "out"
    assert run(["quantize", str(folder), str(out)]) == 0
    assert "license of " in capsys.readouterr().out
    said = refused(folder, out, "--low-bit", "sym_int8")
    assert "already holds a saved model" in said
    assert "--overwrite" in said
    assert run(["quantize", str(folder), str(out), "--low-bit", "sym_int8", "--overwrite"]) == 0
    assert open_checkpoint(out).low_bit["low_bit"] == "sym_int8"
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no temporary folder is left"
    (out / "notes.txt").write_text("mine")
    assert "holds notes.txt" in refused(folder, out, "--overwrite")


def test_nonsense_is_refused_before_the_model_is_looked_for(tmp_path, refused):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    assert "is a file" in refused("owner/model", tmp_path / "file")
    assert "nothing was changed" in refused("owner/model", tmp_path / "mine", "--overwrite")
    assert "did you mean" in refused("owner/model", tmp_path / "out", "--low-bit", "sym_int")


def test_by_rules_of_a_file(folder, tmp_path, capsys):
    rules, out = tmp_path / "mine.yaml", tmp_path / "out"
    rules.write_text("default: sym_int4\nrules:\n  - {match: '*.down_proj', format: q8_0}\n")
    assert run(["quantize", str(folder), str(out), "--low-bit", str(rules)]) == 0
    assert "in mine.yaml (group size 32)" in capsys.readouterr().out
    assert run(["info", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["formats"]
    assert {name: entry["tensors"] for name, entry in found.items() if name != "fp32"} == {
        "sym_int4": 13,
        "sym_int8": 2,
    }
    rules.write_text("rules: [{match: '*.down_prj', format: q8_0}]")
    assert run(["quantize", str(folder), str(tmp_path / "no"), "--low-bit", str(rules)]) == 1
    said = capsys.readouterr().err
    assert "'*.down_prj' matches none of the model's 15 matrices" in said
    assert "did you mean '*.down_proj'?" in said


def test_only_the_output_layer(tmp_path, refused):
    """A file of one format whose output layer has more bits: how to keep those is said."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_0")
    assert run(["quantize", str(file), str(tmp_path / "eight"), "--mixed-precision", "--allow-requantize"]) == 0
    said = refused(tmp_path / "eight", tmp_path / "four", "--low-bit", "sym_int4")
    assert "the output layer is already in sym_int8" in said
    assert "--mixed-precision keeps it in 8 bits" in said


def test_a_text_encoder_is_saved_as_one(tmp_path, capsys):
    pytest.importorskip("transformers", minversion="5.23")
    from ipex_lookahead.embedding.checkpoint import open_text_encoder
    from tests.support.text_encoders import build, write_folder

    source = write_folder(tmp_path / "m", "bert-score", build("bert-score"))
    for arguments, saved in (([], "sym_int8"), (["--low-bit", "sym_int4"], "sym_int4")):
        assert run(["quantize", str(source), str(tmp_path / saved), *arguments]) == 0
        assert f"in {saved} (group size 32)" in capsys.readouterr().out
        assert open_text_encoder(tmp_path / saved, threads=1).head is not None
        assert run(["info", str(tmp_path / saved), "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (found["architecture"], found["engine"]) == ("bert", "native")
    assert run(["quantize", str(tmp_path / "sym_int8"), str(tmp_path / "again"), "--low-bit", "sym_int4"]) != 0
    assert "already in sym_int8" in capsys.readouterr().err
    assert run(["quantize", str(source), str(tmp_path / "no"), "--imatrix", str(source / "config.json")]) == 2
    assert "--imatrix is for models that generate text" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
