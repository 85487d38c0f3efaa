"""Files of every family that are nearly right: a typed error, or a model that says 8 tokens, within bounds.

As ``test_model_files.py`` for llama, in the words of each family: its keys, its lists of layers, its experts.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import Counter
from pathlib import Path

import gguf
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import family, model_types
from tests.gates import cases, seed
from tests.gates.test_model_files import fast_folder, put, speak
from tests.support import gguf_attacks, json_attacks, safetensors_attacks
from tests.support.forked import in_children
from tests.support.gguf_bytes import ARRAY, Entry, Tensor, build
from tests.support.gguf_families import write_gguf
from tests.support.mxfp4 import rounded, write_mxfp4_folder
from tests.support.tiny_families import build as build_model
from tests.support.tiny_families import variants, write_folder

CASES = cases(120, 3_000)
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


def in_bounds(folder: Path, opened: Path, kind: str, attack: gguf_attacks.Any) -> Counter[str]:
    """Every case is an error of ours, or a model that speaks; how many were what."""
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

    seen = in_children(case, CASES)
    assert set(seen) <= {"spoke", "refused", "refused later"}, seen
    assert min(seen["spoke"], seen["refused"]) > 0, seen
    return seen


@pytest.mark.parametrize("model_type", model_types())
def test_any_folder_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, model_type: str) -> None:
    write_folder(tmp_path / "base", build_model(model_type, variants(model_type)[0]))
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))

        def config(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            made = json_attacks.config(chance, json.loads(files["config.json"]))
            return {"config.json": json_attacks.text(chance, made)}

        def tensors(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}

        for name, attack in (("config", config), ("tensors", tensors)):
            print(model_type, name, dict(in_bounds(folder, folder, f"{model_type} {name}", attack)))


def test_any_folder_in_mxfp4_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path) -> None:
    """gpt-oss as it is published: experts in blocks and scales, a ``quantization_config`` beside them."""
    write_mxfp4_folder(tmp_path / "base", rounded(build_model("gpt_oss", variants("gpt_oss")[0])))
    with fast_folder(tmp_path) as fast:
        folder = Path(shutil.copytree(tmp_path / "base", fast / "case"))

        def attack(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            if chance.random() < 0.8:
                return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}
            made = json.loads(files["config.json"])
            part = made["quantization_config"] if chance.random() < 0.7 else made
            key = chance.choice(sorted(part))
            part[key] = json_attacks.near(chance, part[key])
            return {"config.json": json_attacks.text(chance, made)}

        print("mxfp4", dict(in_bounds(folder, folder, "mxfp4", attack)))


@pytest.mark.parametrize("model_type", GGUF)
def test_any_gguf_file_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, model_type: str) -> None:
    made = parts_of(write_gguf(tmp_path / "m.gguf", build_model(model_type, variants(model_type)[0]), quant="Q8_0"))
    with fast_folder(tmp_path) as fast:
        folder = fast / "case"
        folder.mkdir()
        (folder / "m.gguf").write_bytes(build(*made).data)

        def attack(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            return {"m.gguf": gguf_attacks.attacked(chance, made)}

        print(model_type, dict(in_bounds(folder, folder / "m.gguf", model_type, attack)))
