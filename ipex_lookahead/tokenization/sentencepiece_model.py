"""SentencePiece models: strict reader, checks, and writer.

The sentencepiece package has crashed on malformed models, so it never receives the bytes of a file: a model is read and
checked here, and serialized again. The layout is that of ``sentencepiece_model.proto`` in
https://github.com/google/sentencepiece (protocol buffers, version 2 syntax).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import File
from ipex_lookahead.tokenization.growth import LONGEST_SPELLED, MOST_GROWTH, check_added

MAX_PIECES = 1 << 20
"""Largest vocabulary; known ones have at most 0.9 million tokens."""
MAX_PIECE_BYTES = 4096

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces, as in the proto and in GGUF's ``tokenizer.ggml.token_type``."""

UNIGRAM, BPE = 1, 2
_LARGEST_SCORE = float(np.finfo(np.float32).max)
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")

Fail = Callable[[str, int | None, str], Exception]
"""(field, offset, problem) -> the error to raise."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its index."""

    text: str
    score: float
    type: int


@dataclass(slots=True)
class SentencePieceModel:
    """The fields of a model for encoding and decoding, with the names of the proto."""

    pieces: Sequence[Piece]
    model_type: int = BPE
    byte_fallback: bool = False
    treat_whitespace_as_suffix: bool = False
    special: dict[str, str] = field(default_factory=dict)
    normalizer_name: str = "identity"
    precompiled_charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = False
    escape_whitespaces: bool = True

    def serialize(self) -> bytes:
        """Return the serialized model."""
        trainer = [_varint(3, self.model_type), _varint(24, self.treat_whitespace_as_suffix)]
        trainer += [_varint(35, self.byte_fallback)]
        trainer += [_bytes(number, self.special[name].encode()) for number, name in _SPECIAL if name in self.special]
        normalizer = [
            _bytes(1, self.normalizer_name.encode()),
            _bytes(2, self.precompiled_charsmap),
            _varint(3, self.add_dummy_prefix),
            _varint(4, self.remove_extra_whitespaces),
            _varint(5, self.escape_whitespaces),
        ]
        pieces = (
            _bytes(1, piece.text.encode()) + b"\x15" + struct.pack("<f", piece.score) + _varint(3, piece.type)
            for piece in self.pieces
        )
        body = [_bytes(1, piece) for piece in pieces]
        return b"".join([*body, _bytes(2, b"".join(trainer)), _bytes(3, b"".join(normalizer))])


_SPECIAL = ((44, "unk_surface"), (45, "unk_piece"), (46, "bos_piece"), (47, "eos_piece"), (48, "pad_piece"))


def read_model(data: bytes, file: File) -> SentencePieceModel:
    """Read and check the bytes of a ``tokenizer.model``.

    Raises:
        ModelFormatError: A malformed file; the error has field and byte offset.
        UnsupportedModelError: A model that is neither BPE nor unigram, or that normalizes text on decoding.
    """

    def fail(name: str, offset: int | None, problem: str) -> ModelFormatError:
        return ModelFormatError(file, name, offset, problem)

    pieces: list[Piece] = []
    offsets: list[int] = []
    specs: dict[int, tuple[int, int]] = {}
    for number, value, offset in _fields(data, 0, len(data), "model", fail):
        if number in (2, 3, 5) and number in specs:
            raise fail("model", offset, f"the message in field {number} appears twice")
        if number == 1:
            if len(pieces) == MAX_PIECES:
                raise fail("pieces", offset, f"has more than {MAX_PIECES} pieces")
            pieces.append(_read_piece(data, _span(value, "pieces", offset, fail), fail))
            offsets.append(offset)
        elif number in (2, 3, 5):
            specs[number] = _span(value, "model", offset, fail)
    trainer = _read_spec(data, specs.get(2), _TRAINER, "trainer_spec", fail)
    normalizer = _read_spec(data, specs.get(3), _NORMALIZER, "normalizer_spec", fail)
    if _read_spec(data, specs.get(5), _NORMALIZER, "denormalizer_spec", fail).get("precompiled_charsmap"):
        raise UnsupportedModelError(f"{file}: a SentencePiece model that rewrites text on decoding cannot be used")
    model_type = trainer.get("model_type", UNIGRAM)
    if model_type in (3, 4):
        raise UnsupportedModelError(f"{file}: a SentencePiece model of words or characters; known are BPE and unigram")
    if model_type not in (UNIGRAM, BPE):
        raise fail("trainer_spec.model_type", None, f"is {model_type}; it must be 1 to 4")
    model = SentencePieceModel(
        pieces,
        model_type,
        bool(trainer.get("byte_fallback", False)),
        bool(trainer.get("treat_whitespace_as_suffix", False)),
        {name: trainer[name] for _, name in _SPECIAL if name in trainer},
        normalizer.get("name", ""),
        normalizer.get("precompiled_charsmap", b""),
        bool(normalizer.get("add_dummy_prefix", True)),
        bool(normalizer.get("remove_extra_whitespaces", True)),
        bool(normalizer.get("escape_whitespaces", True)),
    )
    check_model(model, lambda name, index, problem: fail(name, None if index is None else offsets[index], problem))
    return model


