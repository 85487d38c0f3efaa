"""``ipex-lookahead bench run``: the models, formats, lengths and lookahead settings of a plan, with a report.

The modes of a case alternate, so that other load on the machine affects all of them alike. Results are saved after each
case; a run on the same folder measures the missing cases only.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

import click

from ipex_lookahead.bench.decode import certainty
from ipex_lookahead.bench.options import json_option
from ipex_lookahead.bench.quality import PACKAGED_TEXT
from ipex_lookahead.cli import loading
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Refused
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import InputError, LookaheadError, SaveError
from ipex_lookahead.files.paths import given_path, given_preset, preset_names
from ipex_lookahead.files.safe_json import load_object
from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.system.terminal import bar, counted, may_draw, print_status

if TYPE_CHECKING:
    from ipex_lookahead.bench.plan import Case, Plan

RESULTS = "results.json"
MOST_BYTES = 64 << 20
"""Maximum size of a results file."""
_TIMED = ("seconds", "first_token_seconds", "next_token_seconds", "tokens_a_step", "acceptance_rate")
"""Keys of a sample that a run has the median of."""
CHARACTERS_A_TOKEN = 12
"""Length of the text to encode for each token needed."""


@command("ipex-lookahead bench run laptop --output results")
@click.argument("plan_file", metavar="PLAN", type=click.Path())
def run(
    plan_file: str,
    output: str = option("Folder for results and report.", required=True, type=click.Path(), metavar="FOLDER"),
    no_pictures: bool = option("Write the report without plots, which need matplotlib.", False),
    as_json: bool = json_option,
) -> None:
    """Measure the models, formats, lengths and lookahead settings of PLAN in alternating trials.

    PLAN is a YAML file with the keys of ipex-llm's all-in-one benchmark, or one of laptop, xeon and arc. FOLDER
    receives results.json, results.csv and report.html. An interrupted run resumes when started again.
    """
    from ipex_lookahead.bench.plan import read_plan
    from ipex_lookahead.bench.report import as_csv, as_html

    try:
        plan = read_plan(given_preset(plan_file, "bench"))
    except InputError as error:  # keys of a plan are not options: keep the message
        raise Refused(
            str(error), hint=error.hint or f"give a YAML file or one of {', '.join(preset_names('bench'))}"
        ) from error
    if not no_pictures:
        from ipex_lookahead.bench.plots.drawing import check_matplotlib

        check_matplotlib()
    _force_isa(plan)
    text = _text(plan)
    folder = given_path(output)
    done = 0
    with bar("measuring", plan.answers) as draw:

        def started(name: str) -> None:
            if may_draw():
                draw(done, title=name)
            else:
                print_status(f"{name} ...")

        def advance(answers: int) -> None:
            nonlocal done
            done += answers
            draw(done)

        report = run_plan(plan, folder, _load, text, started=started, advance=advance)
    write_atomically(folder / "results.csv", as_csv(report))
    pictures = {}
    if not no_pictures:
        from ipex_lookahead.bench.plots.run import run_pictures

        pictures = run_pictures(report)
    for name, (_, svg) in pictures.items():
        write_atomically(folder / f"{name}.svg", svg)
    write_atomically(folder / "report.html", as_html(report, pictures.values()))
    _print(report, to_stderr=as_json)
    print_status(f"results.json, results.csv, report.html and its pictures are in {output}")
    if as_json:
        click.echo(json.dumps(report))
    runs = [(case, run) for case in report["cases"] for run in case.get("runs", ())]
    for case in report["cases"]:
        if "error" in case:
            click.echo(f"error: {case['key']}: {case['error']}", err=True)
    for case, mode in runs:
        if not mode["identical"]:
            click.echo(f"error: {case['key']}: lookahead {mode['lookahead']} changed the tokens", err=True)
    if len(runs) == 0 or any("error" in case for case in report["cases"]) or not all(m["identical"] for _, m in runs):
        raise click.exceptions.Exit(1)


def _load(case: Case, plan: Plan) -> Any:
    from ipex_lookahead.engines.low_bit_copy import check_gains

    speculative = any(config is not None and config.strategy == "self_speculation" for _, config in case.modes)
    placing: dict[str, Any] = {"engine": case.engine, "device": case.device, "kv_cache": plan.kv_cache}
    if speculative:
        placing["check_label"] = check_gains
    return loading.load_text(case.path, low_bit=case.low_bit, threads=case.threads, progress=False, **placing)


def _force_isa(plan: Plan) -> None:
    """Set the instruction set of this process; call it before the first use of the core."""
    if plan.isa:
        from ipex_lookahead.engines.native.core import ISA_VARIABLE, chosen_isa

        os.environ[ISA_VARIABLE] = plan.isa
        chosen_isa()


def _text(plan: Plan) -> str:
    file = given_path(plan.prompts) if plan.prompts else PACKAGED_TEXT
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"prompts: {file} cannot be read: {why}", hint="a plain text file") from None


def _print(report: dict[str, Any], *, to_stderr: bool) -> None:
    from ipex_lookahead.bench.report import rows_of

    if not (rows := rows_of(report)):
        return
    print_rows(
        {
            "model": "{model}",
            "format": lambda row: row["low_bit"] or "as is",
            "in-out": "{input/output tokens}",
            "batch": "{batch_size}",
            "lookahead": "{lookahead}",
            "1st-ms": "{1st token avg latency (ms):.1f}",
            "2+-ms": "{2+ avg latency (ms/token):.2f}",
            "ratio": lambda row: f"~{row['speedup']:.2f}x (noise)" if row["noise"] else f"{row['speedup']:.2f}x",
            "tok/step": "{tokens/step:.2f}",
            "identical": lambda row: "yes" if row["identical"] else "NO",
        },
        rows,
        keys=5,
        caption="medians of the trials; noise: too few tokens or trials (num_trials), or both slower and faster ones",
        title=f"{counted(len(report['cases']), 'case')} · {report['machine'].get('processor', '')}",
        to_stderr=to_stderr,
    )


class Loaded(Protocol):
    """A ``TextModel``."""

    engine: Any
    tokenizer: Any
    stats: Any

    def generate_batch(self, prompts: Sequence[Sequence[int]], params: SamplingParams, **settings: Any) -> Any:
        """Return the new token ids of each prompt."""
        ...

    def forget(self) -> None:
        """Clear the stores of earlier answers."""
        ...


Load = Callable[["Case", "Plan"], Loaded]


def run_plan(
    plan: Plan,
    folder: Path,
    load: Load,
    text: str,
    *,
    started: Callable[[str], None] = lambda name: None,
    advance: Callable[[int], None] = lambda answers: None,
) -> dict[str, Any]:
    """Measure the cases that are missing in ``results.json`` of a folder, and save it after each case.

    Args:
        plan: The checked plan.
        folder: Folder for the results; created if missing.
        load: Loads the model of a case; called once for successive cases with the same model.
        text: Text that prompts are cut from.
        started: Called with the key of a case before it starts.
        advance: Called with the number of answers that are done or skipped.

    Returns:
        The contents of ``results.json``: ``settings``, ``machine``, ``versions``, ``date`` and ``cases``. A case has
        its ``key``, its settings, and either ``runs`` or ``error``. A run has the medians of the trials of one mode,
        their ``samples``, ``tok_s_range`` and ``first_token_seconds_range`` (minimum and maximum), and
        ``ratio_is_noise`` of ``bench decode`` for the ratios to plain decoding in the same trial.

    Raises:
        InputError: The folder has the results of another plan.
        SaveError: A file cannot be written.
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
        started(case.key)
        entry = {"key": case.key, **_facts(case)}
        try:
            if model is None or held != case.loading:
                model = None  # free its memory before the next one is loaded
                start = time.perf_counter()
                model, held = load(case, plan), case.loading
                seconds = time.perf_counter() - start
            entry |= {"loading_seconds": seconds, **_measure(model, case, plan, text, advance)}
        except LookaheadError as error:
            entry["error"] = str(error)
        report["cases"].append(entry)
        write_atomically(folder / RESULTS, json.dumps(report, indent=1) + "\n")
    return report


