"""What is saved is read by transformers' own AutoTokenizer with the same ids, and by this package as it was."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from ipex_lookahead.tokenization import saving
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.isolated import IsolatedText
from ipex_lookahead.tokenization.sentencepiece_model import NORMAL, Piece, read_model
from tests.gates import cases
from tests.support.full_tokenizers import tokenizer_from_folder

from .conftest import CHATML, TEXTS, metadata_of

pytestmark = pytest.mark.usefixtures("kept_renderer")

CONFIG = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2}
PARTS = [
    "a", "aa", "aaaaaaa", "b", "ab", " ", "  ", "\n", "\n\n", "\t", "▁", "the", " cat", "ball", "1", "23", "'s", "é",
    "e\u0301", "日本", "🙂", "ﬁ", "\u200b", "\u3000", "\0", "<s>", "</s>", "<unk>", "<0x41>", "[INST]", "<|start|>",
    "<|end|>", "<extra>", "<last>", "\x85", "\u2028", "\xa0",
]  # fmt: skip
STRINGS = st.one_of(
    st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    st.builds(lambda letter, n: letter * n, st.sampled_from("ab -\n▁"), st.integers(1, 70)),
    st.text(max_size=20).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)),
)


def spm_folder(folder: Path, model: bytes, **more: Any) -> Any:
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "<unk>", **more}))
    return text_from_folder(folder, CONFIG)


@pytest.fixture
def texts(tmp_path, spm_bytes, spm_variants, spm_metadata, bpe_core, bpe_metadata) -> dict[str, Any]:
    """Tokenizers of every kind, from folders and from GGUF files, each with settings of its own."""
    plain = read_model(spm_bytes, "x")
    n = len(plain.pieces)
    extra = {str(n): {"content": "<extra>", "special": False}, str(n + 5): {"content": "<last>", "special": True}}
    made = {
        f"spm {name}": spm_folder(tmp_path / name, model)
        for name, model in {"plain": spm_bytes, **spm_variants}.items()
    }
    made["spm added"] = spm_folder(
        tmp_path / "added", spm_bytes, added_tokens_decoder=extra, chat_template=CHATML, model_max_length=77
    )
    made["spm flags"] = spm_folder(tmp_path / "flags", spm_bytes, add_bos_token=False, add_eos_token=True)
    made["spm both"] = spm_folder(tmp_path / "both", spm_variants["unigram"], add_eos_token=True)
    made["spm gguf"] = text_from_gguf({**spm_metadata, "tokenizer.chat_template": CHATML}, "x.gguf")
    made["spm gguf no bos"] = text_from_gguf({**spm_metadata, "tokenizer.ggml.add_bos_token": False}, "x.gguf")
    made["spm gguf normalised"] = text_from_gguf(metadata_of(read_model(spm_variants["normalised"], "x")), "x.gguf")
    plain.pieces = [Piece(p.text, -1.0 if p.type == NORMAL else p.score, p.type) for p in plain.pieces]
    made["spm gguf equal scores"] = text_from_gguf(metadata_of(plain), "x.gguf")
    made["bpe gguf"] = text_from_gguf(bpe_metadata, "x.gguf")
    made["bpe gguf bos"] = text_from_gguf({**bpe_metadata, "tokenizer.ggml.add_bos_token": True}, "x.gguf")
    named = {"tokenizer.chat_templates": ["other"], "tokenizer.chat_template.other": "{{ messages[0].content }}"}
    made["bpe gguf templates"] = text_from_gguf({**bpe_metadata, **named}, "x.gguf")
    both = {**bpe_metadata, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    made["bpe gguf both"] = text_from_gguf(both, "x.gguf")
    for name, flags in {"bpe folder": {}, "bpe folder bos": {"add_bos_token": True}}.items():
        folder = tmp_path / name
        folder.mkdir()
        bpe_core.save(str(folder / "tokenizer.json"))
        roles = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": CHATML}
        (folder / "tokenizer_config.json").write_text(json.dumps(roles | flags))
        made[name] = text_from_folder(folder, {"vocab_size": 512})
    return made


@pytest.fixture
def sources(texts) -> dict[str, Any]:
    """The same as transformers' users have them."""
    return {name: text.for_transformers() for name, text in texts.items()}


