"""docs/architecture.md against the tree: its rooms, the functions of its walks, the places of its last table."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from ipex_lookahead.architectures import spec
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "ipex_lookahead"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
STEPS = re.findall(r"^\d+\. `([\w/.]+)`: `([\w.]+)`", TEXT, re.MULTILINE)
TABLE = TEXT.partition("## To add something")[2]
RECORDS = re.findall(r"^\| `(\w+)`[^|]*\| `([\w/.]+)` \|", TEXT.partition("## The path of a request")[2], re.MULTILINE)
ROWS = [row.split("|")[1:4] for row in TABLE.splitlines() if row.startswith("| ") and not row.startswith("| to add")]


def defined(path: Path) -> set[str]:
    """Names that a file defines, those of classes' methods with the class before them."""
    if path.suffix != ".py":
        return set(re.findall(r"\b(\w+)\s*\(", path.read_text(encoding="utf-8")))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, functions | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{own.name}" for own in node.body if isinstance(own, functions)}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_shown(room: str) -> None:
    assert re.search(rf"^\| `{room}/` \|", TEXT, re.MULTILINE), f"docs/architecture.md has no row for {room}/"


def test_there_are_three_walks() -> None:
    assert len(STEPS) >= 12


@pytest.mark.parametrize(("file", "name"), STEPS, ids=[f"{file}:{name}" for file, name in STEPS])
def test_each_step_of_a_walk_is_there(file: str, name: str) -> None:
    path = ROOT / file if file.startswith("csrc/") else PACKAGE / file
    assert path.exists(), file
    assert name.rpartition(".")[2] in {one.rpartition(".")[2] for one in defined(path)}, (file, name)


def test_a_request_is_five_records() -> None:
    assert len(RECORDS) == 5
    for name, file in RECORDS:
        assert name in defined(PACKAGE / file), (name, file)


@pytest.mark.parametrize("row", ROWS, ids=[row[0].strip() for row in ROWS])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "csrc").rglob("*.[hc]*")]
    for place in re.findall(r"`([^`]+)`", " ".join(row[1:])):
        if re.fullmatch(r"[A-Z_]{3,}|[A-Z]\w+", place):  # a table or a type in the code
            pattern = re.compile(rf"\b{place}\b\s*(?::|=)|(?:struct|class|define) {place}\b")
            assert any(pattern.search(path.read_text(encoding="utf-8")) for path in sources), place
            continue
        folder = re.split(r"/?(?:x\.\w+|<\w+>|x/)", place)[0]
        roots = (PACKAGE, ROOT, ROOT / "csrc")
        anywhere = "/" not in place and any(path.name == place for path in sources)
        assert anywhere or any((root / folder).exists() for root in roots), place


def csrc(file: str) -> str:
    return (ROOT / "csrc" / file).read_text(encoding="utf-8")


def alternatives(file: str, name: str) -> list[str]:
    """What a variant of the core's may hold."""
    found = re.search(rf"using {name} = std::variant<([^>]*)>", csrc(file))
    assert found is not None
    return found[1].split(", ")


def test_each_kind_of_layer_is_in_the_places_of_its_row() -> None:
    """The row of the table is true of the kinds there are."""
    row = next(row for row in ROWS if row[0].strip() == "a kind of layer")
    shapes = alternatives("model/spec.h", "OperationShape")
    assert len(shapes) >= 3
    decoder, checks, description = csrc("model/decoder.cc"), csrc("model/spec.cc"), csrc("description.h")
    for shape in shapes:
        kind = shape.removesuffix("Shape")
        header = csrc(f"model/{re.sub('(?<=[a-z])(?=[A-Z])', '_', kind).lower()}.h")
        made = re.search(rf"class (\w*{kind}) : public Operation", header)
        assert made is not None
        assert f"make_unique<{made[1]}>(of" in decoder
        assert f"void check(const {shape}&" in checks
        assert shape in description
    for kind in (*(get_args(spec.Mixer) or (spec.Mixer,)), *get_args(spec.FeedForward)):
        assert f'"{kind.__name__}"' in description
    for shape in alternatives("model/cache.h", "StateShape"):
        assert any(f"struct {shape} " in path.read_text() for path in (ROOT / "csrc/model/states").glob("*.h"))
    for file in ("model/spec.h", "model/spec.cc", "description.h", "model/decoder.cc", "model/cache.h"):
        assert f"`csrc/{file}`" in row[2]


def test_a_layers_file_lists_no_other_layers() -> None:
    """The decoder walks; what a kind of layer is stands in its own files."""
    for file in ("decoder_step.cc", "operation.h", "weights.cc"):
        assert not re.search(r"AttentionShape|MlpShape|ExpertsShape", csrc(f"model/{file}")), file
