"""What is made beside its place: whole or not at all, and swept where its maker was killed."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_lookahead.files import temporary
from ipex_lookahead.files.temporary import put_in_place, sweep, temporary_file, temporary_folder

MAKER = """
import sys, time
from pathlib import Path
from ipex_lookahead.files.temporary import temporary_file, temporary_folder
make = temporary_folder if sys.argv[2] == "folder" else temporary_file
with make(Path(sys.argv[1])) as path:
    if sys.argv[2] == "folder":
        (path / "weights").write_text("half")
    print("made", flush=True)
    time.sleep(600)
"""


def killed_maker(target: Path, kind: str) -> None:
    maker = start(target, kind)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()


def start(target: Path, kind: str) -> subprocess.Popen[str]:
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(target), kind], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "made\n"
    return maker


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.programs
def test_what_a_killed_maker_left_goes_with_the_next(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out [1]*"
    killed_maker(target, kind)
    killed_maker(tmp_path / "another", kind)
    assert len(list(tmp_path.iterdir())) == 2
    with (temporary_folder if kind == "folder" else temporary_file)(target) as path:
        assert path.exists()
        assert len(list(tmp_path.glob(".out*"))) == 1
    assert [p.name[:9] for p in tmp_path.iterdir()] == [".another."]  # of another place: not ours to judge


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.programs
def test_what_a_living_maker_has_stays(tmp_path: Path, kind: str) -> None:
    maker = start(tmp_path / "out", kind)
    try:
        sweep(tmp_path / "out")
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        maker.kill()
        maker.communicate()
    sweep(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_strangers_of_a_similar_name_stay(tmp_path: Path) -> None:
    for name in (".out.saving-mine", ".out.saving-123456789", "out.saving-12345678", ".out.saved-12345678"):
        (tmp_path / name).write_text("")
    sweep(tmp_path / "out")
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("at_once", [True, False])
def test_a_folder_takes_the_place_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    if not at_once:
        monkeypatch.setattr(temporary, "_exchange", lambda one, other: False)
    target = tmp_path / "out"
    for text in ("first", "second"):
        with temporary_folder(target) as folder:
            (folder / "f").write_text(text)
            put_in_place(folder, target)
        assert (target / "f").read_text() == text
        assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.programs
def test_a_maker_killed_between_two_steps_loses_nothing(tmp_path: Path) -> None:
    """Where names cannot be exchanged: the old folder stands aside, and nothing at its place."""
    aside = tmp_path / ".out.old-00000000"
    aside.mkdir()
    (aside / "f").write_text("old")
    sweep(tmp_path / "out")
    assert (tmp_path / "out" / "f").read_text() == "old"
    aside.mkdir()
    sweep(tmp_path / "out")  # both are there: what stands aside is what was replaced
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_maker(tmp_path / "out", "folder")

    def none_here(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(temporary.fcntl, "flock", none_here)
    with temporary_folder(tmp_path / "out") as folder:
        assert folder.exists()
    assert len(list(tmp_path.iterdir())) == 1
