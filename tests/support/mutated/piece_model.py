"""``tokenizer.model``, mutated as the protocol buffer that it is."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from ipex_lookahead.tokenization.sentencepiece_model import read_model
from tests.support.mutated.settings import setting
from tests.support.mutated.sound import Case, pieces

Fields = list[tuple[int, int, Any]]
RAW = 32
"""In place of a wire type: text (2) that brings a length of its own."""


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _written(fields: Fields) -> bytes:
    """A message of (number, wire type, value): an int, bytes, or fields of a message inside."""
    out = []
    for number, wire, value in fields:
        body = _written(value) if isinstance(value, list) else value
        packed = _number(body) if isinstance(body, int) else _number(len(body)) + body if wire == 2 else body
        out.append(_number(number << 3 | (2 if wire == RAW else wire)) + packed)
    return b"".join(out)


def _message(chance: random.Random) -> Fields:
    """A sound model as fields."""
    model = read_model(pieces(chance.choice(["bpe", "bpe", "unigram", "rules"])), "sound")
    body: Fields = [
        (1, 2, [(1, 2, p.text.encode()), (2, 5, struct.pack("<f", p.score)), (3, 0, p.type)]) for p in model.pieces
    ]
    body.append((2, 2, [(3, 0, model.model_type), (35, 0, int(model.byte_fallback))]))
    flags = [(3, 0, 1), (4, 0, chance.randrange(2)), (5, 0, 1)]
    body.append((3, 2, [(1, 2, b"identity"), (2, 2, model.precompiled_charsmap), *flags]))
    return body


_FLOATS = (0.0, -0.0, -1.0, 3e38, -3e38, 1e-45, float("nan"), float("inf"), float("-inf"))
_BYTES = (b"", b"a", b"\0", b"\xff", b"cat", b"<0x41>", b"<0xZZ>", "▁".encode(), b"x" * 300, b"x" * 4097, b"x" * 10**5)
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 127, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 2**64, 2**80)


def _field(body: Fields, chance: random.Random) -> str:
    at = chance.choice([chance.randrange(len(body)), len(body) - 1, len(body) - 2])
    number, wire, value = body[at]
    if not isinstance(value, list) or not value:
        return "nothing"
    inner = chance.randrange(len(value))
    name, kind, old = value[inner]
    deed = chance.choice(["value", "value", "value", "drop", "twice", "wire", "foreign", "size"])
    if deed == "value" and (name, number) == (2, 3) and old:
        new = charsmap_changed(old, chance)
    elif deed == "value":
        floats = struct.pack("<f", chance.choice(_FLOATS))
        new = chance.choice(_NUMBERS) if kind == 0 else floats if kind == 5 else chance.choice(_BYTES)
    else:
        new = old
    value[inner] = (name, kind, new)
    if deed == "drop":
        del value[inner]
    elif deed == "twice":
        value.append(value[inner])
    elif deed == "wire":
        value[inner] = (name, chance.choice([0, 1, 2, 3, 4, 5, 6, 7]), b"\1" * chance.choice([0, 1, 4, 8]))
    elif deed == "foreign":
        number_of_it = chance.choice([44, 45, 48, 9, 99, 2**28, 2**29])
        value.append((number_of_it, chance.choice([0, 2]), chance.choice([1, b"x" * 5000])))
        if isinstance(value[-1][2], int) != (value[-1][1] == 0):
            value[-1] = (value[-1][0], 2, b"x" * chance.choice([1, 5000]))
    elif deed == "size":
        wrong = max(0, len(_written(value)) + chance.choice([-1, 1, 100, 2**40, 2**62]))
        body[at] = (number, RAW, _number(wrong) + _written(value))
    return f"{deed} of field {number}.{name}, message {at}"


def charsmap_changed(old: bytes, chance: random.Random) -> bytes:
    """A charsmap with units, sizes or texts changed."""
    data = bytearray(old)
    deed = chance.randrange(4) if len(data) >= 8 else 2
    if deed == 0:
        struct.pack_into("<I", data, 4 * chance.randrange(1, len(data) // 4), chance.getrandbits(32))
    elif deed == 1:
        struct.pack_into("<I", data, 0, chance.choice([0, 1, 4, 2044, 2048, 2052, 2**31, 2**32 - 1]))
    elif deed == 2:
        return bytes(data[:-1]) + b"b" * chance.choice([1, 10, 14, 15, 100, 10**6]) + b"\0"
    else:
        return bytes(data[: chance.randrange(len(data))])
    return bytes(data)


def _pieces(body: Fields, chance: random.Random) -> str:
    deed = chance.choice(["copy", "drop", "swap", "ladder", "type", "spelled"])
    at, other = chance.randrange(len(body) - 2), chance.randrange(len(body) - 2)
    if deed == "copy":
        body.insert(at, body[other])
    elif deed == "drop":
        del body[at]
    elif deed == "swap":
        body[at], body[other] = body[other], body[at]
    elif deed == "type":
        body[at][2][2] = (3, 0, chance.randrange(9))
    else:
        most = chance.choice([10, 200])
        kind, end = chance.choice([1, 5]), "z" if deed == "spelled" else ""
        for n in range(2, most):
            piece: Fields = [
                (1, 2, ("a" * n + end).encode()),
                (2, 5, struct.pack("<f", -n)),
                (3, 0, 4 if end else kind),
            ]
            body.insert(-2, (1, 2, piece))
    return f"pieces: {deed}"


def tokenizer_model(case: Case, chance: random.Random) -> None:
    body = _message(chance)
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        case.done.append(chance.choice([_field, _field, _pieces])(body, chance))
    data = _written(body)
    if chance.random() < 0.15:
        at = chance.randrange(len(data))
        hurt = chance.choice(
            [data[:at], data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :], data + b"\xff" * 11]
        )
        data, _ = hurt, case.done.append(f"bytes at {at}")
    case.files["tokenizer.model"] = data
    if chance.random() < 0.3:
        settings: dict[str, Any] = {"added_tokens_decoder": {"0": {"content": "<unk>"}}}
        case.done.append(setting(settings, chance))
        case.files["tokenizer_config.json"] = json.dumps(settings).encode("utf-8", "surrogatepass")
