"""Programs that are kept on disk: trouble with the folder or with what lies in it costs time, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.engines.opencl.programs import DIGEST, built

TEXT, OPTIONS = "kernel void nothing() {}", ("-cl-std=CL1.2",)


class FakeError(Exception):
    """As pyopencl's; of whatever code."""


class Driver:
    """As much of pyopencl as building takes. ``takes``: whether it takes a binary that it made before."""

    VERSION_TEXT = "1"
    Error = FakeError
    program_info = SimpleNamespace(BINARIES="binaries")

    def __init__(self) -> None:
        self.compiled = self.loaded = 0
        self.takes = True
        self.fails: str | None = None

    def Program(self, context: Any, first: Any, binaries: list[bytes] | None = None) -> Any:
        def build(options: list[str], cache_dir: Any = None) -> Any:
            if binaries is None:
                assert (first, options, cache_dir) == (TEXT, [*OPTIONS], False)
                if self.fails is not None:
                    raise FakeError(self.fails)
                self.compiled += 1
            else:
                assert binaries == [b"binary"]
                if not self.takes:
                    raise FakeError("INVALID_BINARY")
                self.loaded += 1
            return program

        program = SimpleNamespace(build=build, get_info={"binaries": [b"binary"]}.get)
        return program


def card(driver: str = "1.0") -> Any:
    platform = SimpleNamespace(name="Intel", version="3.0")
    return SimpleNamespace(name="Arc", version="3.0", driver_version=driver, platform=platform)


def tried(driver: Driver, folder: Path | None, raw: Any = None) -> tuple[int, int]:
    """How often it has compiled and loaded after one more program was asked for."""
    assert built(driver, None, raw or card(), TEXT, OPTIONS, folder)
    return driver.compiled, driver.loaded


def test_a_program_is_compiled_once_for_a_driver(tmp_path: Path) -> None:
    driver, folder = Driver(), tmp_path / "made" / "opencl"
    assert tried(driver, folder) == (1, 0)
    assert tried(driver, folder) == (1, 1)
    assert tried(driver, folder, card("2.0")) == (2, 1)
    assert tried(driver, None) == (3, 1)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "damage", [b"", b"short", b"x" * DIGEST + b"binary", None], ids=["empty", "cut", "bits", "old"]
)
def test_what_is_damaged_is_made_anew_once(tmp_path: Path, damage: bytes | None) -> None:
    driver = Driver()
    assert tried(driver, tmp_path) == (1, 0)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    if damage is None:  # the driver's to refuse
        driver.takes = False
    else:
        file.write_bytes(damage)
    assert tried(driver, tmp_path) == (2, 0)
    driver.takes = True
    assert file.read_bytes() == whole
    assert tried(driver, tmp_path) == (2, 1)
    assert list(tmp_path.iterdir()) == [file]


def test_where_nothing_can_be_kept_it_is_built_each_time(tmp_path: Path) -> None:
    """A file where the folder should be, a folder where the file should be: no user may write there, not even root."""
    driver = Driver()
    (tmp_path / "opencl").write_text("a file")
    for count in (1, 2):
        assert tried(driver, tmp_path / "opencl") == (count, 0)
    assert tried(driver, tmp_path / "good") == (3, 0)
    (file,) = (tmp_path / "good").iterdir()
    file.unlink()
    file.mkdir()
    for count in (4, 5):
        assert tried(driver, tmp_path / "good") == (count, 0)
    assert list((tmp_path / "good").iterdir()) == [file]


@pytest.mark.parametrize("code", ["BUILD_PROGRAM_FAILURE", "OUT_OF_HOST_MEMORY", "COMPILER_NOT_AVAILABLE"])
def test_what_the_compiler_says_is_said(tmp_path: Path, code: str) -> None:
    driver = Driver()
    driver.fails = code
    for _ in range(2):
        with pytest.raises(FakeError, match=code):
            built(driver, None, card(), TEXT, OPTIONS, tmp_path)
    assert list(tmp_path.iterdir()) == []
