"""GGUF files made by hand, with the offset of every field, so that a test can break exactly one of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACK = {
    U8: "<B",
    I8: "<b",
    U16: "<H",
    I16: "<h",
    U32: "<I",
    I32: "<i",
    F32: "<f",
    BOOL: "<?",
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}

Entry = tuple[str, int, Any]
"""Key, type, value; for arrays the value is (element type, sequence)."""
Tensor = tuple[str, Sequence[int], int, bytes]
"""Name, dimensions with the fastest first, type, data."""


@dataclass
class GgufBytes:
    """A file's bytes, and where each field starts.

    Fields: ``magic version tensor_count kv_count``; for a key K ``K:key K:type K:value`` and for strings and arrays
    ``K:count K:data``; for a tensor T ``T:name T:n_dims T:dims T:type T:offset T:data``.
    """

    data: bytearray = field(default_factory=bytearray)
    at: dict[str, int] = field(default_factory=dict)

    def patched(self, place: str | int, value: bytes) -> bytes:
        at = self.at[place] if isinstance(place, str) else place
        changed = bytearray(self.data)
        changed[at : at + len(value)] = value
        return bytes(changed)

    def put(self, name: str, value: bytes) -> None:
        self.at[name] = len(self.data)
        self.data += value


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def build(entries: Sequence[Entry], tensors: Sequence[Tensor], *, version: int = 3, alignment: int = 32) -> GgufBytes:
    made = GgufBytes()
    made.put("magic", b"GGUF")
    made.put("version", struct.pack("<I", version))
    made.put("tensor_count", struct.pack("<Q", len(tensors)))
    made.put("kv_count", struct.pack("<Q", len(entries)))
    for key, kind, value in entries:
        made.put(f"{key}:key", text(key))
        made.put(f"{key}:type", struct.pack("<I", kind))
        made.at[f"{key}:value"] = len(made.data)
        if kind == STRING:
            made.put(f"{key}:count", struct.pack("<Q", len(value.encode())))
            made.put(f"{key}:data", value.encode())
        elif kind == ARRAY:
            element, values = value
            made.put(f"{key}:element", struct.pack("<I", element))
            made.put(f"{key}:count", struct.pack("<Q", len(values)))
            made.put(
                f"{key}:data",
                b"".join(text(v) if element == STRING else struct.pack(_PACK[element], v) for v in values),
            )
        else:
            made.data += struct.pack(_PACK[kind], value)
    offset = 0
    for name, dims, kind, data in tensors:
        made.put(f"{name}:name", text(name))
        made.put(f"{name}:n_dims", struct.pack("<I", len(dims)))
        made.put(f"{name}:dims", b"".join(struct.pack("<Q", d) for d in dims))
        made.put(f"{name}:type", struct.pack("<I", kind))
        made.put(f"{name}:offset", struct.pack("<Q", offset))
        offset += -(-len(data) // alignment) * alignment
    for name, _, _, data in tensors:
        made.data += b"\0" * (-len(made.data) % alignment)
        made.put(f"{name}:data", data)
    made.at["end"] = len(made.data)
    return made


_BYTES = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    8: (32, 34),
    2: (32, 18),
    3: (32, 20),
    21: (256, 110),
    22: (256, 82),
    15: (256, 292),
    28: (1, 8),
    41: (128, 18),
    42: (64, 18),
}


def tensor(name: str, dims: Sequence[int], kind: int) -> Tensor:
    """A tensor of small, finite, non-zero values: every byte is 0x2e (0.09 as binary16, 4e-11 as float32)."""
    size = 1
    for dim in dims:
        size *= dim
    block, nbytes = _BYTES[kind]
    return name, dims, kind, b"\x2e" * (size // block * nbytes)


def llama_parts(*, quantised: bool = False) -> tuple[list[Entry], list[Tensor]]:
    """The smallest Llama: one layer, one head of 8. ``quantised``: every tensor type that is read occurs."""
    hidden, vocab = (32, 4) if quantised else (8, 4)
    q4_0, q4_1, q8_0, f16, bf16, f32 = (2, 3, 8, 1, 30, 0) if quantised else (1, 1, 30, 1, 30, 0)
    entries: list[Entry] = [
        ("general.architecture", STRING, "llama"),
        ("llama.block_count", U32, 1),
        ("llama.context_length", U32, 64),
        ("llama.embedding_length", U32, hidden),
        ("llama.feed_forward_length", U32, 8),
        ("llama.attention.head_count", U32, 1),
        ("llama.attention.key_length", U32, 8),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("tokenizer.ggml.model", STRING, "llama"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "a", "é", "</s>"])),
        ("tokenizer.ggml.scores", ARRAY, (F32, [0.0, -1.0, -2.0, 0.0])),
        ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 1, 1, 3])),
        ("tokenizer.ggml.eos_token_id", U32, 3),
    ]
    tensors = [
        tensor("token_embd.weight", (hidden, vocab), q8_0),
        tensor("blk.0.attn_norm.weight", (hidden,), f32),
        tensor("blk.0.attn_q.weight", (hidden, 8), q4_0),
        tensor("blk.0.attn_k.weight", (hidden, 8), q4_1),
        tensor("blk.0.attn_v.weight", (hidden, 8), q8_0),
        tensor("blk.0.attn_output.weight", (8, hidden), f16),
        tensor("blk.0.ffn_norm.weight", (hidden,), f32),
        tensor("blk.0.ffn_gate.weight", (hidden, 8), q4_0),
        tensor("blk.0.ffn_up.weight", (hidden, 8), q4_1),
        tensor("blk.0.ffn_down.weight", (8, hidden), bf16),
        tensor("output_norm.weight", (hidden,), f32),
    ]
    return entries, tensors


def llama_bytes(*, quantised: bool = False) -> GgufBytes:
    return build(*llama_parts(quantised=quantised))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
