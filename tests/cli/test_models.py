"""The commands on real tiny models, nothing scripted: info, quantize, generate, chat, bench."""

from __future__ import annotations

import io
import json
import sys

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.sizes import packed_bytes
from ipex_lookahead.cli.main import run
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_gguf, write_tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocab=SIZE, context=512)
    chat_tokenizer().save_pretrained(made)
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
    assert facts["licence"] == "mit"
    assert run(["info", str(folder)]) == 0
    assert "licence" in capsys.readouterr().out


def test_info_names_the_keys_of_a_gguf_file_that_mean_nothing_here(tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.novel_switch": 2})
    assert run(["info", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown_keys"] == ["llama.novel_switch"]
    assert run(["info", str(file)]) == 0
    assert "llama.novel_switch" in capsys.readouterr().out


def test_info_about_a_gguf_file(tmp_path, capsys):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="Q4_0")
    assert run(["info", str(file), "--json"]) == 0
    facts = output_json(capsys)
    assert facts["formats"]["sym_int4"]["tensors"] > 0
    assert facts["tokenizer"] is None
    assert facts["licence"] is None


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_bytes_by_shape_are_the_bytes_read(quant, tmp_path):
    checkpoint = open_checkpoint(write_tiny_gguf(tmp_path / "tiny.gguf", quant=quant))
    for name in checkpoint.names():
        found = checkpoint.info(name)
        assert packed_bytes(found) == checkpoint.read(name).nbytes, name
    checkpoint.close()


def test_generate_with_and_without_lookahead(folder, capsys):
    texts = []
    for arguments in (["--lookahead", "0"], ["--lookahead", "3"], ["--lookahead", "7", "--threads", "2"]):
        assert run(["generate", "--model", str(folder), "--json", "-n", "24", *arguments, "ab ab ab ab"]) == 0
        texts.append(output_json(capsys)["token_ids"])
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) > 0


def test_generate_zero_tokens(folder, capsys):
    """Whether nothing is printed or a sentence says why, it is no crash."""
    code = run(["generate", "--model", str(folder), "-n", "0", "-q", "hi"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert (code, out.strip()) == (0, "") or (code == 1 and err.startswith("error: "))


def test_prompt_longer_than_the_context(folder, capsys):
    assert run(["generate", "--model", str(folder), "x" * 600]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") or "\nerror: " in err
    assert "512" in err


@pytest.mark.parametrize(
    ("model", "says"),
    [("./absent", "no such file or folder"), ("absent.gguf", "no such file or folder"), (".", "config.json")],
)
def test_models_that_are_not_there(model, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["generate", "--model", model, "hi"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert says in err


def test_a_model_without_a_tokenizer(tmp_path, capsys):
    made = write_tiny_llama(tmp_path / "tiny")
    assert run(["generate", "--model", str(made), "hi"]) == 1
    assert "carries no tokenizer" in capsys.readouterr().err


def test_unknown_low_bit_lists_the_known(folder, capsys):
    assert run(["generate", "--model", str(folder), "--low-bit", "int3", "hi"]) == 2
    err = capsys.readouterr().err
    assert "int3" in err
    assert "sym_int4" in err


def test_quantize_then_generate_gives_what_quantising_at_load_gives(folder, tmp_path, capsys):
    out = tmp_path / "int4"
    assert run(["quantize", str(folder), str(out), "--low-bit", "sym_int4", "--group-size", "64"]) == 0
    assert f"saved {out}" in capsys.readouterr().out
    assert run(["generate", "--model", str(out), "--json", "-n", "16", "hello"]) == 0
    saved = output_json(capsys)
    from ipex_lookahead.hf.auto import load_model_and_tokenizer

    model, tokenizer = load_model_and_tokenizer(str(folder), low_bit="sym_int4", group_size=64, progress=False)
    import torch

    from ipex_lookahead.tokenization.prompts import build_prompt

    ids = build_prompt(tokenizer, model.config.to_dict(), "hello")
    expected = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :].tolist()
    assert saved["token_ids"] == expected


def test_quantize_never_replaces_a_folder(folder, tmp_path, capsys):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "config.json").write_text("mine")
    assert run(["quantize", str(folder), str(out)]) == 2
    assert "error: " in capsys.readouterr().err
    assert (out / "config.json").read_text() == "mine"


def test_chat_keeps_its_prefix(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\nand you\n/stats\n"), encoding="utf-8"))
    assert run(["chat", "--model", str(folder), "-n", "12"]) == 0
    err = capsys.readouterr().err
    assert err.count("tokens/step") == 3
    assert "in 2 turns" in err


def test_bench_decode(folder, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ab ab ab ab"}\n{"prompt": "hello"}\n')
    arguments = ["--prompts", str(prompts), "--max-new-tokens", "16", "--lookahead", "3", "--lookahead", "7", "--json"]
    assert run(["bench", "decode", "--model", str(folder), *arguments]) == 0
    runs = output_json(capsys)["runs"]
    assert [(r["lookahead"], r["identical_to_plain"]) for r in runs] == [(0, "2/2"), (3, "2/2"), (7, "2/2")]
    assert runs[0]["mean_acceptance_length"] in (0.0, 1.0)


def test_bench_decode_sampled(folder, tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "ab ab ab ab"}\n')
    arguments = ["--prompts", str(prompts), "-n", "16", "--temperature", "0.7", "--seed", "5", "--json"]
    assert run(["bench", "decode", "--model", str(folder), *arguments]) == 0
    assert output_json(capsys)["runs"][1]["identical_to_plain"] == "1/1"
