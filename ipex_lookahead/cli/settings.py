"""``--config FILE`` of every command: options from YAML, beneath the command line and the environment.

    model: default              # for every command that has the option
    low-bit: sym_int4
    bench decode:               # for that command alone, over the above
      repeat: 5

The presets of ``configs/lookahead`` are such files too: their keys are ``LookaheadConfig``'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import click

from ipex_lookahead.cli.options import Option
from ipex_lookahead.cli.types import Refused, nearest
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_yaml import load_yaml

ALIASES = {"num-draft-tokens": "lookahead"}
"""A field of ``LookaheadConfig`` -> the option that sets it, where it has another name."""
NEVER = ("config", "help", "debug", "version")
"""Options that a file cannot set."""
_META = "ipex_lookahead.settings"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a file: ``section`` is the command that it is for, "" = all that have it."""

    section: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Settings:
    """A checked file."""

    file: str
    entries: tuple[Setting, ...]

    def of(self, path: str) -> dict[str, Setting]:
        """By option's key what the file says to the command of that path; its own section goes over the rest."""
        return {one.key: one for section in ("", path) for one in self.entries if one.section == section}


def config_option() -> Option:
    """``--config FILE``, read before all other options."""
    return Option(
        ["--config"],
        type=click.Path(dir_okay=False),
        metavar="FILE.yaml",
        is_eager=True,
        expose_value=False,
        callback=_apply,
        help="Options from a file; those of the command line and the environment win.",
    )


def settings_of(ctx: click.Context) -> Settings | None:
    """What ``--config`` gave to this command; None without it."""
    found: Settings | None = ctx.meta.get(_META)
    return found


def merged(settings: Settings, ctx: click.Context) -> Iterator[tuple[str, str, str, str]]:
    """(command, option, value, where it comes from) of all that a file sets, the environment over it."""
    for path, command in _commands(ctx):
        prefix = "_".join(["IPEX_LOOKAHEAD", *path.split()]).upper().replace("-", "_")
        options = _options(command)
        for key, one in settings.of(path).items():
            if key not in options or one.value is None:
                continue
            variable = options[key].variable(prefix)
            if said := os.environ.get(variable):
                yield path, f"--{key}", said, variable
            else:
                where = f"{settings.file}, {one.section}" if one.section else settings.file
                yield path, f"--{key}", _spelled(options[key], one.value), where


def _apply(ctx: click.Context, param: click.Parameter, file: str | None) -> None:
    if file is None or ctx.resilient_parsing:
        return
    path = " ".join(ctx.command_path.split()[1:])
    options = _options(ctx.command)
    settings = _read(file, path, options, ctx)
    ctx.meta[_META] = settings
    defaults = dict(ctx.default_map or {})
    for key, one in settings.of(path).items():
        if key in options:
            name = options[key].name
            assert name is not None
            defaults[name] = _checked(file, options[key], key, one.value, ctx)
    ctx.default_map = defaults


def _read(file: str, path: str, options: Mapping[str, Option], ctx: click.Context) -> Settings:
    def refused(problem: str, hint: str = "") -> Refused:
        return Refused(f"--config: {file} {problem}", hint=hint or "docs/commands.md says what it may hold", ctx=ctx)

    try:
        loaded = load_yaml(file, error=InputError)
    except InputError as error:
        raise Refused(f"--config: {error}", hint="docs/commands.md says what it may hold", ctx=ctx) from None
    if not isinstance(loaded, dict):
        raise refused(f"holds {type(loaded).__name__}; it must be a mapping of options")
    entries: list[Setting] = []
    others: dict[str, click.Command] = {}
    for name, value in loaded.items():
        key = _key(name)
        if key in options and not isinstance(value, dict):
            entries.append(Setting("", key, value))
            continue
        others = others or dict(_commands(ctx))
        if isinstance(value, dict):
            if name not in others:
                near = nearest(str(name), others)
                raise refused(f"has a section {str(name)!r:.60}; there is no such command", near and f"{near}:" or "")
            for inner, setting in value.items():
                if (inner_key := _key(inner)) not in _options(others[name]):
                    raise refused(
                        f"sets {str(inner)!r:.60} of {name}, which it does not have", _near(inner, others[name])
                    )
                entries.append(Setting(str(name), inner_key, setting))
        elif any(key in _options(other) for other in others.values()):
            entries.append(Setting("", key, value))
        elif not _is_default(str(name), value):
            known = {one for other in others.values() for one in _options(other)}
            near = nearest(key, known)
            raise refused(f"sets {str(name)!r:.60}, which no command has", f"did you mean {near}?" if near else "")
    return Settings(file, tuple(entries))


def _near(name: object, command: click.Command) -> str:
    near = nearest(str(name), _options(command))
    return f"did you mean {near}?" if near else ""


def _key(name: object) -> str:
    """``max_new_tokens`` and ``--max-new-tokens`` are ``max-new-tokens``."""
    key = str(name).lstrip("-").replace("_", "-")
    return ALIASES.get(key, key)


def _is_default(name: str, value: Any) -> bool:
    """Whether it is a field of ``LookaheadConfig`` that has no option, at its default: presets spell those out."""
    return any(field.name == name and field.default == value for field in fields(LookaheadConfig))


def _options(command: click.Command) -> dict[str, Option]:
    """Key -> option of a command."""
    found = (param for param in command.params if isinstance(param, Option))
    keys = {max(option.opts, key=len).lstrip("-"): option for option in found}
    return {key: option for key, option in keys.items() if key not in NEVER}


def _checked(file: str, option: Option, key: str, value: Any, ctx: click.Context) -> Any:
    """A value as click takes it from the command line: text, a list of text, or a truth value for a flag."""
    if value is None:
        return None
    if option.is_flag:
        if not isinstance(value, bool):
            raise Refused(f"--config: {file}: {key} is {value!r:.60}; it must be true or false", ctx=ctx)
        return value
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)):
        raise Refused(f"--config: {file}: {key} is {value!r:.60}; it must be a value or a list of values", ctx=ctx)
    if isinstance(value, list):
        return [str(one) for one in value] if option.multiple else ",".join(map(str, value))
    return [str(value)] if option.multiple else str(value)


def _spelled(option: Option, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _commands(ctx: click.Context) -> list[tuple[str, click.Command]]:
    """(path, command) of everything that is no group, from the program down."""

    def under(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield path, command
            return
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            if found is not None:
                yield from under(found, f"{path} {name}".strip())

    return list(under(ctx.find_root().command, ""))
