"""Build every kernel of the OpenCL engine with Intel's own compiler for its GPUs, and compare with what is recorded.

python scripts/opencl_offline.py [--device dg2 ...]   fails where a kernel has got worse than docs/results/ocloc.json
python scripts/opencl_offline.py --record             writes what it finds there, and the page that shows it
python scripts/opencl_offline.py --render             the page again
                                 --program linear     only programs with names that begin with linear

``make test-opencl-offline`` runs it. It needs no GPU: a program is built as the engine builds it on a device of that
name, for every format and number of rows.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent))

from environments import as_program
from ocloc import Ocloc, Unreachable, compiler
from opencl_binaries import COLUMNS, BadBinaryError, faults, kernels, members

from ipex_lookahead.engines.opencl.device import INTEL_THREADS, OTHER_LANE_GROUPS
from ipex_lookahead.engines.opencl.programs import (
    ARRIVALS,
    DOT,
    KV_INT8,
    OF_LATENTS,
    OF_ROWS,
    SUBGROUPS,
    Spelling,
    Units,
    files_of,
    flags,
    over_weights,
    rows_of,
    source,
    split_for,
    splits_of,
)
from ipex_lookahead.low_bits import LOW_BITS

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECORD, PAGE = DOCS / "results" / "ocloc.json", DOCS / "dev" / "intel_gpu_kernels.md"
DEVICES = {
    "dg2": "Arc A",
    "bmg": "Arc B",
    "lnl": "Core Ultra 200V (Lunar Lake)",
    "mtl": "Core Ultra 100 (Meteor Lake)",
    "ptl": "Core Ultra 300 (Panther Lake)",
    "tgl": "11th generation (Tiger Lake)",
    "pvc": "Data Center GPU Max",
}
"""Names as ocloc has them, the order in which they are built, and what people call them."""
NARROW = {"dg2"}
"""Matrix units for subgroups of 8; all others' are for 16."""
MATRIX_UNITS = "cl_intel_subgroup_matrix_multiply_accumulate"
OVER_WEIGHTS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "linear": ("linear", 3, ()),
    "linear_norm": ("linear_norm", 2, ()),
    "linear_heads": ("linear_heads", 2, ()),
    "linear_heads int8": ("linear_heads", 2, KV_INT8),
    "gate_up": ("gate_up", 3, ()),
    "expert_linear": ("expert_linear", 1, ()),
    "embed": ("embed", 1, ()),
    "part_linear": ("part_linear", 3, ()),
    "grouped_linear": ("grouped_linear", 3, ()),
}
"""Programs over weights: their kernel, how many of a format's numbers of rows at once the engine builds them for, and
options in addition to those of the format."""
SAMPLED = {"linear_heads int8", "part_linear", "grouped_linear"}
"""Those with the products of ``linear``, which are built for a sample of formats only."""
SAMPLE = ("sym_int4", "asym_int4", "sym_int8", "q4_k", "q6_k", "fp16", "nf4")
COUNTING = {"linear_norm", "linear_heads"}
"""Those that count arrivals of work-groups."""
OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "attention": (OF_ROWS, ()),
    "attention int8": (OF_ROWS, KV_INT8),
    "attention latent": (OF_ROWS, OF_LATENTS),
    "attention latent int8": (OF_ROWS, (*KV_INT8, *OF_LATENTS)),
    "recurrence": (("recurrence",), ("-DKEYS=128",)),
    "draft": (("draft",), ()),
    "self_test": (("self_test",), ()),
    "bandwidth": (("bandwidth",), ()),
}
"""Programs without weights: files and options."""
Found = dict[str, Any]


