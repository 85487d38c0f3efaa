"""Files of every family that are nearly right: a typed error, or a model that says 8 tokens, within bounds.

As ``test_model_files.py`` for llama, in the words of each family: its keys, its lists of layers, its experts. The cases
are shared out among the family's variants (``tests.support.tiny_families``) and the ways in which their files are kept.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import pytest
from safetensors.torch import save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import family, model_types
from tests.gates import cases, seed
from tests.gates.test_model_files import fast_folder, put, speak
from tests.support import gguf_attacks, json_attacks, safetensors_attacks
from tests.support.family_table import variants
from tests.support.forked import in_children
from tests.support.gguf_bytes import ARRAY, Entry, Tensor, build
from tests.support.gguf_families import write_gguf
from tests.support.mxfp4 import rounded, write_mxfp4_folder
from tests.support.tiny_families import build as build_model
from tests.support.tiny_families import write_folder

CASES = cases(60, 3_000)
MIXTURES = ("mixtral", "qwen3_moe")
"""Families whose experts lie in several ways: gpt-oss' are always in one tensor."""
GGUF = [one for one in model_types() if family(one).GGUF is not None and variants(one)[0].gguf]


def parts_of(file: Path) -> tuple[list[Entry], list[Tensor]]:
    """The entries and tensors of a GGUF file, as the ``gguf`` package reads them."""
    reader = gguf.GGUFReader(file)
    entries: list[Entry] = []
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        value = field.contents()
        array = int(field.types[0]) == ARRAY
        entries.append((key, int(field.types[0]), (int(field.types[-1]), value) if array else value))
    tensors = [(one.name, one.shape.tolist(), int(one.tensor_type), one.data.tobytes()) for one in reader.tensors]
    return entries, tensors


def folders_of(model_type: str, folder: Path) -> list[Path]:
    """Every variant of a family as a folder, in the words of transformers 5 and 4 in turn.

    The last of a mixture's is what the torch engine saves: the first variant with all experts of a layer in one tensor.
    """
    found: list[Path] = []
    for number, variant in enumerate(variants(model_type)):
        model = build_model(model_type, variant)
        found.append(write_folder(folder / str(number), model, old_words=number % 2 == 1))
    if model_type in MIXTURES:
        found.append(Path(shutil.copytree(found[0], folder / "in memory")))
        state = build_model(model_type, variants(model_type)[0]).state_dict()
        save_file(state, found[-1] / "model.safetensors", {"format": "pt"})
    return found


def files_of(model_type: str, file: Path) -> list[tuple[list[Entry], list[Tensor]]]:
    """Every variant of a family that a GGUF file can say, in parts; of a mixture also as files of early 2024 were."""
    sayable = [one for one in variants(model_type) if one.gguf]
    found = [parts_of(write_gguf(file, build_model(model_type, one), quant="Q8_0")) for one in sayable]
    if model_type in MIXTURES:
        found.append((found[0][0], [part for one in found[0][1] for part in apart(one)]))
    return found


def apart(tensor: Tensor) -> list[Tensor]:
    """A tensor of all experts as one for each; another as it is."""
    name, dims, kind, data = tensor
    if "_exps." not in name:
        return [tensor]
    size = len(data) // dims[2]
    return [
        (name.replace("_exps.", f".{at}."), dims[:2], kind, data[at * size : (at + 1) * size]) for at in range(dims[2])
    ]


def in_bounds(
    folder: Path, opened: Path, kind: str, attack: Any, count: int = CASES, *, both: bool = True
) -> Counter[str]:
    """Every case is an error of ours, or a model that speaks; how many were what. ``both``: some must be of each."""
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert speak(opened, through_generate=True, compared=False) == "spoke"

    def case(number: int) -> str:
        logging.disable()
        changed = attack(random.Random(f"{seed()} {kind} {number}"), files)
        for name, data in changed.items():
            put(folder / name, data)
        try:
            return speak(opened, through_generate=number % 8 == 0, compared=False)
        finally:
            for name in changed:
                put(folder / name, files.get(name))

    seen = in_children(case, count)
    assert set(seen) <= {"spoke", "refused", "refused later"}, seen
    assert not both or min(seen["spoke"], seen["refused"]) > 0, seen
    return seen


def config(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    made = json_attacks.config(chance, json.loads(files["config.json"]))
    return {"config.json": json_attacks.text(chance, made)}


def tensors(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}


@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(9)
def test_any_folder_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, model_type: str) -> None:
    with fast_folder(tmp_path) as fast:
        folders = folders_of(model_type, fast)
        for name, attack in (("config", config), ("tensors", tensors)):
            seen: Counter[str] = Counter()
            for folder in folders:
                kind = f"{model_type} {folder.name} {name}"
                seen += in_bounds(folder, folder, kind, attack, -(-CASES // len(folders)), both=False)
            print(model_type, name, dict(seen))
            assert min(seen["spoke"], seen["refused"]) > 0, seen


def scales(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """An exponent that is no number, or makes one that is infinite; or others that do no harm."""
    header, data = safetensors_attacks.split(files["model.safetensors"])
    begin, end = header[chance.choice([name for name in sorted(header) if name.endswith("_scales")])]["data_offsets"]
    at, value = chance.randrange(begin, end), chance.choice((255, 254, 253, 0, 128))
    changed = data[:at] + bytes([value]) + data[at + 1 :]
    return {"model.safetensors": safetensors_attacks.join(json.dumps(header).encode(), changed)}


def test_any_folder_in_mxfp4_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path) -> None:
    """gpt-oss as it is published: experts in blocks and scales, a ``quantization_config`` beside them."""
    write_mxfp4_folder(tmp_path / "base", rounded(build_model("gpt_oss", variants("gpt_oss")[0])))
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))

        def attack(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            if chance.random() < 0.6:
                return tensors(chance, files)
            if chance.random() < 0.5:
                return scales(chance, files)
            made = json.loads(files["config.json"])
            part = made["quantization_config"] if chance.random() < 0.5 else made
            key = chance.choice(sorted(part))
            part[key] = json_attacks.near(chance, part[key])
            return {"config.json": json_attacks.text(chance, made)}

        print("mxfp4", dict(in_bounds(folder, folder, "mxfp4", attack)))


@pytest.mark.parametrize("model_type", GGUF)
@pytest.mark.rotating(7)
def test_any_gguf_file_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, model_type: str) -> None:
    found = files_of(model_type, tmp_path / "m.gguf")
    with fast_folder(tmp_path) as fast:
        seen: Counter[str] = Counter()
        for number, made in enumerate(found):
            folder = fast / str(number)
            folder.mkdir()
            (folder / "m.gguf").write_bytes(build(*made).data)

            def attack(chance: random.Random, files: dict[str, bytes], made: Any = made) -> dict[str, bytes]:
                return {"m.gguf": gguf_attacks.attacked(chance, made)}

            kind = f"{model_type} {number}"
            count = -(-CASES * (2 if model_type in MIXTURES else 1) // len(found))
            seen += in_bounds(folder, folder / "m.gguf", kind, attack, count, both=False)
        print(model_type, dict(seen))
        assert min(seen["spoke"], seen["refused"]) > 0, seen
