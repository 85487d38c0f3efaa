"""Does turning speculation on change the text? Counted for ours and for other programs, and for servers under load.

python -m benchmarks.scoreboard --prompts prompts --limit 10 --llama-server PROGRAM --python ipex-llm=PATH
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.compare import Peers
from benchmarks.comparison import Programs, named
from benchmarks.peers import OURS, PEERS, llama_server
from ipex_lookahead import __version__
from ipex_lookahead.bench.options import Prompts, comma_separated, json_option
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch, low_bit_option, model_option, threads_option
from ipex_lookahead.cli.names import option_of
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
TEMPERATURE = 0.8
"""Temperature of sampled answers; every other filter is off."""
SLOT_TOKENS = 2048
"""Context of each of llama-server's slots: more than a prompt and its answer."""

Case = tuple[list[int], dict[str, Any] | None]
"""Token ids of a prompt, and the sampling as ``child.Loaded`` takes it."""


@dataclass
class Scope:
    """The measurements."""

    sampled: int = option("Number of prompts that are also answered with sampling, evenly spaced.", 10, low=0)
    streams: list[int] = option("Numbers of requests at a time.", "8,16", callback=comma_separated, metavar="N,N")
    modes: tuple[str, ...] = option(
        "Kinds of speculation; all that each program has if not given.", (), "--mode", metavar="NAME"
    )
    part: str = option(
        "texts: each program with and without speculation; load: servers under load.",
        "both",
        type=click.Choice(("both", "texts", "load")),
    )


@command("python -m benchmarks.scoreboard --prompts prompts --limit 10 --llama-server PROGRAM")
def scoreboard(
    prompts: Prompts,
    what: Peers,
    scope: Scope,
    model: str = model_option,
    low_bit: str | None = low_bit_option,
    threads: int | None = threads_option,
    as_json: bool = json_option,
) -> None:
    """Count the answers that stay the same when speculation is turned on, and those of servers under load.

    Same: the token ids of the answer are those of the same program with the same settings (and, sampled, the same seed)
    without speculation. Every program also repeats its answers without speculation, which shows whether they can be
    compared at all. Under load: the text is that of the same server for the request alone, prompt caches off or exact.
    """
    command_needs_torch()
    names, pythons, models = (
        what.names(tuple(PEERS)),
        named(what.pythons, "--python"),
        named(what.models, "--peer-model"),
    )
    texts = [prompt.text for prompt in prompts.read()]
    request = what.request(model, low_bit, threads)

    from ipex_lookahead.bench.facts import where_and_when

    report: dict[str, Any] = {**where_and_when(), "model": model, "threads": request["threads"], "prompts": len(texts)}
    report |= {"max_new_tokens": what.max_new_tokens, "lookahead": what.lookahead, "temperature": TEMPERATURE}
    report |= {"sampled": min(scope.sampled, len(texts)), "programs": [], "load": [], "absent": {}}
    with status() as say:
        if scope.part != "load":
            new = what.max_new_tokens
            with Programs(request, texts, pythons=pythons, models=models, max_new_tokens=new, began=say) as programs:
                found = cases(programs.prompts, report["sampled"])
                report["programs"] = [*boards(programs, names, found, what.max_new_tokens, scope.modes)]
                report["absent"] = programs.absent
        if scope.part != "texts":
            report["load"] = [*loads(request, texts, scope.streams, what.max_new_tokens, say)]
    print_report(report, to_stderr=as_json)
    for name, why in report["absent"].items():
        click.echo(f"{name} does not run here: {why}", err=True)
    if as_json:
        click.echo(json.dumps(report))


