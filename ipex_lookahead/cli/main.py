"""The group ``ipex-lookahead``: finds commands, and speaks of errors in its own options."""

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
    "generate": "answer a prompt, or continue it",
    "chat": "talk with a model in the terminal",
    "run": "chat with a model by its short name, fetched if need be",
    "serve": "a model over HTTP, as OpenAI and Anthropic serve theirs, and a page to talk with it",
    "quantize": "save a model in a low-bit format",
    "convert-ipex-llm": "a folder that ipex-llm saved, its pickles as safetensors",
    "drafter": "make heads that draft for a model",
    "imatrix": "measure which inputs of a model's matrices matter, for quantize",
    "info": "this machine, or a model",
    "pull": "fetch a model from the hub, or list those that are recommended",
    "list": "models that are kept on this machine",
    "rm": "remove a model that was fetched",
    "doctor": "check that everything works here, as a report for an issue",
    "compare-engines": "the same prompts on every engine that is installed",
    "bench": "measure",
    "completion": "print a shell's completion script",
}
"""Command -> its line in ``--help``."""


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from ipex_lookahead import __version__

        click.echo(f"ipex-lookahead {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    lines=COMMANDS,
    module="ipex_lookahead.cli.{}",
    modules={name: f"ipex_lookahead.bench.{name.replace('-', '_')}" for name in ("compare-engines", "doctor")},
    context_settings={"auto_envvar_prefix": "IPEX_LOOKAHEAD", "help_option_names": ["-h", "--help"]},
    epilog="Options can be set in the environment too, as IPEX_LOOKAHEAD_GENERATE_THREADS=2 sets generate --threads; "
    "the command line wins. docs/commands.md lists them all.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Large language models in low-bit formats on CPUs, with exact lookahead decoding."""


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
    """What the package warns of, on standard error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Print it; where standard error is closed nobody reads."""
        with contextlib.suppress(OSError, ValueError):
            click.echo(record.getMessage(), err=True)


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """``--debug`` is welcome anywhere before ``--``, also after the command's name."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]
    given = [g for g in given[:end] if g != "--debug"] + given[end:]
    return given, debug


if __name__ == "__main__":
    main()
