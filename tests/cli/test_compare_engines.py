"""``compare-engines`` as a command: tables, texts, JSON, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from ipex_lookahead.cli.main import run
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import EngineError
from ipex_lookahead.hf import auto
from tests.support.chat_tokenizer import chat_tokenizer


@pytest.fixture
def engines(monkeypatch):
    """Each engine that is there answers with a text of its own; ``texts[engine, with lookahead]`` overrides it."""
    tokenizer, texts, loads = chat_tokenizer(), {}, []

    def load(name, *, engine, **settings):
        loads.append((engine, settings))
        if engine == "ipex-llm":
            raise EngineError("ipex-llm is not installed", hint="pip install ipex-llm")

        def generate(ids, *, max_new_tokens, lookahead, do_sample):
            text = texts.get((engine, bool(lookahead)), f"{engine} says so")
            model.stats = GenerationStats(tokens=len(text), sequence_steps=3, decode_seconds=1.0)
            return torch.cat([ids, torch.tensor([tokenizer(text)["input_ids"]])], 1)

        model = SimpleNamespace(
            low_bit="sym_int4",
            tokenizer=tokenizer,
            engine=SimpleNamespace(row_invariant=engine == "native"),
            config=SimpleNamespace(to_dict=lambda: {"model_type": "llama", "vocab_size": len(tokenizer)}),
            generate=generate,
            forget=lambda: None,
        )
        return model

    monkeypatch.setattr(auto.AutoModelForCausalLM, "from_pretrained", load)
    return SimpleNamespace(texts=texts, loads=loads)


def test_table_texts_and_what_is_missing(engines, capsys):
    assert run(["compare-engines", "--prompt", "hello", "--threads", "2", "--low-bit", "sym_int8"]) == 0
    out, err = capsys.readouterr()
    assert "[native plain, native lookahead 3]\nnative says so" in out
    assert "[torch plain, torch lookahead 3]\ntorch says so" in out
    assert "ipex-llm does not run here: ipex-llm is not installed; pip install ipex-llm" in err
    assert [name for name, _ in engines.loads] == ["native", "torch", "ipex-llm", "opencl"]
    assert engines.loads[0][1] == {"load_in_low_bit": "sym_int8", "threads": 2, "progress": False}


def test_json_is_the_last_line(engines, capsys):
    arguments = ["--prompt", "a", "--prompt", "b", "--engine", "native", "--engine", "torch", "--lookahead", "auto"]
    assert run(["compare-engines", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    found = json.loads(line)
    assert found["prompts"] == ["a", "b"]
    assert found["absent"] == {}
    rows = found["rows"]
    assert [(row["engine"], row["mode"]) for row in rows][1::2] == [
        ("native", "lookahead auto"),
        ("torch", "lookahead auto"),
    ]
    assert rows[2]["identical_to_native"] == "0/2"
    assert rows[2]["texts"] == ["torch says so"] * 2
    assert "equal native" in err


def test_a_broken_promise_is_an_error(engines, capsys):
    engines.texts["native", True] = "something else"
    assert run(["compare-engines", "--prompt", "a", "--engine", "native"]) == 1
    assert "error: lookahead 3 changes the tokens of the native engine" in capsys.readouterr().err
    engines.texts.clear()
    engines.texts["torch", True] = "another"
    assert run(["compare-engines", "--prompt", "a", "--engine", "torch"]) == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "cuda"], "unknown engine 'cuda': choose one of native, torch, ipex-llm"),
        (["--engine", "ipex-llm"], "none of these engines runs here"),
        (["--prompt", "a", "--prompts", __file__], "not both"),
        (["--lookahead", "0"], "leave --lookahead 0 out"),
    ],
)
def test_refusals(engines, capsys, arguments, says):
    assert run(["compare-engines", *arguments]) != 0
    assert says in capsys.readouterr().err


def test_an_engine_that_was_asked_for_and_is_missing_is_an_error(engines):
    assert run(["compare-engines", "--prompt", "a", "--engine", "native", "--engine", "ipex-llm"]) == 1