def saved(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    return folder


def test_transformers_and_we_read_what_is_saved_with_the_same_ids(tmp_path, sources):
    read = {}
    for number, (name, ours) in enumerate(sources.items()):
        folder = saved(ours, tmp_path / f"saved{number}")
        read[name] = (ours, AutoTokenizer.from_pretrained(folder), tokenizer_from_folder(folder, CONFIG))

    @settings(max_examples=cases(25, 60), deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(STRINGS)
    def check(text: str) -> None:
        for name, (ours, *others) in read.items():
            expected = ours(text)["input_ids"]
            plain = ours(text, add_special_tokens=False)["input_ids"]
            for other in others:
                assert other(text)["input_ids"] == expected, (name, text)
                assert other(text, add_special_tokens=False)["input_ids"] == plain, (name, text)

    check()
    for name, (ours, *others) in read.items():
        for text in TEXTS:
            for other in others:
                assert other(text)["input_ids"] == ours(text)["input_ids"], (name, text)


def test_settings_and_decoding_survive(tmp_path, sources):
    """The class that runs the sentencepiece package spells bytes out; the library's tokenizers give the text."""
    chat = [{"role": "user", "content": "the cat"}]
    slow = set()
    for number, (name, ours) in enumerate(sources.items()):
        folder = saved(ours, tmp_path / f"saved{number}")
        kind = json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"]
        assert re.fullmatch("PreTrainedTokenizerFast|SentencePieceBackend|LlamaTokenizer", kind)
        theirs = AutoTokenizer.from_pretrained(folder)
        for other in (theirs, tokenizer_from_folder(folder, CONFIG)):
            for role in ("bos_token", "eos_token", "pad_token"):
                assert getattr(other, f"{role}_id") == getattr(ours, f"{role}_id"), (name, role)
            assert other.padding_side == "left", name
            assert other.model_max_length == ours.model_max_length
            assert other.chat_template == ours.chat_template
            batch = ["Tim", "the cat sat on the mat"]
            assert other(batch, padding=True)["input_ids"] == ours(batch, padding=True)["input_ids"], name
            if ours.chat_template:
                asked = {"add_generation_prompt": True, "return_dict": False}
                assert other.apply_chat_template(chat, **asked) == ours.apply_chat_template(chat, **asked)
            for token in ("<extra>", "<last>", "[INST]", "<|end|>"):
                if token in ours.get_vocab():
                    assert other.convert_tokens_to_ids(token) == ours.convert_tokens_to_ids(token), (name, token)
        if not theirs.is_fast:
            slow.add(name)
            continue
        for text in TEXTS:
            ids = ours(text, add_special_tokens=False)["input_ids"]
            if ours.unk_token_id not in ids:
                assert theirs.decode(ids) == ours.decode(ids), (name, text)
    assert slow == {"spm unigram", "spm both", "spm gguf equal scores"}


@pytest.fixture
def isolated(tmp_path, bpe_core) -> IsolatedText:
    """A pipeline that runs in a process of its own, since a file brings an expression."""
    core = Tokenizer.from_str(bpe_core.to_str())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"(a|b)+|\d"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    folder = tmp_path / "isolated"
    folder.mkdir()
    core.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": "<|start|>", "eos_token": "<|end|>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    made = text_from_folder(folder, {"vocab_size": 512})
    assert isinstance(made, IsolatedText)
    return made


def test_what_is_saved_without_transformers_is_read_with_the_same_ids_and_settings(tmp_path, texts, isolated):
    """By transformers, and by this package; and the settings are those that transformers would have written."""
    for number, (name, text) in enumerate({**texts, "isolated": isolated}.items()):
        ours = text.for_transformers()
        (tmp_path / f"alone{number}").mkdir()
        folder = saved(text, tmp_path / f"alone{number}")
        again, full = text_from_folder(folder, CONFIG), AutoTokenizer.from_pretrained(folder)
        assert type(again) is type(text), name
        assert again.all_special_ids == text.all_special_ids
        assert again.added_tokens == text.added_tokens, name
        assert again.chat_template == full.chat_template == text.chat_template, name
        assert (full.padding_side, full.model_max_length) == ("left", ours.model_max_length)
        for role in ("bos_token", "eos_token", "unk_token", "pad_token"):
            assert getattr(full, role) == getattr(ours, role), (name, role)
        for said in [*TEXTS, *PARTS, "a<extra>b<last> c<|end|> d</s>"]:
            for special in (True, False):
                expected = text.encode(said, special)
                assert again.encode(said, special) == expected, (name, said)
                assert full(said, add_special_tokens=special)["input_ids"] == expected, (name, said)
            ids = text.encode(said)
            assert again.decode(ids) == text.decode(ids)
            assert again.decode(ids, skip_special_tokens=True) == text.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("release", "name"),
    [("4.37.0", "LlamaTokenizer"), ("5.23.0", "SentencePieceBackend"), (None, "SentencePieceBackend")],
)
def test_the_class_for_other_models_is_that_of_the_release(monkeypatch, release, name):
    def version(package):
        assert package == "transformers"
        if release is None:
            raise PackageNotFoundError(package)
        return release

    monkeypatch.setattr(saving, "version", version)
    assert saving.sentencepiece_class() == name
