"""Run a plan (:mod:`.plan`): every case in every mode, trial by trial in turn, kept in a file from case to case.

The modes of a case alternate, so that what else the machine does falls on all of them alike. A folder that holds some
of a plan's cases already gets the others: an interrupted run goes on where it was.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ipex_lookahead.bench.decode import certainty
from ipex_lookahead.bench.plan import TASKS, Case, Plan
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.engines.machine import peak_memory
from ipex_lookahead.errors import InputError, LookaheadError, SaveError
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file

RESULTS = "results.json"
MOST_BYTES = 64 << 20
"""Of a folder's results: what is larger is none of ours."""
_TIMED = ("seconds", "first_token_seconds", "next_token_seconds", "tokens_a_step", "acceptance_rate")
"""Of a trial: what a mode's median is taken of."""
CHARACTERS_A_TOKEN = 12
"""So many are encoded at a time until there are tokens enough."""


class Loaded(Protocol):
    """What is run: a model as transformers' users have it."""

    engine: Any
    tokenizer: Any
    stats: Any

    def generate(self, inputs: Any, **settings: Any) -> Any:
        """Token ids int64 [batch, length] -> [batch, length + new]."""
        ...

    def forget(self) -> None:
        """Drop what is remembered of earlier answers."""
        ...


Load = Callable[[Case, Plan], Loaded]


def run(
    plan: Plan,
    folder: Path,
    load: Load,
    text: str,
    *,
    began: Callable[[str], None] = lambda name: None,
    advance: Callable[[int], None] = lambda answers: None,
) -> dict[str, Any]:
    """Measure what a folder's ``results.json`` does not hold yet, and keep it there case by case.

    Args:
        plan: as ``read_plan`` gives it.
        folder: where to; made where it is not there.
        load: makes a case's model; called once for all cases that share one.
        text: what prompts are cut from.
        began: called with a case's name before it.
        advance: called with the number of answers that have been made, or need not be.

    Returns:
        The whole of ``results.json``: ``settings``, ``machine``, ``versions``, ``date`` and ``cases``, each with its
        ``key``, what it is, and either ``runs`` or ``error``, a sentence. A run is a mode: medians of its trials, which
        are in ``samples``; ``tok_s_range`` and ``first_token_seconds_range``, the least and the most of them; and
        ``ratio_is_noise``, as ``bench decode`` means it, of the trials' ratios to plain decoding's of the same turn.

    Raises:
        InputError: the folder holds the results of another plan.
        SaveError: it cannot be written.
    """
    report = _begun(plan, folder)
    done = {case["key"]: case for case in report["cases"] if "error" not in case}
    report["cases"] = []
    model: Loaded | None = None
    held: tuple[Any, ...] | None = None
    seconds = 0.0
    for case in plan.cases:
        answers = len(case.modes) * (plan.warm_up + plan.trials)
        if case.key in done:
            before = done[case.key]
            kept = {run["lookahead"]: run["samples"] for run in before["runs"]}
            report["cases"].append({**before, "runs": _summaries(kept, case.batch)})
            advance(answers)
            continue
        began(case.key)
        entry = {"key": case.key, **_facts(case)}
        try:
            if model is None or held != case.loading:
                model = None  # before the next one comes: both may not fit
                start = time.perf_counter()
                model, held = load(case, plan), case.loading
                seconds = time.perf_counter() - start
            entry |= {"loading_seconds": seconds, **_measure(model, case, plan, text, advance)}
        except LookaheadError as error:
            entry["error"] = str(error)
        report["cases"].append(entry)
        _keep(report, folder)
    return report


def _begun(plan: Plan, folder: Path) -> dict[str, Any]:
    """The report that a folder holds, or a fresh one."""
    from ipex_lookahead.bench.doctor import machine

    file = folder / RESULTS
    fresh: dict[str, Any] = {
        "settings": json.loads(json.dumps(dict(plan.settings), default=str)),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": {"python": platform.python_version(), "ipex-lookahead": version("ipex-lookahead")},
        "cases": [],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"{folder} cannot be made: {error.strerror}", hint="name a folder elsewhere") from None
    if not file.exists():
        return fresh
    found = load_object(file, MOST_BYTES)
    same = ("warm_up", "num_trials", "task", "isa", "kv_cache", "prompts", "streaming")
    before = found.get("settings")
    if not isinstance(before, dict) or not isinstance(found.get("cases"), list):
        raise InputError(f"{file} is not what `bench run` writes", hint="name another folder")
    for key in same:
        if before.get(key) != fresh["settings"].get(key):
            raise InputError(
                f"{file} has results with {key}: {before.get(key)!r:.40}; the plan says {plan.settings.get(key)!r:.40}",
                hint="name another folder, or delete that file",
            )
    if found.get("machine") != json.loads(json.dumps(fresh["machine"])):
        raise InputError(f"{file} has results of another machine", hint="name another folder, or delete that file")
    cases = [case for case in found["cases"] if isinstance(case, dict) and isinstance(case.get("key"), str)]
    return fresh | {"cases": json.loads(json.dumps(cases))}


def _facts(case: Case) -> dict[str, Any]:
    names = ("model", "api", "low_bit", "tokens_in", "tokens_out", "batch")
    return {name: getattr(case, name) for name in names}


