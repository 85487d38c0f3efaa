"""Which matrix gets which format: rules in YAML, of which the first that matches wins.

    default: q4_k                                   # all other matrices; without it they stay as they are in the file
    rules:
      - {match: head, format: q6_k}                 # the output layer
      - {match: embedding, format: q4_k}            # an embedding that is no output layer; it stays else
      - {match: "*.v_proj|*.o_proj", format: q6_k, layers: {first: 1/8, last: 2, every: 3}}
      - {match: "*.experts.*", format: [sym_int4, nf4], when: {experts: 8}}
    fallbacks: {q4_k: sym_int5}                     # where a format's blocks do not divide a matrix's inputs

Patterns are a shell's, over the names of modules (``model.layers.0.self_attn.v_proj``), several with ``|`` between.
Of a list of formats a matrix gets the one that leaves the least squared error.
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
"""What a rule may match beside patterns: the two matrices whose names differ from family to family."""

Shape = tuple[int, ...]
Formats = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What rules look at of a model.

    Attributes:
        layers: how many blocks it has.
        experts: how many a block's mixture has; 0: there are none.
        queries: heads that share one head of keys and values; 0: not known.
    """

    layers: int = 0
    experts: int = 0
    queries: int = 0

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> ModelFacts:
        """Read off the names and shapes of its matrices."""
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
    """Some of n layers: whole numbers are counts, fractions shares of n, rounded as llama.cpp rounds them.

    Attributes:
        first: so many from the front.
        last: so many from the back.
        every: of those from ``first`` on the last of each so many; 0: none.
    """

    first: int | Fraction = 0
    last: int | Fraction = 0
    every: int = 0

    def has(self, layer: int, n: int) -> bool:
        """Whether layer number ``layer`` of ``n`` is one of them."""
        begin = int(self.first * n) if isinstance(self.first, Fraction) else self.first
        end = int((1 - self.last) * n) if isinstance(self.last, Fraction) else n - self.last
        return layer < begin or layer >= end or (self.every > 0 and (layer - begin) % self.every == self.every - 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a file.

    Attributes:
        match: patterns of modules' names with ``|`` between, or ``head`` or ``embedding``.
        format: the format; of several the one with the least squared error.
        layers: only in these; None: in all.
        when: only in models of which this is so, by the names of ``ModelFacts``.
    """

    match: str
    format: Formats
    layers: Layers | None = None
    when: Mapping[str, int] = field(default_factory=dict)

    def fits(self, name: str, head: str, embedding: str) -> bool:
        """Whether a matrix's name is meant."""
        if self.match in (HEAD, EMBEDDING):
            return name == (head if self.match == HEAD else embedding)
        return name != embedding and any(fnmatchcase(_module(name), part) for part in self.match.split("|"))

    def holds(self, model: ModelFacts) -> bool:
        """Whether the rule is for such a model."""
        return all(getattr(model, fact) == number for fact, number in self.when.items())


@dataclass(frozen=True, slots=True)
class FormatRules:
    """Which matrix gets which format.

    Attributes:
        default: formats for what no rule matches; empty: it stays as it is in the file.
        rules: in order.
        fallbacks: format -> the one instead for a matrix whose inputs its blocks do not divide.
        source: the file or the name, for messages.
    """

    default: Formats = ()
    rules: tuple[Rule, ...] = ()
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    source: str = ""

    def of(self, name: str, model: ModelFacts, head: str, embedding: str) -> Formats:
        """The formats for the matrix of that name, fallbacks aside; empty: as in the file."""
        found = _LAYER.search(name)
        layer = int(found[1]) if found else None
        for rule in self.rules:
            here = rule.layers is None or (layer is not None and rule.layers.has(layer, model.layers))
            if here and rule.holds(model) and rule.fits(name, head, embedding):
                return rule.format
        return () if name == embedding else self.default

    def named(self) -> list[str]:
        """Every format that a matrix may get."""
        found = [*self.default, *(name for rule in self.rules for name in rule.format), *self.fallbacks.values()]
        return list(dict.fromkeys(found))

    def check(self, names: Collection[str], model: ModelFacts, head: str, embedding: str) -> None:
        """Raise LowBitFormatError for a pattern that is for such a model and matches none of its matrices."""
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
    """The rules behind a name of ``load_in_low_bit``: a format, an alias, a preset, or the path of a YAML file.

    Raises LowBitFormatError: it is none of these; or the file cannot be read, or says what is not known.
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
    """A format's own name. Raises LowBitFormatError where it is none."""
    own = ALIASES.get(name, name) if isinstance(name, str) else None
    if own not in LOW_BITS:
        raise _unknown(name)
    return own


def label_of(name: str) -> str:
    """What weights made by a name of ``load_in_low_bit`` are called: the format or preset, or the file's name."""
    return Path(name).name if is_rules_file(name) else ALIASES.get(name, name)


def read_rules(path: Path, source: str = "") -> FormatRules:
    """Rules from a file. Raises LowBitFormatError that names the file, and the nearest known word."""
    source = source or str(path)
    return _Reader(source).rules(load_yaml(path, source, error=LowBitFormatError))


class _Reader:
    """Plain values as rules; every complaint names the file and the place in it."""

    def __init__(self, source: str) -> None:
        self.source = source

    def rules(self, loaded: Any) -> FormatRules:
        given = self._mapping(loaded, "the file", ("default", "rules", "fallbacks"))
        rules = given.get("rules", [])
        if not isinstance(rules, list):
            raise self._error(f"rules is {_shown(rules)}; it must be a list of mappings with match and format")
        if "default" not in given and not rules:
            raise self._error("has neither default nor rules; one of them must say a format")
        fallbacks = self._mapping(given.get("fallbacks", {}), "fallbacks", None)
        return FormatRules(
            self._formats(given["default"], "default") if "default" in given else (),
            tuple(self._rule(rule, f"rules[{number}]") for number, rule in enumerate(rules)),
            self._no_circle(
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

    def _no_circle(self, fallbacks: dict[str, str]) -> dict[str, str]:
        for begin in fallbacks:
            seen = [begin]
            while (name := fallbacks.get(seen[-1])) is not None:
                seen.append(name)
                if name in seen[:-1]:
                    raise self._error(f"fallbacks go in a circle: {' -> '.join(seen)}")
        return fallbacks

    def _mapping(self, value: Any, where: str, known: Iterable[str] | None) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(f"{where} is {_shown(value)}; it must be a mapping")
        for key in value:
            if known is not None and key not in (known := list(known)):
                near = _nearest(str(key), known)
                raise LowBitFormatError(
                    f"{self.source}: {where}: unknown key {_shown(key)}; the known keys are {', '.join(known)}",
                    hint=f"did you mean {near}?" if near else "",
                )
        return value

    def _error(self, problem: str) -> LowBitFormatError:
        return LowBitFormatError(f"{self.source}: {problem}")


def _unknown(name: object) -> LowBitFormatError:
    if isinstance(name, str) and name in NOT_MADE:
        return LowBitFormatError(why_not_made(name), hint=arg("load_in_low_bit", NOT_MADE[name]))
    near = _nearest(name, NAMES) if isinstance(name, str) else None
    return LowBitFormatError(
        f"unknown low-bit format {_shown(name)}; the known formats are {', '.join(LOW_BITS)}, the presets"
        f" {', '.join(PRESETS)}, or the path of a .yaml file of rules",
        hint=f"for example {arg('load_in_low_bit', near or 'sym_int4')}",
    )


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), list(known), 1)), None)


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _shown(value: Any) -> str:
    return reprlib.repr(value)
