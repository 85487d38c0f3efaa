"""What pyproject.toml says to package indexes and installers, and what scripts/wheels.py asks of a wheel."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ipex_lookahead

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINK = re.compile(r"\]\(([^)\s]+)\)")


def shown() -> str:
    """README as a package index shows it: what hatch-fancy-pypi-readme makes of it."""
    settings = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert [fragment["path"] for fragment in settings["fragments"]] == ["README.md"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for one in settings["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


def test_links_of_the_readme_lead_somewhere_on_a_package_index():
    repository = PROJECT["project"]["urls"]["Repository"]
    raw = repository.replace("://github.com/", "://raw.githubusercontent.com/")
    links = LINK.findall(shown())
    assert all(link.startswith(("https://", "http://", "#")) for link in links)
    ours = [link for link in links if link.startswith((f"{repository}/blob/", raw))]
    relative = [one for one in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")) if "://" not in one]
    assert len(ours) == len([one for one in relative if not one.startswith("#")]) > 20
    for link in ours:
        path = re.sub(r"[?#].*", "", link.removeprefix(f"{repository}/blob/main/").removeprefix(f"{raw}/main/"))
        assert (ROOT / path).exists(), link
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", shown())
    assert pictures
    assert all(one.startswith(raw) for one in pictures), "a page of the repository is no picture"


def test_what_an_index_tells_of_the_project():
    project = PROJECT["project"]
    assert project["authors"]
    assert set(project["urls"]) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(project["urls"]["Repository"]) for url in project["urls"].values())
    said = {one.rpartition(" :: ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)}
    assert f"3.{sys.version_info[1]}" in said or sys.version_info[1] > max(int(one[2:]) for one in said)
    assert project["requires-python"] == f">={min(said, key=lambda one: int(one[2:]))}"


def test_torch_is_asked_for_by_its_extra_alone():
    base = {Requirement(one).name for one in PROJECT["project"]["dependencies"]}
    extras = {
        name: {Requirement(one).name for one in needs}
        for name, needs in PROJECT["project"]["optional-dependencies"].items()
    }
    assert not base & {"torch", "transformers"}
    assert extras["torch"] == {"torch", "transformers"}
    assert [name for name, needs in extras.items() if "torch" in needs] == ["torch"]
    (pydantic,) = [
        one for one in map(Requirement, PROJECT["project"]["optional-dependencies"]["serve"]) if one.name == "pydantic"
    ]
    assert "1.10.24" not in pydantic.specifier
    assert "2.0" in pydantic.specifier


def test_licences_of_what_is_included_are_shipped():
    files = {
        path.relative_to(ROOT).as_posix() for glob in PROJECT["project"]["license-files"] for path in ROOT.glob(glob)
    }
    assert files == {"LICENSE", "licenses/nanobind.txt", "licenses/robin-map.txt", "licenses/temml.txt"}
    assert PROJECT["project"]["license"] == "Apache-2.0 AND BSD-3-Clause AND MIT"
    assert "Copyright (c) 2020 Ron Kok" in (ROOT / "licenses" / "temml.txt").read_text(encoding="utf-8")
    nanobind = metadata.distribution("nanobind")
    (own,) = [one for one in nanobind.files or () if one.name == "LICENSE" and "dist-info" in str(one)]
    assert own.read_text().split() == (ROOT / "licenses" / "nanobind.txt").read_text(encoding="utf-8").split()
    (header,) = [one for one in nanobind.files or () if one.name == "robin_map.h"]
    said = re.sub(r"\n \* ?", "\n", header.read_text().split("*/")[0].partition("/**\n")[2])
    assert (
        said.replace(" * ", "", 1).split() == (ROOT / "licenses" / "robin-map.txt").read_text(encoding="utf-8").split()
    )


@pytest.fixture
def wheels(monkeypatch):
    """scripts/wheels.py as a module."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("wheels_script", SCRIPTS / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tags", "oldest"),
    [("manylinux_2_28_x86_64", (2, 28)), ("manylinux_2_17_x86_64.manylinux2014_x86_64", (2, 17)),
     ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", (2, 27)), ("manylinux_2_35_x86_64", (2, 35))],
)  # fmt: skip
def test_the_oldest_glibc_of_a_wheel(wheels, tags, oldest):
    assert wheels.oldest_glibc(f"ipex_lookahead-0.1.0-cp311-cp311-{tags}.whl") == oldest
    assert (oldest <= wheels.NEWEST_GLIBC) == (oldest < (2, 29))


