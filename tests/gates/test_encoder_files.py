"""Files of text encoders that are nearly right: a typed error, or an encoder that gives finite rows, within bounds."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
pytest.importorskip("transformers", minversion="5.23")

from ipex_lookahead.architectures import encoder_families, encoder_type
from ipex_lookahead.embedding.checkpoint import open_text_encoder, save_encoder
from ipex_lookahead.errors import LookaheadError
from tests.gates import cases, seed
from tests.gates.test_family_files import parts_of
from tests.gates.test_model_files import fast_folder, put
from tests.support import gguf_attacks, json_attacks, safetensors_attacks
from tests.support.forked import in_children
from tests.support.text_encoders import CASES as ENCODERS
from tests.support.text_encoders import build, write_folder, write_gguf

CASES = cases(40, 3_000)
IN_GGUF = [name for name, case in ENCODERS.items() if case.gguf]


def encode(path: Path) -> str:
    """Load what is there and encode a text. Returns what happened; raises what must not."""
    try:
        loaded = open_text_encoder(path, threads=1)
    except LookaheadError:
        return "refused"
    try:
        rows = loaded.encoder.rows([[5, 6, 7]])[0]
    except LookaheadError:
        return "refused later"
    assert rows.shape == (3, loaded.config["hidden_size"])
    assert np.isfinite(rows).all()
    for chain in (loaded.head, loaded.heads):
        if chain is not None:
            assert chain(rows[:1]).shape == (1, chain.outputs)
    return "encoded"


def attacks(folder: Path, opened: Path, attack: Any, name: str) -> Counter[str]:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert encode(opened) == "encoded"

    def case(number: int) -> str:
        logging.disable()
        changed = attack(random.Random(f"{seed()} {name} {number}"), files)
        for file, data in changed.items():
            put(folder / file, data)
        try:
            return encode(opened)
        finally:
            for file in changed:
                put(folder / file, files.get(file))

    seen = in_children(case, CASES)
    print(name, dict(seen))
    assert set(seen) <= {"encoded", "refused", "refused later"}, seen
    return seen


def config(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    made = json.loads(files["config.json"])
    family = encoder_type(made)
    assert family is not None
    changed = json_attacks.changed(chance, made, encoder_families()[family].KEYS)
    return {"config.json": json_attacks.text(chance, changed)}


def tensors(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.rotating(3)
def test_any_folder_is_an_error_of_ours_or_an_encoder(tmp_path: Path, name: str) -> None:
    with fast_folder(tmp_path) as fast:
        folder = write_folder(fast / "m", name, build(name))
        seen: Counter[str] = Counter()
        for attack in (config, tensors):
            seen += attacks(folder, folder, attack, f"{name} {attack.__name__}")
        assert min(seen["encoded"], seen["refused"]) > 0, seen


@pytest.mark.parametrize("name", ["bert-labels", "xlm-roberta-score", "modernbert-mean", "gemma"])
@pytest.mark.rotating(1)
def test_any_saved_encoder_is_an_error_of_ours_or_an_encoder(tmp_path: Path, name: str) -> None:
    with fast_folder(tmp_path) as fast:
        save_encoder(write_folder(fast / "m", name, build(name)), fast / "saved", "sym_int4", threads=1)
        for attack in (config, tensors):
            attacks(fast / "saved", fast / "saved", attack, f"saved {name} {attack.__name__}")


@pytest.mark.parametrize("name", IN_GGUF)
@pytest.mark.rotating(2)
def test_any_gguf_file_is_an_error_of_ours_or_an_encoder(tmp_path: Path, name: str) -> None:
    with fast_folder(tmp_path) as fast:
        file = write_gguf(fast / "m.gguf", name, build(name), quant="Q8_0")
        made = parts_of(file)

        def attack(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
            return {"m.gguf": gguf_attacks.attacked(chance, made)}

        attacks(fast, file, attack, f"{name} gguf")
