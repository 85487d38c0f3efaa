"""Options from dataclasses: a command's function has dataclass parameters, and each field is an option.

    @dataclass
    class Limits:
        max_new_tokens: int = option("Maximum number of tokens per answer.", 256, "-n", low=1)

    @command("ipex-lookahead answer -n 4")
    def answer(limits: Limits, as_json: bool = option("One JSON object.", names="--json")) -> None: ...

A field's name, annotation and default define the option; bounds and help can come from ``LookaheadConfig`` or
``SamplingParams``.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from dataclasses import Field, field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click

from ipex_lookahead.config import Bounds, bounds_of


class Option(click.Option):
    """An option with an environment variable named after the option instead of the parameter."""

    def variable(self, prefix: str) -> str:
        """Return ``PREFIX_MAX_NEW_TOKENS`` for ``--max-new-tokens``."""
        longest = max(self.opts, key=len)
        return f"{prefix}_{longest.lstrip('-').replace('-', '_').upper()}"

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return the default without the range, which error messages have."""
        extra: Any = super().get_help_extra(ctx)  # since click 8.2
        extra.pop("range", None)
        return extra

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable; an empty one is unset."""
        return os.environ.get(self.variable(ctx.auto_envvar_prefix or "")) or None


def option(
    help: str = "",
    default: Any = None,
    *names: str,
    low: float | None = None,
    high: float | None = None,
    above: bool = False,
    like: type | None = None,
    **settings: Any,
) -> Any:
    """Declare a field of a dataclass, or a parameter of a command's function, as an option.

    Args:
        help: Help text; by default the docstring of the field in ``like``.
        default: The default; None if the option may be missing.
        *names: Further names, such as "-n"; one with "--" replaces the name of the field.
        low: Lower bound of a number, see :class:`Bounds`; by default that of ``like``.
        high: Upper bound.
        above: Whether ``low`` is excluded.
        like: Class of settings with a field of the same name.
        **settings: Further arguments of ``click.Option``.
    """
    return field(
        default=default,
        metadata={"help": help, "names": names, "limits": (low, high, above), "like": like, "settings": settings},
    )


json_alone_option = option("Print one JSON object only.", False, "--json")


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a function's dataclass and ``option`` parameters, in order."""
    hints, found = get_type_hints(function), []
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            found += _options_of(groups[name])
        elif isinstance(parameter.default, Field):
            found.append(_click_option(name, hints[name], parameter.default))

    @functools.wraps(function)
    def call(**given: Any) -> Any:
        made = {name: _made(kind, given) for name, kind in groups.items()}
        return function(**given, **made)

    arguments = getattr(function, "__click_params__", [])
    call.__click_params__ = [*reversed(found), *arguments]  # type: ignore[attr-defined]  # click reverses them
    return call


def _options_of(kind: Any) -> list[Option]:
    """Return the options of a dataclass, including those of nested dataclasses."""
    hints, found = get_type_hints(kind), []
    for one in fields(kind):
        hint = hints[one.name]
        found += _options_of(hint) if is_dataclass(hint) else [_click_option(one.name, hint, one)]
    return found


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """Create a dataclass object from ``given``, and remove its values there."""
    hints = get_type_hints(kind)
    return kind(
        **{
            one.name: _made(hints[one.name], given) if is_dataclass(hints[one.name]) else given.pop(one.name)
            for one in fields(kind)
        }
    )


def _click_option(name: str, hint: Any, declared: Field[Any]) -> Option:
    data, default = declared.metadata, declared.default
    settings, like, kind = dict(data["settings"]), data["like"], _without_none(hint)
    if get_origin(kind) is tuple:
        settings["multiple"] = True
        kind = get_args(kind)[0]
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        settings |= {"is_flag": True, "default": default}
        flag = flag if default is False else f"{flag}/--no-{flag[2:]}"
    elif default not in (None, ()):
        settings["default"] = default
    if kind is not bool and "type" not in settings:
        settings["type"] = _click_type(kind, bounds_of(like, name) if like else Bounds(kind, *data["limits"]))
    if isinstance(settings.get("type"), click.IntRange | click.FloatRange):
        settings.setdefault("metavar", "N" if isinstance(settings["type"], click.IntRange) else "X")
    names = data["names"] if any(given.startswith("--") for given in data["names"]) else (flag, *data["names"])
    settings["show_default"] = default is not False and settings.get("default") is not None
    return Option([name, *names], help=data["help"] or attribute_doc(like, name), **settings)


def _click_type(kind: Any, bounds: Bounds) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if kind is Path:
        return click.Path(path_type=Path)
    if kind not in (int, float):
        return None
    ranged: Any = click.IntRange if kind is int else click.FloatRange
    made = ranged(bounds.low, bounds.high, min_open=bounds.above)
    made.name = "whole number" if kind is int else "number"  # for click's message: 'hot' is not a valid number
    return made


def _without_none(hint: Any) -> Any:
    """``int`` for ``int | None``."""
    if get_origin(hint) in (Union, UnionType):
        kept = [one for one in get_args(hint) if one is not NoneType]
        return kept[0] if len(kept) == 1 else hint
    return hint


def attribute_doc(settings: type | None, name: str) -> str:
    """Return the text of an attribute in a class docstring, as a sentence."""
    attributes = (inspect.getdoc(settings) or "").partition("Attributes:")[2]
    found = re.search(rf"^ +{name}: (.+?)(?=^ +\w+(?:, \w+)*: |\Z)", attributes, re.M | re.S)
    text = " ".join(found[1].split()) if found else ""
    return text.replace("``", "") if text.startswith("``") else text[:1].upper() + text[1:].replace("``", "")