def _begun(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the report of a folder, or a new one."""
    from ipex_lookahead.bench.facts import machine

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
        raise InputError(f"{file} is not a file of `bench run`", hint="name another folder")
    for key in same:
        if before.get(key) != fresh["settings"].get(key):
            raise InputError(
                f"{file} has results with {key}: {before.get(key)!r:.40}; the plan has {plan.settings.get(key)!r:.40}",
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
    from ipex_lookahead.bench.plan import TASKS
    from ipex_lookahead.engines.machine import peak_memory

    engine = model.engine.describe()
    context = model.engine.max_context
    if case.tokens_in + case.tokens_out > context:
        raise InputError(
            f"{case.tokens_in} tokens in and {case.tokens_out} out exceed the model's context of {context}"
        )
    prompts, repeats = cut(model.tokenizer, TASKS[plan.task], text, case.tokens_in, case.batch)
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name, _ in case.modes}
    answers: dict[str, list[list[int]]] = {}
    _reset_peak_memory()
    for trial in range(-plan.warm_up, plan.trials):
        for name, lookahead in case.modes if trial % 2 == 0 else case.modes[::-1]:
            model.forget()
            sample, tokens = _answer(model, prompts, case, lookahead, streaming=plan.streaming)
            answers.setdefault(name, tokens)
            sample["identical"] = tokens == answers.get("0", tokens)
            if trial >= 0:
                samples[name].append(sample)
            advance(1)
    placed = {name: engine.get(name) for name in ("engine", "isa", "threads", "device")}
    facts = {
        **placed,
        "low_bit": engine.get("low_bit") or case.low_bit,
        "peak_bytes": peak_memory(),
        "text_repeats": repeats,
    }
    return {**facts, "runs": _summaries(samples, case.batch)}


def _answer(
    model: Loaded, prompts: list[list[int]], case: Case, lookahead: LookaheadConfig | None, *, streaming: bool
) -> tuple[dict[str, Any], list[list[int]]]:
    """Generate one answer of exactly ``case.tokens_out`` tokens, ignoring the end token."""
    params = SamplingParams(case.tokens_out, ignore_eos=True)
    settings = {"on_token": lambda token: None} if streaming and case.batch == 1 else {}
    start = time.perf_counter()
    new = model.generate_batch(prompts, params, lookahead=lookahead or 0, **settings)
    seconds = time.perf_counter() - start
    stats = model.stats
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


def _summaries(samples: Mapping[str, Sequence[dict[str, Any]]], batch: int) -> list[dict[str, Any]]:
    """Summarize the trials of each mode; "0" is plain decoding."""
    return [_summary(name, some, samples["0"], batch) for name, some in samples.items()]


def _summary(
    name: str, samples: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]], batch: int
) -> dict[str, Any]:
    middle = {key: median(s[key] for s in samples) for key in _TIMED}
    pairs = zip(samples, plain, strict=True)
    ratios = [_over(base["next_token_seconds"], mine["next_token_seconds"], 1.0) for mine, base in pairs]
    speeds = [_over(batch, s["next_token_seconds"], 0.0) for s in samples]
    first = [s["first_token_seconds"] for s in samples]
    noise = certainty(ratios, sum(batch * (s["tokens_out"] - 1) for s in samples))
    return {
        "lookahead": name,
        **middle,
        "tokens_out": samples[0]["tokens_out"],
        "tok_s": median(speeds),
        "tok_s_range": [min(speeds), max(speeds)],
        "first_token_seconds_range": [min(first), max(first)],
        "speedup": median(ratios),
        "ratio_quartiles": noise["ratio_quartiles"],
        "ratio_is_noise": name != "0" and noise["ratio_is_noise"],
        "identical": all(s["identical"] for s in samples),
        "samples": list(samples),
    }


def _over(value: float, by: float, otherwise: float) -> float:
    return value / by if by else otherwise


def cut(tokenizer: Any, before: str, text: str, tokens: int, batch: int) -> tuple[list[list[int]], bool]:
    """Return prompts of exactly ``tokens`` tokens: the task, then a different piece of the text for each.

    Args:
        tokenizer: The model's tokenizer.
        before: Text of the task.
        text: Text to cut; repeated if it is too short.
        tokens: Length of each prompt.
        batch: Number of prompts.

    Returns:
        Token ids [batch][tokens], and whether the text was repeated.
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


def _reset_peak_memory() -> None:
    with suppress(OSError):  # only Linux has it
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def write_atomically(file: Path, text: str) -> None:
    """Write a file, or leave the old one as it is. Raises SaveError."""
    try:
        with temporary_file(file) as name:
            name.write_text(text, encoding="utf-8")
            os.replace(name, file)
    except OSError as error:
        raise SaveError(f"{file} cannot be written: {error.strerror}", hint="free some space") from None
