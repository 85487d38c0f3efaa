"""Programs of kernels: their source, their build options, and their cache on disk.

A cached program is a file that holds the hash of a binary and the binary. A file that cannot be read, is damaged, or
is refused by the driver is replaced by a new build. Where the folder cannot be written, programs are not cached.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ipex_lookahead.engines.opencl.formats import defines, has_whole_codes
from ipex_lookahead.files.temporary import temporary_file

KERNELS = Path(__file__).parent / "kernels"
CL3 = "-cl-std=CL3.0"
NUMERICS = ("-cl-fp32-correctly-rounded-divide-sqrt",)
SUBGROUPS, DOT, ARRIVALS = "HAS_SUBGROUPS", "HAS_DOT", "HAS_ARRIVALS"
Spelling = tuple[str, ...]
"""The optional features that kernels use (``kernels/device.cl``). Arrivals need subgroups."""
ON_GPU = ("-DON_GPU",)
"""Options of all programs on GPUs."""
ROWS = (1, 4, 16)
"""Numbers of rows that a kernel reads a weight for once. Each number is a separate program."""
SPLITS = (1, 4, 16)
"""Numbers of lane groups that share a tile. Each number is a separate program."""
ALONE = frozenset(("embed", "part_linear", "grouped_linear"))
"""Kernels over weights with one lane group per tile."""
JOBS = 4
"""Tiles of a work-group of ``gate_up``."""
WIDE_REGISTERS = ("-DWIDE_REGISTERS",)
"""Options of kernels over weights on GPUs with matrix units of 16 lanes, which have registers of 64 bytes."""
OF_ROWS = ("rows", "experts", "heads", "attention", "latent")
"""The source files of the kernels over rows and heads, which are one program."""
QUERIES, LATENT_QUERIES = 1024, 2304
"""Most values of the queries of a work-group of attention, in local memory. Latent attention: four of DeepSeek's."""
OF_LATENTS = (f"-DQUERIES={LATENT_QUERIES}",)
"""Options of attention in models with latent attention."""
KV_INT8 = ("-DKV_INT8",)
"""Options of attention over keys and values in 8 bits."""
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Units:
    """Matrix units that kernels use for many rows.

    Attributes:
        width: lanes of a subgroup, 8 or 16; 0: there are no matrix units.
        spelt_out: compute their products without them, which tests the kernels on devices that have none.
    """

    width: int = 0
    spelt_out: bool = False


def source(*files: str) -> str:
    """Return ``device.cl`` and the named files (without ``.cl``) as one text."""
    return "\n".join((KERNELS / f"{name}.cl").read_text("utf-8") for name in ("device", *files))


@cache
def sources() -> str:
    """Return a hash of the sources of all kernels."""
    files = sorted(KERNELS.glob("*.cl"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def flags(spelling: Spelling, has_c3: bool, options: Sequence[str] = (), on_gpu: bool = False) -> list[str]:
    """Return the build options of a program.

    Kernels are written in OpenCL C 1.2; counting arrivals and integer dot products need 3.0.
    """
    language = CL3 if has_c3 and {DOT, ARRIVALS} & {*spelling} else "-cl-std=CL1.2"
    return [language, *NUMERICS, *(f"-D{name}" for name in spelling), *(ON_GPU if on_gpu else ()), *options]


def units_for(low_bit: str, rows: int, units: Units) -> Units:
    """Return the matrix units that a kernel over weights of a format uses: only for whole numbers and many rows."""
    return units if rows == ROWS[-1] and has_whole_codes(low_bit) else Units()


def rows_of(low_bit: str, units: Units) -> tuple[int, ...]:
    """Return the numbers of rows that kernels over weights of a format are built for.

    In products of floats, four sums per row fill a thread's registers: at 8 rows wide registers, at 4 rows others.
    """
    if has_whole_codes(low_bit):
        return ROWS
    return (*ROWS[:-1], 8) if units.width == 16 else ROWS[:-1]


def splits_of(name: str, low_bit: str) -> tuple[int, ...]:
    """Return the numbers of lane groups of a work-group that may share a tile in a kernel over weights of a format.

    Sums of products of floats cannot be split further than into the four that are defined.
    """
    if name in ALONE:
        return SPLITS[:1]
    most = 4 if name == "gate_up" or not has_whole_codes(low_bit) else SPLITS[-1]
    return tuple(count for count in SPLITS if count <= most)


def split_for(name: str, low_bit: str, lane_groups: int, concurrency: int) -> int:
    """Return the least number of lane groups per tile with which ``lane_groups`` tiles fill a device, or the largest.

    ``concurrency``: number of lane groups that the device runs at the same time.
    """
    splits = splits_of(name, low_bit)
    return next((split for split in splits if lane_groups * split >= concurrency), splits[-1])


def files_of(name: str) -> tuple[str, ...]:
    """Return the source files of a kernel over weights."""
    return ("tiles", "products", *(("heads",) if name == "linear_heads" else ()), name)


def over_weights(
    low_bit: str, rows: int, units: Units, spelling: Spelling, split: int = 1
) -> tuple[list[str], Spelling]:
    """Return build options and spelling of a kernel over weights of a format.

    ``rows``: the number of rows that it computes at once; ``split``: of lane groups that share a tile.
    """
    options = [*defines(low_bit), f"-DROWS={rows}", *(WIDE_REGISTERS if units.width == 16 else ())]
    options += [f"-DSPLIT={split}"] if split > 1 else []
    units = units_for(low_bit, rows, units)
    if units.width:
        options += [f"-DMATRIX_WIDTH={units.width}", *(() if units.spelt_out else ("-DHAS_MATRIX_UNITS",))]
    if units.width == 8:  # a lane group is not a subgroup then
        spelling = tuple(one for one in spelling if one == DOT)
    return options, spelling


def built(cl: Any, context: Any, raw: Any, text: str, options: Sequence[str], folder: Path | None) -> Any:
    """Build a program, or read it from the cache, by source, options, device and driver.

    Raises pyopencl's errors if the driver does not build it. Errors of the cache folder are ignored.
    """
    if folder is None:
        return cl.Program(context, text).build([*options], cache_dir=False)
    platform = raw.platform
    made_by = (cl.VERSION_TEXT, platform.name, platform.version, raw.name, raw.version, raw.driver_version)
    key = hashlib.sha256("\0".join((*map(str, made_by), *options, text)).encode()).hexdigest()[:32]
    file = folder / f"{key}.bin"
    if (binary := _kept(file)) is not None:
        with contextlib.suppress(cl.Error):
            return cl.Program(context, [raw], [binary]).build([*options])
    program = cl.Program(context, text).build([*options], cache_dir=False)
    (binary,) = program.get_info(cl.program_info.BINARIES)
    with contextlib.suppress(OSError):
        _keep(file, bytes(binary))
    return program


def _kept(file: Path) -> bytes | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    binary = content[DIGEST:]
    return binary if hashlib.sha256(binary).digest() == content[:DIGEST] else None


def _keep(file: Path, binary: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(file) as half:
        half.write_bytes(hashlib.sha256(binary).digest() + binary)
        half.replace(file)
