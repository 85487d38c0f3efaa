"""Compile and run the C++ tests of the core; `make sanitize` runs the pool's under ThreadSanitizer too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-std=c++17", "-O1", "-w", "-pthread", f"-I{ROOT / 'csrc'}")
pytestmark = [pytest.mark.programs, pytest.mark.timeout(1200)]  # half a minute of compiling, more on a busy machine


def compiler() -> str:
    """The one at hand."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler to build the test with")
    return found


def core(*sources: str) -> list[str]:
    """Return the core's library where ``make setup`` has built it since its sources changed, else those sources."""
    changed = max(file.stat().st_mtime for file in (ROOT / "csrc").rglob("*.*"))
    for library in (ROOT / "build").glob("core-*/libcore.a"):
        if library.stat().st_mtime > changed:
            return [str(library)]
    return [str(ROOT / "csrc" / source) for source in sources]


def run(folder: Path, name: str, files: list[str], *flags: str) -> str:
    """Build ``tests/csrc/<name>.cc`` with sources, objects or libraries, and return what it prints."""
    program, test = folder / name, str(ROOT / "tests/csrc" / f"{name}.cc")
    subprocess.run([compiler(), *FLAGS, *flags, test, *files, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pool_does_every_item_once_and_in_order(tmp_path: Path) -> None:
    assert run(tmp_path, "thread_pool_test", core("runtime/thread_pool.cc"), "-g") == "thread_pool_test: ok\n"


DECODER = [
    *(str(file) for file in sorted((ROOT / "csrc/model").rglob("*.cc"))),
    "sampling.cc",
    "weights/packing.cc",
    "runtime/thread_pool.cc",
    "kernels/scalar/kernels.cc",
]
SCALAR = str(ROOT / "tests/csrc/dispatch_scalar.cc")
"""The scalar kernels only, which run anywhere."""


def test_a_step_takes_no_memory_from_the_heap_and_a_cache_in_use_is_refused_or_right(tmp_path: Path) -> None:
    """Two programs of the same files, which are compiled once."""
    files = core(*DECODER)
    if len(files) > 1:
        subprocess.run([compiler(), *FLAGS, "-c", *files], check=True, cwd=tmp_path)
        files = [str(file) for file in tmp_path.glob("*.o")]
    for name in ("step_allocation_test", "cache_in_use_test"):
        assert run(tmp_path, name, [SCALAR, *files]) == f"{name}: ok\n"


def test_amx_kernels_on_tile_operations_in_plain_c(tmp_path: Path) -> None:
    """Every format, one row to 65 and more, odd shapes, threads: the scalar kernels' bytes, on any machine."""
    kernels = tmp_path / "kernels.o"
    emulated = [*FLAGS, "-DEMULATED_TILES", "-c", str(ROOT / "csrc/kernels/amx_int8/kernels.cc")]
    subprocess.run([compiler(), *emulated, "-o", kernels], check=True)
    files = [str(kernels), *core("kernels/scalar/kernels.cc")]
    assert run(tmp_path, "amx_tiles_test", files, "-DEMULATED_TILES") == "amx_tiles_test: ok\n"


def test_a_processor_that_faults_on_tiles_is_found_out(tmp_path: Path) -> None:
    assert run(tmp_path, "tile_registers_test", core("runtime/tile_registers.cc")) == "tile_registers_test: ok\n"
