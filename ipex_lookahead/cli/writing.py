"""Output files of commands."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ipex_lookahead.errors import InputError, SaveError
from ipex_lookahead.files.paths import given_path


def check_output(file: str | None, *, overwrite: bool) -> None:
    """Raise UsageError for a file that exists or cannot be written, before anything is loaded."""
    if file is None:
        if overwrite:
            raise click.UsageError("--overwrite needs --output")
        return
    path = given_path(file)
    if path.is_dir():
        raise click.UsageError(f"--output: {file} is a folder; give a file")
    if path.exists() and not path.is_file():
        raise click.UsageError(f"--output: {file} is a device or a pipe; give a file, or leave --output out")
    if path.exists() and not overwrite:
        raise click.UsageError(f"--output: {file} already exists; choose another name, or add --overwrite")
    if not path.parent.is_dir():
        raise click.UsageError(f"--output: no folder {path.parent}; create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"--output: folder {path.parent} is not writable")


def check_new(file: Path, *, overwrite: bool) -> None:
    """Raise InputError for a file that exists, or in a missing folder."""
    if not file.parent.is_dir():
        raise InputError(f"no folder {file.parent}", hint="create it first")
    if file.exists() and not overwrite:
        raise InputError(f"{file} already exists", hint="choose another name, or add --overwrite")


def output_path(file: str) -> Path:
    """Return the file that is replaced when the output is complete: the target of a link, with ``~`` expanded."""
    return Path(os.path.realpath(given_path(file)))


@contextmanager
def written(file: str) -> Iterator[Callable[[str], None]]:
    """Return a function that writes text to a temporary file, which is renamed at the end.

    After an error or an interrupt the temporary file stays if it is not empty; its name is printed.

    Raises SaveError if the file cannot be written.
    """
    path = output_path(file)
    name = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        out = name.open("x", encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise SaveError(f"cannot write {file}: {error.strerror}", hint="choose a file in another folder") from error
    try:
        with out:

            def write(text: str) -> None:
                try:
                    out.write(text)
                    out.flush()
                except OSError as error:
                    raise SaveError(f"cannot write {file}: {error.strerror}", hint="free some disk space") from error

            yield write
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            if name.stat().st_size:
                click.echo(f"the partial output is in {name}", err=True)
            else:
                name.unlink()
        raise
