"""Imports point downwards only, and some packages are imported in few places only. Read from the sources, by AST."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ipex_lookahead"

FLOORS = (
    ("errors", "low_bits", "_native"),
    ("files", "system"),
    ("architectures", "config", "formats", "hub", "tokenization"),
    ("checkpoints",),
    ("engines",),
    ("drafting", "vision"),
    ("controller",),
    ("decoding",),
    ("runtime",),
    ("embedding",),
    ("conversation", "hf"),
    ("llm",),
    ("", "optimize", "serving", "transformers", "utils", "vllm"),
    ("cli",),
    ("__main__", "bench"),
)
"""Rooms from the lowest floor up; ``""`` is the package itself. A file imports from its own room and lower floors."""

LEVELS = {room: level for level, floor in enumerate(FLOORS) for room in floor}

UPWARD = {
    # A model whose generation config requests Hugging Face's processors: they need torch, which runtime does not.
    ("runtime/text_model.py", "ipex_lookahead.hf.generation.own_settings"),
}
"""The imports that point upward, all inside functions."""

ONLY_IN = {
    "ipex_lookahead._native": ("engines/native/", "formats/", "decoding/sampling.py", "drafting/partial_matching.py"),
    "ipex_llm": ("engines/ipex_llm/",),
    "pyopencl": ("engines/opencl/",),
    "click": ("bench/", "cli/"),
    "fastapi": ("serving/",),
    "starlette": ("serving/",),
    "uvicorn": ("serving/",),
    "llguidance": ("conversation/grammar.py", "tokenization/worker.py"),
    "prometheus_client": ("serving/",),
    "markdown_it": ("serving/formulas.py", "serving/markdown.py"),
    "pygments": ("serving/markdown.py",),
    "PIL": ("vision/",),
    "pypdf": ("serving/pdf_text.py",),
}
"""Package -> the files or folders of ours that may import it."""

NO_MODEL = ("architectures", "checkpoints", "formats", "tokenization", "engines")
SEES_NO_MODEL = {
    "decoding": ("engines.api", "engines.images", "engines.prefill", "engines.identity"),
    "drafting": ("engines.api", "engines.images", "engines.prefill"),
}
"""Rooms that know of no model, file or device -> all that they may import from the rooms in ``NO_MODEL``."""

NEVER = ("pickle", "argparse", "dill", "marshal", "shelve")
QUICK = (
    "errors.py",
    "files/",
    "config.py",
    "formats/",
    "checkpoints/",
    "bench/",
    "cli/",
    "engines/api.py",
    "engines/hf_config.py",
    "engines/images.py",
    "engines/loading.py",
    "engines/native/",
    "engines/prefill.py",
    "drafting/",
    "llm.py",
    "controller/",
    "decoding/",
    "embedding/",
    "runtime/",
    "conversation/",
    "system/cgroups.py",
    "system/extras.py",
    "system/terminal.py",
    "tokenization/text.py",
    "vision/",
)
"""Files that may not import torch or transformers when they are imported."""


def sources() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def inside(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


def room(module: str) -> str:
    """The room of a module's full name: ``ipex_lookahead.cli.main`` -> ``cli``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else ""


