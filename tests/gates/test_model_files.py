"""Files of the native engine that are nearly right: a typed error, or a model that says 8 tokens, within bounds.

``tests/checkpoints/test_fuzz.py`` goes through bytes; these changes know the formats: counts, lengths, types, offsets,
shapes, products that overflow, numbers at their ends and in pairs, tensors dropped, renamed, doubled, shards exchanged.
A case follows from the gate's seed, its kind and its number alone.
"""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import random
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import GgufCheckpoint, SafetensorsCheckpoint, open_checkpoint
from ipex_lookahead.checkpoints.ipex_llm import KINDS as IPEX_LLM
from ipex_lookahead.checkpoints.ipex_llm import NOT_READ as IPEX_LLM_NOT_READ
from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.errors import EngineError, InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import cases, seed
from tests.support import folder_attacks, gguf_attacks, json_attacks, safetensors_attacks
from tests.support.forked import in_children
from tests.support.gguf_bytes import build
from tests.support.independent import check_tensors
from tests.support.ipex_llm_folder import write_ipex_llm
from tests.support.tiny import TinyLlama, write_tiny_llama

TOKENS = 8
Files = Mapping[str, bytes | Callable[[Path], object] | None]
"""Names in a folder and what to write there; None removes the file, a function puts something else there."""
Attack = Callable[[random.Random, dict[str, bytes]], Files]


def gguf(chance: random.Random, files: dict[str, bytes]) -> Files:
    return {"m.gguf": gguf_attacks.attacked(chance)}


def decoded(chance: random.Random, files: dict[str, bytes]) -> Files:
    return {"m.gguf": gguf_attacks.attacked(chance, DECODED)}


def repacked(chance: random.Random, files: dict[str, bytes]) -> Files:
    return {"m.gguf": gguf_attacks.attacked(chance, REPACKED)}


def parts(chance: random.Random, files: dict[str, bytes]) -> Files:
    return gguf_attacks.attacked_parts(chance)


def config(chance: random.Random, files: dict[str, bytes]) -> Files:
    made = json_attacks.config(chance, json.loads(files["config.json"]))
    return {"config.json": json_attacks.text(chance, made)}


def generation(chance: random.Random, files: dict[str, bytes]) -> Files:
    return {"generation_config.json": json_attacks.text(chance, json_attacks.generation(chance))}


def tensors(chance: random.Random, files: dict[str, bytes]) -> Files:
    return {"model.safetensors": safetensors_attacks.attacked(chance, files["model.safetensors"])}


def shards(chance: random.Random, files: dict[str, bytes]) -> Files:
    return safetensors_attacks.attacked_index(chance, files)


def saved(chance: random.Random, files: dict[str, bytes]) -> Files:
    if chance.random() < 0.8:
        changed = safetensors_attacks.attacked(chance, files["model.safetensors"])
        if chance.random() < 0.7:  # else the checksums would be all that is ever looked at
            changed = safetensors_attacks.resealed(changed)
        return {"model.safetensors": changed}
    made = json.loads(files["config.json"])
    marker = made["ipex_lookahead"]
    key = chance.choice(sorted(marker))
    marker[key] = json_attacks.near(chance, marker[key])
    if chance.random() < 0.1:
        made["ipex_lookahead"] = json_attacks.value(chance)
    return {"config.json": json_attacks.text(chance, made)}


DECODED, REPACKED = gguf_attacks.decoded_parts(), gguf_attacks.repacked_parts()


def theirs(chance: random.Random, files: dict[str, bytes]) -> Files:
    """Of a converted folder of ipex-llm's: a matrix has no shape but the config's, no format but the marker's."""
    if chance.random() < 0.7:
        return tensors(chance, files)
    made = json.loads(files["config.json"])
    if chance.random() < 0.5:
        return {"config.json": json_attacks.text(chance, json_attacks.config(chance, made))}
    made["bigdl_transformers_low_bit"] = chance.choice((*IPEX_LLM, *IPEX_LLM_NOT_READ, "x", 4, None, []))
    return {"config.json": json.dumps(made).encode()}


def pickled(chance: random.Random, files: dict[str, bytes]) -> Files:
    """The archive damaged, or another with right checksums: of a changed pickle, storages, or names of them."""
    data = files["pytorch_model.bin"]
    if chance.random() < 0.2:
        return {"pytorch_model.bin": gguf_attacks.extreme(chance, data)}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    name, other, way = chance.choice(sorted(entries)), chance.choice(sorted(entries)), chance.random()
    pickle = next(one for one in entries if one.endswith("data.pkl"))
    if way < 0.4:
        entries[pickle] = other_bytes(chance, entries[pickle])
    elif way < 0.8:
        entries[name] = gguf_attacks.extreme(chance, entries[name])
    elif way < 0.9:
        entries[name], entries[other] = entries[other], entries[name]
    else:
        entries[chance.choice((other, name + "x", "x", "archive/../x"))] = entries.pop(name)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for one, content in entries.items():
            archive.writestr(one, content)
    return {"pytorch_model.bin": made.getvalue()}