def repairing(wheels, monkeypatch, tmp_path, tag):
    """``repaired`` with an auditwheel that finds that tag."""
    (tmp_path / "dist").mkdir()
    monkeypatch.setattr(wheels, "DIST", str(tmp_path / "dist"))

    def audit(*arguments, **options):
        with zipfile.ZipFile(tmp_path / "dist" / f"ipex_lookahead-0.1.0-cp311-cp311-{tag}.whl", "w") as made:
            made.writestr("ipex_lookahead/__init__.py", "")

    monkeypatch.setattr(wheels, "run", audit)
    return wheels.repaired("python", "raw.whl", (3, 11))


def test_a_wheel_for_new_machines_only_is_refused(wheels, monkeypatch, tmp_path):
    with pytest.raises(
        wheels.SetupError, match=r"runs with glibc 2\.35 and newer only; it should with 2\.28"
    ) as caught:
        repairing(wheels, monkeypatch, tmp_path, "manylinux_2_35_x86_64")
    assert "libstdc++-static" in caught.value.hint


def test_a_wheel_for_older_machines_is_taken(wheels, monkeypatch, tmp_path):
    assert repairing(wheels, monkeypatch, tmp_path, "manylinux_2_24_x86_64.manylinux_2_28_x86_64").endswith(".whl")


def test_a_wheel_lacks_nothing_of_the_sources(wheels, tmp_path):
    source = tmp_path / "source"
    for name in ("ipex_lookahead/x.yaml", "LICENSE", "licenses/a.txt", "tests/y.py"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("")
    wheel = tmp_path / "a.whl"
    for inside, lacks in (
        ([], "LICENSE, ipex_lookahead/x.yaml, licenses/a.txt"),
        (["ipex_lookahead/x.yaml", "i.dist-info/licenses/LICENSE"], "licenses/a.txt"),
        (["ipex_lookahead/x.yaml", "i.dist-info/licenses/LICENSE", "i.dist-info/licenses/licenses/a.txt"], ""),
    ):
        with zipfile.ZipFile(wheel, "w") as made:
            for name in inside:
                made.writestr(name, "")
        if lacks:
            with pytest.raises(wheels.SetupError, match=rf"^a\.whl lacks {lacks}$"):
                wheels.check_files(str(wheel), str(source))
        else:
            wheels.check_files(str(wheel), str(source))


def test_torch_is_the_cpu_build_or_none(wheels, monkeypatch):
    asked = []

    def run(python, *arguments, **options):
        asked.append(arguments)
        if "--index-url" in arguments:
            raise wheels.SetupError("no answer")

    monkeypatch.setattr(wheels, "run", run)
    monkeypatch.setattr(wheels, "refuse_cuda", lambda python: asked.append(("cuda?", python)))
    wheels.install_torch("here")
    assert wheels.TORCH_CPU_INDEX in asked[0]
    assert asked[1] == ("cuda?", "here")
    assert asked[2][-2:] == ("--no-deps", wheels.TORCH)
    assert "==" in wheels.TORCH


def test_gigabytes_are_fetched_for_one_python_only(wheels):
    here = sys.version_info[:2]
    assert wheels.tried_with_torch({(3, 10): "a", here: "b", (3, 99): "c"}) == here
    assert wheels.tried_with_torch({(3, 98): "a", (3, 99): "b"}) == (3, 98)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_but_what_was_made(wheels, monkeypatch, tmp_path, fails):
    monkeypatch.setattr(wheels, "WORK", str(tmp_path / "work"))
    monkeypatch.setattr(wheels, "DIST", str(tmp_path / "dist"))
    monkeypatch.setattr(wheels, "interpreters", lambda asked: {(3, 11): "python"})

    def make(pythons, with_torch):
        (tmp_path / "work" / "environment").mkdir()
        if fails:
            raise wheels.SetupError("it did not build")

    monkeypatch.setattr(wheels, "make", make)
    if fails:
        with pytest.raises(wheels.SetupError):
            wheels.main([])
    else:
        wheels.main([])
    assert not (tmp_path / "work").exists()


def test_the_scripts_can_be_read_by_old_pythons():
    """So that they reach their own check of the version."""
    for name in ("wheels.py", "setup.py"):
        ast.parse((SCRIPTS / name).read_text(encoding="utf-8"), feature_version=(3, 6))


def test_the_compiled_core_shows_one_name_and_asks_for_nothing_new():
    """No template of libstdc++'s leaves it, and no symbol is newer than glibc 2.28, wherever it was built."""
    core = importlib.util.find_spec("ipex_lookahead._native")
    assert core is not None
    table = subprocess.run(["objdump", "-T", str(core.origin)], capture_output=True, text=True, check=True).stdout
    lines = [line for line in table.splitlines() if re.match(r"[0-9a-f]{16} ", line)]
    assert [line.split()[-1] for line in lines if "*UND*" not in line] == ["PyInit__native"]
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"\(?GLIBC_([\d.]+)", "\n".join(lines))}
    assert versions
    assert max(versions) <= (2, 28)


