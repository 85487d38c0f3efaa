"""Compare speed and equality of outputs with llama-cpp-python, OpenVINO GenAI, transformers and ipex-llm.

python -m benchmarks.compare --plot compare.svg
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.peers import OURS, READS
from ipex_lookahead.bench.options import Prompts, Report
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import command_needs_torch, low_bit_option, model_option, threads_option
from ipex_lookahead.cli.names import option_of
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import status
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.cli.tables import print_facts, print_rows
from ipex_lookahead.cli.types import Words
from ipex_lookahead.system.terminal import counted

repeat_option = option("Rounds over all prompts.", 1, "--repeat", low=1)


@dataclass
class Peers:
    """The programs to compare with, and the lengths."""

    peers: tuple[str, ...] = option(
        "Programs to compare with. Default: all of them.", (), "--peer", type=Words(**READS)
    )
    pythons: tuple[str, ...] = option(
        "The interpreter that has a peer, such as ipex-llm=/opt/ipex/bin/python; this one if not given.",
        (),
        "--python",
        metavar="NAME=PATH",
    )
    models: tuple[str, ...] = option(
        "The same weights in a form that only that peer reads, such as an OpenVINO folder.",
        (),
        "--peer-model",
        metavar="NAME=PATH",
    )
    max_new_tokens: int = option("Most tokens to generate.", 128, "-n", low=2)
    lookahead: int = option("Drafted tokens of each one's own lookup.", 3, low=1, high=64)
    llama_server: Path | None = option(
        "llama.cpp's server, for the peer llama-server.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="PROGRAM",
    )

    def names(self, known: Sequence[str] = tuple(READS)) -> list[str]:
        """Return the programs to run, all that are known by default. Raises BadParameter for an unknown one."""
        if unknown := [name for name in self.peers if name not in known]:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}", param_hint="--peer")
        return list(self.peers or known)

    def request(self, model: str, low_bit: str | None, threads: int | None) -> dict[str, Any]:
        """Return what each program loads."""
        from ipex_lookahead.engines.machine import default_threads
        from ipex_lookahead.hub import resolve_model

        settings = {"model": str(resolve_model(model).absolute()), "threads": threads or default_threads()}
        server = None if self.llama_server is None else str(self.llama_server.absolute())
        return {**settings, "lookahead": self.lookahead, "low_bit": low_bit, "llama_server": server}


@command(
    "python -m benchmarks.compare --plot compare.svg",
    "python -m benchmarks.compare --python ipex-llm=/opt/ipex-llm/bin/python",
)
def compare(
    prompts: Prompts,
    what: Peers,
    to: Report,
    model: str = model_option,
    low_bit: str | None = low_bit_option,
    threads: int | None = threads_option,
    repeat: int = repeat_option,
) -> None:
    """Compare speed and equality of outputs with llama.cpp, OpenVINO GenAI, transformers and ipex-llm.

    All programs decode the same weights and token ids greedily, each in its own process, alternating prompt by prompt.
    Each runs plain decoding and its own lookahead. Programs that are not installed are listed.
    """
    command_needs_torch()
    from benchmarks.comparison import compare as measure
    from benchmarks.comparison import named, report
    from benchmarks.plot import plot_compare

    peers = what.names()
    to.check()
    interpreters, own_models = named(what.pythons, "--python"), named(what.models, "--peer-model")
    texts = [prompt.text for prompt in prompts.read()]

    from ipex_lookahead.bench.facts import where_and_when

    request = what.request(model, low_bit, threads)
    threads = request["threads"]
    with status() as say:
        found = measure(
            peers,
            request,
            texts,
            pythons=interpreters,
            models=own_models,
            max_new_tokens=what.max_new_tokens,
            repeat=repeat,
            began=say,
        )
    entries = report(found)
    summary: dict[str, Any] = {"model": model, "low_bit": low_bit, "threads": threads, "repeat": repeat}
    summary |= {"max_new_tokens": what.max_new_tokens, "lookahead": what.lookahead, "prompts": len(texts)}
    summary |= {"prompt_tokens": found.prompt_tokens, **where_and_when(), "rows": entries, "absent": found.absent}
    _print_table(summary, to_stderr=to.as_json)
    for name, why in found.absent.items():
        click.echo(f"{name} does not run here: {why}", err=True)
    to.write(summary, plot_compare)
    ours = [row for row in entries if row["peer"] == OURS]
    if changed := [row["mode"] for row in ours if len(set(row["identical_to_plain"].split("/"))) > 1]:
        click.echo(f"error: with {changed[0]} our tokens differ from those without", err=True)
    if changed or any(name in found.absent for name in (*what.peers, *interpreters)):
        raise click.exceptions.Exit(1)


def _print_table(report: dict[str, Any], *, to_stderr: bool) -> None:
    rows = report["rows"]
    print_rows(
        {
            "program": "{peer}",
            "mode": "{mode}",
            "tok/s": "{decode_tok_s:.1f}",
            "ratio": "{ratio:.2f}x",
            "prompt/s": "{prefill_tok_s:.0f}",
            "equal\nown plain": "{identical_to_plain}",
            "equal\nours": "{identical_to_ours}",
        },
        rows,
        keys=2,
        title=f"{report['model']} · {counted(report['threads'], 'thread')} · {counted(report['prompts'], 'prompt')} · "
        f"up to {report['max_new_tokens']} tokens · lookahead {report['lookahead']}",
        caption="equal: answers with the very same tokens as the program's own plain ones, and as our plain ones",
        to_stderr=to_stderr,
    )
    said = {f"{row['peer']} {row['version']}": f"{row['weights']}; {row['lookup']}" for row in rows}
    print_facts(said.items(), to_stderr=to_stderr)


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0 done, 1 an error, 2 wrong usage."""
    return run_command(compare, arguments, name="benchmarks.compare", debug=False, spell=option_of)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
