"""``--config FILE|NAME`` of every command: options from YAML as click's ``default_map``; the environment comes first.

    model: default              # for every command that has the option
    bench decode: {repeat: 5}   # for that command alone; replaces the general value

The presets in ``configs/lookahead`` and ``configs/serve`` are such files, and can be given by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import click

from ipex_lookahead.cli.options import Option
from ipex_lookahead.cli.types import Refused, nearest
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.paths import given_preset, preset_names
from ipex_lookahead.files.safe_yaml import load_yaml

Found = list[tuple[click.Context, list[tuple[Option, Any, str]]]]
"""The context of each command, with (option, value, source of the value) for each option that the file sets."""
KINDS = ("lookahead", "serve")
"""Kinds of presets that set options."""
CONFIG = "ipex_lookahead.config"
"""Key of ``Context.meta``: the file, and its ``Found``."""


def use_config(ctx: click.Context, _: click.Parameter, file: str | None) -> None:
    """Click callback: use the values of the file as defaults of this command's options."""
    if file is not None and not ctx.resilient_parsing:
        found = _read(file, ctx.find_root())
        ctx.meta[CONFIG] = file, found
        mine = next(given for one, given in found if one.command_path == ctx.command_path)
        ctx.default_map = {str(option.name): _typed(file, option, value) for option, value, _ in mine}


def _read(file: str, root: click.Context) -> Found:
    def refused(problem: str, near: str | None = None) -> Refused:
        return Refused(f"--config: {file} {problem}", hint=f"did you mean {near}?" if near else "see docs/commands.md")

    try:
        loaded = load_yaml(given_preset(file, *KINDS), error=InputError)
    except InputError as error:
        hint = f"give a YAML file of options or one of {', '.join(preset_names(*KINDS))}"
        raise Refused(f"--config: {error}", hint=hint) from None
    if not isinstance(loaded, dict):
        raise refused(f"must be a mapping of options, got {type(loaded).__name__}")
    commands = {one.command_path.partition(" ")[2]: one for one in _commands(root)}
    options = {
        path: {max(p.opts, key=len)[2:]: p for p in one.command.params if isinstance(p, Option) and p.name != "config"}
        for path, one in commands.items()
    }
    defaults = {one.name: one.default for one in fields(LookaheadConfig)}  # presets have fields without an option
    given: dict[str, dict[str, Any]] = {path: {} for path in options}
    general = {name: value for name, value in loaded.items() if not isinstance(value, dict)}
    sections = [(str(name), value) for name, value in loaded.items() if isinstance(value, dict)]
    for section, values in [(None, general), *sections]:  # a section's values replace the general ones
        if section is not None and section not in options:
            raise refused(f"has a section {section!r:.60}, which is not a command", nearest(section, options))
        takers = [*options] if section is None else [section]
        known = {key for path in takers for key in options[path]}
        for name, value in values.items():
            key = str(name).lstrip("-").replace("_", "-")
            key = "lookahead" if key == "num-draft-tokens" else key
            if key not in known and (section is not None or (name, value) not in defaults.items()):
                where = ", which no command has" if section is None else f" of {section}, which it does not have"
                raise refused(f"sets {str(name)!r:.60}{where}", nearest(key, known))
            source = file if section is None else f"{file}, {section}"
            for path in takers:
                if key in options[path]:
                    given[path][key] = options[path][key], value, source
    return [(one, [entry for entry in given[path].values() if entry[1] is not None]) for path, one in commands.items()]


def _typed(file: str, option: Option, value: Any) -> Any:
    """Return a value as the command line gives it: text, a list of text, or a truth value for a flag."""
    values = value if isinstance(value, list) else [value]
    if (option.is_flag and not isinstance(value, bool)) or any(isinstance(one, dict | list) for one in values):
        allowed = "true or false" if option.is_flag else "a value or a list of values"
        raise Refused(f"--config: {file}: {max(option.opts, key=len)[2:]} is {value!r:.60}; it must be {allowed}")
    text = [str(one) for one in values]
    return value if option.is_flag else text if option.multiple else ",".join(text)


def _commands(ctx: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of all commands below a group's."""
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            if (command := ctx.command.get_command(ctx, name)) is not None:
                yield from _commands(click.Context(command, parent=ctx, info_name=name))
    else:
        yield ctx
