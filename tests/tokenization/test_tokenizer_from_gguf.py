"""Tokenizers built from GGUF metadata: exact ids, and every damage an error that names its field."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.hub import cache_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.sentencepiece_model import read_model
from ipex_lookahead.tokenization.splitting import SPLITTINGS, implied_splitting
from tests.gates import cases
from tests.support import vocabularies
from tests.support.full_tokenizers import tokenizer_from_gguf

from .conftest import SENTENCES, TEXTS, metadata_of

P = "tokenizer.ggml."


def embedded_model() -> Path | None:
    """The model that the package fetches, where it has been fetched."""
    return next(iter(sorted(cache_folder().glob("**/SmolLM2-135M-Instruct*.gguf"))), None)


def test_embedded_model_gives_the_golden_ids(shared):
    file = embedded_model()
    if file is None:
        pytest.skip("the embedded model has not been fetched into the cache")
    from ipex_lookahead.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(file)
    tokenizer = checkpoint.text_tokenizer().for_transformers()
    checkpoint.close()
    lines = (shared / "golden" / "smollm2_tokens.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 261
    for line in lines:
        golden = json.loads(line)
        ids = tokenizer.encode(golden["text"], add_special_tokens=False, split_special_tokens=True)
        assert ids == golden["ids"], golden["text"]
        assert tokenizer.decode(ids) == golden["text"]
    assert tokenizer("x")["input_ids"] == tokenizer.encode("x", add_special_tokens=False)  # add_bos_token is false
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)["input_ids"]
    assert prompt[0] == tokenizer.bos_token_id == 1
    assert prompt.count(tokenizer.eos_token_id) == 2


def test_byte_pairs_equal_the_library_they_were_trained_with(bpe_metadata, bpe_core):
    tokenizer = tokenizer_from_gguf(bpe_metadata, "x.gguf")
    bpe_core.encode_special_tokens = True
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ids == bpe_core.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_byte_pairs_round_trip_any_text(bpe_pair, text):
    assert bpe_pair.decode(bpe_pair.encode(text, add_special_tokens=False, split_special_tokens=True)) == text


@pytest.fixture(scope="module")
def bpe_pair(bpe_core):
    model = json.loads(bpe_core.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return tokenizer_from_gguf({P + "model": "gpt2", P + "tokens": tokens, P + "merges": merges}, "x.gguf")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["It", "'s", " 1234", " o", "'", "clock", "  ", " x"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " o", "'", "clock", "  ", " x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " o", "'clock", "  ", " x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " o", "'clock", "  ", " x"]),
    ],
)
def test_every_pre_tokenizer_splits_as_it_should(bpe_metadata, pre, pieces):
    core = tokenizer_from_gguf({**bpe_metadata, P + "pre": pre}, "x.gguf").backend_tokenizer
    got = core.pre_tokenizer.pre_tokenize_str("It's 1234 o'clock   x")
    assert [piece.replace("Ġ", " ") for piece, _ in got] == pieces


def vocabulary(size, **named):
    """Tokens of which only the named ones, by id, mean something."""
    return [named.get(f"at{i}", "") for i in range(size)]


@pytest.mark.parametrize(
    ("architecture", "tokens", "expected"),
    [
        ("llama", vocabulary(128_256, at128000="<|begin_of_text|>"), "llama-bpe"),
        ("llama", vocabulary(128_256, at128000="<｜begin▁of▁sentence｜>"), "llama-bpe"),
        ("llama", vocabulary(49_152, at0="<|endoftext|>", at1="<|im_start|>"), "smollm"),
        ("llama", vocabulary(32_256, at32013="<｜begin▁of▁sentence｜>"), "deepseek-coder"),
        ("llama", vocabulary(131_072, at1="<s>", at3="[INST]"), "tekken"),
        ("llama", vocabulary(151_936, at151643="<|endoftext|>"), "qwen2"),
        ("llama", vocabulary(50_257, at50256="<|endoftext|>"), "gpt-2"),
        ("llama4", vocabulary(202_048, at200000="<|begin_of_text|>"), "llama4"),
        ("deepseek2", vocabulary(129_280, at0="<｜begin▁of▁sentence｜>"), "deepseek-v3"),
        ("deepseek2", vocabulary(102_400, at100000="<｜begin▁of▁sentence｜>"), "deepseek-llm"),
        ("phi3", vocabulary(100_352, at100257="<|endoftext|>"), "dbrx"),
        ("stablelm", vocabulary(100_352, at100257="<|endoftext|>"), "stablelm2"),
        ("stablelm", vocabulary(50_304), None),
        ("qwen3", vocabulary(9), "qwen2"),
        ("qwen35moe", vocabulary(9), "qwen35"),
        ("gpt-oss", vocabulary(9), "gpt-4o"),
        ("llama", vocabulary(32_000, at0="<unk>", at1="<s>"), None),
        ("llama", [], None),
        (None, vocabulary(9), None),
        (["qwen3"], vocabulary(9), None),
    ],
)
def test_a_vocabulary_implies_how_text_is_split(architecture, tokens, expected):
    assert implied_splitting(architecture, tokens) == expected
    assert expected is None or expected in SPLITTINGS


@pytest.mark.parametrize(("architecture", "pre"), [("qwen3", "qwen2"), ("lfm2", "lfm2"), ("llama", "default")])
def test_a_file_that_names_no_splitting_is_a_warning(bpe_metadata, architecture, pre, caplog):
    """The splitting that the file implies, with what follows from it, such as whether a text begins with a token."""
    named = {**bpe_metadata, "general.architecture": architecture, P + "pre": pre}
    unnamed = {key: value for key, value in named.items() if key != P + "pre"}
    expected = tokenizer_from_gguf(named, "x.gguf").backend_tokenizer.to_str()
    assert not caplog.records
    assert tokenizer_from_gguf(unnamed, "x.gguf").backend_tokenizer.to_str() == expected
    assert "x.gguf: tokenizer.ggml.pre is missing" in caplog.text
    assert repr(pre) in caplog.text


@pytest.mark.parametrize("pre", sorted(SPLITTINGS))
@pytest.mark.rotating(20)
def test_all_known_pre_tokenizers_build_and_round_trip(bpe_metadata, pre):
    tokenizer = tokenizer_from_gguf({**bpe_metadata, P + "pre": pre}, "x.gguf")
    for text in SENTENCES:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", " ", "a", ".", "日本", "\n"]), st.integers(0, 14)), max_size=6))
def test_digits_of_trinity_are_grouped_from_the_right(parts):
    """In threes; 1 or 2 of them first. Other text is not split between letters, nor between characters of a script."""
    text = "".join(letters + "1234567890١٢٣٤"[:count] for letters, count in parts)
    expected = []
    for run in re.findall(r"\d+", text):
        first = len(run) % 3
        expected += [run[:first]] * (first > 0) + [run[i : i + 3] for i in range(first, len(run), 3)]
    pieces = [text]
    for pattern in SPLITTINGS["afmoe"].patterns:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        pieces = [part for piece in pieces for part, _ in split.pre_tokenize_str(piece)]
    assert "".join(pieces) == text
    assert [piece for piece in pieces if piece[0].isdigit()] == expected


def test_a_whole_word_is_not_merged_where_the_tokenizer_says_so(bpe_metadata):
    """Llama 3 takes a piece that is a token as it stands, although its merges would not lead there."""
    tokens = [*bpe_metadata[P + "tokens"], "Ġzebra"]
    metadata = {**bpe_metadata, P + "tokens": tokens, P + "token_type": [3, 3] + [1] * (len(tokens) - 2)}
    assert tokenizer_from_gguf({**metadata, P + "pre": "llama-bpe"}, "x").encode(" zebra") == [len(tokens) - 1]
    assert len(tokenizer_from_gguf({**metadata, P + "pre": "gpt-2"}, "x").encode(" zebra")) > 1


@pytest.mark.parametrize("array", [list, np.asarray])
def test_arrays_may_be_lists_or_numpy(bpe_metadata, array):
    metadata = {**bpe_metadata, P + "token_type": array(bpe_metadata[P + "token_type"])}
    assert tokenizer_from_gguf(metadata, "x.gguf").bos_token == "<|start|>"


def test_special_tokens_bos_and_eos(bpe_metadata):
    tokenizer = tokenizer_from_gguf({**bpe_metadata, P + "add_bos_token": True, P + "add_eos_token": True}, "x.gguf")
    ids = tokenizer("a ball")["input_ids"]
    assert (ids[0], ids[-1]) == (0, 1)
    assert tokenizer("<|end|>", add_special_tokens=False)["input_ids"] == [1]
    assert 1 not in tokenizer("<|end|>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a ball"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id  # the file names none


def test_control_tokens_of_gemma_4_that_files_call_the_users():
    """llama.cpp's converter does, of those that its parser looks for; in tokenizer.json they are special."""
    made = vocabularies.spelled()
    theirs = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
              '<|"|>']  # fmt: skip
    tokens, types = [*made[P + "tokens"], *theirs], [*made[P + "token_type"], *[4] * len(theirs)]
    text = text_from_gguf({**made, P + "tokens": tokens, P + "token_type": types}, "x.gguf")
    ids = text.encode("".join(theirs))
    assert ids == list(range(len(tokens) - len(theirs), len(tokens)))
    assert set(ids) <= text.silent_ids
    assert text.decode(text.encode("a" + theirs[0] + "b"), skip_special_tokens=True) == "ab"
    ordinary = text_from_gguf({**made, P + "tokens": [*tokens, "<mine>"], P + "token_type": [*types, 4]}, "x.gguf")
    assert ordinary.encode("<mine>")[0] not in ordinary.silent_ids


