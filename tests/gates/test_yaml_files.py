"""Untrusted YAML, rules for formats and presets of lookahead: what it says, or an error of ours, within bounds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.errors import InputError, LowBitFormatError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.rules import ModelFacts, read_rules
from ipex_lookahead.low_bits import ALIASES, NOT_MADE, PRESETS
from tests.gates import cases, seed
from tests.support.forked import in_children

CASES = cases(400, 20_000)
WORDS = (
    *("!!int ''", "!!float x", "!!bool x", "!!timestamp x", "!!binary x", "!!set {a}", "!!omap [a: 1]", "!!pairs [a]"),
    *("!!python/object/apply:os.system [true]", "!!null x", "!x y", "&a [*a]", "*a", "&a a", "{<<: {a: 1}}"),
    *("{? [a] : 1}", "2026-02-30", "1:60:60", "0x_", "1e999", ".nan", "-.inf", "1" * 5000, "[" * 3000, "{a: " * 3000),
    *("- " * 3000, "'", '"\\x"', "\t", "\0", "\ufeff", "%YAML 9.9\n---", "--- a\n--- b", "...", "|\n x", "é" * 300),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 8, 2**31, 2**64, 10**400, 0.5, True, None, "", "a", "1/8", "8/1", "1/0", "9999/9999", "1/10000"),
    *([], {}, ["q4_k", "nf4"], ["q4_k", 3], {"first": 1}, {"first": "1/8", "last": 2, "every": 3}, {"every": 0}),
    *({"experts": 8}, {"layers": 2, "queries": 4}, {"layers": -1}, "*", "**", "*a*" * 40, "[", "[!", "a|b", "head"),
)  # fmt: skip
NAMES = (
    "head.weight",
    "embed.weight",
    *(f"model.layers.{n}.{m}.weight" for n in (0, 1, 7) for m in ("mlp.a", "v_proj")),
)


def changed(chance: random.Random, made: Any) -> Any:
    """The value with one place in it replaced, dropped, or there twice under another name."""
    if not isinstance(made, dict | list) or not made or chance.random() < 0.1:
        return chance.choice((*VALUES, *FORMATS, *ALIASES, *PRESETS, *NOT_MADE))
    if isinstance(made, list):
        at = chance.randrange(len(made))
        return [*made[:at], *([] if chance.random() < 0.1 else [changed(chance, made[at])]), *made[at + 1 :]]
    key = chance.choice(sorted(made))
    rest = {name: value for name, value in made.items() if name != key or chance.random() < 0.1}
    return rest | {chance.choice((key, key, key, key, key + "s", "")): changed(chance, made[key])}


def text(chance: random.Random, made: Any) -> bytes:
    """As YAML, which JSON is; now and then with a word of YAML's own in the place of a value, or bytes changed."""
    spelled = json.dumps(made, ensure_ascii=False, allow_nan=True)
    if chance.random() < 0.3:
        mark = json.dumps("@")
        spelled = json.dumps(replaced(chance, made, "@"), ensure_ascii=False).replace(mark, chance.choice(WORDS), 1)
    data = bytearray(spelled.encode("utf-8", "surrogatepass"))
    if chance.random() < 0.1 and data:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data * chance.choice((1,) * 30 + (200,)))


def replaced(chance: random.Random, made: Any, value: Any) -> Any:
    if not isinstance(made, dict | list) or not made or chance.random() < 0.2:
        return value
    key = chance.choice(sorted(made)) if isinstance(made, dict) else chance.randrange(len(made))
    copy = dict(made) if isinstance(made, dict) else list(made)
    copy[key] = replaced(chance, copy[key], value)
    return copy


def rules(chance: random.Random) -> dict[str, Any]:
    one = {
        "match": chance.choice(("*.v_proj", "head", "embedding", "*.0.*|*.1.*")),
        "format": chance.choice([*FORMATS]),
    }
    layers = {"first": "1/8", "last": 2, "every": 3}
    return {
        "default": "q4_k",
        "rules": [one, {**one, "layers": layers}, {**one, "format": ["nf4", "q4_0"], "when": {"experts": 8}}],
        "fallbacks": {"q4_k": "sym_int5", "q6_k": "q8_0"},
    }


def preset(chance: random.Random) -> dict[str, Any]:
    return {"strategy": "auto", "num_draft_tokens": 8, "adaptive": True, "draft_min_prob": 0.5, "store": "memory"}


def use_rules(file: Path) -> str:
    try:
        found = read_rules(file)
    except LowBitFormatError as error:
        said = str(error)
        return "refused" if file.name in said and len(said) < 2000 else f"an error that says nothing: {said[:200]}"
    assert set(found.named()) <= set(FORMATS)
    for name in NAMES:
        assert set(found.of(name, ModelFacts(8, 8, 4), "head.weight", "embed.weight")) <= set(FORMATS)
    return "read"


def use_preset(file: Path) -> str:
    try:
        config = LookaheadConfig.from_yaml(file)
    except InputError:
        return "refused"
    assert 0 <= config.num_draft_tokens <= 128
    return "read"


KINDS: tuple[tuple[Callable[[random.Random], Any], Callable[[Path], str]], ...] = (
    (rules, use_rules),
    (preset, use_preset),
)


def test_any_yaml_is_what_it_says_or_an_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"

    def case(number: int) -> str:
        chance = random.Random(f"{seed()} yaml {number}")
        make, use = KINDS[number % 4 == 0]
        made = make(chance)
        for _ in range(chance.choice((0, 1, 1, 2))):
            made = changed(chance, made)
        file.write_bytes(text(chance, made))
        return f"{make.__name__} {use(file)}"

    seen = in_children(case, CASES)
    print(dict(seen))
    assert {outcome.split(" ", 1)[1] for outcome in seen} <= {"read", "refused"}, seen
    assert min(seen[f"{kind.__name__} {end}"] for kind, _ in KINDS for end in ("read", "refused")) > CASES // 50, seen