@click.command()
@click.option("--device", "devices", multiple=True, type=click.Choice(list(DEVICES)), help="All if not given.")
@click.option(
    "--program", "only", default="", help="Programs with names that begin with this: linear, 'gate_up 16', self_test."
)
@click.option("--record", is_flag=True, help="Write the results instead of comparing them.")
@click.option("--render", is_flag=True, help="Build nothing: write the page from what is recorded.")
def main(devices: tuple[str, ...], only: str, record: bool, render: bool) -> None:
    """See the top of the file."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"devices": {}}
    if not render:
        try:
            ocloc = compiler(say)
        except Unreachable as error:
            say(f"SKIPPED, nothing was built: {error}")
            return
        say("with " + ", ".join(f"{name} {version}" for name, version in ocloc.versions.items()))
        if not devices and not record and (unknown := [name for name in DEVICES if name not in recorded["devices"]]):
            say("not compared, since nothing is recorded for them: " + ", ".join(unknown))
            devices = tuple(recorded["devices"])
        found = build_all(ocloc, devices or tuple(DEVICES), only)
        for device, one in found.items() if only else ():
            complete(one, recorded["devices"].get(device), only)
        if not record:
            problems = worse(recorded["devices"], found)
            for line in problems:
                say(line)
            say(f"{len(problems)} of the kernels are worse than recorded" if problems else "no kernel is worse")
            sys.exit(1 if problems else 0)
        there = recorded["devices"] | found
        ordered = {name: there[name] for name in DEVICES if name in there}
        recorded = {"compiler": ocloc.versions, "date": date.today().isoformat(), "devices": ordered}
        RECORD.write_text(as_text(recorded), encoding="utf-8")
    PAGE.write_text(page(recorded), encoding="utf-8")


def say(text: str) -> None:
    """A line for people, at once."""
    print("ocloc: " + text, flush=True)


# ---- building --------------------------------------------------------------------------------------------------------


def programs(units: Units, spelling: Spelling) -> Iterator[tuple[str, str, str, list[str]]]:
    """Every program of a device: what it is called, the format or "", its text and its flags."""
    for name, (files, options) in OTHERS.items():
        yield name, "", source(*files), flags(spelling, True, options, on_gpu=True)
    for name, (kernel, counts, more) in OVER_WEIGHTS.items():
        if kernel in COUNTING and ARRIVALS not in spelling:
            continue
        for low_bit in SAMPLE if name in SAMPLED else LOW_BITS:
            for rows in rows_of(low_bit, units)[:counts]:
                for split in splits_of(kernel, low_bit):
                    options, own = over_weights(low_bit, rows, units, spelling, split)
                    title = f"{name} {rows}" + (f" split {split}" if split > 1 else "")
                    yield title, low_bit, source(*files_of(kernel)), flags(own, True, [*options, *more], on_gpu=True)


def build_all(ocloc: Ocloc, devices: tuple[str, ...], only: str = "") -> dict[str, Found]:
    """Each device's kernels. Programs that are the same on several devices are built for them by one call."""
    found: dict[str, Found] = {}
    with tempfile.TemporaryDirectory() as folder:
        wanted: dict[tuple[str, str, str, str], list[str]] = {}
        for device in devices:
            units, spelling = offered(ocloc, device, folder)
            found[device] = {"matrix_units": units.width, "spelling": list(spelling), "problems": {}, "kernels": {}}
            for name, low_bit, text, options in programs(units, spelling):
                if name.startswith(only):
                    wanted.setdefault((name, low_bit, text, " ".join(options)), []).append(device)
        for done, ((name, low_bit, text, options), some) in enumerate(wanted.items()):
            if done % 50 == 0:
                say(f"{done} of {len(wanted)} builds")
            for device, result in built(ocloc, text, options, some, folder).items():
                note(found[device], name, low_bit, result)
    return found


def offered(ocloc: Ocloc, device: str, folder: str) -> tuple[Units, Spelling]:
    """What the engine would use there, as ``Device`` finds it out on a card."""
    extensions = ocloc.query("CL_DEVICE_EXTENSIONS", device, folder)
    features = {word.split(":")[0] for word in ocloc.query("CL_DEVICE_OPENCL_C_FEATURES", device, folder)}
    spelling: Spelling = ()
    if {"cl_intel_subgroups", "cl_intel_required_subgroup_size"} <= {*extensions}:
        spelling += (SUBGROUPS,)
    if "cl_khr_integer_dot_product" in extensions:
        spelling += (DOT,)
    if SUBGROUPS in spelling and {"__opencl_c_atomic_order_acq_rel", "__opencl_c_atomic_scope_device"} <= features:
        spelling += (ARRIVALS,)
    width = 8 if device in NARROW else 16
    return Units(width if MATRIX_UNITS in extensions else 0), spelling


