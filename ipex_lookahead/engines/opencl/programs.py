"""Programs of kernels: their source, the options that they are built with, and how they are kept on disk.

A kept program is a file: a hash of what the driver made of the source, then that. What cannot be read, is damaged, or
is not taken by the driver any more is built anew and written over; where nothing can be written, nothing is kept.
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
"""What of these kernels use (``kernels/device.cl``); arrivals only with subgroups."""
ROWS = (1, 4, 16)
"""Rows that a kernel reads a weight for at once; each number is a program of its own."""
WIDE_REGISTERS = ("-DWIDE_REGISTERS",)
"""Options of kernels over weights on GPUs whose matrix units are 16 lanes wide, as their registers are: 64 bytes."""
KV_INT8 = ("-DKV_INT8",)
"""Options of attention where keys and values are kept in 8 bits."""
DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Units:
    """Matrix units that kernels use for many rows: the lanes of a subgroup, 8 or 16, or 0 where there are none.

    ``spelt_out``: their products by other means, which is how kernels are tried where there are no such units.
    """

    width: int = 0
    spelt_out: bool = False


def source(*files: str) -> str:
    """``device.cl`` and those files, without their endings, as one text."""
    return "\n".join((KERNELS / f"{name}.cl").read_text("utf-8") for name in ("device", *files))


@cache
def sources() -> str:
    """A hash of the kernels' sources."""
    files = sorted(KERNELS.glob("*.cl"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def flags(spelling: Spelling, has_c3: bool, options: Sequence[str] = ()) -> list[str]:
    """What a program is built with.

    Kernels are written in OpenCL C 1.2; what counts arrivals, and functions for integer dot products, in 3.0.
    """
    language = CL3 if has_c3 and {DOT, ARRIVALS} & {*spelling} else "-cl-std=CL1.2"
    return [language, *NUMERICS, *(f"-D{name}" for name in spelling), *options]


def units_for(low_bit: str, rows: int, units: Units) -> Units:
    """Those that a kernel over weights of a format uses: they multiply whole numbers, and many rows."""
    return units if rows == ROWS[-1] and has_whole_codes(low_bit) else Units()


def rows_of(low_bit: str, units: Units) -> tuple[int, ...]:
    """The numbers of rows at once that kernels over weights of a format are built for.

    Where products are of floats, four sums a row fill the registers of a thread: of 8 rows wide ones, of 4 rows others.
    """
    if has_whole_codes(low_bit):
        return ROWS
    return (*ROWS[:-1], 8) if units.width == 16 else ROWS[:-1]


def files_of(name: str) -> tuple[str, ...]:
    """The files of a kernel over weights."""
    return ("tiles", "heads", name) if name == "linear_heads" else ("tiles", name)


def over_weights(low_bit: str, rows: int, units: Units, spelling: Spelling) -> tuple[list[str], Spelling]:
    """Options and spelling of a kernel over weights of a format, for so many rows at once."""
    options = [*defines(low_bit), f"-DROWS={rows}", *(WIDE_REGISTERS if units.width == 16 else ())]
    units = units_for(low_bit, rows, units)
    if units.width:
        options += [f"-DMATRIX_WIDTH={units.width}", *(() if units.spelt_out else ("-DHAS_MATRIX_UNITS",))]
    if units.width == 8:  # a lane group is no subgroup then
        spelling = tuple(one for one in spelling if one == DOT)
    return options, spelling


def built(cl: Any, context: Any, raw: Any, text: str, options: Sequence[str], folder: Path | None) -> Any:
    """A program for a device, kept in a folder for this text, these options, device and driver.

    Raises pyopencl's errors where the driver does not build it. Trouble with the folder costs the time to build.
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
