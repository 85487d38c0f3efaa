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
class Settings:
    """A checked file; ``sections`` has the values by key of each command, under "" those for all commands."""

    file: str
    sections: dict[str, dict[str, Any]]

    def of(self, path: str) -> dict[str, Any]:
        """By option's key what the file says to the command of that path; its own section goes over the rest."""
        return self.sections[""] | self.sections.get(path, {})


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
        for key, value in settings.of(path).items():
            if key not in options or value is None:
                continue
            variable = options[key].variable(prefix)
            if said := os.environ.get(variable):
                yield path, f"--{key}", said, variable
            else:
                where = f"{settings.file}, {path}" if key in settings.sections.get(path, {}) else settings.file
                yield path, f"--{key}", _spelled(value), where


def _apply(ctx: click.Context, param: click.Parameter, file: str | None) -> None:
    if file is None or ctx.resilient_parsing:
        return
    path = " ".join(ctx.command_path.split()[1:])
    options = _options(ctx.command)
    settings = _read(file, path, options, ctx)
    ctx.meta[_META] = settings
    defaults = dict(ctx.default_map or {})
    for key, value in settings.of(path).items():
        if key in options:
            name = options[key].name
            assert name is not None
            defaults[name] = _checked(file, options[key], key, value)
    ctx.default_map = defaults


def _read(file: str, path: str, options: Mapping[str, Option], ctx: click.Context) -> Settings:
    def refused(problem: str, hint: str = "") -> Refused:
        return Refused(f"--config: {file} {problem}", hint=hint or "docs/commands.md says what it may hold")

    try:
        loaded = load_yaml(file, error=InputError)
    except InputError as error:
        raise Refused(f"--config: {error}", hint="docs/commands.md says what it may hold") from None
    if not isinstance(loaded, dict):
        raise refused(f"holds {type(loaded).__name__}; it must be a mapping of options")
    sections: dict[str, dict[str, Any]] = {"": {}}
    others: dict[str, click.Command] = {}
    for name, value in loaded.items():
        key = _key(name)
        if key in options and not isinstance(value, dict):
            sections[""][key] = value
            continue
        others = others or dict(_commands(ctx))
        if isinstance(value, dict):
            if name not in others:
                near = nearest(str(name), others)
                raise refused(f"has a section {str(name)!r:.60}; there is no such command", near and f"{near}:" or "")
            known = _options(others[name])
            for inner in value:
                if _key(inner) not in known:
                    near = nearest(str(inner), known)
                    problem = f"sets {str(inner)!r:.60} of {name}, which it does not have"
                    raise refused(problem, f"did you mean {near}?" if near else "")
            sections[str(name)] = {_key(inner): setting for inner, setting in value.items()}
        elif any(key in _options(other) for other in others.values()):
            sections[""][key] = value
        elif not _is_default(str(name), value):
            near = nearest(key, {one for other in others.values() for one in _options(other)})
            raise refused(f"sets {str(name)!r:.60}, which no command has", f"did you mean {near}?" if near else "")
    return Settings(file, sections)


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


def _checked(file: str, option: Option, key: str, value: Any) -> Any:
    """A value as click takes it from the command line: text, a list of text, or a truth value for a flag."""
    if value is None:
        return None
    if option.is_flag:
        if not isinstance(value, bool):
            raise Refused(f"--config: {file}: {key} is {value!r:.60}; it must be true or false")
        return value
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value)):
        raise Refused(f"--config: {file}: {key} is {value!r:.60}; it must be a value or a list of values")
    if isinstance(value, list):
        return [str(one) for one in value] if option.multiple else ",".join(map(str, value))
    return [str(value)] if option.multiple else str(value)


def _spelled(value: Any) -> str:
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