@cache
def version(ocloc: Ocloc, device: str, folder: str) -> str:
    """As ``Ocloc.version``, which takes as long as a build of a small program."""
    return ocloc.version(device, folder)


def built(ocloc: Ocloc, text: str, options: str, devices: list[str], folder: str) -> dict[str, bytes | str]:
    """For each device the binary, or what the compiler said instead."""
    place = Path(folder, "program.cl")
    place.write_text(text, encoding="utf-8")
    arguments = ("compile", "-file", place.name, "-device", ",".join(devices), "-out_dir", "out", "-options", options)
    status, said = ocloc.run(*arguments, folder=folder)
    outputs = sorted(Path(folder, "out").glob("*.ar" if len(devices) > 1 else "*.bin"))
    content = outputs[0].read_bytes() if status == 0 and outputs else None
    for output in outputs:  # one of a single device may have a name that only the compiler knows it by
        output.unlink()
    if len(devices) == 1:
        return {devices[0]: said.strip()[-500:] or f"exit status {status}" if content is None else content}
    made: dict[str, bytes] = {}
    if content is not None:  # a binary in it is named by its device, or by the number of that
        names = {version(ocloc, device, folder): device for device in devices}
        made = {names.get(name, name): one for name, one in members(content).items()}
    alone = [device for device in devices if device not in made]  # to know which of them it is
    return {**made, **{d: r for one in alone for d, r in built(ocloc, text, options, [one], folder).items()}}


def note(found: Found, name: str, low_bit: str, result: bytes | str) -> None:
    """Put what was built, or was not, into a device's results."""
    if isinstance(result, bytes):
        try:
            problem = "; ".join(faults(result))
            for kernel, numbers in kernels(result).items():
                own = name if name.startswith(kernel) else f"{name}: {kernel}"
                found["kernels"].setdefault(own, {})[low_bit] = numbers
        except BadBinaryError as error:
            problem = str(error)
    else:
        problem = result
    if problem:
        found["problems"][f"{name} {low_bit}".strip()] = problem


def complete(found: Found, before: Found | None, only: str) -> None:
    """Add to a device's results what was recorded of the programs that were not built."""
    for part in ("problems", "kernels") if before else ():
        found[part] = {name: one for name, one in before[part].items() if not name.startswith(only)} | found[part]


# ---- comparing -------------------------------------------------------------------------------------------------------


def worse(recorded: dict[str, Found], found: dict[str, Found]) -> list[str]:
    """What is worse than recorded: a new problem, a kernel that is gone or new, more memory, fewer lanes."""
    said = []
    for device, now in found.items():
        before = recorded.get(device)
        if before is None:
            said.append(f"{device}: nothing is recorded (--record)")
            continue
        for name, problem in now["problems"].items():
            if name not in before["problems"]:
                said.append(f"{device}: {name}: {problem}")
        for name in {**before["kernels"], **now["kernels"]}:
            old, new = before["kernels"].get(name, {}), now["kernels"].get(name, {})
            for low_bit in {**old, **new}:
                if change := _change(old.get(low_bit), new.get(low_bit)):
                    said.append(f"{device}: {name} {low_bit}".rstrip() + f": {change}")
    return said


def _change(old: list[int] | None, new: list[int] | None) -> str:
    if old is None or new is None:
        return "it is not recorded (--record)" if old is None else "it was not built"
    lanes, registers, local, spilled, private = range(len(COLUMNS))
    changed = [i for i in (registers, local, spilled, private) if new[i] > old[i]]
    changed += [lanes] if new[lanes] < old[lanes] else []
    return ", ".join(f"{COLUMNS[i]} {old[i]} -> {new[i]}" for i in changed)


# ---- showing ---------------------------------------------------------------------------------------------------------


