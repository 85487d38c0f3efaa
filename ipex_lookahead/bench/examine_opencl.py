"""The checks of ``doctor`` on an OpenCL device: equality with the CPU core in bits and tokens, and speed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from ipex_lookahead.bench.examine import (
    KERNEL_ROWS,
    KERNEL_SHAPE,
    LOOKAHEADS,
    Say,
    answers_of,
    encoded,
    model_to_load,
    reported_name,
)
from ipex_lookahead.bench.facts import machine, versions, without_paths
from ipex_lookahead.bench.roofline import profile
from ipex_lookahead.engines.api import Batch
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.errors import first_line
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.system.extras import need_torch

STEP_ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS, PROMPT = (128, 4096), 256
"""Positions before the timed steps, and tokens of the timed prompt."""
PROFILED_ROWS = (1, 8, PROMPT)
"""Rows of the steps to profile by kernel."""
PROFILE_PATIENCE = 20.0
"""Seconds after which no further step is profiled."""
ROUNDS, PATIENCE = 5, 5.0
"""Maximum number of rounds of a step or prompt, and the seconds after which no further round starts."""
ALONE = 2
"""Number of answers with a batch size of 1, for speed and logits; the others are one batch."""


def uses_opencl(device: str) -> bool:
    """Return True for "opencl:1", "xpu" and the like."""
    return device.startswith(("opencl", "xpu"))


def examine_opencl(
    device: str,
    *,
    model: str = "default",
    tiny: bool = False,
    low_bit: str | None = None,
    threads: int | None = None,
    prompts: int = 20,
    max_new_tokens: int = 48,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Examine an OpenCL device. Arguments and result are those of ``examine``; ``threads`` are CPU threads.

    The report also has: paths (optional feature of the device -> whether it is used), bandwidth (GB/s), launches
    (microseconds), steps (milliseconds by positions and rows), prefill_tok_s, profiles (:func:`.roofline.profile`),
    logits (number of answers, and of equal ones).

    Raises:
        EngineError: The device does not exist, or pyopencl is not installed.
        InputError: The name is not that of a device.
    """
    from ipex_lookahead.engines.opencl.device import device_of
    from ipex_lookahead.engines.opencl.examination import bandwidth, details, launch_overhead

    say("versions and device")
    found = device_of(device)
    need_torch(f"the examination of {device}")
    report: dict[str, Any] = {"versions": versions(), "machine": machine(), "device": details(found)}
    say("kernels")
    report["kernels"] = [_kernel(found, name, threads) for name in FORMATS]
    say("bandwidth")
    try:
        report["bandwidth"], report["launches"] = bandwidth(found), launch_overhead(found)
    except Exception as error:  # a driver may raise anything; the report has its message
        report["bandwidth_problem"] = without_paths(first_line(error))
    report["engines"] = []
    report["model"] = reported_name(model, tiny)
    with model_to_load(model, tiny, low_bit) as (source, settings, ids):
        try:
            _run(report, source, settings, f"opencl:{found.number}", ids, threads, prompts, max_new_tokens, say)
        except Exception as error:
            report["engines"].append(
                {"engine": "opencl", "deterministic": False, "problem": without_paths(first_line(error))}
            )
    report["paths"] = dict(found.paths)
    report["problems"] = problems(report)
    report["healthy"] = not report["problems"]
    return report


def _kernel(device: Device, low_bit: str, threads: int | None) -> dict[str, Any]:
    """Compare the kernel of a format with the CPU core, and time it."""
    from ipex_lookahead.engines.opencl.examination import kernel_problem, kernel_times

    entry: dict[str, Any] = {"format": low_bit, "backend": "opencl"}
    try:
        if problem := kernel_problem(device, low_bit, threads):
            entry["problem"] = problem
        else:
            entry["milliseconds"] = kernel_times(device, low_bit, KERNEL_SHAPE, KERNEL_ROWS)
    except Exception as error:
        entry["problem"] = without_paths(first_line(error))
    return entry


def _run(
    report: dict[str, Any],
    source: str,
    settings: dict[str, Any],
    device: str,
    prompts: Sequence[list[int]] | None,
    threads: int | None,
    count: int,
    max_new_tokens: int,
    say: Say,
) -> None:
    """Answer the same prompts on the CPU and on the device; each result is added to the report at once."""
    import torch

    from ipex_lookahead.hf.auto import AutoModelForCausalLM

    say("answers on the CPU")
    model = AutoModelForCausalLM.from_pretrained(source, progress=False, engine="native", threads=threads, **settings)
    given = (prompts or encoded(model, count))[:count]
    ids = [torch.tensor([prompt]) for prompt in given]
    expected, speed = answers_of(model, given[:ALONE], max_new_tokens, 0)
    report["engines"].append(_tried("native", speed, []))
    whole = [torch.cat([prompt, torch.tensor([answer])], 1) for prompt, answer in zip(ids, expected, strict=False)]
    logits = [model(one).logits.numpy().tobytes() for one in whole]
    expected += together(model, ids[ALONE:], max_new_tokens, 0)
    del model
    gc.collect()

    say(f"loading onto {device}")
    model = AutoModelForCausalLM.from_pretrained(source, progress=False, engine="opencl", device=device, **settings)
    same = sum(model(one).logits.numpy().tobytes() == other for one, other in zip(whole, logits, strict=True))
    report["logits"] = {"equal": same, "answers": len(logits)}
    answers_of(model, given[:1], max_new_tokens, 0)  # warm-up: programs, memory
    rows: list[dict[str, Any]] = []
    for config in (None, *LOOKAHEADS):
        name, drafted = ("none", 0) if config is None else (config.strategy, config.num_draft_tokens)
        say("exactness and speed" + (f": {name}" if config else ""))
        got, speed = answers_of(model, given[:ALONE], max_new_tokens, config)
        got += together(model, ids[ALONE:], max_new_tokens, config)
        equal = sum(one == other for one, other in zip(got, expected, strict=True))
        rows.append({"strategy": name, "draft_tokens": drafted, **speed, "equal": equal, "answers": len(ids)})
    report["engines"].append(_tried("opencl", rows[0], rows))
    say("steps")
    contexts = [context for context in CONTEXTS if context + max(STEP_ROWS) <= model.engine.max_context]
    report["steps"] = {str(context): step_times(model.engine, context) for context in contexts}
    report["prefill_tok_s"] = round(prompt_speed(model.engine), 1)
    say("kernels of a step")
    report["profiles"], started = [], perf_counter()
    for count in PROFILED_ROWS:
        for context in contexts:
            if context + count <= model.engine.max_context and perf_counter() - started < PROFILE_PATIENCE:
                copies = report.get("bandwidth", {}).get("device_copies")
                report["profiles"].append(profile(model.engine, _step(model.engine, count, context), copies))


