"""The command ``ipex-lookahead``."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence

import click

from ipex_lookahead.cli.commands import LazyGroup
from ipex_lookahead.cli.names import option_of
from ipex_lookahead.cli.running import run_command

COMMANDS = {
    "generate": "answer one prompt",
    "chat": "chat in the terminal",
    "run": "download a model if necessary and chat with it",
    "serve": "serve a model over HTTP: OpenAI, Anthropic and Ollama APIs, and a web page",
    "embed": "compute the vectors of texts with an embedding model",
    "rank": "rank documents for a query with a reranking or embedding model",
    "quantize": "save a model in a low-bit format",
    "convert-ipex-llm": "convert a folder saved by ipex-llm to safetensors",
    "drafter": "prepare draft heads",
    "imatrix": "compute an importance matrix for quantize",
    "info": "show facts about this machine or a model",
    "pull": "download a model, or list recommended models",
    "list": "list downloaded models",
    "rm": "remove a downloaded model",
    "doctor": "check the installation and write a report for an issue",
    "compare-engines": "run the same prompts on every installed engine",
    "bench": "run benchmarks",
    "completion": "print a shell completion script",
}
"""Command -> its line in ``--help``."""


ELSEWHERE = {
    "compare-engines": "ipex_lookahead.bench.compare_engines",
    "doctor": "ipex_lookahead.bench.doctor",
    "run": "ipex_lookahead.cli.chat",
    **dict.fromkeys(("list", "pull", "rm"), "ipex_lookahead.cli.models"),
}
"""Command -> its module, where that is not ``cli.<command>``."""


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ipex_lookahead import __version__

        click.echo(f"ipex-lookahead {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lines=COMMANDS,
    module="ipex_lookahead.cli.{}",
    modules=ELSEWHERE,
    context_settings={"auto_envvar_prefix": "IPEX_LOOKAHEAD", "help_option_names": ["-h", "--help"]},
    epilog="Environment variables set options: IPEX_LOOKAHEAD_GENERATE_THREADS=2 sets generate --threads. "
    "docs/commands.md documents every option.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
def cli(debug: bool) -> None:
    """Run low-bit LLMs on CPUs and Intel GPUs, with exact lookahead decoding."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit status."""
    given, debug = _take_debug(arguments)
    log, handler = logging.getLogger("ipex_lookahead"), _Warnings()
    log.addHandler(handler)
    try:
        return run_command(cli, given, name="ipex-lookahead", debug=debug, spell=option_of)
    finally:
        log.removeHandler(handler)


class _Warnings(logging.Handler):
    """Prints the warnings of the package on standard error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            click.echo(record.getMessage(), err=True)


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Remove ``--debug``, which is allowed anywhere before ``--``."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]
    given = [g for g in given[:end] if g != "--debug"] + given[end:]
    return given, debug


if __name__ == "__main__":
    main()