def as_text(recorded: dict[str, Any]) -> str:
    """JSON with a line for each kernel of a device."""
    parts = []
    for device, found in recorded["devices"].items():
        lines = ",\n".join(f"   {json.dumps(name)}: {json.dumps(one)}" for name, one in found["kernels"].items())
        rest = json.dumps({name: value for name, value in found.items() if name != "kernels"})
        parts.append(f'  {json.dumps(device)}: {rest[:-1]}, "kernels": {{\n{lines}\n  }}}}')
    head = json.dumps({name: value for name, value in recorded.items() if name != "devices"})
    return head[:-1] + ',\n "devices": {\n' + ",\n".join(parts) + "\n }\n}\n"


HEAD = """\
# Intel GPU kernels

<!-- made by `scripts/opencl_offline.py` from ../results/ocloc.json -->

This page is for contributors to the [OpenCL engine](../intel_gpu.md). After reading it you know how its kernels work,
what limits them on paper, how they are tested, and what Intel's compiler makes of them.

```sh
make test-opencl            # all tests on Intel's OpenCL runtime for CPUs
make test-opencl-offline    # build every kernel with Intel's compiler for its GPUs, compare with the tables below
```

## How the kernels work

Kernels are OpenCL C in `ipex_lookahead/engines/opencl/kernels`, one idea per file. They mirror `csrc/kernels/generic`.

- **Programs.** Each kernel over weights is one program per format and number of rows: 1, 4 or 16, fewer for products of
  floats. A program is built when a model first needs it.
- **Tiles.** A lane of a lane group of 16 work-items (a subgroup if available) computes one of a tile's 16 outputs.
  Each lane reads one word with four codes, so a lane group reads a line of 64 bytes. A weight is read once for up to 16
  rows.
- **Ordered split.** 1, 4 or 16 lane groups of a work-group share a tile, since a lane group per tile leaves most of a
  GPU idle. Each takes every 16th block, or every fourth, and writes the block's terms (the dot products, which are
  exact, and the scales) to local memory. After a barrier one lane group per row adds the terms in the canonical order,
  while the others read the next blocks: the bits do not depend on the number of lane groups. Products of floats round
  at each step of four running sums, so their terms cannot be computed apart: each of four lane groups computes one of
  these sums. The number of lane groups is the least with which the tiles fill the device. It depends on the matrix and
  on whether a step has 1, up to 4, up to 16, or more rows. CPUs always have one.
- **Norms.** The 16 lane groups of a work-group copy a row to local memory in parts of 1,024 values. One of them adds
  the squares of the previous part in the canonical order. Each then writes a block.
- **Activations** are quantized where they are produced: in the norm, in gate and up, in the merge of attention. Eight
  rows of a block are adjacent and are one read.
- **Attention** is split over blocks of 256 positions for up to 16 rows, and merged in ascending order. A work-group
  reads a key or a value once for up to eight pairs of a row and a head.
- **Latent attention** caches one latent and one key per position. The matrices of all heads are one stack, so each of
  the two products with them is one launch, and a weight is read once for up to 16 rows. A work-group attends for four
  heads of DeepSeek's sizes (576 values), which takes 18 KB of local memory, 35 KB with an int8 KV cache.
- **Mixtures.** One lane group per row chooses the experts. The shared expert's gate is computed with the router. In
  steps with at least two rows per expert on average, rows are grouped by expert. A weight is read once for 4 rows of
  its expert, or once for 16 from eight rows on average.
- **Transfers.** Only token ids go to the device, and only ids come back unless logits are requested. Arguments are
  bound once. One buffer holds what changes from step to step.
- **Launches.** A block takes five launches in steps of up to four rows: q k v, attention, o, gate and up, down. The
  last work-groups to arrive finish the heads and the norms. A model of 32 blocks takes 166 launches. Steps of more rows
  launch norms and heads separately, eight per block or more.
- **Command buffers.** If available, a step of up to 16 rows is recorded per number of rows and blocks of positions (up
  to the next power of two), and is one command. 64 recordings are cached.
- **Matrix units** multiply 8 rows by a tile in subgroups of 8 (Arc A) or 16 (Arc B, Lunar Lake). Sums of 32 products
  are integers, so the order of addition changes no bit. The tests emulate the units in other instructions; the units
  themselves have not run.

Python takes 0.11 ms of CPU time per step for 245 launches enqueued one by one, and 0.05 ms for a recorded step,
measured with the runtime's calls replaced by nothing.

## Limits on paper

Nothing in this section is measured. A step of one row cannot take less time than reading its weights:

| | bandwidth, GB/s | Llama-2-7B, `sym_int4` (3.7 GB) | Qwen3-1.7B, `q4_k` (1.0 GB) |
|---|---|---|---|
| Arc A770 | 560 | 6.6 ms, 150 tokens/s | 1.8 ms |
| Arc B580 | 456 | 8.2 ms, 122 tokens/s | 2.2 ms |
| Lunar Lake (Arc 140V, LPDDR5X-8533) | 137 | 27 ms, 36 tokens/s | 7.3 ms |

| | int8, TOPS (matrix units) | 16 rows of Llama-2-7B (211 GOP) | launches at 5 to 10 us: 166, 261 |
|---|---|---|---|
| Arc A770 | 262 | 0.8 ms | 0.8 to 1.7 ms, 1.3 to 2.6 ms |
| Arc B580 | 233 | 0.9 ms | the same |
| Lunar Lake | 67 | 3.1 ms | the same |

TOPS are matrix units x operations per clock x GHz: 512 x 256 x 2.0, 160 x 512 x 2.85, 64 x 512 x 2.05. Lunar Lake's
figure is Intel's own; the B580's is computed; the A770's is from a community page. 16 rows are limited by the weights,
as one row is. Launch latency is the remaining cost, so launches are few, and recorded where possible.

All kernels have run on Intel's OpenCL runtime for CPUs, with every number of lane groups per tile. An NVIDIA H200 has
run the plain variant of the kernels before the ordered split, with the core's bytes, at 4 % of its bandwidth. A step of
one row of Llama-2-7B in `sym_int4` took 23.8 ms there, one of 16 rows 207 ms. A prototype of the split, for two
formats, took 7.0 and 18.6 ms. The kernels as they are now have not run on it. No Intel GPU has run any of them.

Lane groups of a step of one row of Llama-2-7B in `sym_int4`, before the ordered split and with it:

@WORK@

Instructions of Intel's compiler for a `linear` that a lane group runs, loops counted once, before the ordered split and
with 16 lane groups per tile (4 for floats). A lane group then runs its loop over blocks once for 16 blocks:

@COUNTS@

Not known: speed on Intel GPUs, whether Intel's GPU drivers offer command buffers, and how fast the kernel of the matrix
units is. Not implemented: releasing the keys that left a window.

## Tests

`make test-opencl` makes an environment of its own (0.8 GB in the cache folder) and runs `tests/engines/opencl` and the
tests of all engines on Intel's runtime for CPUs. Kernels are compared with the scalar core byte by byte in every
format, shape, number of rows and variant, models with the native engine's logits. If pocl or oclgrind is installed, the
tests run there too; `python3 scripts/test_opencl.py --second-opinions` runs them alone. Before the ordered split they
passed on pocl 3.1, which has neither subgroups nor integer dot products, and under oclgrind 21.10 without a race or an
access out of bounds.

## What Intel's compiler makes of them

Intel's compiler for its GPUs runs without a GPU. `make test-opencl-offline` unpacks it from Debian unstable into the
cache folder (258 MB) and builds every program for every format, number of rows, number of lane groups per tile and
device below. Three kernels with the products of `linear` are built for seven formats. The test fails where a kernel has
become worse: an error, more registers, more local, spilled or private memory, fewer lanes, a product and a sum that may
be joined, floats of 64 bits. It does not measure speed. Where Debian cannot be reached, the test is skipped.
"""
"""Text of the page in front of its tables."""
GPUS = {"Arc B580": 160 * INTEL_THREADS, "Arc A770": 512 * INTEL_THREADS, "NVIDIA H200": 132 * OTHER_LANE_GROUPS}
"""Lane groups that GPUs run at the same time."""
MATRICES = (
    ("q k v", "linear", 768),
    ("o, down", "linear", 256),
    ("gate and up", "gate_up", 2 * 688),
    ("lm_head", "linear", 2000),
)
"""Tiles of the matrices of Llama-2-7B, and the kernel that multiplies them."""
COUNTS = (
    ("`sym_int4`, 1 row", (462, 29, 0), (687, 17, 99)),
    ("`sym_int4`, 4 rows", (321, 18, 0), (836, 23, 99)),
    ("`sym_int4`, 16 rows, matrix units", (663, 42, 0), (702, 13, 99)),
    ("`q4_k`, 1 row", (564, 44, 0), (1031, 23, 165)),
    ("`q4_k`, 4 rows", (348, 21, 0), (671, 17, 85)),
    ("`fp16`, 1 row", (389, 49, 0), (332, 47, 4)),
)
"""Instructions, loads from memory and loads from local memory on Arc B, before the ordered split and with it: counts in
the output of ``ocloc disasm``."""


