"""Run a click command as people expect it: an error is a sentence with a hint, and the exit status tells.

For the command line itself, and for scripts that use the package, such as the examples::

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
"""Exit statuses; the last two are what a shell gives for SIGINT and SIGPIPE."""


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
        command: any click command; what it returns as an integer is its exit status.
        arguments: its command line; the program's own if None.
        name: what the program is called in usage and hints.
        debug: print the traceback of an error as well; ``IPEX_LOOKAHEAD_DEBUG=1`` asks for that too.
        spell: what the program calls an argument, from its name and value: see ``LookaheadError.spelled``.
    """
    if sys.stdout is None:  # Python's sign that file 1 was closed; the next file opened would get the output
        _say("error: standard output is closed, so there is nowhere to write to")
        _say("hint: send it to a file, or to /dev/null")
        return FAILED
    _write_what_can_be_written()
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
    except click.ClickException as error:
        _report_usage(error)
        return error.exit_code
    except Exception as error:  # the outermost handler: whatever it is, people get a sentence
        if debug or os.environ.get("IPEX_LOOKAHEAD_DEBUG", "").lower() in ("1", "true", "yes", "on"):
            traceback.print_exc()
        _report(error, spell)
        return FAILED
    finally:
        _flush_or_drop()


def _write_what_can_be_written() -> None:
    """A letter that a stream's encoding lacks (PYTHONIOENCODING=ascii) is spelled: no end in mid-answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _flush_or_drop() -> None:
    """Python flushes once more when it exits; where that cannot work it must not complain a second time."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full, and then nobody listens
        click.echo(line, err=True)


def _report_usage(error: click.ClickException) -> None:
    _say(f"error: {error.format_message()}")
    hint = getattr(error, "hint", "")
    if not hint and isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help"
    if hint:
        _say(f"hint: {hint}")


def _report(error: Exception, spell: Callable[[str, str], str]) -> None:
    if isinstance(error, LookaheadError):
        message, hint = error.spelled(spell)
        _say(f"error: {message}")
        if hint:
            _say(f"hint: {hint}")
    elif isinstance(error, ModuleNotFoundError) and error.name in ("torch", "transformers"):
        _say(f"error: {torch_needed('this', error.name)}")
    elif _wants_memory(error):
        limit, _ = address_space()
        allowed = (
            f": this process may take {limit / 1e9:.2f} GB of addresses (ulimit -v {limit >> 10})" if limit else ""
        )
        _say(f"error: out of memory{allowed}")
        smaller = f"a smaller model or format, such as {spell('load_in_low_bit', repr('sym_int4'))}, needs less"
        _say(f"hint: {'a larger ulimit -v; ' if limit else ''}{smaller}")
    elif isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"error: {where}{error.strerror}")
    else:
        _say(f"error: {type(error).__name__}: {error}")
        _say("hint: this should not happen; IPEX_LOOKAHEAD_DEBUG=1 shows where it did")


def _wants_memory(error: Exception) -> bool:
    """Whether memory was short: also for a library, a thread or a process of ours, which say so in their own words."""
    said = "failed to map segment" in str(error) or "start new thread" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM) or said