def other_bytes(chance: random.Random, data: bytes) -> bytes:
    """One to three bytes replaced, taken out or doubled."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(made))
        made[at : at + chance.choice((1, 1, 0, 2))] = bytes([chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))])
    return bytes(made)


TINY = {"vocab": 96, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 40, "context": 64}
KINDS: dict[str, tuple[Attack, int]] = {
    "gguf": (gguf, cases(1000, 45_000)),
    "decoded": (decoded, cases(100, 4_000)),
    "repacked": (repacked, cases(100, 4_000)),
    "parts": (parts, cases(200, 9_000)),
    "config": (config, cases(600, 30_000)),
    "generation": (generation, cases(200, 9_000)),
    "tensors": (tensors, cases(400, 18_000)),
    "shards": (shards, cases(200, 9_000)),
    "saved": (saved, cases(400, 18_000)),
    "every format": (saved, cases(120, 9_000)),
    "misplaced": (folder_attacks.misplaced, cases(100, 4_500)),
    "immense": (folder_attacks.immense, cases(12, 600)),
    "ipex_llm": (theirs, cases(400, 18_000)),
    "ipex_llm_pickle": (pickled, cases(300, 15_000)),
}


def write_base(folder: Path, kind: str) -> Path:
    """The sound folder that a kind's attacks begin with."""
    folder.mkdir()
    if kind.startswith("ipex_llm"):
        write_ipex_llm(folder / "theirs", "asym_int5", **TINY | {"hidden": 64})
        return folder / "theirs" if kind.endswith("pickle") else convert_ipex_llm(folder / "theirs", folder / "new")
    if kind in ("gguf", "decoded", "repacked", "parts"):
        made = bytes(build(*(REPACKED if kind == "repacked" else DECODED)).data)
        files = {"m.gguf": gguf_attacks.sound() if kind == "gguf" else made}
        for name, data in (gguf_attacks.sound_parts() if kind == "parts" else files).items():
            (folder / name).write_bytes(data)
        return folder
    if kind == "every format":
        return save_every_format(folder)
    if kind != "saved":
        dtype = "float16" if kind == "tensors" else "float32"
        return write_tiny_llama(folder, dtype=dtype, shards=3 if kind == "shards" else 1, **TINY)
    plain = write_tiny_llama(folder / "plain", tie=False, attention_bias=True, **TINY)
    model = AutoModelForCausalLM.from_pretrained(plain, load_in_low_bit="asym_int4", threads=1, progress=False)
    model.save_low_bit(folder / "saved")
    return folder / "saved"


