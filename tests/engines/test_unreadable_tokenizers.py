"""A tokenizer that cannot be read costs the tokenizer, never the model, and is found before weights are read."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError
from ipex_lookahead.cli.main import run
from ipex_lookahead.engines import loading
from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.support.chat_tokenizer import SIZE, write_chat_llama
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

PADDING = {"id": SIZE, "content": "[PAD]"}
IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])
CHARACTERS = [chr(0x100 + i) for i in range(96)]


def cut_file(folder: Path) -> Path:
    model = write_tiny_llama(folder / "model")
    (model / "tokenizer.json").write_bytes(b'{"model": {"type": "BPE", "vocab": {"a"')
    return model


def unknown_part(folder: Path) -> Path:
    model = write_tiny_llama(folder / "model")
    (model / "tokenizer.json").write_text('{"model": {"type": "Mystery"}}', encoding="utf-8")
    return model


def hostile_file(folder: Path) -> Path:
    """Well formed, but the library does not take it, which only its process finds out."""
    model = write_tiny_llama(folder / "model")
    split = '{"type": "Split", "pattern": {"Regex": "(a+"}, "behavior": "Isolated", "invert": false}'
    text = (
        f'{{"model": {{"type": "BPE", "vocab": {{"a": 0, "b": 1, "c": 2}}, "merges": []}}, "pre_tokenizer": {split}}}'
    )
    (model / "tokenizer.json").write_text(text, encoding="utf-8")
    return model


def unknown_pre(folder: Path) -> Path:
    made = {"model": "gpt2", "pre": "mystery", "tokens": CHARACTERS, "merges": ["a b"]}
    return write_tiny_gguf(folder / "x.gguf", metadata={f"tokenizer.ggml.{key}": made[key] for key in made})


def duplicate_tokens(folder: Path) -> Path:
    made = {"model": "llama", "tokens": ["<unk>", "a", "a"], "scores": [0.0] * 3, "token_type": [2, 1, 1]}
    return write_tiny_gguf(folder / "x.gguf", metadata={f"tokenizer.ggml.{key}": made[key] for key in made})


CASES = {
    "cut": (cut_file, "is not valid JSON"),
    "unknown part": (unknown_part, "'Mystery' is not supported"),
    "hostile": (hostile_file, "the tokenizers library does not take it"),
    "unknown pre": (unknown_pre, "the pre-tokenizer is 'mystery'"),
    "duplicate": (duplicate_tokens, "appears twice"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    make, says = CASES[request.param]
    return make(tmp_path), says


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_the_model_runs_and_says_why_it_has_none(
    case: tuple[Path, str], engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, says = case
    with caplog.at_level(logging.WARNING, logger="ipex_lookahead"):
        model = AutoModelForCausalLM.from_pretrained(path, engine=engine, threads=1, progress=False)
    told = [record.getMessage() for record in caplog.records if says in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("the model has no tokenizer, since ")
    assert model.tokenizer is None
    assert says in model.engine.describe()["no_tokenizer"]
    plain = model.generate(IDS, max_new_tokens=8, lookahead=None)
    assert torch.equal(plain, model.generate(IDS, max_new_tokens=8, lookahead=3))


def test_who_needs_text_is_told_before_weights_are_read(
    case: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights are read")

    path, says = case
    monkeypatch.setattr("ipex_lookahead.engines.native.engine.NativeEngine.load", never)
    with pytest.raises(LookaheadError, match=says):
        load_text_model(str(path), threads=1, progress=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert run(["generate", "--model", str(path), "hi"]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_a_model_with_none_is_no_warning(tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny_llama(tmp_path / "model")
    with caplog.at_level(logging.WARNING, logger="ipex_lookahead"):
        model = AutoModelForCausalLM.from_pretrained(path, engine=engine, threads=1, progress=False)
    assert (model.tokenizer, "no_tokenizer" in model.engine.describe()) == (None, False)
    assert not [record for record in caplog.records if "tokenizer" in record.getMessage()]
    with pytest.raises(InputError, match="carries no tokenizer"):
        load_text_model(str(path), engine=engine, threads=1, progress=False)


def test_a_command_that_measures_says_why(case: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    path, says = case
    assert run(["bench", "decode", "--model", str(path), "--limit", "1", "-n", "4"]) != 0
    assert says in capsys.readouterr().err


def test_what_is_no_error_of_ours_is_not_swallowed(tmp_path: Path) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loading.LoadRequest(tmp_path).tokenizer(broken)


def test_an_added_token_beyond_the_embedding_is_never_generated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As padding tokens often are: the model runs with a note, and a prompt that holds the token is refused by name."""
    folder = write_chat_llama(tmp_path / "model")
    plain = load_text_model(str(folder), threads=1, progress=False)
    ids, params = plain.tokenizer.encode("the cat"), SamplingParams(max_new_tokens=6, temperature=0.0)
    expected = plain.generate(ids, params)
    assert not caplog.records
    for name, change in (
        ("tokenizer.json", lambda file: file["added_tokens"].append({**file["added_tokens"][0], **PADDING})),
        ("config.json", lambda file: file.update(pad_token_id=SIZE)),
        ("tokenizer_config.json", lambda file: file.update(pad_token="[PAD]")),
    ):
        file = json.loads((folder / name).read_text(encoding="utf-8"))
        change(file)
        (folder / name).write_text(json.dumps(file), encoding="utf-8")
    model = load_text_model(str(folder), threads=1, progress=False)
    assert f"has {SIZE} rows and none for '[PAD]'" in caplog.text
    assert model.generate(ids, params) == expected
    assert max(model.tokenizer.encode("the [PAD] cat")) == SIZE
    with pytest.raises(InputError, match=r"without an embedding: '\[PAD\]', id 260"):
        model.generate(model.tokenizer.encode("the [PAD] cat"), params)
    loaded = AutoModelForCausalLM.from_pretrained(folder, threads=1, progress=False)
    with pytest.raises(InputError, match="has token id 260"):
        loaded.generate(torch.tensor([[5, SIZE]]), max_new_tokens=2)
