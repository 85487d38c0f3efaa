#!/usr/bin/env python3
"""Check an OpenCL GPU in ten minutes at most, and write one file for an issue.

    python scripts/gpu_check.py                     # the first GPU
    python scripts/gpu_check.py --device opencl:1 --minutes 5

Run it from a clone of the repository, with a Python that has the package and pyopencl: after "make" in the clone,
.venv/bin/python with "pip install pyopencl"; or any environment with ipex-lookahead[xpu] of the same version. It needs
no torch, no model and no network, 2 GB of memory and the clone's tests/ folder, which describes the tiny models.

It runs, in this order: the self-tests, bandwidth and launch overhead, the kernels of all formats, tiny random models of
ten families in five formats (logits by bytes, and answers with and without lookahead, compared with the CPU core),
loading and releasing a model several times, and steps of two shapes with a roofline. All of it is in a second process,
which is ended when the time is over, so that a driver that hangs or dies leaves a report too. What was not reached is
named in the report. The report has no paths, host names or user names. Exit code 0: all results are equal; 1: something
is wrong or was not reached.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # after what is installed

FAMILIES = (
    "llama", "qwen2", "qwen3", "smollm3", "granite", "gemma2", "gemma3", "olmo3", "mixtral", "qwen3_moe",
)  # fmt: skip
FORMATS = ("sym_int4", "q4_k", "sym_int8", "nf4", "fp16")
SIZES = {"hidden": 256, "intermediate": 512}
"""Sizes that all of FORMATS divide."""
LOOKAHEADS = (("plain", 0), ("prompt_lookup", 3), ("auto", 7))
PROMPT, ANSWER = 40, 24
SHAPES = ("tinyllama-1.1b", "llama2-7b")
ROWS = (1, 4, 16, 64, 512)
EXACT_SHARE = 0.5
"""Fraction of the time after which no further comparison begins: steps are to be measured too."""
GRACE = 10.0
"""Seconds that the second process has to finish what it began when its time is over."""
LOADS = 3
ALL = ("device", "bandwidth", "kernels", "exactness", "memory", *SHAPES)
"""Parts of the report in order."""


@click.command()
@click.option("--device", help="opencl:N or xpu:N as in info. Default: the first GPU.")
@click.option("--minutes", type=click.FloatRange(0.1, 60), default=10.0, show_default=True, help="Time for all of it.")
@click.option("--report", "folder", type=click.Path(path_type=Path), default=Path(), help="Folder for the report.")
@click.option("--tiny", is_flag=True, help="Two families, two formats and a small shape, to try the script itself.")
@click.option("--worker", type=float, hidden=True, help="Be the second process, until this time.")
def main(device: str | None, minutes: float, folder: Path, tiny: bool, worker: float | None) -> None:
    """Check an OpenCL GPU and write a report for an issue; exit code 1 if something is wrong or was not reached."""
    try:
        import pyopencl  # noqa: F401

        from ipex_lookahead.bench.doctor import write_report
        from ipex_lookahead.errors import LookaheadError
        from tests.support import specs  # noqa: F401
    except ImportError as error:
        raise click.ClickException(
            f"{error}: run it from a clone with a Python that has the package, for example: pip install -e '.[xpu]'"
        ) from None
    if worker is not None:
        sys.exit(work(device, worker, tiny))
    started = time.time()
    arguments = [*(["--device", device] if device else []), *(["--tiny"] if tiny else [])]
    report = supervise(arguments, started + 60 * minutes - GRACE, tiny)
    report["minutes"] = round((time.time() - started) / 60, 2)
    try:
        file = write_report(folder, lines(report), report, "ipex-lookahead-gpu-check")
    except LookaheadError as error:
        raise click.ClickException(f"{error} ({error.hint})") from None
    click.echo("\n".join(lines(report)))
    click.echo(f"Attach this file to an issue: {file}", err=True)
    sys.exit(0 if report["healthy"] else 1)


# ---- the first process -----------------------------------------------------------------------------------------------


def supervise(arguments: list[str], until: float, tiny: bool) -> dict[str, Any]:
    """Run the second process, print its progress, end it ``GRACE`` seconds after ``until``, and return the report."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--worker", str(until)]
    report: dict[str, Any] = {"problems": [], "skipped": []}
    said, received = "starting", queue.Queue[Any]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                received.put(line)
            received.put(None)

        threading.Thread(target=read, daemon=True).start()
        while True:
            try:
                line = received.get(timeout=max(until + GRACE - time.time(), 0.0))
            except queue.Empty:
                process.kill()
                report["problems"].append(f"{said}: not finished when the time was over")
                break
            if line is None:
                break
            message = json.loads(line)
            if "say" in message:
                said = message["say"]
                click.echo(f"{said} ...", err=True)
            else:
                report.update(message)
    if process.returncode < 0 and not report["problems"]:
        report["problems"].append(f"{said}: the process was ended by signal {-process.returncode}")
    elif process.returncode > 0:
        report["problems"].append(f"{said}: the process ended with code {process.returncode}")
    return judged(report, tiny)


