"""Checks of the options of a command, before anything is loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ipex_lookahead.cli.names import NEEDS_DRAFT_MODEL, in_options
from ipex_lookahead.cli.types import LowBit, Refused, unknown
from ipex_lookahead.config import NO_STORE, is_memory
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.low_bits import NOT_MADE, is_rules_file, why_not_made
from ipex_lookahead.system.cgroups import cpu_quota
from ipex_lookahead.system.terminal import counted


def refuse(ctx: click.Context) -> None:
    """Raise Refused (exit status 2) for options that would fail later; warn about those that are slow."""
    _check_formats(ctx)
    _check_draft_model(ctx)
    _check_prompts(ctx)
    _check_files_to_write(ctx)
    _check_texts(ctx)
    _warn_of_threads(ctx.params.get("threads"))


def _check_formats(ctx: click.Context) -> None:
    engines = ctx.params.get("engines") or ctx.params.get("engine")
    if _several(engines) == ["ipex-llm"]:  # it has its own formats
        return
    for name, option in (
        ("low_bit", "--low-bit"),
        ("head_low_bit", "--head-low-bit"),
        ("draft_low_bit", "--draft-low-bit"),
        ("drafter_low_bit", "--drafter-low-bit"),
        ("formats", "--low-bit"),
    ):
        kind = next((param.type for param in ctx.command.params if param.name == name), None)
        for value in _several(ctx.params.get(name)):
            assert isinstance(kind, LowBit)
            if value in NOT_MADE:
                raise Refused(f"{option}: {why_not_made(value)}", hint=f"{option} {NOT_MADE[value]}")
            if is_rules_file(value) and not kind.alike:
                _check_rules(value, option)
            elif value not in kind.words:
                raise unknown("format", option, value, kind.words)


def _check_rules(path: str, option: str) -> None:
    from ipex_lookahead.engines.weights import WeightPlan
    from ipex_lookahead.errors import LowBitFormatError

    try:
        WeightPlan(path)
    except LowBitFormatError as error:
        message, hint = in_options(error)
        raise Refused(f"{option}: {message}", hint=hint or "docs/formats.md describes the rules") from error


def _check_draft_model(ctx: click.Context) -> None:
    both = ctx.params.get("drafter") is not None and ctx.params.get("draft_model") is not None
    if both and ctx.command.name != "exact":  # it checks both strategies
        raise Refused("--drafter and --draft-model exclude each other", hint="leave one of them out")
    if "draft_model" not in ctx.params or ctx.params["draft_model"] is not None:
        return
    strategies = _several(ctx.params.get("strategy"))
    option = f"--strategy {NEEDS_DRAFT_MODEL}" if NEEDS_DRAFT_MODEL in strategies else "--draft-min-prob"
    if NEEDS_DRAFT_MODEL in strategies or (ctx.params.get("draft_min_prob") is not None and not strategies):
        raise Refused(f"{option} needs a draft model", hint="add --draft-model MODEL")


def _check_prompts(ctx: click.Context) -> None:
    for path in map(Path, _several(ctx.params.get("prompts"))):
        if not path.exists():
            raise Refused(f"--prompts: {path} does not exist", hint='one JSON object per line: {"prompt": "..."}')
        if path.is_dir() and not any(path.glob("*.jsonl")):
            raise Refused(f"--prompts: folder {path} has no .jsonl file", hint="give a file or another folder")


def _check_files_to_write(ctx: click.Context) -> None:
    """Check files that are written at the end, and stores, which are read late."""
    for name, option in (("store", "--store"), ("record_to", "--record"), ("show_drafts", "--show-drafts")):
        given = ctx.params.get(name)
        if given is None or (name == "store" and (given == NO_STORE or is_memory(given))):
            continue
        from ipex_lookahead.drafting.store import is_store

        file = Path(os.path.realpath(given_path(given)))
        problem, hint = "", "choose a file in a writable folder"
        if file.exists() and not file.is_file():
            problem = "is not a file"
        elif not file.parent.is_dir():
            problem, hint = f"cannot be written: no folder {file.parent}", f"mkdir -p {file.parent}"
        elif file.exists() and not os.access(file, os.R_OK):
            problem = "cannot be read: permission denied"
        elif (reason := _write_error(file.parent)) is not None:
            problem = f"cannot be written: {reason}"
        elif name == "store" and file.exists() and not is_store(file):
            problem, hint = "is not a lookahead store", "choose another file; a new one is created"
        elif name == "show_drafts" and file.exists():
            problem, hint = "already exists", "choose another file"
        if problem:
            raise Refused(f"{option}: {given} {problem}", hint=hint)


def _write_error(folder: Path) -> str | None:
    """Return the error of creating a file in a folder, or None. Permissions are not enough, for example in /proc."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _check_texts(ctx: click.Context) -> None:
    """Check texts: bytes of a command line that are not UTF-8 become lone surrogates."""
    for name, option in (("prompt", "PROMPT"), ("system", "--system"), ("stop", "--stop")):
        for text in _several(ctx.params.get(name)):
            if any("\ud800" <= sign <= "\udfff" for sign in text):
                raise Refused(f"{option} is not valid UTF-8", hint="pass it through a file or a pipe in UTF-8")
            if name == "stop" and not text:
                raise Refused(f"{option} must have at least one character, got an empty text")


def _warn_of_threads(threads: int | None) -> None:
    if threads is None:
        return
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = cpu_quota()
    if threads > usable:
        limit = f"this process may use {counted(usable, 'CPU')}"
    elif quota is not None and threads > quota:
        limit = f"the container's quota is {quota:g} CPUs"
    else:
        return
    click.echo(f"warning: --threads {threads} is slower than fewer threads: {limit}", err=True)


def _several(value: Any) -> list[Any]:
    """Return the values of an option as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]
