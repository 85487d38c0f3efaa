"""The commands on real tiny models, nothing scripted: info, quantize, generate, chat, bench."""

from __future__ import annotations

import json

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import write_chat_llama
from tests.support.tiny import write_tiny_gguf, write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_chat_llama(tmp_path_factory.mktemp("models") / "tiny", context=512)
    (made / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\n# Tiny\n")
    return made


def output_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_info_about_the_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path))
    assert run(["info", "--json"]) == 0
    facts = output_json(capsys)
    assert facts["engine"]["isa_chosen"] in facts["engine"]["isa_available"]
    assert facts["engine"]["read_gb_s"] > 0
    assert facts["engine"]["integer_gops"] > 0
    assert facts["engine"]["threads"] >= 1
    assert facts["machine"]["memory_bytes"] > 1e8
    assert facts["versions"]["torch"]
    assert facts["cache_folder"] == str(tmp_path)
    assert run(["info"]) == 0
    assert "scalar" in capsys.readouterr().out


def test_info_with_a_forced_isa_that_is_absent(capsys, monkeypatch):
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", "neon")
    assert run(["info", "--json"]) == 0
    engine = output_json(capsys)["engine"]
    assert "neon" in engine["problem"]
    assert "scalar" in engine["isa_available"]
    assert (engine["amx"] == "its self-test passed") == ("amx_int8" in engine["isa_available"])


def test_info_without_a_native_core_says_why(capsys, monkeypatch):
    from ipex_lookahead.engines.native import core
    from ipex_lookahead.errors import EngineError

    def fail():
        raise EngineError("the native core is not built")

    monkeypatch.setattr(core, "available_isas", fail)
    assert run(["info", "--json"]) == 0
    assert output_json(capsys)["engine"]["problem"] == "the native core is not built"


def test_info_about_a_folder(folder, capsys):
    assert run(["info", str(folder), "--json"]) == 0
    facts = output_json(capsys)
    weights = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    assert facts["architecture"] == "llama"
    assert facts["formats"].keys() == {"fp32"}
    assert facts["bytes"] == 4 * facts["parameters"]
    assert weights - 10_000 < facts["bytes"] < weights
    assert facts["context"] == 512
    assert facts["chat_template"] is True
    assert facts["license"] == "mit"
    assert run(["info", str(folder)]) == 0
    assert "license" in capsys.readouterr().out


def test_info_names_the_keys_of_a_gguf_file_that_mean_nothing_here(tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.novel_switch": 2})
    assert run(["info", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown_keys"] == ["llama.novel_switch"]
    assert run(["info", str(file)]) == 0
    assert "llama.novel_switch" in capsys.readouterr().out


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_bytes_by_shape_are_the_bytes_read(quant, tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant))
    for name in checkpoint.names():
        found = checkpoint.info(name)
        assert packed_bytes(found) == checkpoint.read(name).nbytes, name
    checkpoint.close()


def test_a_model_without_a_tokenizer(tmp_path, capsys):
    made = write_tiny_llama(tmp_path / "tiny")
    assert run(["generate", "--model", str(made), "hi"]) == 1
    assert "carries no tokenizer" in capsys.readouterr().err
