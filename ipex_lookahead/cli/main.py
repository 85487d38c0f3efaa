"""The group ``ipex-lookahead``: finds commands, turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ipex_lookahead.errors import LookaheadError

COMMANDS = {
    "generate": "continue a prompt, or answer it",
    "chat": "talk with a model in the terminal",
    "quantize": "save a model in a low-bit format",
    "info": "this machine, or a model",
    "doctor": "check that everything works here, as a report for an issue",
    "compare-engines": "the same prompts on every engine that is installed",
    "bench": "measure",
    "completion": "print a shell's completion script",
}
"""Command name -> its line in ``--help``. Each is the object of that name (_ for -) in the module of that name."""


class Commands(click.Group):
    """Imports a command's module only when that command is asked for: ``--help`` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of ``COMMANDS``."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name, its module imported now."""
        if name not in COMMANDS:
            return None
        module = name.replace("-", "_")
        command: click.Command = getattr(importlib.import_module(f"ipex_lookahead.cli.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from ipex_lookahead import __version__

        click.echo(f"ipex-lookahead {__version__}")
        ctx.exit()


@click.group(
    cls=Commands,
    context_settings={"auto_envvar_prefix": "IPEX_LOOKAHEAD", "help_option_names": ["-h", "--help"]},
    epilog="Every option can be set by the environment variable that its help names; the command line wins.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print it.")
@click.option("--debug", is_flag=True, show_envvar=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Llama models in low-bit formats on CPUs, with exact lookahead decoding."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 an error, 2 wrong usage, 130 interrupted."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code; ``error:`` and ``hint:`` lines go to standard error."""
    given, debug = _take_debug(arguments)
    try:
        code: Any = cli.main(args=given, prog_name="ipex-lookahead", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except click.ClickException as error:
        _report_usage(error)
        return error.exit_code
    except Exception as error:  # the outermost handler: whatever it is, people get a sentence
        if debug:
            traceback.print_exc()
        return _report(error)


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """``--debug`` is welcome anywhere before ``--``, also after the command's name."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]
    given = [g for g in given[:end] if g != "--debug"] + given[end:]
    return given, debug or os.environ.get("IPEX_LOOKAHEAD_DEBUG", "").lower() in ("1", "true", "yes", "on")


def _report_usage(error: click.ClickException) -> None:
    click.echo(f"error: {error.format_message()}", err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"hint: {error.ctx.command_path} --help", err=True)


def _report(error: Exception) -> int:
    if isinstance(error, LookaheadError):
        click.echo(f"error: {error}", err=True)
        if error.hint:
            click.echo(f"hint: {error.hint}", err=True)
    elif isinstance(error, MemoryError):
        click.echo("error: out of memory", err=True)
        click.echo("hint: a smaller model or format, such as --low-bit sym_int4, needs less", err=True)
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"error: {where}{error.strerror}", err=True)
    else:
        click.echo(f"error: {type(error).__name__}: {error}", err=True)
        click.echo("hint: this should not happen; the same command with --debug shows where it did", err=True)
    return 1


if __name__ == "__main__":
    main()
