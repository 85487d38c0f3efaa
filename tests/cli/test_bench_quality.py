"""``bench quality`` as a command: formats in a list, other files beside them, and the report."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.cli.main import run
from ipex_lookahead.low_bits import LOW_BITS, PRESETS
from ipex_lookahead.runtime import loading
from tests.support.tiny import write_tiny_llama


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A tiny model's folder, which loads with a tokenizer of letters; the formats that were asked for."""
    asked = []
    load = AutoModelForCausalLM.from_pretrained

    def load_text_model(name, *, low_bit, kv_cache, threads, progress):
        asked.append((low_bit, kv_cache))
        logging.getLogger("ipex_lookahead").warning("of %s", low_bit)
        model = load(name, load_in_low_bit=low_bit, kv_cache=kv_cache, threads=1, progress=False)
        letters = SimpleNamespace(encode=lambda text, add_special_tokens: [ord(letter) % 96 for letter in text])
        return SimpleNamespace(engine=model.engine, tokenizer=letters, config=model.config.to_dict())

    monkeypatch.setattr(loading, "load_text_model", load_text_model)
    return str(write_tiny_llama(tmp_path / "m")), asked


def test_a_list_of_formats(tiny, capsys, tmp_path):
    folder, asked = tiny
    (tmp_path / "mine.yaml").write_text("default: sym_int4\nrules: [{match: head, format: sym_int8}]\n")
    given = f"sym_int8,q4_0,{tmp_path / 'mine.yaml'},sym_int4"
    arguments = ["--model", folder, "--low-bit", given, "--with-model", folder, "--window", "64", "--tokens", "100"]
    assert run(["bench", "quality", *arguments, "--kv-cache", "int8", "--json"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    rows = ["sym_int8", "sym_int4", "mine.yaml", "m"]
    assert [row["name"] for row in report["formats"]] == rows, "each once"
    assert [kv for _, kv in asked] == ["fp16", *["int8"] * 4], "the reference is as exact as can be"
    assert asked[0][0] == "fp32"
    assert {"model", "text", "tokens", "window", "isa", "threads", "version", "date"} <= set(report)
    assert report["text"] == "quality.txt"
    assert err.count("of fp32") == 1
    assert "of sym_int8" not in err, "the table says what is rounded twice"
    assert all(f"{name}: perplexity" in err for name in rows)
    assert "top 1" in err


def test_as_the_file_has_it(tiny, capsys):
    folder, asked = tiny
    assert run(["bench", "quality", "--model", folder, "--tokens", "70", "--no-speed", "--reference", "bf16"]) == 0
    assert [name for name, _ in asked] == ["bf16", None]
    assert "fp32" in capsys.readouterr().out


def test_all_formats(tiny, capsys):
    folder, asked = tiny
    assert run(["bench", "quality", "--model", folder, "--low-bit", "all", "--tokens", "20", "--no-speed"]) == 0
    assert [name for name, _ in asked] == ["fp32", *LOW_BITS, *PRESETS]


def test_what_is_wrong_is_said_before_anything_is_loaded(tiny, capsys, tmp_path):
    folder, asked = tiny
    (tmp_path / "t").write_bytes(b"\xff")
    for arguments, said in (
        (["--low-bit", "sym_int4,int4"], "unknown low-bit format 'int4'"),
        (["--low-bit", "sym_int4,"], "unknown low-bit format ''"),
        (["--reference", "f32"], "unknown low-bit format 'f32'"),
        (["--text", str(tmp_path / "t")], "cannot be read as UTF-8 text"),
        (["--plot", "a.gif"], ".svg or .png"),
    ):
        assert run(["bench", "quality", "--model", folder, *arguments]) != 0
        assert said in capsys.readouterr().err
    assert asked == []
