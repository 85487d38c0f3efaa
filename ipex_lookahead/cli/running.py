"""Run a click command: print errors as a sentence with a hint, and return the exit status.

For the command line itself, and for scripts such as the examples::

    if __name__ == "__main__":
        sys.exit(run_command(main))
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from ipex_lookahead.errors import LookaheadError, in_python
from ipex_lookahead.system.cgroups import address_space
from ipex_lookahead.system.extras import torch_needed

DONE, FAILED, MISUSED, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141
"""Exit statuses; the last two are those of SIGINT and SIGPIPE."""


def run_command(
    command: click.Command,
    arguments: Sequence[str] | None = None,
    *,
    name: str | None = None,
    debug: bool = False,
    spell: Callable[[str, str], str] = in_python,
) -> int:
    """Run a command and return its exit status; ``error:`` and ``hint:`` lines go to standard error.

    Args:
        command: Any click command; an integer it returns is the exit status.
        arguments: Its command line; by default that of the program.
        name: Name of the program in usage and hints.
        debug: Also print the traceback of an error, as with ``IPEX_LOOKAHEAD_DEBUG=1``.
        spell: Name and value of an argument -> its spelling in messages, see ``LookaheadError.spelled``.
    """
    if sys.stdout is None:  # file 1 is closed: the next opened file would receive the output
        _say("error: standard output is closed")
        _say("hint: redirect it to a file or to /dev/null")
        return FAILED
    _escape_unencodable()
    output = sys.stdout
    try:
        code: Any = command.main(
            args=None if arguments is None else list(arguments), prog_name=name, standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has gone
        return READER_GONE
    except SystemExit:
        if sys.stdout is not output:  # click wraps it and exits with 1 when the reader has gone
            return READER_GONE
        raise
    except click.ClickException as error:
        _report_usage(error)
        return error.exit_code
    except Exception as error:  # the outermost handler: every error becomes a sentence
        if debug or os.environ.get("IPEX_LOOKAHEAD_DEBUG", "").lower() in ("1", "true", "yes", "on"):
            traceback.print_exc()
        _report(error, spell)
        return FAILED
    finally:
        _flush_or_drop()


def _escape_unencodable() -> None:
    """Escape characters that the encoding of a stream lacks (PYTHONIOENCODING=ascii) instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _flush_or_drop() -> None:
    """Flush; if that fails, redirect the output, so that the flush at exit does not report the error again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full
        click.echo(line, err=True)


def _report_usage(error: click.ClickException) -> None:
    _say(f"error: {error.format_message()}")
    hint = getattr(error, "hint", "")
    if not hint and isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help"
    if hint:
        _say(f"hint: {hint}")


def _report(error: Exception, spell: Callable[[str, str], str]) -> None:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "transformers"):
        error = torch_needed("this", error.name)
    if isinstance(error, LookaheadError):
        message, hint = error.spelled(spell)
        _say(f"error: {message}")
        if hint:
            _say(f"hint: {hint}")
    elif _wants_memory(error):
        limit, _ = address_space()
        allowed = f": the address space is limited to {limit / 1e9:.2f} GB (ulimit -v {limit >> 10})" if limit else ""
        _say(f"error: out of memory{allowed}")
        smaller = f"use a smaller model or format, such as {spell('load_in_low_bit', repr('sym_int4'))}"
        _say(f"hint: {'raise ulimit -v, or ' if limit else ''}{smaller}")
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror}")
    else:
        _say(f"error: {type(error).__name__}: {error}")
        _say("hint: internal error; please report it with the traceback that IPEX_LOOKAHEAD_DEBUG=1 shows")


def _wants_memory(error: Exception) -> bool:
    """Return True if memory was exhausted, also for libraries and threads with other messages."""
    by_message = "failed to map segment" in str(error) or "start new thread" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM) or by_message