def check_model(model: SentencePieceModel, fail: Fail) -> None:
    """Raise ``fail(field, index of a piece or None, problem)`` if the model is inconsistent."""
    if not model.pieces:
        raise fail("pieces", None, "has no pieces")
    seen: set[str] = set()
    unknown: list[int] = []
    bytes_seen: set[str] = set()
    for i, piece in enumerate(model.pieces):
        if not piece.text or "\0" in piece.text or len(piece.text) > MAX_PIECE_BYTES:
            raise fail("piece", i, f"piece {i} is empty, holds a NUL or is longer than {MAX_PIECE_BYTES}")
        if piece.text in seen:
            raise fail("piece", i, f"piece {i}, {piece.text!r}, appears twice")
        seen.add(piece.text)
        if not abs(piece.score) <= _LARGEST_SCORE:
            raise fail("score", i, f"piece {i} has score {piece.score}; scores are finite 32-bit numbers")
        if not NORMAL <= piece.type <= BYTE:
            raise fail("type", i, f"piece {i} has type {piece.type}; types are 1 to 6")
        if piece.type == UNKNOWN:
            unknown.append(i)
        if piece.type == BYTE:
            if not _BYTE_PIECE.fullmatch(piece.text):
                raise fail("piece", i, f"piece {i} is of type byte but spelled {piece.text!r}, not <0x00> to <0xFF>")
            bytes_seen.add(piece.text)
    spelled = [piece.text for piece in model.pieces if piece.type in (CONTROL, USER_DEFINED)]
    check_added(spelled, LONGEST_SPELLED, lambda problem: fail("pieces", None, problem))
    if len(unknown) != 1:
        at = unknown[1] if unknown else None
        raise fail("type", at, f"{len(unknown)} pieces are of type unknown; it must be one")
    if (len(bytes_seen) == 256) != model.byte_fallback or len(bytes_seen) not in (0, 256):
        problem = f"byte_fallback is {model.byte_fallback}, but {len(bytes_seen)} pieces are bytes; it takes all 256"
        raise fail("trainer_spec.byte_fallback", None, problem)
    if any(len(text) > MAX_PIECE_BYTES for text in model.special.values()):
        raise fail("trainer_spec.unk_surface", None, f"is longer than {MAX_PIECE_BYTES}, as no piece may be")
    if model.precompiled_charsmap:
        check_charsmap(model.precompiled_charsmap, fail)


def check_charsmap(data: bytes, fail: Fail) -> None:
    """Check that every step in the double-array trie, and every text it refers to, is inside of the map.

    A text must not be much longer than the text that it replaces.

    The trie's layout is that of Darts-clone (https://github.com/s-yata/darts-clone): 32-bit units of label, leaf flag
    and offset; the child for byte c of a node with base b is unit b ^ c. Lookups do not check bounds.
    """
    name = "normalizer_spec.precompiled_charsmap"
    size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if size == 0 or size % 4 or 4 + size >= len(data):
        raise fail(name, None, f"its trie has {size} bytes by its header, of {len(data)} in all")
    if data[-1] != 0:
        raise fail(name, None, "its last text has no end")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    texts = len(data) - 4 - size
    offset = (units >> 10) << ((units & (1 << 9)) >> 6)
    label = units & ((1 << 31) | 0xFF)
    bases = offset[:1]
    visited = np.zeros(len(units), np.bool_)
    symbols = np.arange(256)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8, texts, 4 + size) == 0)
    depth = 0  # length of the shortest key of a node
    while bases.size:
        depth += 1
        if (bases | 0xFF).max() >= len(units):
            raise fail(name, None, "its trie leads outside itself")
        visited[bases] = True
        children = bases[:, None] ^ symbols
        nodes = children[label[children] == symbols]
        bases = np.unique(nodes ^ offset[nodes])
        if bases.size and bases[-1] >= len(units):
            raise fail(name, None, "its trie leads outside itself")
        leaves = nodes[(units[nodes] >> 8) & 1 == 1]
        values = units[leaves ^ offset[leaves]] & 0x7FFFFFFF
        if values.size:
            if values.max() >= texts:
                raise fail(name, None, "its trie names a text outside the map")
            longest = int((ends[np.searchsorted(ends, values)] - values).max())
            if longest > MOST_GROWTH * depth:
                raise fail(
                    name, None, f"writes {longest} bytes for {depth}; at most {MOST_GROWTH} bytes per byte are allowed"
                )
        bases = bases[~visited[bases]]