def judged(report: dict[str, Any], tiny: bool) -> dict[str, Any]:
    """Add the problems that results show, and what was not reached."""
    problems = report["problems"]
    problems += [f"{name}: {state}" for name, state in report.get("paths", {}).items() if "self-test failed" in state]
    problems += [f"{name}: {problem}" for name, problem in report.get("kernels", {}).items() if problem]
    problems += [
        f"{one['family']}, {one['format']}: {one['problem']}" for one in report.get("exactness", []) if one["problem"]
    ]
    problems += [f"{part}: {report[part]['problem']}" for part in ALL if "problem" in (report.get(part) or {})]
    memory = report.get("memory", {})
    if memory.get("after") != memory.get("before"):
        problems.append(f"memory: {memory['after'] - memory['before']:,} bytes were not released")
    families, formats, _, _ = sizes(tiny)
    reached, wanted = len(report.get("exactness", [])), len(families) * len(formats)
    if reached < wanted:
        report["skipped"].append(f"{wanted - reached} of {wanted} comparisons of families: the time was over")
    for part in ALL:
        if part not in report and not (tiny and part == SHAPES[1]):
            report["skipped"].append(f"{part}: not reached")
    for shape in SHAPES:
        missing = report.get(shape, {}).get("missing")
        if missing:
            report["skipped"].append(f"{shape}: no steps of {missing} rows, the time was over")
    report["healthy"] = not problems and not report["skipped"]
    return report


def lines(report: dict[str, Any]) -> list[str]:
    """Return the report as Markdown."""
    from ipex_lookahead.bench.doctor import WIDE, of_device, of_profile

    output = ["### ipex-lookahead gpu check", "", f"- {report['minutes']} minutes"]
    for part in ("versions", "machine", "device", "paths"):
        output += [f"- {key.replace('_', ' ')}: {value}" for key, value in (report.get(part) or {}).items()]
    output += of_device(report.get("bandwidth") or {})
    kernels, families = report.get("kernels", {}), report.get("exactness", [])
    output += ["", f"Kernels: {sum(not one for one in kernels.values())} of {len(kernels)} formats give equal bytes."]
    equal, compared = sum(not one["problem"] for one in families), sum(one["compared"] for one in families)
    output += ["", f"Models: {equal} of {len(families)} give equal bytes, {compared} comparisons."]
    if "memory" in report:
        output += ["", "Memory: " + ", ".join(f"{name} {value:,}" for name, value in report["memory"].items())]
    for shape in SHAPES:
        found = report.get(shape, {})
        if "why_not" in found:
            output += ["", f"{shape}: left out, {found['why_not']}"]
        if "steps" in found:
            times = ", ".join(f"{one['rows']}: {one['ms']:.2f}" for one in found["steps"])
            output += ["", f"**{shape}**, {found['low_bit']}, ms of a step by rows: {times}"]
            output += [line for one in found["steps"] for line in of_profile(one["profile"], WIDE)]
    output += ["", *(f"**Not done**: {line}" for line in report["skipped"])]
    return output + ([f"**Problem**: {line}" for line in report["problems"]] or ["No problem was found."])


# ---- the second process ----------------------------------------------------------------------------------------------


def sizes(tiny: bool) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[int, ...]]:
    """Return families, formats, shapes and rows."""
    if tiny:
        return (FAMILIES[0], FAMILIES[-1]), (FORMATS[0], FORMATS[-1]), SHAPES[:1], ROWS[:2]
    return FAMILIES, FORMATS, SHAPES, ROWS


def send(**message: Any) -> None:
    print(json.dumps(message), file=sys.__stdout__, flush=True)


def work(name: str | None, until: float, tiny: bool) -> int:
    """Run all parts, and send each result at once."""
    from ipex_lookahead.bench.facts import machine, versions, without_paths
    from ipex_lookahead.engines.opencl.device import device_of
    from ipex_lookahead.engines.opencl.examination import bandwidth, details, kernel_problem, launch_overhead
    from ipex_lookahead.errors import LookaheadError, first_line
    from ipex_lookahead.formats import FORMATS as EVERY

    began = time.time()
    families, formats, shapes, rows = sizes(tiny)

    def tried(deed: Any) -> Any:
        try:
            return deed()
        except Exception as error:  # a driver may raise anything; the report has its message
            return without_paths(first_line(error)) or type(error).__name__

    send(say="device and self-tests")
    send(versions=versions(), machine=machine())
    try:
        device = device_of(name)
        send(device=details(device))
    except LookaheadError as error:
        send(device={"problem": without_paths(first_line(error))})
        return 0
    send(say="bandwidth and launches")
    rates = tried(lambda: {"bandwidth": bandwidth(device), "launches": launch_overhead(device)})
    send(bandwidth=rates if isinstance(rates, dict) else {"problem": rates})
    kernels: dict[str, str] = {}
    for low_bit in EVERY if not tiny else formats:
        if time.time() > until:
            return 0
        send(say=f"kernels of {low_bit}")
        kernels[low_bit] = tried(lambda low_bit=low_bit: kernel_problem(device, low_bit))
        send(kernels=kernels)
    found: list[dict[str, Any]] = []
    for family in families:
        for low_bit in formats:
            if time.time() > began + EXACT_SHARE * (until - began):
                break
            send(say=f"exactness: {family}, {low_bit}")
            result = tried(lambda family=family, low_bit=low_bit: compare(device, family, low_bit))
            problem, compared = (result, 0) if isinstance(result, str) else result
            found.append({"family": family, "format": low_bit, "compared": compared, "problem": problem})
            send(exactness=found)
    send(paths=dict(device.paths))
    if time.time() < until:
        send(say="memory")
        memory = tried(lambda: leaks(device))
        send(memory=memory if isinstance(memory, dict) else {"problem": memory, "before": 0, "after": 0})
    for shape in shapes:
        if time.time() < until:
            send(say=f"steps of {shape}")
            steps = tried(lambda shape=shape: step_times(device, shape, rows, until, tiny))
            send(**{shape: steps if isinstance(steps, dict) else {"problem": steps}})
    return 0