def save_every_format(folder: Path) -> Path:
    """A saved folder that has a matrix of every format, and blocks that are not whole."""
    sizes = TINY | {"layers": -(-len(FORMATS) // 7)}
    plain = write_tiny_llama(folder / "plain", **sizes)
    matrices = [name for name in TinyLlama(**sizes).shapes() if name.endswith("_proj.weight")]
    lines = [
        f"  - {{match: {name.removesuffix('.weight')}, format: {form}}}\n"
        for name, form in zip(matrices, itertools.cycle(FORMATS), strict=False)
    ]
    rules = folder / "rules.yaml"
    rules.write_text("rules:\n" + "".join(lines), encoding="utf-8")
    model = AutoModelForCausalLM.from_pretrained(plain, load_in_low_bit=str(rules), threads=1, progress=False)
    return Path(model.save_low_bit(folder / "saved"))


def test_saved_folders_of_every_format_are_what_the_safetensors_package_reads(tmp_path: Path) -> None:
    saved = write_base(tmp_path / "base", "every format")
    checkpoint = open_checkpoint(saved)
    found = {checkpoint.info(name).format for name in checkpoint.names()}
    checkpoint.close()
    assert found == set(FORMATS)
    check_tensors(saved)


@pytest.mark.parametrize(("kind", "reader"), [("gguf", GgufCheckpoint), ("shards", SafetensorsCheckpoint)])
@pytest.mark.rotating(0)
def test_the_comparison_with_other_readers_would_see_one_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reader: type[GgufCheckpoint | SafetensorsCheckpoint]
) -> None:
    read = reader.read

    def one_bit_more(self: Any, name: str) -> PackedWeight:
        weight = read(self, name)
        if name.endswith("norm.weight"):
            weight.codes.view(np.uint8)[-1] ^= 1
        return weight

    base = write_base(tmp_path / "base", kind)
    check_tensors(base)
    monkeypatch.setattr(reader, "read", one_bit_more)
    with pytest.raises(AssertionError):
        check_tensors(base)


def put(path: Path, data: bytes | Callable[[Path], object] | None) -> None:
    """Make what lies at ``path`` the data, nothing, or what the function makes."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif not isinstance(data, bytes) or not path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)
    if isinstance(data, bytes):
        path.write_bytes(data)
    elif data is not None:
        data(path)


def speak(path: Path, *, through_generate: bool, compared: bool = True) -> str:
    """Load what lies there and let it say 8 tokens. Returns what happened; raises what must not.

    ``compared``: the tensors are those that another reader finds. The ``gguf`` package makes an object of every entry
    of an array, so that it takes minutes where there are millions.
    """
    try:
        loaded = load(LoadRequest(path, threads=1))
        model = AutoModelForCausalLM.from_pretrained(path, threads=1, progress=False) if through_generate else None
    except ModelFormatError as error:
        return "refused" if error.field and str(path) in error.file else f"an error that names nothing: {error}"
    except (UnsupportedModelError, InputError):  # InputError: two files of which one is to be named
        return "refused"
    if compared:
        check_tensors(path)
    try:
        assert isinstance(loaded.engine, NativeEngine)
        greedy(loaded.engine)
        if model is not None:
            out = np.asarray(model.generate([[1, 2, 3]], max_new_tokens=TOKENS, lookahead=3))
            assert out.shape[1] > 3
    except (EngineError, InputError):
        return "refused later"
    return "spoke"


def greedy(engine: NativeEngine) -> None:
    """8 tokens, one a step, each with a logit that is a number; another token's may have overflowed."""
    cache, token = engine.new_cache(), 1
    for _ in range(TOKENS):
        out = engine.forward(
            Batch([cache], [1], np.array([token], np.int32), np.array([-1], np.int32), OutputRequest(logits=True))
        )
        assert out.logits is not None
        token = int(out.argmax[0])
        assert 0 <= token < engine.vocab_size
        assert np.isfinite(out.logits[0, token]), "the token chosen has a logit that is not finite"
        cache.keep([0])


def converted(folder: Path, *, through_generate: bool, compared: bool) -> str:
    """What comes of a folder with a pickle, by way of the command that converts it."""
    new = folder.with_name("converted")
    shutil.rmtree(new, ignore_errors=True)
    try:
        convert_ipex_llm(folder, new)
    except ModelFormatError as error:
        assert not new.exists()
        return "refused" if error.field and str(folder) in error.file else f"an error that names nothing: {error}"
    return speak(new, through_generate=through_generate, compared=compared)


@pytest.mark.parametrize("kind", KINDS)
def test_any_file_is_an_error_of_ours_or_a_model_that_speaks(tmp_path: Path, kind: str) -> None:
    with fast_folder(tmp_path) as folder:
        attacked(kind, write_base(tmp_path / "base", kind), folder / "case")


@contextmanager
def fast_folder(otherwise: Path) -> Iterator[Path]:
    """A folder in memory where there is one: the cases are thousands of small files."""
    if os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
            yield Path(made)
    else:
        yield otherwise


def attacked(kind: str, base: Path, target: Path) -> None:
    attack, count = KINDS[kind]
    files = {path.name: path.read_bytes() for path in base.iterdir() if path.is_file()}
    shutil.copytree(base, target)
    opened = target / "m.gguf" if kind in ("gguf", "decoded", "repacked") else target
    compared = kind not in ("immense", "repacked") and not kind.startswith(
        "ipex_llm"
    )  # no other reader of these is here
    say = converted if kind == "ipex_llm_pickle" else speak
    assert say(opened, through_generate=True, compared=compared) == "spoke"

    def case(number: int) -> str:
        logging.disable()  # what is dropped or passed over is said each time
        chance = random.Random(f"{seed()} {kind} {number}")
        changed = attack(chance, files)
        for name, data in changed.items():
            put(target / name, data)
        try:
            generates = kind == "generation" or number % 4 == 0
            return say(opened, through_generate=generates, compared=compared)
        finally:
            for name in changed:
                put(target / name, files.get(name))

    seen = in_children(case, count)
    assert set(seen) <= {"spoke", "refused", "refused later"}, seen
    print(f"{kind}: {count} cases: {dict(seen)}")
    assert kind in ("misplaced", "immense") or seen["spoke"] > count // 20, seen
    assert seen["refused"] > count // 20, seen
