"""Values and texts of JSON that attack a reader which knows what it wants."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from ipex_lookahead.architectures import family
from ipex_lookahead.architectures.hparams import ROPE, SIZES
from ipex_lookahead.architectures.keys import GIVEN
from ipex_lookahead.checkpoints.generation_config import OBEYED

INTEGERS = (
    *(0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 95, 96, 97, 127, 128, 255, 256, 512, 1000, 1024, 65_535, 65_536, 2**20),
    *(2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, -1, -(2**31), -(2**63)),
)
FLOATS = (
    *(0.0, -0.0, 5e-324, 1e-320, 1e-45, 1.2e-38, 1e-30, 1e-7, 1e-6, 1e-5, 0.1, 0.5, 1.0, 1.0000000000000002, 1.5, 2.0),
    *(4.0, 8.0, 1e3, 1e4, 5e5, 1e6, 1e9, 1e15, 1e16, 1e30, 3e38, 3.5e38, 1e300, 1.7e308, -1.0, -1e300),
)
OTHERS = (
    True,
    False,
    None,
    "",
    "x",
    "1",
    "llama",
    "silu",
    "../x",
    [],
    {},
    [1],
    [[1]],
    {"a": 1},
    "é" * 300,
    [0.5] * 600,
)
LAYERS = (
    *(
        [],
        ["full_attention"],
        ["sliding_attention"] * 2,
        ["full_attention"] * 513,
        ["x", "x"],
        [1, 0],
        [0, 0, 0],
        [-1, 9],
    ),
)
"""Lists that say something of each layer."""
EXPERTS: tuple[dict[str, Any], ...] = (
    {"num_experts": 4, "num_local_experts": 5},
    {"num_experts": 4, "num_local_experts": 4},
    {"num_local_experts": 1024, "num_experts": 1024, "num_hidden_layers": 64},
    {"num_experts_per_tok": 1025},
    {"mlp_only_layers": [9]},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
)
"""What a mixture's keys say of each other."""
KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "freq_factors", "", None, 3)
TEXTS = (
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1e999",
        "1" * 64,
        "1" * 65,
        "1" * 5000,
        "01",
        "+1",
        ".5",
        "1.",
        "0x10",
    ),
    *('"\\ud800"', '"\\u0000"', '"' + "x" * 300 + '"', "tru", "[" * 63 + "]" * 63, "[" * 70 + "]" * 70, "[" * 100_000),
    *('{"a":' * 5000 + "1" + "}" * 5000, "[" + "0," * 1000 + "0]", '{"a":1,"a":2}', "'x'", "1 2", "/* */1", "\ufeff1"),
)
"""What may stand where a value is wanted, letter by letter."""


def number(chance: random.Random) -> Any:
    return chance.choice(INTEGERS if chance.random() < 0.5 else FLOATS)


def value(chance: random.Random) -> Any:
    return number(chance) if chance.random() < 0.75 else chance.choice(OTHERS)


def near(chance: random.Random, old: Any) -> Any:
    """A number beside the one that is there, or of its kind; else anything."""
    if isinstance(old, list) and chance.random() < 0.7:
        return chance.choice((*LAYERS, old[:-1], old * 2, old[::-1], [*old[:-1], value(chance)]))
    if type(old) is int and chance.random() < 0.7:
        return chance.choice(
            (old + 1, old - 1, old * 2, old // 2, -old, old << 32, float(old), chance.choice(INTEGERS))
        )
    return value(chance)


def rope(chance: random.Random) -> Any:
    """A rope object: a kind, and pairs of numbers at their ends."""
    made: dict[str, Any] = {chance.choice(("rope_type", "type")): chance.choice(KINDS)}
    if chance.random() < 0.8:
        needed = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        made |= needed | {"original_max_position_embeddings": 64}
    for key in chance.sample(sorted({*ROPE, "rope_theta", "partial_rotary_factor"}), chance.randint(0, 4)):
        made[key] = chance.choice((number(chance), number(chance), near(chance, 64), value(chance)))
    return made


def config(chance: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    """One to three keys of a family's config changed, mostly those that mean something."""
    known = family(made["model_type"]).KEYS
    if known.inside and chance.random() < 0.9:
        return {**made, known.inside: changed(chance, dict(made[known.inside]), known)}
    return changed(chance, dict(made), known)


def changed(chance: random.Random, made: dict[str, Any], known: Any) -> dict[str, Any]:
    """Return the config with one to three keys changed that ``known``, the keys of a family, lists."""
    keys = sorted({*GIVEN, *known.used, *known.used, *known.all_neutral(), *known.all_refused()})
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        way, key = chance.random(), chance.choice(keys)
        turned = [name for name in ("rope_scaling", "rope_parameters") if made.get(name) and type(made[name]) is dict]
        if way < 0.1 and turned:
            made[turned[0]] = _rope_changed(chance, dict(made[turned[0]]))
        elif way < 0.2:
            made[chance.choice(("rope_scaling", "rope_scaling", "rope_parameters"))] = rope(chance)
        elif way < 0.25 and "num_experts_per_tok" in known.used:
            made |= chance.choice(EXPERTS)
        elif way < 0.6:
            key = chance.choice(sorted({*SIZES, *known.used}))
            made[key] = near(chance, made.get(key))
        elif way < 0.7:
            made.pop(key, None)
        else:
            made[key] = near(chance, made.get(key))
    return made


def _rope_changed(chance: random.Random, made: dict[str, Any]) -> dict[str, Any]:
    """A family's own rope object with one key gone or of another value; of one kind for each kind of layer, one's."""
    key = chance.choice(sorted(made))
    if isinstance(made[key], dict) and made[key]:
        made[key] = _rope_changed(chance, dict(made[key]))
    elif chance.random() < 0.25:
        del made[key]
    else:
        made[key] = chance.choice(KINDS) if "type" in key else near(chance, made[key])
    return made


def generation(chance: random.Random) -> dict[str, Any]:
    """Settings of generation: mostly sound keys, at their ends, in pairs."""
    made: dict[str, Any] = {"do_sample": chance.random() < 0.5, "eos_token_id": chance.choice((2, 2, [2, 5], 95, 96))}
    for key in chance.sample([*sorted(OBEYED), "bos_token_id", "pad_token_id"], chance.randint(1, 3)):
        made[key] = chance.choice((1, 1, 0.5, near(chance, 10)))
    return made


def text(chance: random.Random, made: Any) -> bytes:
    """The text of an object, now and then with one value spelled so that readers disagree."""
    as_text = json.dumps(made)
    if chance.random() < 0.75 or not made:
        return as_text.encode()
    key = chance.choice(sorted(made))
    changes: tuple[Callable[[], str], ...] = (
        lambda: json.dumps({**made, key: "@"}).replace('"@"', chance.choice(TEXTS)),
        lambda: as_text[:-1] + f", {json.dumps(key)}: {json.dumps(value(chance))}}}",  # a key twice
        lambda: as_text[: chance.randrange(len(as_text))],
        lambda: as_text + chance.choice((" ", "\n", "}", ",", "\0", "{}")),
    )
    return chance.choice(changes)().encode()
