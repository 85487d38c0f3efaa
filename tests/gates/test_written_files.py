"""GGUF files of strangers as the source of a new one: an error of ours, or a file that holds the same model."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_save import save_gguf
from ipex_lookahead.engines.gguf_export import export_gguf
from ipex_lookahead.engines.weights import WeightPlan, read_matrix
from ipex_lookahead.errors import InputError, LowBitFormatError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import cases, seed
from tests.gates.test_model_files import DECODED, fast_folder
from tests.support import gguf_attacks
from tests.support.forked import in_children

CASES = cases(600, 9_000)


def same(one: PackedWeight, two: PackedWeight) -> bool:
    return (one.format, one.shape) == (two.format, two.shape) and all(
        a.tobytes() == b.tobytes() for (_, a), (_, b) in zip(one.arrays(), two.arrays(), strict=True)
    )


def write_mixed(checkpoint: GgufCheckpoint, target: Path, chance: random.Random) -> None:
    """Some matrices in formats that nobody chose for them: no types of GGUF's, blocks that do not divide the rows."""
    matrices = [tensor.name for tensor in checkpoint.spec.tensors() if tensor.is_matrix]
    choices = ("sym_int4", "sym_int8", "q4_k", "nf4")
    formats = {name: chance.choice(choices) for name in chance.sample(matrices, chance.randint(1, 2))}

    def weight(tensor: Tensor) -> PackedWeight:
        return read_matrix(checkpoint, tensor, WeightPlan(formats[tensor.name], 32, head=""), threads=1)

    save_gguf(target, checkpoint, formats, weight, progress=lambda done, total: None)


def written(source: Path, target: Path, low_bit: str | None, chance: random.Random) -> str:
    """Write and read again. Returns what happened; raises what must not."""
    try:
        checkpoint = GgufCheckpoint(source)
    except (ModelFormatError, UnsupportedModelError):
        return "refused"
    try:
        if low_bit == "mixed":
            write_mixed(checkpoint, target, chance)
        else:
            export_gguf(checkpoint, target, WeightPlan(low_bit, 32).of_spec(checkpoint.spec), threads=1)
    except (ModelFormatError, LowBitFormatError, InputError):
        assert not target.exists()
        return "refused later"
    else:
        again = GgufCheckpoint(target)
        assert (again.config, again.names()) == (checkpoint.config, checkpoint.names())
        for name in checkpoint.names():
            if low_bit is None:
                assert same(again.read(name), checkpoint.read(name)), name
            else:
                again.read(name)
        again.close()
        return "written"
    finally:
        checkpoint.close()
        assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_a_file_made_of_any_file_holds_its_model(tmp_path: Path) -> None:
    with fast_folder(tmp_path) as folder:
        source, target = folder / "m.gguf", folder / "out.gguf"

        def case(number: int) -> str:
            logging.disable()
            chance = random.Random(f"{seed()} written {number}")
            source.write_bytes(gguf_attacks.attacked(chance, DECODED if number % 8 == 0 else None))
            target.unlink(missing_ok=True)
            low_bit = chance.choice((None, None, "sym_int4", "sym_int8", "q4_k", "asym_int5", "mixed"))
            return written(source, target, low_bit, chance)

        seen = in_children(case, CASES)
    print(dict(seen))
    assert min(seen["written"], seen["refused"]) > CASES // 20, seen