def imports(path: Path, *, at_import: bool = False) -> list[tuple[int, str]]:
    """(line, full module name) of every import in the file; only those that run at import if asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[tuple[int, str]] = []
    nodes = list(ast.walk(tree)) if not at_import else list(run_at_import(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{inside(path)}:{node.lineno}: imports are absolute here"
            module = node.module or ""
            # `from ipex_lookahead import x` may name a module of ours or a public name.
            found += [(node.lineno, f"{module}.{a.name}" if module == PACKAGE else module) for a in node.names]
            if module == f"{PACKAGE}.engines":
                found += [(node.lineno, f"{module}.{a.name}") for a in node.names]
    return found


def run_at_import(node: ast.AST):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from run_at_import(child)


def breaches(path: Path) -> list[str]:
    own = room(f"{PACKAGE}." + inside(path).removesuffix(".py").replace("/", "."))
    wrong = []
    for line, module in imports(path):
        if module.split(".")[0] != PACKAGE:
            continue
        other = room(module)
        allowed = other == own or LEVELS[other] < LEVELS[own] or (inside(path), module) in UPWARD
        if not allowed and not public_name_from_below(module, own):
            wrong.append(f"{inside(path)}:{line}: {own or 'the package'} may not import {module}")
        if other in NO_MODEL and own in SEES_NO_MODEL and module.partition(".")[2] not in SEES_NO_MODEL[own]:
            wrong.append(f"{inside(path)}:{line}: {own} may not import {module}: the engine tells it")
    return wrong


def public_name_from_below(module: str, own: str) -> bool:
    """``from ipex_lookahead import __version__`` reads one string of the package itself."""
    return module == f"{PACKAGE}.__version__"


def test_every_room_has_a_level():
    rooms = {p.name.removesuffix(".py") for p in (ROOT / PACKAGE).iterdir() if p.suffix == ".py" or p.is_dir()}
    rooms -= {"__init__", "__pycache__", "configs", "py.typed"}
    unknown = {r for r in rooms if not r.startswith("_native")} - set(LEVELS)
    assert not unknown, f"add to FLOORS: {sorted(unknown)}"


def test_imports_point_downwards():
    assert [breach for path in sources() for breach in breaches(path)] == []


def test_some_packages_stay_in_their_rooms():
    wrong = []
    for path in sources():
        name = inside(path)
        for line, module in imports(path):
            if module.split(".")[0] in NEVER:
                wrong.append(f"{name}:{line} imports {module}")
            for package, places in ONLY_IN.items():
                if (module == package or module.startswith(package + ".")) and not name.startswith(places):
                    wrong.append(f"{name}:{line} imports {module}; only {places} may")
    assert wrong == []


def test_quick_rooms_do_not_import_torch_or_transformers():
    quick = [path for path in sources() if inside(path).startswith(QUICK)]
    slow = [
        f"{inside(path)}:{line} imports {module}"
        for path in quick
        for line, module in imports(path, at_import=True)
        if module.split(".")[0] in ("torch", "transformers")
    ]
    assert slow == []


def circles() -> list[list[str]]:
    """Files of ours that import each other in a circle, for types or in functions too: one idea in pieces."""
    names = {
        f"{PACKAGE}." + inside(p).removesuffix(".py").removesuffix("/__init__").replace("/", "."): p for p in sources()
    }
    needs = {name: {m for _, m in imports(path) if m in names and m != name} for name, path in names.items()}
    while free := {name for name in needs if not needs[name] & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in free}
    # What is left imports a circle, or is in one.
    while top := {name for name in needs if not any(name in others for others in needs.values())}:
        needs = {name: others for name, others in needs.items() if name not in top}
    return [sorted(needs)] if needs else []


def test_no_files_import_each_other_in_a_circle():
    assert circles() == []


def test_the_check_sees_a_circle(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    folder = tmp_path / PACKAGE / "engines"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("from ipex_lookahead.engines.b import x")
    (folder / "b.py").write_text("from ipex_lookahead.engines.c import x")
    (folder / "c.py").write_text("x = 1")
    assert circles() == []
    (folder / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ipex_lookahead.engines.b import x"
    )
    assert circles() == [["ipex_lookahead.engines.b", "ipex_lookahead.engines.c"]]


def test_the_check_sees_a_breach(tmp_path, monkeypatch):
    """A wrong import in a copy of the tree is found, wherever it stands."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / PACKAGE / "formats").mkdir(parents=True)
    file = tmp_path / PACKAGE / "formats" / "x.py"
    for text in (
        "from ipex_lookahead.engines.native.engine import y",
        "import ipex_lookahead.cli.main",
        "def f():\n    from ipex_lookahead import auto",
        "from ipex_lookahead import AutoModelForCausalLM",
    ):
        file.write_text(text)
        assert breaches(file), text
    file.write_text("from ipex_lookahead.errors import LookaheadError\nfrom ipex_lookahead.formats.base import GROUP")
    assert breaches(file) == []


@pytest.mark.parametrize("module", ["architectures", "checkpoints.base", "engines.native.core", "formats"])
def test_the_loop_and_the_proposers_know_no_model(module, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for own in SEES_NO_MODEL:
        (tmp_path / PACKAGE / own).mkdir(parents=True)
        file = tmp_path / PACKAGE / own / "x.py"
        file.write_text(f"from {PACKAGE}.{module} import y")
        assert breaches(file)
        file.write_text(f"from {PACKAGE}.engines.api import Engine")
        assert breaches(file) == []


DECODE_PATH = ("runtime", "decoding", "controller", "drafting", "hf/generation")
MOST_CLASSES = 72
"""Classes on the decode path: lower the number with each class that goes. The goal is 45."""


def test_the_decode_path_gets_no_more_classes():
    """A new mechanism needs room that an old one has left."""
    files = [path for path in sources() if inside(path).startswith(tuple(f"{room}/" for room in DECODE_PATH))]
    classes = [
        f"{inside(path)}: {node.name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) <= MOST_CLASSES, "\n".join(classes)
