"""The examination of an OpenCL device: the CPU core's bits and tokens, and how fast it is. See ``bench.doctor``."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from ipex_lookahead.bench.doctor import (
    KERNEL_ROWS,
    KERNEL_SHAPE,
    LOOKAHEADS,
    Say,
    answers_of,
    called,
    encoded,
    machine,
    tried_on,
    versions,
    without_paths,
)
from ipex_lookahead.engines.opencl.device import Device, installed
from ipex_lookahead.errors import first_line
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.system.extras import need_torch, torch_missing

STEP_ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS, PROMPT = (128, 4096), 256
"""Positions before the steps that are timed, and tokens of the prompt that is."""
PROFILED_ROWS = (1, 8, PROMPT)
"""Rows of the steps whose kernels are timed one by one."""
PROFILE_PATIENCE = 20.0
"""Seconds after which no other step's kernels are."""
ROUNDS, PATIENCE = 5, 5.0
"""How often a step or a prompt is timed at most, and the seconds after which it is not timed again."""
ALONE = 2
"""Answers given one at a time, for their speed, and whose logits are compared; the others are given all together."""


def is_meant(device: str) -> bool:
    """Whether this examination is the one for ``--device``: "opencl:1", and "xpu" unless only PyTorch can reach one."""
    if device.startswith("xpu") and not installed():
        if torch_missing():
            return True
        import torch

        return not (hasattr(torch, "xpu") and torch.xpu.is_available())
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
    """Examine an OpenCL device. Arguments, and what it returns, as ``bench.doctor.examine``; ``threads`` are the CPU's.

    The report has besides: paths (what the device may have beyond what is needed -> whether it is used), bandwidth
    (GB/s), steps (milliseconds by positions before them and rows), prefill_tok_s, profiles (of steps: rows, positions,
    ms from the first kernel's beginning to the last one's end, kernels_ms of these, and the kernels), logits (answers
    compared by bytes, and how many are equal).

    Raises:
        EngineError: there is no such device, or no pyopencl; the hint says what to install.
        InputError: a name that is none of a device.
    """
    from ipex_lookahead.engines.opencl.device import device_of
    from ipex_lookahead.engines.opencl.examination import bandwidth, details

    say("versions and device")
    found = device_of(device)
    need_torch(f"the examination of {device}")
    report: dict[str, Any] = {"versions": versions(), "machine": machine(), "device": details(found)}
    say("kernels")
    report["kernels"] = [_kernel(found, name, threads) for name in FORMATS]
    say("bandwidth")
    try:
        report["bandwidth"] = bandwidth(found)
    except Exception as error:  # whatever the driver says belongs into the report
        report["bandwidth_problem"] = without_paths(first_line(error))
    report["engines"] = []
    report["model"] = called(model, tiny)
    with tried_on(model, tiny, low_bit) as (source, settings, ids):
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
    """A format's products beside the CPU core's, and how long they take."""
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
    """The same prompts on the CPU and on the device; what is found goes into the report as it is found."""
    import torch

    from ipex_lookahead.engines.opencl.device import device_of
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
    answers_of(model, given[:1], max_new_tokens, 0)  # the first answer pays for programs and memory
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
                report["profiles"].append(profile(model.engine, device_of(device), count, context))


def _tried(engine: str, plain: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"engine": engine, "deterministic": False, "plain_tok_s": plain["tok_s"], "lookahead": rows}


def together(model: Any, ids: Sequence[Any], max_new_tokens: int, lookahead: Any) -> list[list[int]]:
    """Greedy answers to prompts, int64 [1, n] each, in one batch; padded behind as ``generate`` pads them."""
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
    """0 for the round that builds programs, then those that count: one, and more while there is patience."""
    started = perf_counter()
    for number in range(1 + ROUNDS):
        if number > 1 and perf_counter() - started > PATIENCE:
            return
        yield number


def step_times(engine: Any, context: int) -> dict[str, float]:
    """Medians of a step's milliseconds by rows, a chain after so many positions of zeros.

    Of the numbers of rows those are left out that take longer than ``PATIENCE`` seconds, but for the first such.
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
            elif seconds > PATIENCE:  # steps of more rows take longer still
                times = {fewer: found for fewer, found in times.items() if fewer <= rows}
                break
    return {str(rows): round(median(found), 3) for rows, found in times.items()}


def profile(engine: Any, device: Device, rows: int, context: int) -> dict[str, Any]:
    """The kernels of a step, each with its launches and milliseconds by the device's clock, of a second step.

    The last row's output is asked for.
    """
    import numpy as np

    from ipex_lookahead.engines.api import OutputRequest
    from ipex_lookahead.engines.opencl.profiling import profiled
    from ipex_lookahead.engines.prefill import chain

    tokens = np.arange(rows, dtype=np.int32) % engine.vocab_size
    step = chain(engine.new_cache(context), tokens, OutputRequest(np.array([rows - 1], np.int32)))
    engine.forward(step)
    with profiled(device) as found:
        engine.forward(step)
    kernels = [
        {"kernel": one.kernel, "items": list(one.items), "launches": one.launches, "ms": round(1e3 * one.seconds, 4)}
        for one in found.kernels
    ]
    span, busy = (round(1e3 * seconds, 3) for seconds in (found.seconds, found.busy))
    return {"rows": rows, "positions": context, "ms": span, "kernels_ms": busy, "kernels": kernels}


def prompt_speed(engine: Any) -> float:
    """Tokens a second of a prompt of ``PROMPT`` tokens, of which only the last one's output is computed."""
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
    """What is wrong, in sentences."""
    found = [f"{entry['format']}: {entry['problem']}" for entry in report["kernels"] if "problem" in entry]
    if "bandwidth_problem" in report:
        found.append(f"bandwidth: {report['bandwidth_problem']}")
    for tried in report["engines"]:
        if "problem" in tried:
            found.append(f"{tried['engine']}: {tried['problem']}")
        for row in tried.get("lookahead", ()):
            if row["equal"] != row["answers"]:
                wrong = row["answers"] - row["equal"]
                found.append(f"opencl: with {row['strategy']} {wrong} of {row['answers']} answers are not the CPU's")
    if (logits := report.get("logits")) and logits["equal"] != logits["answers"]:
        found.append(f"opencl: logits of {logits['answers'] - logits['equal']} answers are not the CPU's")
    return found + [
        f"{name}: {state}" for name, state in report["paths"].items() if state.startswith("its self-test failed")
    ]