def _tried(engine: str, plain: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"engine": engine, "deterministic": False, "plain_tok_s": plain["tok_s"], "lookahead": rows}


def together(model: Any, ids: Sequence[Any], max_new_tokens: int, lookahead: Any) -> list[list[int]]:
    """Return greedy answers to prompts, int64 [1, n] each, in one batch, with ``generate``'s padding."""
    import torch

    if not ids:
        return []
    longest = max(prompt.shape[1] for prompt in ids)
    batch, mask = torch.zeros(2, len(ids), longest, dtype=torch.int64)
    for row, prompt in enumerate(ids):
        batch[row, longest - prompt.shape[1] :] = prompt
        mask[row, longest - prompt.shape[1] :] = 1
    settings = {"max_new_tokens": max_new_tokens, "do_sample": False, "lookahead": lookahead}
    found: list[list[int]] = model.generate(batch, attention_mask=mask, **settings)[:, longest:].tolist()
    return found


def _rounds() -> Iterator[int]:
    """Yield 0 for the warm-up round, then 1 and, within ``PATIENCE`` seconds, up to ``ROUNDS``."""
    started = perf_counter()
    for number in range(1 + ROUNDS):
        if number > 1 and perf_counter() - started > PATIENCE:
            return
        yield number


def step_times(engine: Any, context: int) -> dict[str, float]:
    """Return the median milliseconds of a step by rows, a chain after ``context`` positions of zeros.

    Row counts above the first one that takes longer than ``PATIENCE`` seconds are skipped.
    """
    import numpy as np

    from ipex_lookahead.engines.prefill import chain

    cache = engine.new_cache(context)
    tokens = np.arange(STEP_ROWS[-1], dtype=np.int32) % engine.vocab_size
    times: dict[int, list[float]] = {rows: [] for rows in STEP_ROWS}
    for round_ in _rounds():
        for rows in list(times):
            started = perf_counter()
            engine.forward(chain(cache, tokens[:rows]))
            seconds = perf_counter() - started
            if round_:
                times[rows].append(1e3 * seconds)
            elif seconds > PATIENCE:  # more rows take even longer
                times = {fewer: found for fewer, found in times.items() if fewer <= rows}
                break
    return {str(rows): round(median(found), 3) for rows, found in times.items()}


def _step(engine: Any, rows: int, context: int) -> Batch:
    """Return a chain after ``context`` positions of zeros, with output for its last row."""
    import numpy as np

    from ipex_lookahead.engines.api import OutputRequest
    from ipex_lookahead.engines.prefill import chain

    tokens = np.arange(rows, dtype=np.int32) % engine.vocab_size
    return chain(engine.new_cache(context), tokens, OutputRequest(np.array([rows - 1], np.int32)))


def prompt_speed(engine: Any) -> float:
    """Return the tokens/s of a prompt of ``PROMPT`` tokens with output for the last one only."""
    import numpy as np

    from ipex_lookahead.engines.api import OutputRequest
    from ipex_lookahead.engines.prefill import chain

    tokens, best = np.arange(PROMPT, dtype=np.int32) % engine.vocab_size, float("inf")
    for _ in _rounds():
        started = perf_counter()
        engine.forward(chain(engine.new_cache(), tokens, OutputRequest(np.array([PROMPT - 1], np.int32))))
        best = min(best, perf_counter() - started)
    return PROMPT / best


def problems(report: dict[str, Any]) -> list[str]:
    """Return the problems as sentences."""
    found = [f"{entry['format']}: {entry['problem']}" for entry in report["kernels"] if "problem" in entry]
    if "bandwidth_problem" in report:
        found.append(f"bandwidth: {report['bandwidth_problem']}")
    for tried in report["engines"]:
        if "problem" in tried:
            found.append(f"{tried['engine']}: {tried['problem']}")
        for row in tried.get("lookahead", ()):
            if row["equal"] != row["answers"]:
                wrong = row["answers"] - row["equal"]
                found.append(
                    f"opencl: with {row['strategy']} {wrong} of {row['answers']} answers differ from the CPU's"
                )
    if (logits := report.get("logits")) and logits["equal"] != logits["answers"]:
        found.append(f"opencl: logits of {logits['answers'] - logits['equal']} answers differ from the CPU's")
    return found + [
        f"{name}: {state}" for name, state in report["paths"].items() if state.startswith("its self-test failed")
    ]