def compare(device: Any, family: str, low_bit: str) -> tuple[str, int]:
    """Compare a tiny model with the CPU core; return a problem, or "", and the number of comparisons."""
    import numpy as np

    from ipex_lookahead.config import LookaheadConfig
    from ipex_lookahead.decoding.sequence import Sequence
    from ipex_lookahead.engines.native.engine import NativeEngine
    from ipex_lookahead.engines.opencl.engine import OpenClEngine
    from ipex_lookahead.runtime.runtime import Runtime
    from tests.support.native import ids_of, run
    from tests.support.specs import NAMED, make_spec, random_weights, reader

    spec = make_spec(**{**NAMED[family], **SIZES})
    read = reader(random_weights(spec), low_bit)
    native, engine = NativeEngine.build(spec, low_bit, read), OpenClEngine.build(spec, low_bit, read, device)
    tokens, compared = ids_of(native, PROMPT), 0
    for pieces in ([PROMPT], [1, 3, 16]):
        caches, at = (native.new_cache(), engine.new_cache()), 0
        for size in pieces:
            piece = tokens[at : at + size]
            here, there = run(native, caches[0], piece), run(engine, caches[1], piece)  # type: ignore[arg-type]
            compared += 1
            if here.tobytes() != there.tobytes():
                wrong = int((here.view(np.uint32) != there.view(np.uint32)).sum())
                return f"{wrong} of {here.size} logits differ for {size} rows after {at}", compared
            for cache in caches:
                cache.keep(range(size))
            at += size
    answers: dict[str, list[int]] = {}
    for strategy, count in LOOKAHEADS:
        config = LookaheadConfig(strategy, count, adaptive=False) if count else None
        for name, one in (("CPU", native), ("device", engine)):
            if name == "CPU" and config is not None:
                continue
            sequence = Sequence(tokens, PROMPT + ANSWER)
            for _ in Runtime(one).stepwise([sequence], config):
                pass
            answers[f"{name} {strategy}"] = sequence.ids[: sequence.length].tolist()
    expected = answers.pop("CPU plain")
    for label, answer in answers.items():
        compared += 1
        if answer != expected:
            return f"the answer of {label} differs from the CPU's", compared
    return "", compared


def leaks(device: Any) -> dict[str, Any]:
    """Load and release a model several times; return bytes of buffers on the device before, with it, and after."""
    import gc

    from ipex_lookahead.bench.roofline import RandomModel
    from tests.support.specs import make_spec

    spec = make_spec(**SIZES)
    gc.collect()
    before, held = device.objects.nbytes, 0
    for _ in range(LOADS):
        engine = RandomModel(spec, "sym_int4").on(device, PROMPT)
        cache = engine.new_cache(PROMPT)
        held = device.objects.nbytes
        del engine, cache
        gc.collect()
    return {"before": before, "with_a_model": held, "after": device.objects.nbytes}


def step_times(device: Any, shape: str, rows: tuple[int, ...], until: float, tiny: bool) -> dict[str, Any]:
    """Return steps of a shape with their roofline, as bench step does; or why the shape is left out."""
    from dataclasses import replace

    from ipex_lookahead.bench.roofline import RandomModel, measure_on_device
    from ipex_lookahead.bench.shapes import shape_of
    from ipex_lookahead.bench.steps import step_batch
    from ipex_lookahead.errors import OutOfMemoryError, first_line

    spec = shape_of(shape)
    if tiny:
        spec = replace(spec, layers=spec.layers[:1])
    try:
        found = measure_on_device(
            RandomModel(spec, "sym_int4"), device, rows, step_batch, repeat=5, until=lambda: time.time() > until
        )
    except OutOfMemoryError as error:
        return {"why_not": first_line(error)}
    missing = rows[len(found["steps"]) :]
    return {**found, "missing": ", ".join(map(str, missing))}


if __name__ == "__main__":
    main()