def test_chat_template_comes_along(bpe_metadata):
    tokenizer = tokenizer_from_gguf(bpe_metadata, "x.gguf")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"


# SentencePiece


def reference(data: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(data)
    return processor


def check_against(tokenizer, processor, texts):
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ids == processor.encode(text), text
        assert [processor.bos_id(), *ids] == tokenizer.encode(text, split_special_tokens=True)
        assert tokenizer.decode(ids) == processor.decode(ids) or processor.unk_id() in ids


@pytest.fixture(scope="module")
def spm_pair(spm_bytes):
    metadata = metadata_of(read_model(spm_bytes, "tokenizer.model"))
    return tokenizer_from_gguf(metadata, "x.gguf"), reference(spm_bytes)


@pytest.mark.rotating(1)
@settings(max_examples=cases(60, 200), deadline=None)
@given(st.text(max_size=40) | st.text("ab ▁\n", max_size=40))
def test_sentencepiece_ids_equal_the_package_for_any_text(spm_pair, text):
    check_against(*spm_pair, [text])


@pytest.mark.parametrize("name", ["no bytes", "normalised", "no prefix", "user symbols"])
def test_sentencepiece_variants_equal_the_package(spm_variants, name):
    metadata = metadata_of(read_model(spm_variants[name], "tokenizer.model"))
    texts = [text for text in TEXTS if "[INST]" not in text and not (name == "user symbols" and "ball" in text)]
    check_against(tokenizer_from_gguf(metadata, "x.gguf"), reference(spm_variants[name]), texts)


def test_a_missing_unknown_type_comes_from_the_id(spm_metadata, spm_bytes):
    types = [1 if t == 2 else t for t in spm_metadata[P + "token_type"]]
    check_against(tokenizer_from_gguf({**spm_metadata, P + "token_type": types}, "x"), reference(spm_bytes), TEXTS)
    del spm_metadata[P + "unknown_token_id"]
    with pytest.raises(ModelFormatError, match="token_type: names no unknown token"):
        tokenizer_from_gguf({**spm_metadata, P + "token_type": types}, "x")


def test_text_between_special_tokens(spm_metadata):
    tokenizer = tokenizer_from_gguf(spm_metadata, "x.gguf")
    ids = tokenizer("<s>the cat</s>the mat", add_special_tokens=False)["input_ids"]
    assert ids[0] == 1
    assert ids.count(2) == 1
    assert tokenizer.decode(ids) == "<s> the cat</s> the mat"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the cat the mat"


def test_bos_can_be_switched_off(spm_metadata):
    tokenizer = tokenizer_from_gguf({**spm_metadata, P + "add_bos_token": False, P + "add_eos_token": True}, "x.gguf")
    ids = tokenizer("the cat")["input_ids"]
    assert (ids[0] == 1, ids[-1]) == (False, 2)
    assert tokenizer.get_special_tokens_mask(ids[:-1]) == [0] * (len(ids) - 1) + [1]
    assert tokenizer.get_special_tokens_mask(ids, already_has_special_tokens=True) == [0] * (len(ids) - 1) + [1]


def test_copies_work_alone(spm_metadata, bpe_metadata):
    for metadata in (spm_metadata, bpe_metadata):
        tokenizer = tokenizer_from_gguf(metadata, "x.gguf")
        expected = tokenizer.encode("the cat")
        other = copy.deepcopy(tokenizer)
        del tokenizer
        assert other.encode("the cat") == expected


# Damage


def change(metadata, **values):
    changed = {**metadata, **{(k if k == "tokenizer.chat_template" else P + k): v for k, v in values.items()}}
    return {key: value for key, value in changed.items() if value is not None}


def damaged_bpe(good):
    tokens, merges = good[P + "tokens"], good[P + "merges"]
    return {
        "model missing": (change(good, model=None), "model"),
        "model number": (change(good, model=1), "model"),
        "tokens missing": (change(good, tokens=None), "tokens"),
        "tokens empty": (change(good, tokens=[]), "tokens"),
        "tokens no array": (change(good, tokens="abc"), "tokens"),
        "tokens of numbers": (change(good, tokens=[1, 2]), "tokens"),
        "token twice": (change(good, tokens=[*tokens[:-1], tokens[5]]), "tokens"),
        "types too short": (change(good, token_type=[1]), "token_type"),
        "types too long": (change(good, token_type=[1] * (len(tokens) + 1)), "token_type"),
        "type unknown": (change(good, token_type=[7] * len(tokens)), "token_type"),
        "type zero": (change(good, token_type=[0] * len(tokens)), "token_type"),
        "types not numbers": (change(good, token_type=["1"] * len(tokens)), "token_type"),
        "merges missing": (change(good, merges=None), "merges"),
        "merge one piece": (change(good, merges=[*merges, "a"]), "merges"),
        "merge three pieces": (change(good, merges=[*merges, "a b c"]), "merges"),
        "merge empty piece": (change(good, merges=[*merges, "a "]), "merges"),
        "merge of unknown piece": (change(good, merges=[*merges, "a 日"]), "merges"),
        "merge into unknown token": (change(good, merges=[*merges, "z q"]), "merges"),
        "merge twice": (change(good, merges=[*merges, merges[0]]), "merges"),
        "bos negative": (change(good, bos_token_id=-1), "bos_token_id"),
        "eos beyond": (change(good, eos_token_id=len(tokens)), "eos_token_id"),
        "unk beyond": (change(good, unknown_token_id=1 << 31), "unknown_token_id"),
        "pad beyond": (change(good, padding_token_id=len(tokens)), "padding_token_id"),
        "id no number": (change(good, bos_token_id="0"), "bos_token_id"),
        "flag no flag": (change(good, add_bos_token=1), "add_bos_token"),
        "template number": ({**good, "tokenizer.chat_template": 5}, "chat_template"),
        "template too long": ({**good, "tokenizer.chat_template": "x" * (256 * 1024 + 1)}, "chat_template"),
    }


BPE_DAMAGE = sorted(damaged_bpe({P + "tokens": list("abcdef"), P + "merges": ["a b"]}))


@pytest.mark.parametrize("case", BPE_DAMAGE)
def test_damaged_byte_pair_metadata(bpe_metadata, case):
    metadata, field = damaged_bpe(bpe_metadata)[case]
    with pytest.raises(ModelFormatError) as caught:
        tokenizer_from_gguf(metadata, "x.gguf")
    assert field in caught.value.field
    assert "x.gguf" in str(caught.value)


def test_unknown_kinds_list_the_known(bpe_metadata):
    with pytest.raises(UnsupportedModelError, match=r"'rwkv'; known are 'gpt2', 'gemma4', 'llama', 't5', 'bert'"):
        tokenizer_from_gguf(change(bpe_metadata, model="rwkv"), "x.gguf")
    with pytest.raises(UnsupportedModelError, match=r"'elvish'; known are .*gpt-2.*llama-bpe.*smollm"):
        tokenizer_from_gguf(change(bpe_metadata, pre="elvish"), "x.gguf")


def damaged_spm(good):
    tokens, scores, types = (good[P + name] for name in ("tokens", "scores", "token_type"))
    n = len(tokens)
    byte = types.index(6) if 6 in types else 0
    return {
        "scores missing": (change(good, scores=None), "scores"),
        "scores too short": (change(good, scores=scores[:-1]), "scores"),
        "score nan": (change(good, scores=[float("nan"), *scores[1:]]), "scores"),
        "score infinite": (change(good, scores=[*scores[:-1], float("inf")]), "scores"),
        "scores of strings": (change(good, scores=["1"] * n), "scores"),
        "types too short": (change(good, token_type=types[:-1]), "token_type"),
        "type unknown": (change(good, token_type=[*types[:-1], 9]), "token_type"),
        "two unknowns": (change(good, token_type=[*types[:-1], 2]), "token_type"),
        "token twice": (change(good, tokens=[*tokens[:-1], tokens[n // 2]]), "tokens"),
        "token empty": (change(good, tokens=[*tokens[:-1], ""]), "tokens"),
        "token with NUL": (change(good, tokens=[*tokens[:-1], "a\0"]), "tokens"),
        "byte misspelled": (change(good, tokens=[*tokens[:byte], "<0xZZ>", *tokens[byte + 1 :]]), "tokens"),
        "byte missing": (change(good, token_type=[*types[:byte], 1, *types[byte + 1 :]]), "tokens"),
        "charsmap short": (change(good, precompiled_charsmap=[1, 2]), "precompiled_charsmap"),
        "charsmap outside": (
            change(good, precompiled_charsmap=[4, 0, 0, 0, 255, 255, 255, 255, 0]),
            "precompiled_charsmap",
        ),
        "bos beyond": (change(good, bos_token_id=n), "bos_token_id"),
        "unk beyond": (change(good, unknown_token_id=n), "unknown_token_id"),
    }


SPM_DAMAGE = sorted(damaged_spm({P + "tokens": ["a"], P + "scores": [0.0], P + "token_type": [6]}))


@pytest.mark.parametrize("case", SPM_DAMAGE)
def test_damaged_sentencepiece_metadata(spm_metadata, case):
    metadata, field = damaged_spm(spm_metadata)[case]
    with pytest.raises(ModelFormatError) as caught:
        tokenizer_from_gguf(metadata, "x.gguf")
    assert field in caught.value.field
