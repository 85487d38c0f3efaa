"""Rules in YAML that assign a format to each matrix; the first matching rule wins.

    default: q4_k                                   # all other matrices; without a default they keep their format
    rules:
      - {match: head, format: q6_k}                 # the output layer
      - {match: embedding, format: q4_k}            # an embedding not shared with the output layer; default: unchanged
      - {match: "*.v_proj|*.o_proj", format: q6_k, layers: {first: 1/8, last: 2, every: 3}}
      - {match: "*.experts.*", format: [sym_int4, nf4], when: {experts: 8}}
    fallbacks: {q4_k: sym_int5}                     # for matrices with a number of inputs the blocks do not divide

Patterns are shell patterns over module names (``model.layers.0.self_attn.v_proj``), separated by ``|``. From a list of
formats, each matrix gets the one with the least squared error.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import LowBitFormatError, arg
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.files.safe_yaml import load_yaml
from ipex_lookahead.low_bits import ALIASES, LOW_BITS, NAMES, NOT_MADE, PRESETS, is_rules_file, why_not_made

FOLDER = Path(__file__).parent / "presets"
HEAD, EMBEDDING = "head", "embedding"
"""Special values of ``match``: the two matrices with family-dependent names."""

Shape = tuple[int, ...]
Formats = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of a model that rules can depend on.

    Attributes:
        layers: number of blocks.
        experts: number of experts per mixture; 0: no mixture.
        queries: number of query heads per key/value head; 0: unknown.
    """

    layers: int = 0
    experts: int = 0
    queries: int = 0

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> ModelFacts:
        """Derive the facts from the names and shapes of the model's matrices."""
        numbers = [int(found[1]) for name in shapes if (found := _LAYER.search(name))]
        experts = [int(found[1]) for name in shapes if (found := _EXPERT.search(name))]
        rows = {
            part: next((shape[0] for name, shape in shapes.items() if name.endswith(f".{part}_proj.weight")), 0)
            for part in "qk"
        }
        return cls(max(numbers, default=-1) + 1, max(experts, default=-1) + 1, rows["q"] // (rows["k"] or 1))


_LAYER = re.compile(r"\.(\d{1,6})\.", re.ASCII)
_EXPERT = re.compile(r"\.experts\.(\d{1,6})\.", re.ASCII)


@dataclass(frozen=True, slots=True)
class Layers:
    """A subset of n layers. Integers are counts, fractions are shares of n, rounded as in llama.cpp.

    Attributes:
        first: layers at the front.
        last: layers at the back.
        every: after ``first``, the last layer of each run of this length; 0: none.
    """

    first: int | Fraction = 0
    last: int | Fraction = 0
    every: int = 0

    def has(self, layer: int, n: int) -> bool:
        """Return True if layer number ``layer`` of ``n`` belongs to the subset."""
        begin = int(self.first * n) if isinstance(self.first, Fraction) else self.first
        end = int((1 - self.last) * n) if isinstance(self.last, Fraction) else n - self.last
        return layer < begin or layer >= end or (self.every > 0 and (layer - begin) % self.every == self.every - 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a file.

    Attributes:
        match: patterns of module names separated by ``|``, or ``head`` or ``embedding``.
        format: the format, or several of which the one with the least squared error is used.
        layers: the layers the rule applies to; None: all.
        when: required values of ``ModelFacts``, by attribute name.
    """

    match: str
    format: Formats
    layers: Layers | None = None
    when: Mapping[str, int] = field(default_factory=dict)

    def fits(self, name: str, head: str, embedding: str) -> bool:
        """Return True if the rule's pattern matches the name of a matrix."""
        if self.match in (HEAD, EMBEDDING):
            return name == (head if self.match == HEAD else embedding)
        return name != embedding and any(fnmatchcase(_module(name), part) for part in self.match.split("|"))

    def holds(self, model: ModelFacts) -> bool:
        """Return True if the rule applies to this model."""
        return all(getattr(model, fact) == number for fact, number in self.when.items())


@dataclass(frozen=True, slots=True)
class FormatRules:
    """The rules of a file.

    Attributes:
        default: formats for matrices that no rule matches; empty: they keep their format.
        rules: the rules in order.
        fallbacks: format -> replacement for matrices with a number of inputs that its blocks do not divide.
        source: file or preset name, for messages.
    """

    default: Formats = ()
    rules: tuple[Rule, ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def of(self, name: str, model: ModelFacts, head: str, embedding: str) -> Formats:
        """Return the formats for the matrix with this name, before fallbacks; empty: it keeps its format."""
        found = _LAYER.search(name)
        layer = int(found[1]) if found else None
        for rule in self.rules:
            here = rule.layers is None or (layer is not None and rule.layers.has(layer, model.layers))
            if here and rule.holds(model) and rule.fits(name, head, embedding):
                return rule.format
        return () if name == embedding else self.default

    def named(self) -> list[str]:
        """Return every format that a matrix may get."""
        found = [*self.default, *(name for rule in self.rules for name in rule.format), *self.fallbacks.values()]
        return list(dict.fromkeys(found))

    def check(self, names: Collection[str], model: ModelFacts, head: str, embedding: str) -> None:
        """Raise LowBitFormatError for an applicable rule with a pattern that matches no matrix of the model."""
        for number, rule in enumerate(self.rules):
            if rule.match in (HEAD, EMBEDDING) or not rule.holds(model):
                continue
            if not any(rule.fits(name, head, embedding) for name in names):
                near = _nearest(rule.match.split("|")[0].strip("*."), {_module(n).rpartition(".")[2] for n in names})
                modules = sorted(map(_module, names))
                raise LowBitFormatError(
                    f"{self.source}: rules[{number}]: {rule.match!r} matches none of the model's {len(names)} matrices",
                    hint=(f"did you mean '*.{near}'? " if near else "")
                    + (f"a name is like {modules[len(modules) // 2]}" if modules else ""),
                )


def rules_of(name: object) -> FormatRules:
    """Return the rules behind a value of ``load_in_low_bit``: a format, an alias, a preset, or the path of a YAML file.

    Raises:
        LowBitFormatError: if the name is unknown, or the file is unreadable or invalid.
    """
    if not isinstance(name, str):
        raise _unknown(name)
    if is_rules_file(name):
        return read_rules(given_path(name))
    name = ALIASES.get(name, name)
    if name in PRESETS:
        return read_rules(FOLDER / f"{name}.yaml", name)
    return FormatRules((format_of(name),), source=name)


def format_of(name: object) -> str:
    """Return a format's canonical name; raise LowBitFormatError if it is unknown."""
    own = ALIASES.get(name, name) if isinstance(name, str) else None
    if own not in LOW_BITS:
        raise _unknown(name)
    return own


def label_of(name: str) -> str:
    """Return the display name for a value of ``load_in_low_bit``: the format, the preset, or the file name."""
    return Path(name).name if is_rules_file(name) else ALIASES.get(name, name)


def read_rules(path: Path, source: str = "") -> FormatRules:
    """Read rules from a file; raise LowBitFormatError that names the file, the place and the nearest valid word."""
    source = source or str(path)
    return _Reader(source).rules(load_yaml(path, source, error=LowBitFormatError))


class _Reader:
    """Converts parsed YAML to rules; every error names the file and the place in it."""

    def __init__(self, source: str) -> None:
        self.source = source

    def rules(self, loaded: Any) -> FormatRules:
        given = self._mapping(loaded, "the file", ("default", "rules", "fallbacks"))
        rules = given.get("rules", [])
        if not isinstance(rules, list):
            raise self._error(f"rules is {_shown(rules)}; it must be a list of mappings with match and format")
        if "default" not in given and not rules:
            raise self._error("has neither default nor rules; give at least one of them")
        fallbacks = self._mapping(given.get("fallbacks", {}), "fallbacks", None)
        return FormatRules(
            self._formats(given["default"], "default") if "default" in given else (),
            tuple(self._rule(rule, f"rules[{number}]") for number, rule in enumerate(rules)),
            self._without_cycles(
                {
                    self._format(key, "fallbacks"): self._format(value, f"fallbacks.{key}")
                    for key, value in fallbacks.items()
                }
            ),
            self.source,
        )

    def _rule(self, rule: Any, where: str) -> Rule:
        given = self._mapping(rule, where, [f.name for f in fields(Rule)])
        match = given.get("match")
        if not isinstance(match, str) or not all(match.split("|")):
            raise self._error(f"{where}.match is {_shown(match)}; it must be a pattern such as '*.v_proj', or head")
        if "format" not in given:
            raise self._error(f"{where} has no format")
        formats = self._formats(given["format"], f"{where}.format")
        layers = self._layers(given["layers"], f"{where}.layers") if "layers" in given else None
        when = self._mapping(given.get("when", {}), f"{where}.when", [f.name for f in fields(ModelFacts)])
        for key, value in when.items():
            if type(value) is not int or value < 0:
                raise self._error(f"{where}.when.{key} is {_shown(value)}; it must be a whole number")
        return Rule(match, formats, layers, when)

    def _layers(self, value: Any, where: str) -> Layers:
        given = self._mapping(value, where, [f.name for f in fields(Layers)])
        found = {key: self._share(number, f"{where}.{key}") for key, number in given.items()}
        if not isinstance(every := found.get("every", 0), int):
            raise self._error(f"{where}.every is {_shown(given['every'])}; it must be a whole number")
        return Layers(found.get("first", 0), found.get("last", 0), every)

    def _share(self, value: Any, where: str) -> int | Fraction:
        if type(value) is int and value >= 0:
            return value
        found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", value, re.ASCII) if isinstance(value, str) else None
        if found is not None and 0 < int(found[1]) <= int(found[2]):
            return Fraction(int(found[1]), int(found[2]))
        raise self._error(f"{where} is {_shown(value)}; it must be a whole number, or a share such as 1/8")

    def _formats(self, value: Any, where: str) -> Formats:
        several = value if isinstance(value, list) and value else [value]
        return tuple(dict.fromkeys(self._format(one, where) for one in several))

    def _format(self, value: Any, where: str) -> str:
        try:
            return format_of(value)
        except LowBitFormatError as error:
            raise LowBitFormatError(f"{self.source}: {where}: {error}", hint=error.hint) from None

    def _without_cycles(self, fallbacks: dict[str, str]) -> dict[str, str]:
        for begin in fallbacks:
            seen = [begin]
            while (name := fallbacks.get(seen[-1])) is not None:
                seen.append(name)
                if name in seen[:-1]:
                    raise self._error(f"fallbacks form a cycle: {' -> '.join(seen)}")
        return fallbacks

    def _mapping(self, value: Any, where: str, known: Iterable[str] | None) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(f"{where} is {_shown(value)}; it must be a mapping")
        for key in value:
            if known is not None and key not in (known := list(known)):
                near = _nearest(str(key), known)
                raise LowBitFormatError(
                    f"{self.source}: {where}: unknown key {_shown(key)}; choose one of {', '.join(known)}",
                    hint=f"did you mean {near}?" if near else "",
                )
        return value

    def _error(self, problem: str) -> LowBitFormatError:
        return LowBitFormatError(f"{self.source}: {problem}")


def _unknown(name: object) -> LowBitFormatError:
    if isinstance(name, str) and name in NOT_MADE:
        return LowBitFormatError(why_not_made(name), hint=arg("load_in_low_bit", NOT_MADE[name]))
    near = (_nearest(name, (*LOW_BITS, *PRESETS)) or _nearest(name, NAMES)) if isinstance(name, str) else None
    return LowBitFormatError(
        f"unknown low-bit format {_shown(name)}: choose one of {', '.join(LOW_BITS)}, a preset"
        f" ({', '.join(PRESETS)}), or the path of a .yaml file of rules",
        hint=f"for example {arg('load_in_low_bit', near or 'sym_int4')}",
    )


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), list(known), 1)), None)


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _shown(value: Any) -> str:
    return reprlib.repr(value)