def cases(prompts: Sequence[list[int]], sampled: int) -> list[Case]:
    """Return every prompt for a greedy answer, and ``sampled`` evenly spaced ones with a seed each."""
    chosen = [number * len(prompts) // sampled for number in range(sampled)]
    seeded: list[Case] = [(prompts[at], {"temperature": TEMPERATURE, "seed": at}) for at in chosen]
    return [*((prompt, None) for prompt in prompts), *seeded]


def boards(
    programs: Programs, names: Iterable[str], found: Sequence[Case], new: int, only: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield one entry for each program that runs; one peer is loaded at a time.

    Args:
        programs: Ours is loaded.
        names: The programs.
        found: The prompts.
        new: Maximum length of an answer.
        only: Kinds of speculation; all that each program has if empty.
    """
    for name in names:
        if name != OURS and not programs.load(name):
            continue
        facts = programs.facts[name]
        facts["modes"] = {mode: text for mode, text in facts["modes"].items() if not only or mode in only}
        rows = [*rows_of(programs, name, found, new)]
        if name != OURS:
            programs.drop(name)
        if rows:
            entry = {"program": name, "version": facts["version"], "weights": facts["weights"]}
            yield {**entry, "date": date.today().isoformat(), "rows": rows}


def rows_of(programs: Programs, name: str, found: Sequence[Case], new: int) -> Iterator[dict[str, Any]]:
    """Yield the counts of each mode; "plain" is the repetition of the answers that all modes are compared with."""
    plain: list[list[int]] = []
    modes = programs.facts[name]["modes"]
    for mode in ("", "plain", *modes):
        answers = []
        for number, (prompt, sampling) in enumerate(found):
            programs.began(f"{name}, {mode or 'plain'}: answer {number + 1} of {len(found)}")
            answer = programs.answer(name, mode or "plain", prompt, new, sampling)
            if answer is None:
                return
            answers.append(answer["tokens"])
        if mode:
            yield {"mode": mode, "drafts": modes.get(mode, ""), **counts(found, plain, answers)}
        else:
            plain = answers


def counts(found: Sequence[Case], plain: Sequence[list[int]], answers: Sequence[list[int]]) -> dict[str, Any]:
    """Return the equal answers, greedy and sampled, as "same/all", and where the others part from the plain ones.

    Returns:
        ``greedy`` and ``sampled``; ``differs_at`` has the index of the first different token of each other answer.
    """
    pairs = [*zip(found, plain, answers, strict=True)]

    def same(sampled: bool) -> str:
        equal = [a == b for (_, sampling), a, b in pairs if (sampling is not None) == sampled]
        return f"{sum(equal)}/{len(equal)}"

    parts = [first_difference(a, b) for _, a, b in pairs if a != b]
    return {"greedy": same(sampled=False), "sampled": same(sampled=True), "differs_at": parts}


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the index of the first different token; the shorter length if one begins with the other."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def loads(
    request: dict[str, Any], texts: Sequence[str], streams: Iterable[int], new: int, began: Any
) -> Iterator[dict[str, Any]]:
    """Yield one entry for each server and number of streams: equal texts, and tokens per second together.

    Every server is new, so that no prompt has been seen, and has one slot per stream. One stream shows whether the
    server repeats its answers at all.
    """
    model, threads, program = request["model"], request["threads"], request["llama_server"]
    ours = [sys.executable, "-m", "ipex_lookahead.cli.main", "serve", "-m", model, "--threads", str(threads)]
    ours += [] if request["low_bit"] is None else ["--low-bit", request["low_bit"]]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        for count in (1, *streams):
            servers = {OURS: (__version__, [*ours, "--slots", str(count)])}
            if program is not None:
                settings = llama_server.options(model, threads, count, SLOT_TOKENS)
                servers["llama-server"] = (llama_server.version_of(program), [program, *settings])
            for name, (version, start) in servers.items():
                began(f"{name}: {count} at a time")
                yield {"program": name, "version": version, "streams": count, **load(start, file, count, new)}


def load(start: list[str], prompts: Path, streams: int, new: int) -> dict[str, Any]:
    """Start a server, send every prompt with ``bench serve``, and return what it found.

    Raises:
        InputError: The server does not start, or ``bench serve`` gives no report.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-m", "ipex_lookahead.cli.main", "bench", "serve", "--prompts", str(prompts)]
    command += ["--streams", str(streams), "-n", str(new), "--json"]
    try:
        with llama_server.Server(start, environment) as server:
            done = subprocess.run([*command, "--url", server.url], stdout=subprocess.PIPE, text=True, env=environment)
    except RuntimeError as error:
        raise InputError(f"{start[0]}: {error}") from error
    if not done.stdout.strip():
        raise InputError(f"bench serve ended with status {done.returncode} and without a report")
    found = json.loads(done.stdout.splitlines()[-1])
    kept = {key: found[key] for key in ("requests", "answered", "tok_s", "ttft_ms")}
    return {"same": found["identical_to_alone"], **kept, "date": found["date"]}


def print_report(report: dict[str, Any], *, to_stderr: bool) -> None:
    """Print a table of each part."""
    if report["programs"]:
        columns = {"program": "{program} {version}", "speculation": "{mode}", "greedy": "{greedy}"}
        rows = [{**entry, **row} for entry in report["programs"] for row in entry["rows"]]
        title = f"{report['model']} · up to {report['max_new_tokens']} tokens · same token ids as without speculation"
        caption = "plain: the program's answers without speculation, repeated"
        print_rows({**columns, "sampled": "{sampled}"}, rows, title=title, caption=caption, to_stderr=to_stderr)
    if report["load"]:
        columns = {"server": "{program} {version}", "at a time": "{streams}", "same text": "{same}"}
        title = "Same text under load as for the request alone"
        print_rows({**columns, "tok/s": "{tok_s:.0f}"}, report["load"], title=title, to_stderr=to_stderr)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0 done, 1 an error, 2 wrong usage."""
    return run_command(scoreboard, arguments, name="benchmarks.scoreboard", debug=False, spell=option_of)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
