"""Folders of ipex-llm's in every format that it saves, and its pickles in parts: a typed error, or a model that speaks.

As ``test_model_files.py``, which has one format and one pickle: numbers in blocks of each kind, indexes of pickles.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.checkpoints.ipex_llm_convert import PICKLE_INDEX, convert_ipex_llm
from ipex_lookahead.errors import InputError
from tests.gates import cases, seed
from tests.gates.test_model_files import converted, fast_folder, put, speak
from tests.support import json_attacks, safetensors_attacks
from tests.support.forked import in_children
from tests.support.ipex_llm_folder import SIZES, write_ipex_llm

TINY = {"vocab": 96, "layers": 1, "heads": 4, "kv_heads": 2, "context": 64}
CASES = cases(40, 2_000)
PARTS = cases(120, 6_000)
NAMES = {**{name: name for name in SIZES}, "mixed_fp4": "sym_int4"}
"""What the folder calls its format -> its blocks."""
Files = dict[str, bytes]


def numbers(chance: random.Random, files: Files) -> Files:
    """Some numbers of one matrix: scales that are no numbers or too large, codes and steps that no format has."""
    header, data = safetensors_attacks.split(files["model.safetensors"])
    changed = bytearray(data)
    begin, end = header[chance.choice([name for name in sorted(header) if "_proj." in name])]["data_offsets"]
    size = chance.choice((1, 2, 4))
    step = chance.choice((1, 34, 68))  # a scale here and there, or one block after the other
    at = begin + chance.randrange((end - begin) // size) * size
    for _ in range(chance.choice((1, 1, 2, 100))):
        value = chance.choice((b"\0", b"\xff", b"\x7f", b"\x3f", b"\x80", bytes([chance.randrange(256)])))
        changed[at : at + size] = (value * size)[: max(0, end - at)]
        at = min(at + step, end)
    return {"model.safetensors": safetensors_attacks.join(json.dumps(header).encode(), bytes(changed))}


def tensors(chance: random.Random, files: Files) -> Files:
    """Header and data of the file of tensors."""
    return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.rotating(4)
def test_any_folder_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, name: str) -> None:
    width = SIZES[NAMES[name]][0]
    write_ipex_llm(tmp_path / "theirs", NAMES[name], saved_as=name, hidden=width, intermediate=width, **TINY)
    convert_ipex_llm(tmp_path / "theirs", tmp_path / "base")
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))
        sound = (folder / "model.safetensors").read_bytes()
        assert speak(folder, through_generate=True, compared=False) == "spoke"

        def case(number: int) -> str:
            logging.disable()
            chance = random.Random(f"{seed()} {name} {number}")
            changed = (numbers if number % 4 else tensors)(chance, {"model.safetensors": sound})
            put(folder / "model.safetensors", changed["model.safetensors"])
            return speak(folder, through_generate=number % 8 == 0, compared=False)

        seen = in_children(case, CASES)
    print(name, dict(seen))
    assert set(seen) <= {"spoke", "refused", "refused later"}, seen
    assert min(seen["spoke"], seen["refused"]) > 0, seen


def parts(chance: random.Random, files: Files) -> dict[str, bytes | None]:
    """The index nearly right, or parts that are missing, the same, or not where it says."""
    index = json.loads(files[PICKLE_INDEX])
    places, shards = index["weight_map"], sorted(name for name in files if name.endswith(".bin"))
    tensor, other, way = chance.choice(sorted(places)), chance.choice(shards), chance.random()
    if way < 0.1:
        return {chance.choice([*shards, PICKLE_INDEX]): None}
    if way < 0.25:
        return {chance.choice(shards): files[other]}
    if way < 0.35:
        return {PICKLE_INDEX: json.dumps(json_attacks.near(chance, index)).encode()}
    if way < 0.5:
        index["weight_map"] = chance.choice(({}, [], None, 3, dict.fromkeys(places, other)))
    elif way < 0.6:
        del places[tensor]
    elif way < 0.7:
        places |= {f"x.{n}": f"pytorch_model-{n:05}-of-99999.bin" for n in range(chance.choice((1, 300, 20_000)))}
    else:
        names = (other, "../x.bin", "/dev/zero", "pytorch_model-1-of-2.bin", "model.safetensors", "x", "", 3, None, [])
        places[chance.choice((tensor, "x", "__metadata__"))] = chance.choice(names)
    return {PICKLE_INDEX: json_attacks.text(chance, index)}


def test_any_parts_of_a_pickle_are_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path) -> None:
    write_ipex_llm(tmp_path / "base", "sym_int4", shards=3, settings=True, hidden=64, intermediate=64, **TINY)
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert converted(folder, through_generate=True, compared=False) == "spoke"

        def case(number: int) -> str:
            logging.disable()
            changed = parts(random.Random(f"{seed()} parts {number}"), files)
            for name, data in changed.items():
                put(folder / name, data)
            try:
                return converted(folder, through_generate=number % 8 == 0, compared=False)
            except InputError:  # without its index it is no folder to convert
                return "refused"
            finally:
                for name in changed:
                    put(folder / name, files[name])

        seen = in_children(case, PARTS)
    print("parts", dict(seen))
    assert set(seen) <= {"spoke", "refused", "refused later"}, seen
    assert min(seen["spoke"], seen["refused"]) > PARTS // 20, seen