def _read_piece(data: bytes, span: tuple[int, int], fail: Fail) -> Piece:
    found = _read_spec(data, span, _PIECE, "piece", fail)
    if "piece" not in found:
        raise fail("piece", span[0], "has no text")
    return Piece(found["piece"], found.get("score", 0.0), found.get("type", NORMAL))


_PIECE = {1: ("piece", str), 2: ("score", float), 3: ("type", int)}
_TRAINER: Mapping[int, tuple[str, type]] = {
    3: ("model_type", int),
    24: ("treat_whitespace_as_suffix", int),
    35: ("byte_fallback", int),
} | {number: (name, str) for number, name in _SPECIAL}
_NORMALIZER = {
    1: ("name", str),
    2: ("precompiled_charsmap", bytes),
    3: ("add_dummy_prefix", int),
    4: ("remove_extra_whitespaces", int),
    5: ("escape_whitespaces", int),
}


def _read_spec(
    data: bytes, span: tuple[int, int] | None, known: Mapping[int, tuple[str, type]], where: str, fail: Fail
) -> dict[str, Any]:
    """Return the known fields of a message; others are dropped."""
    found: dict[str, Any] = {}
    if span is None:
        return found
    for number, value, offset in _fields(data, *span, where, fail):
        if number not in known:
            continue
        name, wanted = known[number]
        if name in found:
            raise fail(f"{where}.{name}", offset, "appears twice")
        found[name] = _convert(data, value, wanted, f"{where}.{name}", offset, fail)
    return found


def _convert(data: bytes, value: Any, wanted: type, name: str, offset: int, fail: Fail) -> Any:
    if wanted is int and isinstance(value, int):
        return value
    if wanted is float and isinstance(value, bytes) and len(value) == 4:
        return struct.unpack("<f", value)[0]
    if wanted in (str, bytes) and isinstance(value, tuple):
        raw = data[value[0] : value[1]]
        try:
            return raw.decode() if wanted is str else raw
        except UnicodeDecodeError:
            raise fail(name, value[0], "is not valid UTF-8") from None
    raise fail(name, offset, "has a wrong wire type")


def _fields(data: bytes, at: int, end: int, where: str, fail: Fail) -> Iterator[tuple[int, Any, int]]:
    """Yield (number, value, offset) of fields; values are int (varint), bytes (fixed size) or (start, end)."""
    while at < end:
        start = at
        tag, at = _read_varint(data, at, end, where, fail)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise fail(where, start, f"a field has number {number}")
        value: Any
        if wire == 0:
            value, at = _read_varint(data, at, end, where, fail)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            size, at = _read_varint(data, at, end, where, fail)
            value, at = (at, at + size), at + size
        else:
            raise fail(where, start, f"a field has wire type {wire}; known are 0, 1, 2 and 5")
        if at > end:
            raise fail(where, start, f"field {number} ends {at - end} bytes after the end of its message")
        yield number, value, start


def _read_varint(data: bytes, at: int, end: int, where: str, fail: Fail) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= end:
            raise fail(where, at, "a number has no end")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at + i + 1
    raise fail(where, at, "a number has more than 64 bits")


def _span(value: Any, where: str, offset: int, fail: Fail) -> tuple[int, int]:
    if not isinstance(value, tuple):
        raise fail(where, offset, "has a wrong wire type")
    return value[0], value[1]


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(number: int, value: int) -> bytes:
    return _encode(number << 3) + _encode(int(value))


def _bytes(number: int, value: bytes) -> bytes:
    return _encode(number << 3 | 2) + _encode(len(value)) + value
