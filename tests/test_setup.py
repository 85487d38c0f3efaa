"""``scripts/setup.py``: what is missing is one sentence; what was interrupted is mended; a second run does nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The script as a module that works on a project of its own in ``tmp_path``."""
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    venv = tmp_path / ".venv"
    places = {"ROOT": tmp_path, "VENV": venv, "VENV_OLD": tmp_path / ".venv.old", "PYTHON": venv / "bin" / "python"}
    places |= {"STAMPS": venv / "ipex-lookahead", "HALF_MADE": venv / "half-made", "INSTALLING": venv / "installing"}
    for name, place in places.items():
        monkeypatch.setattr(module, name, str(place))
    (tmp_path / "csrc").mkdir()
    for name in ("pyproject.toml", "CMakeLists.txt", "csrc/a.cc"):
        (tmp_path / name).write_text(name)
    return module


@pytest.fixture
def ready_venv(setup, tmp_path):
    """A ``.venv`` that looks whole: its python is this one, whose prefix is a virtual environment's."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text(
        f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = false\n"
    )
    site = tmp_path / ".venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "pip").mkdir(parents=True)
    (site / "pip" / "__init__.py").write_text("")
    return site


def test_old_python(setup, monkeypatch):
    monkeypatch.setattr(setup.sys, "version_info", (3, 8, 0))
    with pytest.raises(setup.SetupError, match=r"Python 3\.10 or newer is needed; .* is 3\.8"):
        setup.check_python()


def test_the_script_itself_can_be_read_by_old_pythons():
    """No syntax newer than 3.6, so that the version check is reached."""
    import ast

    ast.parse(SCRIPT.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_no_compiler(setup, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(setup.SetupError, match=r"no C\+\+ compiler was found") as caught:
        setup.check_compiler()
    assert "apt install g++" in caught.value.hint


@pytest.mark.parametrize(("body", "says"), [("echo too old; exit 1", "too old"), ("exit 1", "no message")])
def test_compiler_that_fails(setup, body, says, tmp_path, monkeypatch):
    fake = tmp_path / "cxx"
    fake.write_text(f"#!/bin/sh\n{body}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(setup.SetupError, match=says):
        setup.check_compiler()


def test_compiler_that_is_not_there(setup, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(setup.SetupError, match="cannot be run"):
        setup.check_compiler()


def test_missing_python_headers(setup, monkeypatch, tmp_path):
    good = subprocess.CompletedProcess([], 0, stdout="")
    monkeypatch.setattr(setup.subprocess, "run", lambda *a, **k: good)
    monkeypatch.setattr(setup, "output", lambda command: str(tmp_path))
    with pytest.raises(setup.SetupError, match="C headers are missing") as caught:
        setup.check_compiler()
    assert "python3-dev" in caught.value.hint


@pytest.mark.parametrize(
    "said", ["No module named venv", "The virtual environment was not created ... ensurepip is not"]
)
def test_python_without_venv(setup, said, monkeypatch):
    monkeypatch.setattr(setup.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess([], 1, stdout=said))
    with pytest.raises(setup.SetupError, match="cannot make virtual environments") as caught:
        setup.make_venv()
    assert "python3-venv" in caught.value.hint
    assert setup.venv_fault(), "what was begun does not pass for an environment"


def test_whole_venv_is_left_alone(setup, ready_venv, monkeypatch):
    monkeypatch.setattr(setup.subprocess, "run", refuse_commands_but_python(setup))
    setup.make_venv()
    assert (ready_venv / "pip").is_dir()


def refuse_commands_but_python(setup):
    real = subprocess.run

    def run(command, **options):
        assert command[0] == setup.PYTHON, f"{command} was started"
        return real(command, **options)

    return run


@pytest.mark.parametrize("fault", ["half-made", "no python", "no pip"])
def test_broken_venv_is_made_again(setup, ready_venv, fault, monkeypatch, tmp_path, capsys):
    if fault == "half-made":
        Path(setup.HALF_MADE).write_text("")
    elif fault == "no python":
        os.remove(setup.PYTHON)
    else:
        (ready_venv / "pip" / "__init__.py").unlink()
        (ready_venv / "pip").rmdir()
    (ready_venv / "old").write_text("")
    made = []
    real = subprocess.run

    def run(command, **options):
        if command[1:3] == ["-m", "venv"]:
            made.append(command)
            assert Path(setup.HALF_MADE).exists(), "marked as half-made until it is whole"
            return subprocess.CompletedProcess(command, 0, stdout="")
        return real(command, **options)

    monkeypatch.setattr(setup.subprocess, "run", run)
    setup.make_venv()
    assert len(made) == 1
    assert "making .venv again" in capsys.readouterr().out
    assert not (ready_venv / "old").exists()
    assert not Path(setup.HALF_MADE).exists()
    assert not (tmp_path / ".venv.old").exists()


def test_interrupted_install_is_mended(setup, ready_venv, monkeypatch):
    whole, half, backup = (ready_venv / n for n in ("a-1.dist-info", "b-1.dist-info", "~c"))
    for folder in (whole, half, backup):
        folder.mkdir()
    (whole / "INSTALLER").write_text("pip")
    setup.repair_interrupted_install()
    assert half.exists(), "nothing is touched where no install was interrupted"
    Path(setup.INSTALLING).write_text("")
    setup.repair_interrupted_install()
    assert whole.exists()
    assert not half.exists()
    assert not backup.exists()


def fake_pip(setup, monkeypatch, text, code=1):
    real = subprocess.Popen
    script = f"print({text!r}); raise SystemExit({code})"
    monkeypatch.setattr(setup.subprocess, "Popen", lambda command, **o: real([sys.executable, "-c", script], **o))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ERROR: Could not find a version that satisfies x (from versions: none)", "no network"),
        ("NewConnectionError: [Errno -3] Temporary failure in name resolution", "no network"),
        ("ERROR: [Errno 28] No space left on device", "the disk is full"),
        ("a.cc:1: error: no such thing\nERROR: Failed building editable for ipex-lookahead", "did not build"),
        ("ERROR: something else", "pip failed: something else"),
    ],
)
def test_pip_failures_are_sentences(setup, ready_venv, text, says, monkeypatch):
    fake_pip(setup, monkeypatch, text)
    with pytest.raises(setup.SetupError, match=says):
        setup.pip("install", "x")
    assert Path(setup.INSTALLING).exists(), "the next run looks for what was left half-installed"


def test_successful_pip_leaves_no_marker(setup, ready_venv, monkeypatch, capsys):
    fake_pip(setup, monkeypatch, "Collecting a>=1 (from b)\nsilent", code=0)
    setup.pip("install", "x")
    assert not Path(setup.INSTALLING).exists()
    assert capsys.readouterr().out == "    Collecting a>=1\n"


def test_cuda_build_is_refused(setup, monkeypatch):
    report = '{"install": [{"metadata": {"name": "torch", "requires_dist": ["nvidia-cublas-cu12==1"]}}]}'
    monkeypatch.setattr(setup.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, report, ""))
    with pytest.raises(setup.SetupError, match="CUDA build only"):
        setup.refuse_cuda()
    monkeypatch.setattr(setup.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, "{}", ""))
    setup.refuse_cuda()


def test_torch_comes_from_the_cpu_index_first_and_by_exact_version_otherwise(setup, ready_venv, monkeypatch):
    asked = []

    def pip(*arguments, **options):
        asked.append(arguments)
        if "--index-url" in arguments:
            raise setup.SetupError("no answer")

    monkeypatch.setattr(setup, "pip", pip)
    monkeypatch.setattr(setup, "has_torch", lambda: False)
    monkeypatch.setattr(setup, "refuse_cuda", lambda: asked.append("cuda?"))
    setup.install_torch()
    assert asked[0][asked[0].index("--index-url") + 1] == setup.TORCH_CPU_INDEX
    assert asked[1] == "cuda?"
    assert all("==" in call[-1] and "--no-deps" in call for call in (asked[0], asked[2]))
    asked.clear()
    setup.install_torch()
    assert asked == [], "stamped"


def test_second_run_starts_nothing_and_a_changed_source_builds_again(setup, ready_venv, monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(setup, "pip", lambda *arguments, **options: built.append(arguments))
    monkeypatch.setattr(setup, "has_torch", lambda: True)
    monkeypatch.setattr(setup, "check_compiler", lambda: None)
    monkeypatch.setattr(setup, "output", lambda command: "True" if "import sys, pip" in command[-1] else "")
    setup.main(["--with", "test"])
    assert len(built) == 2, "the build tools, then the package with its dependencies"
    assert built[1][-1].endswith("[torch,test]")
    built.clear()
    setup.main(["--with", "test"])
    setup.main([])
    assert built == []
    (tmp_path / "csrc" / "a.cc").write_text("changed")
    setup.main([])
    assert [("--no-index" in b, "--no-deps" in b) for b in built] == [(True, True)], "without network"
    built.clear()
    (tmp_path / "csrc" / "new.cc").write_text("")
    setup.main([])
    assert len(built) == 1
    built.clear()
    (tmp_path / "pyproject.toml").write_text("another dependency")
    setup.main([])
    assert len(built) == 2


def test_only_the_set_up_builds_in_the_sources_folder(setup, ready_venv, monkeypatch):
    """Who installs from a folder that cannot be written must not be asked to write there."""
    seen = {}
    real = subprocess.Popen
    quick = [sys.executable, "-c", "print()"]
    monkeypatch.setattr(setup.subprocess, "Popen", lambda command, **o: seen.update(o["env"]) or real(quick, **o))
    setup.pip("install", "x")
    assert seen["SKBUILD_BUILD_DIR"].startswith("build/core-")
    assert "build-dir" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_failed_build_is_tried_again(setup, ready_venv, monkeypatch):
    def fail(*arguments, **options):
        raise setup.SetupError("did not build")

    monkeypatch.setattr(setup, "has_torch", lambda: True)
    monkeypatch.setattr(setup, "check_compiler", lambda: None)
    for _ in range(2):
        monkeypatch.setattr(setup, "pip", fail)
        with pytest.raises(setup.SetupError):
            setup.main([])


def test_packages_that_do_not_load(setup, ready_venv, monkeypatch):
    monkeypatch.setattr(setup, "pip", lambda *arguments, **options: None)

    def output(command):
        raise subprocess.CalledProcessError(1, command, "", "Traceback\nImportError: libx.so is missing\n")

    monkeypatch.setattr(setup, "output", output)
    with pytest.raises(setup.SetupError, match=r"do not load: ImportError: libx\.so is missing"):
        setup.install_package(dependencies=False, extras=[])
    assert not Path(setup.STAMPS, "native").exists()


@pytest.mark.programs
def test_unknown_argument_is_an_error():
    done = subprocess.run([sys.executable, str(SCRIPT), "--nonsense"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: unknown argument '--nonsense'\nhint: usage")


@pytest.mark.programs
def test_make_without_python(tmp_path):
    done = subprocess.run(["make", "PYTHON=/no/such/python", "setup"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: no '/no/such/python' was found" in done.stderr
    assert "hint: install Python 3.10" in done.stderr
