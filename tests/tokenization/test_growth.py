"""A tokenizer may make a text only so much longer, whatever its file says: what may do more runs in a process apart."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.tokenization import isolated
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.growth import MOST_GROWTH, check_ids
from ipex_lookahead.tokenization.isolated import IsolatedText
from ipex_lookahead.tokenization.sentencepiece_model import CONTROL, USER_DEFINED, Piece, read_model
from ipex_lookahead.tokenization.text import BytePairText
from tests.support.full_tokenizers import tokenizer_from_folder
from tests.support.mutated.sound import charsmap

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
WORDS = {**BYTES, "add_prefix_space": True}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
MARK = {"SpecialToken": {"id": "!", "type_id": 0}}


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def metaspace(scheme: str = "always") -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}


def normalizers(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(parts)}}


def splits(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(parts)}}


def decoders(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"decoder": {"type": "Sequence", "decoders": list(parts)}}


def template(single: list[Any], ids: int = 1) -> dict[str, Any]:
    special = {"!": {"id": "!", "ids": [0] * ids, "tokens": ["!"] * ids}}
    return {"type": "TemplateProcessing", "single": single, "pair": [TEXT], "special_tokens": special}


def folder(path: Path, **parts: Any) -> Path:
    alphabet = {letter: i for i, letter in enumerate(sorted({*pre_tokenizers.ByteLevel.alphabet(), "▁", " "}))}
    model = {"type": "BPE", "vocab": alphabet, "merges": []}
    description = {"version": "1.0", "added_tokens": [], "pre_tokenizer": BYTES, "model": model, **parts}
    (path / "tokenizer.json").write_text(json.dumps(description))
    return path


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (normalizers({"type": "Prepend", "prepend": ""}), "normalizer.Prepend.prepend"),
        (decoders({"type": "Strip", "content": "a", "start": 0, "stop": 1}), "decoder.Strip.stop"),
        ({"post_processor": template([TEXT, TEXT])}, "post_processor.single.*once"),
        ({"post_processor": template([{"Sequence": {"id": "B"}}])}, "post_processor.single"),
        ({"post_processor": {"type": "Sequence", "processors": [template([MARK, TEXT])] * 2}}, "2 templates; at most"),
        ({"added_tokens": [{"id": 258, "content": "\t ", "rstrip": True}]}, "white space with lstrip"),
        (
            {**normalizers(replace("qq", " ")), "added_tokens": [{"id": 258, "content": "qq", "lstrip": True,
                                                                  "normalized": True}]},
            "white space with lstrip",
        ),
        ({"added_tokens": [{"id": 258, "content": "x" * 4097}]}, "4097 characters; at most 4096"),
        ({"added_tokens": [{"id": 258 + i, "content": f"{i}" + "x" * 4000} for i in range(263)]}, "1048576 are"),
        ({"added_tokens": [{"id": 258 + i, "content": f"<{i}>"} for i in range(65537)]}, "65537 added tokens"),
    ],
)  # fmt: skip
@pytest.mark.rotating(5)
def test_what_the_library_panics_at_is_refused_by_name(tmp_path: Path, parts: dict[str, Any], named: str) -> None:
    for build in (text_from_folder, tokenizer_from_folder):
        with pytest.raises(ModelFormatError, match=named):
            build(folder(tmp_path, **parts), {})


@pytest.mark.parametrize(
    "parts",
    [
        normalizers(replace("a", "aaaaa")),
        normalizers(*[replace("a", "aa")] * 3),
        normalizers(replace("b", "ﷺ"), {"type": "NFKD"}),
        normalizers({"type": "Prepend", "prepend": "a" * 17}),
        normalizers(*[{"type": "NFC"}] * 33),
        splits(*[BYTES] * 3),
        splits(*[metaspace()] * 3),
        {**normalizers(replace("a", "aa"), replace("b", "bb")), **splits(BYTES)},
        decoders(*[replace("a", "aa")] * 3),
    ],
)
def test_what_may_grow_runs_apart(tmp_path: Path, parts: dict[str, Any]) -> None:
    tokenizer = text_from_folder(folder(tmp_path, **parts), {})
    assert isinstance(tokenizer, IsolatedText)
    assert tokenizer.decode(tokenizer.encode("a b"))


def test_what_grows_is_stopped_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "MEMORY", 256 << 20)
    parts = normalizers(*[replace("a", "a" * 60)] * 5)
    for build in (text_from_folder, tokenizer_from_folder):
        tokenizer = build(folder(tmp_path, **parts), {})
        assert tokenizer is not None
        with pytest.raises(ModelFormatError, match="encoding: "):
            tokenizer.encode("a" * 100)


@pytest.mark.parametrize(
    "parts",
    [
        normalizers({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),  # Llama 2
        normalizers({"type": "NFKC"}, replace(" ", "▁")),
        {**normalizers({"type": "NFC"}), **splits(BYTES)},  # Qwen
        {**normalizers({"type": "NFKC"}, {"type": "Lowercase"}), **splits(metaspace("first"))},
        {**normalizers(replace(" ", "▁")), **splits(WORDS)},
        decoders(replace("▁", " "), {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        {"post_processor": template([MARK, TEXT, MARK], 3)},
        {"added_tokens": [{"id": 258, "content": "<x>", "lstrip": True, "rstrip": True}]},
    ],
)
def test_what_real_tokenizers_do_is_taken(tmp_path: Path, parts: dict[str, Any]) -> None:
    tokenizer = text_from_folder(folder(tmp_path, **parts), {})
    assert isinstance(tokenizer, BytePairText)
    assert tokenizer.decode(tokenizer.encode("a b <x>  c"))


@pytest.mark.parametrize("letter", ["a", " ", "é", "ﷺ", "\u0390"])
@pytest.mark.parametrize(
    "parts",
    [
        normalizers(replace("a", "aaaa")),
        normalizers({"type": "NFKC"}, replace(" ", "▁")),
        splits(metaspace(), metaspace()),
        splits({"type": "Punctuation", "behavior": "Isolated"}, WORDS, BYTES),
    ],
)
def test_the_bound_holds(tmp_path: Path, parts: dict[str, Any], letter: str) -> None:
    tokenizer = text_from_folder(folder(tmp_path, **parts), {})
    assert isinstance(tokenizer, BytePairText)
    text = letter * 200
    size = len(text.encode())
    assert len(tokenizer.encode(text)) <= size * MOST_GROWTH * (11 if letter == "ﷺ" else 3) + 4096


def test_more_tokens_than_any_text_has_are_an_error() -> None:
    check_ids("", [0] * 4096)
    check_ids("ab", [0] * 4224)
    with pytest.raises(ModelFormatError, match="made 4225 tokens of 2 characters"):
        check_ids("ab", [0] * 4225)


# SentencePiece and GGUF


def test_rules_that_grow_are_refused(spm_bytes: bytes) -> None:
    model = read_model(spm_bytes, "tokenizer.model")
    model.precompiled_charsmap = charsmap()  # "a" becomes "bb"
    read_model(model.serialize(), "tokenizer.model")
    for length in (16, 17, 10**7):
        model.precompiled_charsmap = charsmap()[:-3] + b"b" * length + b"\0"
        if length <= MOST_GROWTH:
            read_model(model.serialize(), "tokenizer.model")
            continue
        with pytest.raises(ModelFormatError, match=f"writes {length} bytes for 1; at most 16 bytes per byte"):
            read_model(model.serialize(), "tokenizer.model")


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        (CONTROL, ["x" * 257], "257 characters; at most 256"),
        (USER_DEFINED, ["x" * 257], "257 characters; at most 256"),
        (CONTROL, [f"<{i}>" for i in range(65537)], "added tokens; at most"),
    ],
    ids=["control", "user defined", "many"],
)
def test_pieces_that_python_looks_for_are_short_and_few(
    spm_bytes: bytes, kind: int, more: list[str], named: str
) -> None:
    model = read_model(spm_bytes, "tokenizer.model")
    longer = [*model.pieces, *(Piece(text, 0.0, kind) for text in more)]
    with pytest.raises(ModelFormatError, match=named):
        read_model(type(model)(longer, byte_fallback=True).serialize(), "tokenizer.model")


def test_what_stands_for_unknown_text_is_short(spm_bytes: bytes) -> None:
    model = read_model(spm_bytes, "tokenizer.model")
    model.special["unk_surface"] = "x" * 4097
    with pytest.raises(ModelFormatError, match="unk_surface"):
        read_model(model.serialize(), "tokenizer.model")


def test_gguf_tokens_and_scores(bpe_metadata: dict[str, Any], spm_metadata: dict[str, Any]) -> None:
    tokens = [*bpe_metadata["tokenizer.ggml.tokens"][:-1], "x" * 4097]
    with pytest.raises(ModelFormatError, match="4097 characters; at most 4096"):
        text_from_gguf({**bpe_metadata, "tokenizer.ggml.tokens": tokens}, "x.gguf")
    scores = [*spm_metadata["tokenizer.ggml.scores"][:-1], 1e308]  # an array of 64-bit numbers
    with pytest.raises(ModelFormatError, match="scores are finite 32-bit numbers"):
        text_from_gguf({**spm_metadata, "tokenizer.ggml.scores": scores}, "x.gguf")
    assert struct.pack("<f", 3.4e38)  # the largest that are taken can be written


def test_a_panic_of_the_library_is_an_error_of_ours() -> None:
    from ipex_lookahead.tokenization.release import panics_typed

    class PanicException(BaseException):
        """As pyo3 has it."""

    with pytest.raises(ModelFormatError, match="panicked: no"), panics_typed():
        raise PanicException("no")
    with pytest.raises(KeyboardInterrupt), panics_typed():
        raise KeyboardInterrupt
