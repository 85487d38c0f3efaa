"""Fill-in-the-middle in the three APIs that have it, with a model that has the tokens and with one that has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tokenizers import AddedToken

from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.text_model import TextModel
from tests.serving.conftest import serving
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama

NAMES = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<file_sep>"]
PRE, SUF, MID, PAD, SEP = range(SIZE, SIZE + 5)
HOT = {"temperature": 30, "seed": 5}


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    made = write_tiny_llama(tmp_path_factory.mktemp("coder") / "tiny", vocab=SIZE + 5, context=512)
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([AddedToken(name, special=True) for name in NAMES])
    tokenizer.save_pretrained(made)
    return load_text_model(str(made), engine="native", threads=1, progress=False)


@pytest.fixture(scope="module")
def filler(coder: TextModel) -> Iterator[TestClient]:
    with serving(coder, slots=2) as made:
        yield made


def expected(coder: TextModel, before: str, behind: str) -> tuple[list[int], str]:
    """The prompt in the order prefix, suffix, middle, and what the model says to it."""
    content = coder.tokenizer.encode_content
    ids = [PRE, *content(before, False), SUF, *content(behind, False), MID]
    ids = [*coder.tokenizer.encode("")[:1], *ids]
    ends = (PRE, SUF, MID, PAD, SEP)
    new = coder.generate(ids, SamplingParams(12, **HOT, stop_token_ids=ends))
    return ids, str(coder.tokenizer.decode([i for i in new if i not in ends], skip_special_tokens=True))


@pytest.mark.parametrize("before", ["def f(x):\n    ", "spelled <fim_middle> and <|im_end|>", "é"])
def test_each_api_fills_the_gap(filler, coder, before):
    behind = "\n    return x <fim_prefix>"
    ids, said = expected(coder, before, behind)
    legacy = filler.post("/v1/completions", json={"prompt": before, "suffix": behind, "max_tokens": 12, **HOT}).json()
    assert (legacy["choices"][0]["text"], legacy["usage"]["prompt_tokens"]) == (said, len(ids))
    as_ids = coder.tokenizer.encode_content(before, False)
    given = {"prompt": as_ids, "suffix": behind, "max_tokens": 12, "echo": True, **HOT}
    assert filler.post("/v1/completions", json=given).json()["choices"][0]["text"] == before + said
    options = {"num_predict": 12, **HOT}
    given = {"model": "tiny", "prompt": before, "suffix": behind, "options": options, "stream": False}
    assert filler.post("/api/generate", json=given).json()["response"] == said
    given = {"input_prefix": before[:1], "prompt": before[1:], "input_suffix": behind, "n_predict": 12, **HOT}
    found = filler.post("/infill", json=given).json()
    assert (found["content"], found["tokens_evaluated"]) == (said, len(ids))


@pytest.mark.parametrize("end", [PAD, SEP, SUF, 2])
def test_it_ends_where_the_model_says_so(filler, end):
    given = {"prompt": "a", "suffix": "b", "max_tokens": 4, "logit_bias": {str(end): 100}, "temperature": 0}
    found = filler.post("/v1/completions", json=given).json()
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("", "stop")
    assert found["usage"]["completion_tokens"] == 1
    endless = filler.post("/v1/completions", json={**given, "ignore_eos": True}).json()
    assert endless["usage"]["completion_tokens"] == 4


def test_other_files_stand_before_the_gap(filler):
    files = [{"filename": "a.py", "text": "A"}, {"filename": "b.py", "text": "B"}]
    given = {"input_prefix": "x", "input_suffix": "y", "input_extra": files, "n_predict": 1}
    prompt = filler.post("/infill", json=given).json()["prompt"]
    assert prompt.endswith(
        "<file_sep>a.py\nA<file_sep>b.py\nB<file_sep>filename\n<fim_prefix>x<fim_suffix>y<fim_middle>"
    )


def test_an_empty_suffix_asks_for_nothing(filler, client):
    for one in (filler, client):
        plain, empty = (
            one.post("/v1/completions", json={"prompt": "One", "max_tokens": 4, **HOT, **more}).json()["choices"]
            for more in ({}, {"suffix": ""})
        )
        assert plain == empty


ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/completions", "suffix", {"prompt": "a", "suffix": "b"}),
    ("/api/generate", "suffix", {"model": "tiny", "prompt": "a", "suffix": "b"}),
    ("/infill", "input_suffix", {"input_prefix": "a", "input_suffix": "b"}),
]


@pytest.mark.parametrize(("path", "param", "given"), ASKED)
def test_a_model_without_the_tokens_says_so(client, path, param, given):
    answer = client.post(path, json=given)
    assert answer.status_code == 400
    assert f"{param}: this model has no fill-in-the-middle tokens" in answer.text


def test_what_goes_not_with_a_suffix(filler):
    for path, param, given in (
        ("/v1/completions", "echo", {"prompt": "a", "suffix": "b", "echo": True, "logprobs": 1}),
        ("/api/generate", "suffix", {"model": "tiny", "prompt": "a", "suffix": "b", "raw": True}),
        ("/api/generate", "suffix", {"model": "tiny", "prompt": "a", "suffix": "b", "system": "c"}),
        ("/v1/completions", "prompt", {"prompt": "a", "suffix": "b" * 600, "max_tokens": 4}),
    ):
        answer = filler.post(path, json=given)
        assert answer.status_code == 400, answer.text
        assert param in answer.text
    assert "insert" in filler.post("/api/show", json={"model": "tiny"}).json()["capabilities"]


def test_the_keys_of_a_gguf_file_go_before_names(tmp_path: Path) -> None:
    from ipex_lookahead.tokenization.fill_in import fill_in_of

    made = chat_tokenizer()
    made.add_tokens([AddedToken(name, special=True) for name in NAMES])
    made.save_pretrained(tmp_path)
    from ipex_lookahead.tokenization.folder import text_from_folder

    tokenizer = text_from_folder(tmp_path, {})
    named = fill_in_of(tokenizer)
    assert named is not None
    assert (named.prefix, named.suffix, named.middle, named.separator) == (PRE, SUF, MID, SEP)
    tokenizer.fill_in_ids = {"pre": 10, "suf": 11, "mid": 12, "pad": 13}
    keyed = fill_in_of(tokenizer)
    assert keyed is not None
    assert (keyed.prefix, keyed.suffix, keyed.middle) == (10, 11, 12)
    assert keyed.ends >= {10, 11, 12, 13, PAD, SEP}
