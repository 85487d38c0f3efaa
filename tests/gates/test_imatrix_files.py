"""Importance matrices that are nearly right: a typed error, or means that are numbers, within bounds.

What is read is put to a model, and now and then written and read again.
"""

from __future__ import annotations

import logging
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints.imatrix import read_imatrix, write_imatrix
from ipex_lookahead.errors import ModelFormatError
from tests.gates import cases, seed
from tests.support import gguf_attacks
from tests.support.forked import in_children
from tests.support.gguf_bytes import GgufBytes
from tests.support.imatrix_bytes import ENTRIES, older_kind, tensors_of
from tests.support.tiny import TinyLlama

VALUES = {"blk.0.ffn_down.weight": ([0.5 * i for i in range(12)], 7), "blk.0.attn_q.weight": ([1.0] * 8, 7)}
CASES = cases(600, 20_000)
NUMBERS = (0, 1, 2, 3, -1, 7, 255, 2**16, 2**24, 2**30, 2**31 - 1, -(2**31))
REALS = (0.0, -0.0, -1.0, 1e-45, 3.4e38, float("nan"), float("inf"), float("-inf"))


def gguf(chance: random.Random) -> bytes:
    return gguf_attacks.attacked(chance, (ENTRIES, tensors_of(VALUES, chance.choice((1, 2, 4)))))


def older(chance: random.Random) -> bytes:
    """A field with another value, a cut, a byte more, records doubled: one to three of them."""
    made = older_kind(VALUES, chance.choice(("a.txt", "", None)))
    for _ in range(chance.choice((1, 1, 2, 3))):
        way, field = chance.random(), chance.choice(sorted(made.at))
        if way < 0.5:
            value = struct.pack("<i", chance.choice(NUMBERS))
            if field.endswith((":data", ":name", "text")) and chance.random() < 0.7:
                value = struct.pack("<f", chance.choice(REALS))
            made = GgufBytes(bytearray(made.patched(field, value)), made.at)
        elif way < 0.7:
            made.data[chance.randrange(len(made.data))] ^= 1 << chance.randrange(8)
        elif way < 0.85:
            del made.data[chance.randrange(1, len(made.data)) :]
            made.data += bytes(16)
        else:
            made.data += made.data[made.at[field] :][: chance.choice((1, 4, 100))]
    return bytes(made.data)


SPEC = spec_for(
    TinyLlama(vocab=16, hidden=8, layers=1, heads=1, kv_heads=1, intermediate=12, context=64).config("float32")
)
"""A model whose matrices the entries are of."""


def outcome(path: Path, *, again: bool) -> str:
    try:
        found = read_imatrix(path)
        missing = found.missing([tensor for tensor in SPEC.tensors() if len(tensor.shape) == 2], SPEC)
    except ModelFormatError as error:
        return "refused" if error.field and str(path) in error.file else f"an error that names nothing: {error}"
    for means in found.means.values():
        assert means.dtype == np.float32
        assert means.ndim == 1
        assert len(means) > 0
        assert (np.isfinite(means) & (means >= 0)).all()
    assert missing
    if again:
        sums = {name: means.astype(np.float64) for name, means in found.means.items()}
        write_imatrix(path, sums, dict.fromkeys(sums, 1.0), dataset="a", chunks=1, chunk=8)
        assert {name: means.tobytes() for name, means in read_imatrix(path).means.items()} == {
            name: means.tobytes() for name, means in found.means.items()
        }
    return "read"


@pytest.mark.parametrize("attack", [gguf, older])
def test_any_file_is_an_error_of_ours_or_an_importance_matrix(tmp_path, attack):
    path = tmp_path / "x"

    def case(number: int) -> str:
        logging.disable()
        path.write_bytes(attack(random.Random(f"{seed()} imatrix {attack.__name__} {number}")))
        return outcome(path, again=number % 10 == 0)

    seen = in_children(case, CASES)
    print(attack.__name__, dict(seen))
    assert set(seen) == {"read", "refused"}, seen
    assert min(seen.values()) > CASES // 20, seen