def _measure(model: Loaded, case: Case, plan: Plan, text: str, advance: Callable[[int], None]) -> dict[str, Any]:
    """All modes of a case."""
    import torch

    engine = model.engine.describe()
    room = model.engine.max_context
    if case.tokens_in + case.tokens_out > room:
        raise InputError(f"{case.tokens_in} tokens in and {case.tokens_out} out are more than the model's {room}")
    prompts, repeats = cut(model.tokenizer, TASKS[plan.task], text, case.tokens_in, case.batch)
    inputs = torch.tensor(prompts, dtype=torch.int64)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in case.modes}
    answers: dict[str, list[list[int]]] = {}
    with _peak_memory() as peak:
        for trial in range(-plan.warm_up, plan.trials):
            for name, lookahead in case.modes if trial % 2 == 0 else case.modes[::-1]:
                model.forget()
                sample, tokens = _answer(model, inputs, case, lookahead, streaming=plan.streaming)
                answers.setdefault(name, tokens)
                sample["identical"] = tokens == answers.get("0", tokens)
                if trial >= 0:
                    samples[name].append(sample)
                advance(1)
    placed = {name: engine.get(name) for name in ("engine", "isa", "threads", "device")}
    facts = {**placed, "low_bit": engine.get("low_bit") or case.low_bit, "peak_bytes": peak(), "text_repeats": repeats}
    return {**facts, "runs": _summaries(samples, case.batch)}


def _answer(
    model: Loaded, inputs: Any, case: Case, lookahead: LookaheadConfig | None, *, streaming: bool
) -> tuple[dict[str, Any], list[list[int]]]:
    """One answer of exactly so many tokens: an end token does not end it."""
    settings: dict[str, Any] = {"max_new_tokens": case.tokens_out, "do_sample": False, "eos_token_id": None}
    if streaming and case.batch == 1:
        settings["streamer"] = _Silent()
    start = time.perf_counter()
    out = model.generate(inputs, lookahead=lookahead or 0, **settings)
    seconds = time.perf_counter() - start
    stats = model.stats
    new = out[:, inputs.shape[1] :].tolist()
    rest = max(1, min(map(len, new)) - 1)
    sample = {
        "seconds": seconds,
        "first_token_seconds": stats.first_token_seconds,
        "next_token_seconds": stats.decode_seconds / rest,
        "tokens_out": len(new[0]),
        "tokens_a_step": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
    }
    return sample, new


class _Silent:
    """A streamer that takes tokens and shows nothing."""

    def put(self, value: Any) -> None:
        """Take some."""

    def end(self) -> None:
        """There are no more."""


def _summaries(samples: Mapping[str, Sequence[dict[str, Any]]], batch: int) -> list[dict[str, Any]]:
    """The modes of a case, plain decoding's name being "0": medians of the trials, and how far they lie apart."""
    return [_summary(name, some, samples["0"], batch) for name, some in samples.items()]


def _summary(
    name: str, samples: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], batch: int
) -> dict[str, Any]:
    middle = {key: median(s[key] for s in samples) for key in _TIMED}
    turns = list(zip(samples, plain, strict=True))  # the modes' trials took turns
    ratios = [_over(base["next_token_seconds"], mine["next_token_seconds"], 1.0) for mine, base in turns]
    speeds = [_over(batch, s["next_token_seconds"], 0.0) for s in samples]
    reading = [s["first_token_seconds"] for s in samples]
    said = certainty(ratios, sum(batch * (s["tokens_out"] - 1) for s in samples))
    return {
        "lookahead": name,
        **middle,
        "tokens_out": samples[0]["tokens_out"],
        "tok_s": median(speeds),
        "tok_s_range": [min(speeds), max(speeds)],
        "first_token_seconds_range": [min(reading), max(reading)],
        "speedup": median(ratios),
        "ratio_quartiles": said["ratio_quartiles"],
        "ratio_is_noise": name != "0" and said["ratio_is_noise"],
        "identical": all(s["identical"] for s in samples),
        "samples": list(samples),
    }


def _over(value: float, by: float, otherwise: float) -> float:
    return value / by if by else otherwise


def cut(tokenizer: Any, before: str, text: str, tokens: int, batch: int) -> tuple[list[list[int]], bool]:
    """Prompts of exactly so many tokens: what stands ``before``, then a piece of the text, each row's its own.

    Args:
        tokenizer: transformers'.
        before: the task.
        text: is gone through again from its beginning where it is too short.
        tokens: length of each prompt.
        batch: how many.

    Returns:
        Token ids [batch][tokens], and whether any part of the text was used twice.
    """
    head = tokenizer.encode(before)[:tokens]
    wanted = (tokens - len(head)) * batch
    body: list[int] = tokenizer.encode(text[: (wanted + 1) * CHARACTERS_A_TOKEN], add_special_tokens=False)
    if not body:
        raise InputError("the text that prompts are cut from has no token")
    repeats = len(body) < wanted
    while len(body) < wanted:
        body += body
    size = tokens - len(head)
    return [[*head, *body[row * size : (row + 1) * size]] for row in range(batch)], repeats


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int | None]]:
    """Gives a function that returns the largest resident memory since then, in bytes; None where Linux does not say."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    yield peak_memory


def _keep(report: dict[str, Any], folder: Path) -> None:
    write_whole(folder / RESULTS, json.dumps(report, indent=1) + "\n")


def write_whole(file: Path, text: str) -> None:
    """A file that is the old one or the new one, whole, whatever happens. Raises SaveError."""
    try:
        with temporary_file(file) as name:
            name.write_text(text, encoding="utf-8")
            os.replace(name, file)
    except OSError as error:
        raise SaveError(f"{file} cannot be written: {error.strerror}", hint="free some space") from None