def test_code_and_changelog_have_the_projects_version():
    version = PROJECT["project"]["version"]
    assert ipex_lookahead.__version__ == version
    newest = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version.removesuffix(".dev0")
    assert (newest[2] == "unreleased") == version.endswith(".dev0")


def test_the_image_says_what_the_project_says():
    text, project = (ROOT / "Dockerfile").read_text(encoding="utf-8"), PROJECT["project"]
    said = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text))
    assert (said["title"], said["version"]) == (project["name"], project["version"])
    assert (said["description"], said["source"]) == (project["description"], project["urls"]["Repository"])
    setup = (ROOT / "scripts" / "setup.py").read_text(encoding="utf-8")
    (pinned,) = re.findall(r'^TORCH = "(.+)"$', setup, re.MULTILINE)
    (index,) = re.findall(r'^TORCH_CPU_INDEX = "(.+)"$', setup, re.MULTILINE)
    assert f"{pinned} --index-url {index}" in text
    assert text.index(pinned) < text.index("COPY pyproject.toml") < text.index("COPY . .")
    assert "'{}'".format(project["optional-dependencies"]["torch"][1]) in text
    cache = re.findall(r"IPEX_LOOKAHEAD_CACHE=(\S+)\nVOLUME (\S+)", text)
    assert cache == [("/opt/models", "/opt/models/costs")]


def signatures(text: str) -> dict[str, str]:
    """Every function and class of a stub with its arguments and defaults; how types are spelled depends on nanobind."""
    found = {}
    for outer in ast.parse(text).body:
        for node in [outer, *(outer.body if isinstance(outer, ast.ClassDef) else ())]:
            name = f"{getattr(outer, 'name', '')}.{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                defaults = [ast.unparse(one) for one in (*node.args.defaults, *node.args.kw_defaults) if one]
                found[name] = f"({', '.join(one.arg for one in arguments)}) {defaults}"
            elif isinstance(node, ast.ClassDef):
                found[name] = "class"
            elif isinstance(node, ast.Assign):
                found[f"{name}{ast.unparse(node.targets[0])}"] = ast.unparse(node.value)
    return found


@pytest.mark.programs
def test_the_stub_of_the_core_is_what_the_core_has(tmp_path):
    made = tmp_path / "stub.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ipex_lookahead._native", "-o", str(made)]
    subprocess.run(command, check=True, cwd=ROOT)
    own = signatures((ROOT / "ipex_lookahead" / "_native.pyi").read_text(encoding="utf-8"))
    assert own == signatures(made.read_text(encoding="utf-8")), "CONTRIBUTING.md says how to make it again"
    assert own["Cache.crop"] == "(self, length) []"


@pytest.mark.parametrize("isa", ["avx2", "avx_vnni", "avx512_vnni", "amx_int8"])
def test_nothing_that_others_may_link_leaves_an_instruction_sets_object(isa):
    """A function that two objects have is taken from one of them, which must not be one for newer processors."""
    objects = sorted(ROOT.glob(f"build/core-*/CMakeFiles/core.dir/csrc/kernels/{isa}/kernels.cc.o"))
    if not objects:
        pytest.skip(f"no object of {isa} in build/: not built by `make setup`, or by a compiler that has it not")
    for file in objects:
        table = subprocess.run(["nm", "-C", str(file)], capture_output=True, text=True, check=True).stdout
        names = re.findall(r"^[0-9a-f]{16} [TWVuBDR] (.+)$", table, re.MULTILINE)
        assert any(name == f"ipex_lookahead::{isa}_kernels()" for name in names)
        allowed = (f"{isa}::", f"::{isa}_kernels()", "::amx_tiles_multiply()", "DW.ref.__gxx_personality_v0")
        assert [name for name in names if not any(one in name for one in allowed)] == []
