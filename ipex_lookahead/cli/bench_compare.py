"""``ipex-lookahead bench compare``: the same weights and prompts here and in other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch
from ipex_lookahead.cli.names import PEERS
from ipex_lookahead.cli.options import (
    json_option,
    limit_option,
    low_bit_option,
    model_option,
    option,
    plot_option,
    prompts_option,
    threads_option,
)
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.tables import print_facts, print_table
from ipex_lookahead.cli.types import Words
from ipex_lookahead.system.terminal import counted


@command(
    "ipex-lookahead bench compare --plot compare.svg",
    "ipex-lookahead bench compare --python ipex-llm=/opt/ipex-llm/bin/python",
)
@model_option
@low_bit_option
@threads_option
@option("--peer", "peers", multiple=True, type=Words(**PEERS), help="Beside these alone; beside all if not given.")
@option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="The interpreter that has a peer, such as ipex-llm=/opt/ipex/bin/python; this one if not given.",
)
@option(
    "--peer-model",
    "models",
    multiple=True,
    metavar="NAME=PATH",
    help="The same weights in a form that only that peer reads, such as an OpenVINO folder.",
)
@prompts_option
@limit_option
@option("--max-new-tokens", "-n", type=click.IntRange(2), default=128, help="Most tokens to generate.")
@option("--lookahead", type=click.IntRange(1, 64), default=3, help="Drafted tokens of each one's own lookup.")
@option("--repeat", type=click.IntRange(1), default=1, help="Rounds over all prompts.")
@plot_option
@json_option
def compare(
    model: str,
    low_bit: str | None,
    threads: int | None,
    peers: tuple[str, ...],
    pythons: tuple[str, ...],
    models: tuple[str, ...],
    prompts: tuple[str, ...],
    limit: int | None,
    max_new_tokens: int,
    lookahead: int,
    repeat: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Beside llama-cpp-python, openvino-genai, transformers and ipex-llm: speed, and equal outputs.

    All run the same weights and token ids, greedy, each in a process of its own, all in memory at once, prompt by
    prompt in turn. Each one's own lookahead stands beside its plain decoding. What is not installed is named.
    """
    command_needs_torch()
    from ipex_lookahead.bench import peers as known
    from ipex_lookahead.bench.compare import compare as run
    from ipex_lookahead.bench.compare import named, report
    from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts

    if unknown := [name for name in peers if name not in known.PEERS or name == known.OURS]:
        others = ", ".join(name for name in known.PEERS if name != known.OURS)
        raise click.BadParameter(f"{unknown[0]!r} is none of {others}", param_hint="--peer")
    if plot is not None:
        from ipex_lookahead.bench.plots.drawing import check_plot

        check_plot(plot)
    interpreters, own_models = named(pythons, "--python"), named(models, "--peer-model")
    texts = [prompt.text for prompt in read_prompts(prompts or [PACKAGED_PROMPTS], limit)]

    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.hub import resolve_model

    threads = threads or default_threads()
    path = str(resolve_model(model).absolute())
    request = {"model": path, "threads": threads, "lookahead": lookahead, "low_bit": low_bit}
    with status() as say:
        found = run(
            peers or [name for name in known.PEERS if name != known.OURS],
            request,
            texts,
            pythons=interpreters,
            models=own_models,
            max_new_tokens=max_new_tokens,
            repeat=repeat,
            began=say,
        )
    entries = report(found)
    whole: dict[str, Any] = {"model": model, "low_bit": low_bit, "threads": threads, "repeat": repeat}
    whole["max_new_tokens"] = max_new_tokens
    whole |= {"lookahead": lookahead, "prompts": len(texts), "prompt_tokens": found.prompt_tokens, **where_and_when()}
    whole |= {"rows": entries, "absent": found.absent}
    _print_table(whole, to_stderr=as_json)
    for name, why in found.absent.items():
        click.echo(f"{name} does not run here: {why}", err=True)
    if plot is not None:
        from ipex_lookahead.bench.plots.compare import plot_compare

        plot_compare(whole, plot)
        click.echo(f"saved {plot}", err=True)
    if as_json:
        click.echo(json.dumps(whole))
    ours = [row for row in entries if row["peer"] == known.OURS]
    if changed := [row["mode"] for row in ours if len(set(row["identical_to_plain"].split("/"))) > 1]:
        click.echo(f"error: with {changed[0]} our tokens differ from those without", err=True)
    if changed or any(name in found.absent for name in (*peers, *interpreters)):
        raise click.exceptions.Exit(1)


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = report["rows"]
    print_table(
        ("program", "mode", "tok/s", "ratio", "prompt/s", "equal\nown plain", "equal\nours"),
        [
            (
                row["peer"],
                row["mode"],
                f"{row['decode_tok_s']:.1f}",
                f"{row['ratio']:.2f}x",
                f"{row['prefill_tok_s']:.0f}",
                row["identical_to_plain"],
                row["identical_to_ours"],
            )
            for row in rows
        ],
        keys=2,
        title=f"{report['model']} · {counted(report['threads'], 'thread')} · {counted(report['prompts'], 'prompt')} · "
        f"up to {report['max_new_tokens']} tokens · lookahead {report['lookahead']}",
        caption="equal: answers with the very same tokens as the program's own plain ones, and as our plain ones",
        to_stderr=to_stderr,
    )
    said = {f"{row['peer']} {row['version']}": f"{row['weights']}; {row['lookup']}" for row in rows}
    print_facts(said.items(), to_stderr=to_stderr)
