"""Quantised folders of other programs that are nearly right: a typed error, or a model that says 8 tokens.

As ``test_model_files.py``: settings, sizes, tensors, and the numbers in those that are no weights (orders, zero points,
JSON).
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from tests.gates import cases
from tests.gates.test_family_files import config, in_bounds, tensors
from tests.gates.test_model_files import fast_folder
from tests.support import json_attacks, safetensors_attacks
from tests.support.quantized_float_folders import compressed_fp8, fp8, mxfp4, nvfp4
from tests.support.quantized_folders import BF16, Kind, awq, bnb4, bnb8, compressed, gptq, write_quantized

TINY = {"vocab": 96, "hidden": 64, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 64, "context": 64}
KINDS = [
    gptq(4, 32, True), gptq(8, 32, False, ordered="shared"), gptq(4, 32, True, ordered="apart"), awq(32),
    compressed(4, "group", 32, False, ordered="shared"),
    compressed(8, "channel", -1, False, packed=False), bnb4("nf4", nested=True), bnb4("fp4"), bnb8(),
    gptq(4, 32, False, version=2), gptq(4, 16, False, format="fp32"), gptq(4, 64, True, scale_dtype=BF16),
    awq(64, old_names=True), compressed(4, "group", 64, False, packed_zeros=False),
    compressed(4, "group", 64, True, scale_dtype=np.float32, format="fp32"),
    compressed(8, "channel", -1, True, packed=False, dynamic=True), compressed(8, "tensor", -1, True, packed=False),
    bnb4("nf4", blocksize=128, format="fp32"),
    gptq(2, 32, False), gptq(3, 32, True), gptq(3, 32, False, ordered="shared"), awq(32, layout="gemv"),
    awq(64, layout="gemv_fast"), fp8(32, 64), fp8(-1, -1, static=True, name="weight_scale"),
    fp8(16, 32, dtype="exponents"), fp8(16, 16), compressed_fp8("channel"),
    compressed_fp8("block", rows=32, columns=64), nvfp4(), mxfp4(),
]  # fmt: skip
CASES = cases(30, 1_200)
Files = dict[str, bytes]


def settings(chance: random.Random, files: Files) -> Files:
    """A key of the settings, however deep, dropped, doubled under another name, or given another value."""
    config = json.loads(files["config.json"])
    for _ in range(chance.choice((1, 1, 2))):
        place: Any = config["quantization_config"]
        while chance.random() < 0.7 and (inner := [one for one in place.values() if isinstance(one, dict) and one]):
            place = chance.choice(inner)
        key, way = chance.choice(sorted(place)), chance.random()
        if way < 0.2:
            del place[key]
        elif way < 0.3:
            place[chance.choice((key + "s", "x", ""))] = place[key]
        elif way < 0.6:
            place[key] = chance.choice((4, 8, 32, 64, -1, 0, True, False, None, "gptq_v2", {}, []))
        else:
            place[key] = json_attacks.near(chance, place[key])
        if not place or not config["quantization_config"]:
            break
    return {"config.json": json_attacks.text(chance, config)}


def numbers(chance: random.Random, files: Files) -> Files:
    """A few bytes of one tensor: groups out of range, scales that are no numbers, other zero points, broken JSON."""
    header, data = safetensors_attacks.split(files["model.safetensors"])
    changed = bytearray(data)
    name = chance.choice([name for name in sorted(header) if "_proj." in name])
    begin, end = header[name]["data_offsets"]
    for _ in range(chance.choice((1, 2, 8))):
        size = chance.choice((1, 2, 4))
        at = begin + chance.randrange(max(1, (end - begin) // size)) * size
        value = chance.choice((0, 0xFF, 0x7F, 0x80, chance.randrange(256)))
        changed[at : at + size] = (bytes([value]) * size)[: end - at]
    return {"model.safetensors": safetensors_attacks.join(json.dumps(header).encode(), bytes(changed))}


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
@pytest.mark.rotating(6)
def test_any_quantised_folder_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, kind: Kind) -> None:
    write_quantized(tmp_path / "base", kind, **TINY)
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))
        for attack in (settings, config, tensors, numbers):
            seen = in_bounds(folder, folder, f"{kind.name} {attack.__name__}", attack, CASES, both=attack is numbers)
            print(kind.name, attack.__name__, dict(seen))
