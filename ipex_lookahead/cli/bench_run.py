"""``ipex-lookahead bench run``: a plan's models, formats, lengths and lookaheads, with a report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch
from ipex_lookahead.cli.measuring import json_option
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.tables import print_rows
from ipex_lookahead.cli.types import Refused
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.system.terminal import bar, counted, may_draw, tell_people

if TYPE_CHECKING:
    from ipex_lookahead.bench.plan import Case, Plan


@command("ipex-lookahead bench run configs/bench/laptop.yaml --output results")
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(dir_okay=False))
def run(
    plan_file: str,
    output: str = option("Where results and report go.", required=True, type=click.Path(), metavar="FOLDER"),
    no_pictures: bool = option("A report without pictures, which need matplotlib.", False),
    as_json: bool = json_option,
) -> None:
    """What a plan asks for: models, formats, lengths and lookaheads, trial by trial in turn.

    A plan is a YAML file in the words of ipex-llm's all-in-one benchmark; configs/bench has some. FOLDER gets
    results.json with every sample, results.csv, report.html and its pictures. Run again, it goes on where it was
    interrupted.
    """
    command_needs_torch()
    from ipex_lookahead.bench.plan import read_plan
    from ipex_lookahead.bench.report import as_csv, as_html
    from ipex_lookahead.bench.run import run as run_plan
    from ipex_lookahead.bench.run import write_whole

    try:
        plan = read_plan(Path(plan_file))
    except InputError as error:  # shown as it is: the keys of a plan are no options
        raise Refused(str(error), hint=error.hint or "configs/bench has plans to begin with") from error
    if not no_pictures:
        from ipex_lookahead.bench.plots.drawing import check_matplotlib

        check_matplotlib()
    _force_isa(plan)
    text = _text(plan)
    folder = given_path(output)
    done = 0
    with bar("measuring", plan.answers) as draw:

        def began(name: str) -> None:
            if may_draw():
                draw(done, title=name)
            else:
                tell_people(f"{name} ...")

        def advance(answers: int) -> None:
            nonlocal done
            done += answers
            draw(done)

        report = run_plan(plan, folder, _load, text, began=began, advance=advance)
    write_whole(folder / "results.csv", as_csv(report))
    pictures = {}
    if not no_pictures:
        from ipex_lookahead.bench.plots.run import run_pictures

        pictures = run_pictures(report)
    for name, (_, svg) in pictures.items():
        write_whole(folder / f"{name}.svg", svg)
    write_whole(folder / "report.html", as_html(report, pictures.values()))
    _print(report, to_stderr=as_json)
    tell_people(f"results.json, results.csv, report.html and its pictures are in {output}")
    if as_json:
        click.echo(json.dumps(report))
    runs = [(case, run) for case in report["cases"] for run in case.get("runs", ())]
    for case in report["cases"]:
        if "error" in case:
            click.echo(f"error: {case['key']}: {case['error']}", err=True)
    for case, mode in runs:
        if not mode["identical"]:
            click.echo(f"error: {case['key']}: with lookahead {mode['lookahead']} the tokens differ", err=True)
    if len(runs) == 0 or any("error" in case for case in report["cases"]) or not all(m["identical"] for _, m in runs):
        raise click.exceptions.Exit(1)


def _load(case: Case, plan: Plan) -> Any:
    from ipex_lookahead.cli.loading import load

    speculative = any(config is not None and config.strategy == "self_speculation" for _, config in case.modes)
    placing: dict[str, Any] = {"engine": case.engine, "device": case.device, "kv_cache": plan.kv_cache}
    if speculative:
        placing["speculative"] = True
    model, tokenizer = load(case.path, low_bit=case.low_bit, threads=case.threads, progress=False, **placing)
    model.tokenizer = tokenizer
    return model


def _force_isa(plan: Plan) -> None:
    """For the process, before the core looks what there is."""
    if plan.isa:
        from ipex_lookahead.engines.native.core import ISA_VARIABLE, chosen_isa

        os.environ[ISA_VARIABLE] = plan.isa
        chosen_isa()


def _text(plan: Plan) -> str:
    from ipex_lookahead.bench.quality import PACKAGED_TEXT

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
        caption="medians of the trials; noise: too few tokens or trials (num_trials), or now slower, now quicker",
        title=f"{counted(len(report['cases']), 'case')} · {report['machine'].get('processor', '')}",
        to_stderr=to_stderr,
    )
