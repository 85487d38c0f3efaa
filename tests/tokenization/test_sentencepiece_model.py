"""Reading ``tokenizer.model``: what is read equals what the package reads, and damage never reaches the package."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import sentencepiece

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.tokenization import sentencepiece_model
from ipex_lookahead.tokenization.sentencepiece_model import Piece, SentencePieceModel, read_model

from .conftest import TEXTS


def load(data: bytes) -> sentencepiece.SentencePieceProcessor:
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(data)
    return processor


def field(number: int, value: int | bytes) -> bytes:
    """One protobuf field; numbers below 2**14 are enough here."""
    if isinstance(value, int):
        return bytes([number << 3]) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def piece(text: bytes, score: bytes = b"\0\0\0\0", kind: int = 1) -> bytes:
    return field(1, field(1, text) + b"\x15" + score + field(3, kind))


UNK = piece(b"<unk>", kind=2)


@pytest.mark.parametrize("name", ["plain", "no bytes", "unigram", "normalised", "no prefix", "user symbols"])
def test_the_rewritten_model_encodes_as_the_original(spm_bytes, spm_variants, name):
    data = {"plain": spm_bytes, **spm_variants}[name]
    original, ours = load(data), load(read_model(data, "tokenizer.model").serialize())
    assert ours.get_piece_size() == original.get_piece_size()
    for i in range(original.get_piece_size()):
        assert (ours.id_to_piece(i), ours.get_score(i)) == (original.id_to_piece(i), original.get_score(i))
    assert (ours.unk_id(), ours.bos_id(), ours.eos_id()) == (original.unk_id(), original.bos_id(), original.eos_id())
    for text in TEXTS:
        ids = original.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == original.decode(ids)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "has no pieces"),
        (b"\x0a", "a number has no end"),
        (b"\x0a\xff", "a number has no end"),
        (b"\x0a" + b"\xff" * 10 + b"\x01", "more than 64 bits"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "more than 64 bits"),
        (b"\x0a\x7f", "ends 127 bytes after"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "ends .* bytes after"),
        (b"\x0b", "wire type 3"),
        (b"\x02\x00", "field has number 0"),
        (b"\x08\x01", "wrong wire type"),
        (b"\x15\0\0", "after the end of its message"),
        (field(1, b""), "has no text"),
        (UNK + piece(b"\xff"), "not valid UTF-8"),
        (UNK + piece(b""), "is empty"),
        (UNK + piece(b"a\0"), "holds a NUL"),
        (UNK + piece(b"a" * 5000), "longer than"),
        (UNK + piece(b"a") + piece(b"a"), "appears twice"),
        (UNK + piece(b"a", struct.pack("<f", float("nan"))), "score nan"),
        (UNK + piece(b"a", struct.pack("<f", float("-inf"))), "score -inf"),
        (UNK + piece(b"a", kind=0), "type 0"),
        (UNK + piece(b"a", kind=7), "type 7"),
        (UNK + piece(b"a", kind=(1 << 64) - 1), "types are 1 to 6"),
        (UNK + field(1, field(1, b"a") + field(1, b"b")), "appears twice"),
        (UNK + field(1, field(1, b"a") + field(2, 5)), "wrong wire type"),
        (piece(b"a"), "0 pieces are of type unknown"),
        (UNK + piece(b"u", kind=2), "2 pieces are of type unknown"),
        (UNK + piece(b"<0x41>", kind=6), "1 pieces are bytes"),
        (UNK + piece(b"A", kind=6), "is of type byte but spelled"),
        (UNK + field(2, b"") + field(2, b""), "appears twice"),
        (UNK + field(2, field(3, 9)), "it must be 1 to 4"),
        (UNK + field(2, varint(35 << 3) + b"\x01"), "byte_fallback is True, but 0"),
        (UNK + field(3, field(2, b"abc")), "precompiled_charsmap"),
    ],
)
def test_what_is_wrong_is_said(data, problem):
    with pytest.raises(ModelFormatError, match=problem) as caught:
        read_model(data, "tokenizer.model")
    assert str(caught.value).startswith("tokenizer.model: ")


def test_offsets_point_at_the_piece():
    with pytest.raises(ModelFormatError) as caught:
        read_model(UNK + piece(b"a") + piece(b"a"), "m")
    assert caught.value.offset == len(UNK) + len(piece(b"a"))


def test_the_number_of_pieces_is_limited(monkeypatch):
    monkeypatch.setattr(sentencepiece_model, "MAX_PIECES", 2)
    assert len(read_model(UNK + piece(b"a"), "m").pieces) == 2
    with pytest.raises(ModelFormatError, match="more than 2 pieces"):
        read_model(UNK + piece(b"a") + piece(b"b"), "m")


@pytest.mark.parametrize("kind", [3, 4])
def test_models_of_words_and_characters_are_not_supported(kind):
    with pytest.raises(UnsupportedModelError, match="known are BPE and unigram"):
        read_model(UNK + field(2, field(3, kind)), "m")


def test_a_model_that_rewrites_on_decoding_is_not_supported():
    with pytest.raises(UnsupportedModelError, match="on decoding"):
        read_model(UNK + field(2, field(3, 2)) + field(5, field(2, b"abcd")), "m")


def charsmap(units: list[int], texts: bytes = b"x\0") -> bytes:
    return struct.pack("<I", 4 * len(units)) + np.array(units, "<u4").tobytes() + texts


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\0\0ab",
        struct.pack("<I", 8) + b"\0" * 8,
        struct.pack("<I", 7) + b"\0" * 20,
        charsmap([0] * 256, b"x"),
        charsmap([0] * 255),
        charsmap([256 << 10] + [0] * 255),
        # A child that leads beyond the end, and a leaf whose text is outside.
        charsmap([0] * 65 + [(1 << 20) << 10 | 65] + [0] * 190),
        charsmap([0] * 64 + [1 << 31 | 99, 1 << 10 | 1 << 8 | 65] + [0] * 190),
    ],
)
def test_a_charsmap_that_leads_outside_is_refused(bad):
    model = SentencePieceModel([Piece("<unk>", 0.0, 2), Piece("a", 0.0, 1)], precompiled_charsmap=bad)
    with pytest.raises(ModelFormatError, match="precompiled_charsmap"):
        read_model(model.serialize(), "m")


def test_a_charsmap_with_a_cycle_is_read_in_bounded_time():
    """Every letter leads back to the root."""
    data = charsmap(list(range(256)))
    model = SentencePieceModel([Piece("<unk>", 0.0, 2), Piece("a", 0.0, 1)], precompiled_charsmap=data)
    assert read_model(model.serialize(), "m").precompiled_charsmap == data