def work() -> list[str]:
    """Return a table of the lane groups of a step of one row of Llama-2-7B."""
    rows = ["| | at once | " + " | ".join(name for name, _, _ in MATRICES) + " |", "|---|---|" + "---|" * len(MATRICES)]
    for gpu, concurrency in GPUS.items():
        counts = [
            f"{tiles:,} -> {tiles * split_for(kernel, 'sym_int4', tiles, concurrency):,}"
            for _, kernel, tiles in MATRICES
        ]
        rows.append(f"| {gpu} | {concurrency:,} | " + " | ".join(counts) + " |")
    return rows


def counts() -> list[str]:
    """Return a table of instructions."""
    rows = ["| Arc B | instructions | loads from memory | loads from local memory |", "|---|---|---|---|"]
    rows += [
        f"| {name} | " + " | ".join(f"{a} -> {b}" for a, b in zip(before, after, strict=True)) + " |"
        for name, before, after in COUNTS
    ]
    return rows


def page(recorded: dict[str, Any]) -> str:
    """Return the text of docs/dev/intel_gpu_kernels.md."""
    versions = ", ".join(f"{name} {version}" for name, version in recorded["compiler"].items())
    said = [
        HEAD.replace("@WORK@", "\n".join(work())).replace("@COUNTS@", "\n".join(counts())),
        f"Built on {recorded['date']} with {versions}.",
        "",
        "| device | | programs with a problem | kernels | that spill | with private memory | matrix units |",
        "|---|---|---|---|---|---|---|",
    ]
    for device, found in recorded["devices"].items():
        every = [numbers for formats in found["kernels"].values() for numbers in formats.values()]
        units = f"of width {found['matrix_units']}" if found["matrix_units"] else "none"
        said.append(
            f"| `{device}` | {DEVICES[device]} | {len(found['problems'])} | {len(every)} |"
            f" {sum(n[3] > 0 for n in every)} | {sum(n[4] > 0 for n in every)} | {units} |"
        )
    said += [
        "",
        "Private memory holds a thread's arrays outside its registers. Access to it, and to spilled registers, goes to",
        "memory. Registers and lanes are per thread. Local memory is in bytes per work-group, the others in bytes per",
        "thread.",
    ]
    for device, found in recorded["devices"].items():
        said += ["", f"### {DEVICES[device]} (`{device}`)", ""]
        said += [f"- **Problem**: {name}: {problem}" for name, problem in found["problems"].items()]
        said += [
            "| kernel, rows at once | formats | lanes | registers | local | spilled | private |",
            "|---|---|---|---|---|---|---|",
        ]
        said += [
            f"| {name} | {_count(formats)} | " + " | ".join(_range(formats, i) for i in range(len(COLUMNS))) + " |"
            for name, formats in found["kernels"].items()
        ]
    return "\n".join(said) + "\n"


def _count(formats: dict[str, list[int]]) -> str:
    return "" if list(formats) == [""] else str(len(formats))


def _range(formats: dict[str, list[int]], column: int) -> str:
    """The least and the most of all formats, and in how many there is anything where it may be nothing."""
    values = [numbers[column] for numbers in formats.values()]
    least, most = min(values), max(values)
    if least == most:
        return str(most)
    some = sum(value > 0 for value in values)
    return f"{least} to {most}" if some == len(values) else f"up to {most} (in {some})"


if __name__ == "__main__":
    os.nice(5)
    as_program(lambda _: main(standalone_mode=True))
