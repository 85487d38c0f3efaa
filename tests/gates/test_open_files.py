"""What lies at a path, what becomes of a file that is open, what stands beside weights: a typed error, or the truth."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors

from ipex_lookahead.checkpoints import family_of, open_checkpoint, open_other_family
from ipex_lookahead.checkpoints.license import copy_license, license_facts
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from tests.gates import cases, seed
from tests.support import safetensors_attacks
from tests.support.forked import in_children
from tests.support.gguf_attacks import parts, sound
from tests.support.gguf_bytes import ARRAY, I32, STRING, U32, build
from tests.support.tiny import write_tiny_llama

TINY = {"vocab": 96, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate": 40, "context": 64}


def socket(path: Path) -> None:
    """A file that exists and that nobody can open."""
    os.mknod(path, stat.S_IFSOCK | 0o600)


PATHS: tuple[Callable[[Path], object], ...] = (
    lambda path: None,
    os.mkfifo,
    os.mkdir,
    socket,
    lambda path: path.symlink_to(path),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"GGUF"),
)


@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors", "config.json", "m"])
@pytest.mark.parametrize("make", PATHS)
def test_no_path_is_a_hang(tmp_path: Path, name: str, make: Callable[[Path], object]) -> None:
    """As the path that the caller gives, and as a file of a folder."""
    folder = write_tiny_llama(tmp_path / "folder", **TINY)
    alone = tmp_path / name
    make(alone)
    (folder / name).unlink(missing_ok=True)
    make(folder / name)

    def case(number: int) -> str:
        with pytest.raises((InputError, ModelFormatError)):
            open_checkpoint(alone)
        try:
            open_checkpoint(folder)
        except (InputError, ModelFormatError):
            return "refused"
        return "opened"

    seen = in_children(case, 1)
    assert seen["opened"] == (name in ("m", "m.gguf")), "a folder with a config has no use for other files"


@pytest.mark.parametrize("make", PATHS)
def test_no_path_of_a_store_is_a_hang_or_loses_an_answer(
    tmp_path: Path, make: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """What is no store stays as it is; what cannot be written is said once and remembered all the same."""
    file = tmp_path / "answers"
    make(file)
    before = file.lstat() if os.path.lexists(file) else None
    stores = Stores(96, lambda: {"a": 0, "é": 1})
    if before is None:
        stores.add(str(file), [[1, 2, 3]])
        stores.flush()
        assert Stores(96, lambda: {"a": 0, "é": 1}).get(str(file)).texts() == [[1, 2, 3]]
        with pytest.raises(InputError, match="another vocabulary"):
            Stores(96, lambda: {"a": 1, "é": 0}).get(str(file))
        with pytest.raises(InputError, match="from 0 to 95, got 96 to 96"):
            stores.add(str(file), [[96]])
        gone = stores.get(str(tmp_path / "removed" / "x"))
        (tmp_path / "removed").write_bytes(b"")
        stores.add(str(tmp_path / "removed" / "x"), [[7, 8]])
        stores.flush()
        assert gone.texts() == [[7, 8]]
        assert "until the program ends" in caplog.text
    else:
        with pytest.raises(InputError):
            stores.get(str(file))
        assert file.lstat() == before or file.is_symlink()
    stores.add("memory", [[1, 2]])
    assert len(stores.get("memory")) == 2
    stores.forget()
    assert len(stores.get("memory")) == 0


CHANGES = cases(150, 8_000)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_file_that_changes_while_it_is_open(tmp_path: Path, kind: str) -> None:
    """It is read at its places: cut, longer, replaced or closed meanwhile is an error, or bytes of one of the files."""
    folder = write_tiny_llama(tmp_path / "folder", dtype="float16", **TINY)
    file = tmp_path / "m.gguf" if kind == "gguf" else folder / "model.safetensors"
    before = sound() if kind == "gguf" else file.read_bytes()

    def case(number: int) -> str:
        chance = random.Random(f"{seed()} {kind} {number}")
        file.write_bytes(before)
        checkpoint = open_checkpoint(file if kind == "gguf" else folder)
        way = chance.choice(("cut", "cut", "empty", "longer", "replaced", "gone", "closed"))
        if way in ("cut", "empty"):
            os.truncate(file, 0 if way == "empty" else chance.randrange(len(before)))
        elif way == "longer":
            with file.open("ab") as stream:
                stream.write(b"\0" * 100)
        elif way == "gone":
            file.unlink()
        elif way == "replaced":
            other = file.with_name("other")
            other.write_bytes(b"\xff" * len(before))
            other.replace(file)
        else:
            checkpoint.close()
        ended: Counter[str] = Counter()
        for name in checkpoint.names():
            try:
                checkpoint.read(name)
                ended["read"] += 1
            except ModelFormatError as error:
                ended["refused" if error.offset is not None and str(file) in error.file else "names nothing"] += 1
        checkpoint.close()
        checkpoint.close()
        if way in ("longer", "replaced", "gone"):
            assert not ended["refused"], (way, ended)
        elif way != "cut":
            assert not ended["read"], (way, ended)
        assert not ended["names nothing"], ended
        return "refused" if ended["refused"] else "read"

    seen = in_children(case, CHANGES)
    print(kind, dict(seen))
    assert min(seen["read"], seen["refused"]) > CHANGES // 10, seen


FAMILIES = cases(200, 9_000)


def test_the_tensors_of_a_family_that_only_transformers_knows(tmp_path: Path) -> None:
    """Headers only, of any dtype: names, shapes and dtypes are those that the ``safetensors`` package finds."""
    folder = write_tiny_llama(tmp_path / "folder", dtype="bfloat16", **TINY)
    file, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    sound_bytes = file.read_bytes()

    def case(number: int) -> str:
        chance = random.Random(f"{seed()} family {number}")
        family = chance.choice(("mamba", "gpt2", "", None, 5, "é"))
        marked = chance.choice(({}, {}, {"ipex_lookahead": chance.choice(({}, 3, None))}))
        (folder / "config.json").write_text(json.dumps({**config, "model_type": family, **marked}))
        file.write_bytes(safetensors_attacks.attacked(chance, sound_bytes))
        assert family_of(folder) == (family if isinstance(family, str) else None)
        try:
            checkpoint = open_other_family(folder)
        except (ModelFormatError, UnsupportedModelError):
            return "refused"
        theirs = {name: (t["dtype"], t["shape"]) for name, t in safetensors.deserialize(file.read_bytes())}
        assert {name: list(checkpoint.info(name).shape) for name in checkpoint.names()} == {
            name: shape for name, (_, shape) in theirs.items()
        }
        dtypes = {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}
        for name, (dtype, _) in theirs.items():
            kind = checkpoint.info(name).format
            assert dtypes.get(kind, kind.upper()) == dtype
        checkpoint.close()
        return "opened"

    seen = in_children(case, FAMILIES)
    print(dict(seen))
    assert min(seen["opened"], seen["refused"]) > FAMILIES // 10, seen


CARDS = cases(150, 6_000)
LINES = (
    *("license: mit", "license: apache-2.0\r", "license_name: x", "license_link: https://x.example/y", "license:"),
    *("license: " + "x" * 300, "license: [a, b]", "license: |", "  license: y", "---", "", "license: \u2028z", "é: ü"),
    *("license: a\x00b", "license_link: ../../etc/passwd", "tags:", "- license", "license: 'q\"", "- license: w"),
)


def test_what_a_card_says_of_the_licence(tmp_path: Path) -> None:
    """Facts are single lines that a card can hold again; nothing but small texts of the folder itself is copied."""

    def folder_of(chance: random.Random, folder: Path) -> Path:
        card = "---\n" + "\n".join(chance.choices(LINES, k=chance.randint(0, 5))) + chance.choice(("\n---\n", "\n", ""))
        made: dict[str, bytes | Callable[[Path], object]] = {"README.md": card.encode() + chance.choice((b"", b"\xff"))}
        large = chance.choice((b"some rights", b"x" * (1 << 20), b"x" * ((1 << 20) + 1)))
        made[chance.choice(("LICENSE", "LICENCE.txt", "notice-3", "COPYING/x", "LICENSE~", "USE_POLICY.md"))] = large
        if chance.random() < 0.3:
            made[chance.choice(("README.md", "LICENSE"))] = chance.choice(PATHS[1:6])
        for name, data in made.items():
            path = folder / name.replace("/", "_")
            path.write_bytes(data) if isinstance(data, bytes) else data(path)
        return folder

    def gguf_of(chance: random.Random, folder: Path) -> Path:
        entries, tensors = parts(quantised=False)
        for key in chance.sample(("license", "license.name", "license.link"), 2):
            kind, value = chance.choice(
                ((STRING, chance.choice(LINES)), (STRING, "a\nb"), (U32, 7), (ARRAY, (I32, [1, 2])))
            )
            entries.append((f"general.{key}", kind, value))
        data = bytes(build(entries, tensors).data)
        (folder / "m.gguf").write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        return folder / "m.gguf"

    def case(number: int) -> str:
        chance = random.Random(f"{seed()} card {number}")
        folder, out = tmp_path / "source", tmp_path / "out"
        for each in (folder, out):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()
        source = (folder_of if chance.random() < 0.7 else gguf_of)(chance, folder)
        facts = license_facts(source)
        assert set(facts) <= {"license", "license_name", "license_link"}
        assert all("\n" not in fact and "\r" not in fact.strip("\r") for fact in facts.values()), facts
        copy_license(source, out)
        assert all(
            path.is_file() and not path.is_symlink() and path.stat().st_size <= 1 << 20 for path in out.iterdir()
        )
        if facts and source == folder:
            assert license_facts(out) == {name: fact.strip() for name, fact in facts.items()}
        return "facts" if facts else "none"

    seen = in_children(case, CARDS)
    print(dict(seen))
    assert min(seen["facts"], seen["none"]) > CARDS // 10, seen
