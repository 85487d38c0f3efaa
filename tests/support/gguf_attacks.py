"""GGUF files that are nearly right: each change is one that the format has a word for."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from ipex_lookahead.architectures import family, model_types
from ipex_lookahead.architectures.keys import GGUF_GIVEN
from ipex_lookahead.checkpoints.gguf_types import DECODED_TYPES, REPACKED_TYPES
from tests.support import json_attacks
from tests.support.gguf_bytes import (
    _BYTES,
    _PACK,
    ARRAY,
    F32,
    F64,
    I32,
    STRING,
    U16,
    U32,
    U64,
    Entry,
    GgufBytes,
    Tensor,
    build,
    llama_parts,
    tensor,
)
from tests.support.tiny import random_blocks

COUNTS = (
    0,
    1,
    2,
    3,
    5,
    31,
    33,
    2**16,
    2**16 + 1,
    2**24,
    2**31,
    2**32,
    2**40,
    2**40 + 1,
    2**61,
    2**62,
    2**63,
    2**64 - 1,
)
BITS = (
    0,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0x7FC00000,
    1,
    0x00800000,
    0x7BFF7BFF,
    0x7C007C00,
    0x7F7F7F7F,
    0x5F005F00,
)
"""Four bytes that are an extreme value as float32, as two float16 or as two bfloat16."""


def base(chance: random.Random) -> tuple[list[Entry], list[Tensor]]:
    """One of several small Llamas: its types of tensors, tied or not, with biases, with divisors of frequencies."""
    entries, tensors = parts(quantised=chance.random() < 0.6)
    hidden = tensors[0][1][0]
    if chance.random() < 0.3:
        tensors.append(tensor("output.weight", (hidden, 4), chance.choice((0, 1, 30))))
    if chance.random() < 0.2:
        name, rows = chance.choice((("attn_q", 8), ("ffn_gate", 8)))
        names = ("attn_q", "attn_k", "attn_v") if name == "attn_q" else ("ffn_gate", "ffn_up")
        last = "attn_output" if name == "attn_q" else "ffn_down"
        tensors += [tensor(f"blk.0.{each}.bias", (rows,), 0) for each in names]
        tensors.append(tensor(f"blk.0.{last}.bias", (hidden,), 0))
    if chance.random() < 0.2:
        ends = (1.0, 8.0, 1e-6, 1e-45, 3e38) if chance.random() < 0.3 else (1.0, 8.0)
        values = np.array([chance.choice(ends) for _ in range(4)], np.float32)
        tensors.append(("rope_freqs.weight", (4,), 0, values.tobytes()))
    return entries, tensors


def sound() -> bytes:
    """A file without a fault, of every type of tensor that is read."""
    return bytes(build(*parts(quantised=True)).data)


def parts(*, quantised: bool) -> tuple[list[Entry], list[Tensor]]:
    """Entries and tensors of a file without a fault, whose tokenizer can be made too."""
    entries, tensors = llama_parts(quantised=quantised)
    types = "tokenizer.ggml.token_type"  # with an unknown token
    return [(types, ARRAY, (I32, [2, 1, 1, 3])) if entry[0] == types else entry for entry in entries], tensors


def llama_of_256(of: Callable[[str, tuple[int, ...]], tuple[int, bytes]]) -> tuple[list[Entry], list[Tensor]]:
    """Entries and tensors of a file without a fault; ``of`` gives type and data of each matrix with 256 inputs."""
    entries, _ = parts(quantised=False)
    sizes = {"llama.embedding_length": 256, "llama.block_count": 2}
    entries = [(key, kind, sizes.get(key, value)) for key, kind, value in entries]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (256, 4), "output_norm": (256,), "output": (256, 4)}
    for at in ("blk.0.", "blk.1."):
        shapes |= {f"{at}{name}": (256, 8) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")}
        shapes |= {f"{at}{name}": (8, 256) for name in ("attn_output", "ffn_down")}
        shapes |= {f"{at}{name}": (256,) for name in ("attn_norm", "ffn_norm")}
    made: list[Tensor] = []
    for short, dims in shapes.items():
        name = f"{short}.weight"
        made.append(tensor(name, dims, 0) if len(dims) == 1 or dims[0] == 8 else (name, dims, *of(name, dims)))
    return entries, made


def decoded_parts() -> tuple[list[Entry], list[Tensor]]:
    """Entries and tensors of a file without a fault that has every type whose values are decoded."""
    kinds = itertools.cycle(GGMLQuantizationType(number) for number in DECODED_TYPES)

    def of(_: str, dims: tuple[int, ...]) -> tuple[int, bytes]:
        kind = next(kinds)
        return int(kind), random_blocks(dims[::-1], kind).tobytes()

    return llama_of_256(of)


def repacked_parts() -> tuple[list[Entry], list[Tensor]]:
    """As :func:`decoded_parts`, of the types whose codes are put into other blocks."""
    kinds = itertools.cycle(REPACKED_TYPES)

    def of(name: str, dims: tuple[int, ...]) -> tuple[int, bytes]:
        made = tensor(name, dims, next(kinds))
        return made[2], made[3]

    return llama_of_256(of)


SPLIT = ("split.no", "split.count", "split.tensors.count")


def split_parts() -> list[tuple[list[Entry], list[Tensor]]]:
    """A file without a fault as three parts, the first of which has no tensor."""
    entries, tensors = parts(quantised=True)
    tables = ([], tensors[:4], tensors[4:])
    return [
        (
            [*(entries if number == 0 else []), *zip(SPLIT, (U16, U16, I32), (number, 3, len(tensors)), strict=True)],
            table,
        )
        for number, table in enumerate(tables)
    ]


def part_name(number: int) -> str:
    """What the part of that number, from 0, is called."""
    return f"m-{number + 1:05}-of-00003.gguf"


def sound_parts() -> dict[str, bytes]:
    """The files of a model in three parts."""
    return {part_name(number): bytes(build(*part).data) for number, part in enumerate(split_parts())}


def attacked_parts(chance: random.Random) -> dict[str, bytes | None]:
    """Files of a model in three parts: what they say of each other, or one of them changed. None: no such file."""
    made = split_parts()
    at, other, way = chance.randrange(3), chance.randrange(3), chance.random()
    entries, tensors = made[at]
    if way < 0.05:
        return {part_name(at): None}
    if way < 0.1:
        return {part_name(at): bytes(build(*made[other]).data)}
    if way < 0.15:
        return {chance.choice(("m.gguf", "m-00004-of-00003.gguf", "n-00001-of-00002.gguf")): sound()}
    if way < 0.4:
        key = chance.choice(SPLIT)
        kind = chance.choice((U16, U16, U32, I32, U64, F32))
        old = next(value for name, _, value in entries if name == key)
        _put(entries, key, kind, _fitting(kind, json_attacks.near(chance, old)))
    elif way < 0.55:  # what the first part says, said again: as it is, or otherwise
        key, kind, value = chance.choice(made[0][0])
        if kind not in (STRING, ARRAY) and chance.random() < 0.5:
            value = _fitting(kind, json_attacks.near(chance, value))
        _put(entries, key, kind, value)
    elif way < 0.7 and made[2][1]:  # tensors elsewhere, or in two parts
        moved = chance.choice(made[2][1])
        made[other][1].append(moved)
        if chance.random() < 0.7:
            made[2][1].remove(moved)
        return {part_name(number): bytes(build(*part).data) for number, part in enumerate(made)}
    elif way < 0.85 and tensors:
        _change_tensors(chance, tensors)
    else:
        _change_entries(chance, entries)
    file = build(entries, tensors, version=chance.choice((3, 3, 3, 2)))
    return {part_name(at): _change_bytes(chance, file) if chance.random() < 0.2 else bytes(file.data)}


def keys_of(architecture: str) -> list[str]:
    """The keys that an architecture has a word for, less their prefix."""
    found = {*GGUF_GIVEN}
    for keys in (family(one).GGUF for one in model_types()):
        if keys is not None and architecture in keys.architectures:
            found |= {*keys.used.values(), *keys.all_neutral(), *keys.all_refused()}
    return sorted(found)


def attacked(chance: random.Random, made: tuple[list[Entry], list[Tensor]] | None = None) -> bytes:
    """The bytes of a file, a small Llama or that of the entries and tensors given, with one to three changes."""
    entries, tensors = base(chance) if made is None else (list(made[0]), list(made[1]))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        if chance.random() < 0.5:
            _change_entries(chance, entries)
        else:
            _change_tensors(chance, tensors)
    alignment = chance.choice((32, 32, 32, 32, 8, 64))
    if alignment != 32 and chance.random() < 0.8:
        entries.append(("general.alignment", U32, alignment))
    file = build(entries, tensors, version=chance.choice((3, 3, 3, 2)), alignment=alignment)
    return _change_bytes(chance, file) if chance.random() < 0.35 else bytes(file.data)


def _change_entries(chance: random.Random, entries: list[Entry]) -> None:
    architecture = next((value for key, _, value in entries if key == "general.architecture"), "llama")
    prefix = architecture if isinstance(architecture, str) else "llama"
    keys = keys_of(prefix)
    at, way = chance.randrange(len(entries)), chance.random()
    key, kind, old = entries[at]
    if way < 0.3:
        entries[at] = key, kind, _near(chance, kind, old)
    elif way < 0.4:  # another type
        kind = chance.choice(sorted(_PACK))
        entries[at] = key, kind, _fitting(kind, old if isinstance(old, int | float) else chance.choice(COUNTS))
    elif way < 0.55:  # arrays where a value belongs, one a layer perhaps
        element = chance.choice((U32, F32, U64, F64, STRING))
        values = [str(i) if element == STRING else _fitting(element, 1) for i in range(chance.choice((0, 1, 2, 5000)))]
        entries[at] = key, ARRAY, (element, values)
    elif way < 0.6:
        del entries[at]
    elif way < 0.65:
        entries.append(entries[at])
    elif way < 0.85:  # numbers in pairs that have to do with each other
        if chance.random() < 0.7:
            _put(entries, f"{prefix}.rope.scaling.type", STRING, chance.choice(("yarn", "yarn", "linear", "none", "x")))
            _put(entries, f"{prefix}.rope.scaling.factor", F32, chance.choice((4.0, 4.0, 4.0, 1e-45, 3e38, 1.0)))
        for name in chance.sample([key for key in keys if key.startswith("rope.")], chance.randint(1, 3)):
            kind = chance.choice((F32, F32, F64, U32))
            _put(entries, f"{prefix}.{name}", kind, _fitting(kind, json_attacks.number(chance)))
    else:
        kind = chance.choice((F32, U32, U64, F64))
        _put(entries, f"{prefix}.{chance.choice(keys)}", kind, _fitting(kind, json_attacks.number(chance)))


def _put(entries: list[Entry], key: str, kind: int, value: Any) -> None:
    """The key once, with that value."""
    entries[:] = [entry for entry in entries if entry[0] != key]
    entries.append((key, kind, value))


def _near(chance: random.Random, kind: int, old: Any) -> Any:
    if kind == STRING:
        return chance.choice(("", "x", "gpt2", "llama", "\0", "é" * 100, old.upper()))
    if kind == ARRAY:
        element, values = old
        values = list(values)
        if chance.random() < 0.5 and values:
            values[chance.randrange(len(values))] = (
                chance.choice(("", "a", "x" * 5000, "\0"))
                if element == STRING
                else _fitting(element, json_attacks.number(chance))
            )
            return element, values
        return element, values[:-1] if chance.random() < 0.5 else values * 2
    return _fitting(kind, json_attacks.near(chance, old))


def _fitting(kind: int, value: Any) -> Any:
    """A number as one that the type can hold."""
    value = value if isinstance(value, int | float) else 0
    if kind == F64:
        return float(value)
    if kind == F32:
        with np.errstate(over="ignore"):
            return float(np.float32(value))
    bits = {"B": 8, "b": 8, "H": 16, "h": 16, "I": 32, "i": 32, "Q": 64, "q": 64, "?": 1}[_PACK[kind][1]]
    signed = _PACK[kind][1].islower()
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return max(low, min(int(max(-1e30, min(value, 1e30))), high))


def _change_tensors(chance: random.Random, tensors: list[Tensor]) -> None:
    at, way = chance.randrange(len(tensors)), chance.random()
    name, dims, kind, data = tensors[at]
    other = chance.choice(tensors)
    if way < 0.12:
        del tensors[at]
    elif way < 0.2:
        tensors[at] = (
            chance.choice((other[0], name + "x", "", name[:-7], "blk.1.attn_q.weight", "é\0")),
            dims,
            kind,
            data,
        )
    elif way < 0.28:
        tensors.append(chance.choice((tensors[at], (name + "2", dims, kind, data), tensor("x", (4,), 0))))
    elif way < 0.4:
        shape = chance.choice((tuple(dims)[::-1], other[1], (*dims, 1), (1, *dims)))
        tensors[at] = tensor(name, shape, 0) if math.prod(shape) < 1 << 16 else (name, shape, 0, data)
    elif way < 0.5:  # dimensions whose product overflows, or is the same by another road
        size = math.prod(dims) % 2**64
        odd = chance.choice(((size,), (1, size), (size, 1), (2**32, 2**32), (2**63, 2), (0, 4), (2**40, 2**40, 2**40)))
        tensors[at] = name, odd, kind, data
    elif way < 0.62:
        kind = chance.choice((*_BYTES, 6, 24, 28, 31, 99))
        sound = (
            math.prod(dims) < 1 << 16 and kind in _BYTES and dims[0] % _BYTES[kind][0] == 0 and chance.random() < 0.7
        )
        tensors[at] = tensor(name, dims, kind) if sound else (name, dims, kind, data)
    elif way < 0.7:
        tensors[at] = name, dims, kind, data[: chance.randrange(len(data) + 1)] if chance.random() < 0.5 else data * 2
    elif way < 0.75:
        chance.shuffle(tensors)
    else:
        tensors[at] = name, dims, kind, extreme(chance, data)


def extreme(chance: random.Random, data: bytes) -> bytes:
    """The data with an extreme value in one place, or in all."""
    value = struct.pack("<I", chance.choice(BITS))
    if chance.random() < 0.3:
        return (value * (len(data) // 4 + 1))[: len(data)]
    at = chance.randrange(max(1, len(data) - 3)) & ~3
    return data[:at] + value[: len(data) - at] + data[at + 4 :]


def _change_bytes(chance: random.Random, made: GgufBytes) -> bytes:
    """A count, a length, an offset or a type replaced in place, or the file made longer or shorter."""
    data = bytearray(made.data)
    way = chance.random()
    if way < 0.1:
        return bytes(data[: chance.randrange(len(data))])
    if way < 0.2:
        return bytes(data) + b"\0" * chance.choice((1, 31, 32, 5000))
    place = chance.choice(sorted(made.at))
    at, what = made.at[place], place.rpartition(":")[2]
    if what == "offset":  # aliases, overlaps and holes
        (old,) = struct.unpack_from("<Q", data, at)
        offsets = [struct.unpack_from("<Q", data, made.at[p])[0] for p in made.at if p.endswith(":offset")]
        new = chance.choice((old + 32, max(old, 32) - 32, old + 1, chance.choice(offsets), *COUNTS[-6:]))
        struct.pack_into("<Q", data, at, new)
    elif what in ("type", "element", "n_dims", "version"):
        struct.pack_into("<I", data, at, chance.choice((*range(14), 31, 99, 2**31, 2**32 - 1)))
    elif what != "end":
        data[at : at + 8] = struct.pack("<Q", chance.choice(COUNTS))
    return bytes(data)
