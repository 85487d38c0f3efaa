"""A program that calls everything bound in ``_native`` with what nobody should hand it, and looks what comes back.

``python -m tests.support.native_arguments LAST SEED COUNT``: every argument of every function, method, constructor and
property, one at a time and on objects in every state, is replaced by each of a list of strange values; then ``COUNT``
calls with several strange arguments at once. The call in hand is written to the file ``LAST``, so that after a signal
one knows which it was. Prints the number of calls and how they ended; a status of 1 and the reason where an exception
is of no expected kind, or a call takes more than ``LIMIT_SECONDS``.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ipex_lookahead import _native

LIMIT_SECONDS = 5.0
MOST_PEAK_KB = 1_500_000
"""Resident memory of the whole program; sanitizers keep what was freed for a while."""
EXPECTED = (TypeError, ValueError, IndexError, RuntimeError, OverflowError, MemoryError, AttributeError)

HIDDEN, VOCAB, CONTEXT = 32, 40, 64


# ---- what is handed over where it is right ------------------------------------------------------------------------


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def floats(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def fp32(n_out: int, n_in: int) -> tuple[Any, ...]:
    return ("fp32", n_out, n_in, 0, np.full((n_out, n_in), 0.01, np.float32), None, None)


def asym_int4(n_out: int, n_in: int) -> tuple[Any, ...]:
    scales = np.full((n_out, n_in // 32), 0x2400, np.uint16)
    return ("asym_int4", n_out, n_in, 32, np.full((n_out, n_in // 2), 0x5A, np.uint8), scales, scales.copy())


def rope(**changed: Any) -> Any:
    return _native.Rope(**{**ROPE, **changed})


def block(**changed: Any) -> Any:
    return _native.Layer(**{**LAYER, **changed})


def unset_decoder(**changed: Any) -> Any:
    return _native.Decoder(**{**DECODER, **changed})


ROPE: dict[str, Any] = {
    "frequencies": np.array([1, 0.5, 0.25, 0.1], np.float32),
    "factor": 1.0,
    "query_beta": 0.0,
    "query_original": 0,
}
LAYER: dict[str, Any] = {
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "rope": 0,
    "query_scale": 0.35,
    "window": 0,
    "softcap": 0.0,
    "sinks": False,
    "q_norm": "none",
    "k_norm": "none",
    "attention_norm": True,
    "attention_after": False,
    "mlp_norm": True,
    "mlp_after": False,
    "intermediate": 64,
    "activation": "silu",
    "alpha": 0.0,
    "limit": 0.0,
    "residual_multiplier": 1.0,
    "experts": 0,
    "experts_used": 0,
    "router_softmax": "all",
    "renormalise": False,
}
DECODER: dict[str, Any] = {
    "hidden": HIDDEN,
    "vocab": VOCAB,
    "max_context": CONTEXT,
    "rms_epsilon": 1e-5,
    "embedding_multiplier": 1.0,
    "logit_multiplier": 1.0,
    "logit_softcap": 0.0,
    "ropes": [rope()],
    "layers": [block(), block()],
    "threads": 2,
    "isa": "",
    "kv_format": "fp16",
}


def whole_decoder() -> Any:
    decoder = unset_decoder()
    shapes = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32), "gate": (64, 32), "up": (64, 32)}
    for layer in range(2):
        for norm in (_native.Vector.attention_norm, _native.Vector.mlp_norm):
            decoder.set_vector(layer, norm, floats(HIDDEN))
        for name, shape in {**shapes, "down": (32, 64)}.items():
            decoder.set_matrix(layer, getattr(_native.Slot, name), *asym_int4(*shape), None)
    decoder.set_final_norm(floats(HIDDEN))
    decoder.set_lm_head(*fp32(VOCAB, HIDDEN))
    decoder.tie_embedding()
    return decoder


def mixture() -> Any:
    """A decoder with every switch on: a mixture of experts, windows, sinks, norms of every kind, caps."""
    switches = {
        "window": 5,
        "softcap": 3.0,
        "sinks": True,
        "q_norm": "head",
        "k_norm": "whole",
        "attention_after": True,
    }
    more = {"mlp_after": True, "experts": 3, "experts_used": 2, "residual_multiplier": 0.5, "activation": "gelu_tanh"}
    decoder = unset_decoder(layers=[block(**switches, **more)], logit_softcap=2.0, embedding_multiplier=3.0)
    lengths = {"q_norm": 8, "k_norm": 16, "sinks": 4}
    for name in ("attention_norm", "q_norm", "k_norm", "sinks", "attention_after", "mlp_norm", "mlp_after"):
        decoder.set_vector(0, getattr(_native.Vector, name), floats(lengths.get(name, HIDDEN)))
    for name, shape in {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}.items():
        decoder.set_matrix(0, getattr(_native.Slot, name), *asym_int4(*shape))
    decoder.set_matrix(0, _native.Slot.router, *fp32(3, 32), floats(3))
    for expert in range(3):
        for name, shape in {"gate": (64, 32), "up": (64, 32), "down": (32, 64)}.items():
            decoder.set_matrix(0, getattr(_native.Slot, name), *asym_int4(*shape), None, expert)
    decoder.set_final_norm(floats(HIDDEN))
    decoder.set_lm_head(*fp32(VOCAB, HIDDEN))
    decoder.tie_embedding()
    return decoder


DECODERS = {"whole": whole_decoder(), "other": whole_decoder(), "mixture": mixture()}


def cache_after_a_step() -> Any:
    cache = DECODERS["whole"].new_cache()
    DECODERS["whole"].forward([cache], [3], ints(1, 2, 3), ints(-1, 0, 0), None, False, 1)
    return cache


def kept_cache() -> Any:
    cache = cache_after_a_step()
    cache.keep([0, 2])
    return cache


def trie() -> Any:
    made = _native.SuffixTrie(4)
    made.extend(ints(1, 2, 3, 1, 2, 4))
    return made


def predictor() -> Any:
    made = _native.Predictor(4, 4, trie())
    made.begin(ints(1, 2, 3, 1, 2))
    return made


def pool() -> Any:
    return _native.LinearPool(2, "")


def layer() -> Any:
    return _native.LinearLayer(pool(), *asym_int4(48, 64), floats(48))


X, OUT = floats(3, 64), floats(3, 48)
"""For ``run_at``: what lies at the addresses must stay."""

SUBJECTS: dict[str, dict[str, Callable[[], Any]]] = {
    "Decoder": {"whole": lambda: DECODERS["whole"], "unset": unset_decoder, "mixture": lambda: DECODERS["mixture"]},
    "KVCache": {"empty": lambda: DECODERS["whole"].new_cache(), "stepped": cache_after_a_step, "kept": kept_cache},
    "LinearLayer": {"made": layer},
    "LinearPool": {"made": pool},
    "Predictor": {"begun": predictor, "fresh": lambda: _native.Predictor(2, 8, None)},
    "SuffixTrie": {"filled": trie, "empty": lambda: _native.SuffixTrie(1)},
    "Slot": {"q": lambda: _native.Slot.q},
    "Vector": {"q_norm": lambda: _native.Vector.q_norm},
    "Rope": {"made": rope},
    "Layer": {"made": block},
}
"""Class -> state -> how to make one; every class also comes without its constructor having run."""

ENUMS = ("Slot", "Vector")
KEYWORDS = ("Decoder", "Layer", "Rope")
"""Their constructors take keywords only."""

Arguments = Callable[[], dict[str, Any]]


def named(names: str, make: Callable[[], tuple[Any, ...]]) -> Arguments:
    return lambda: dict(zip(names.split(), make(), strict=True))


STREAMS = "format n_out n_in group codes scales minimums"

GOOD: dict[str, Arguments] = {
    "known_isas": dict,
    "available_isas": dict,
    "amx_state": dict,
    "chosen_isa": lambda: {"name": ""},
    "most_search_lanes": dict,
    "search": named(
        "values importance size numbers whole tries step_limit minimum lanes",
        lambda: (floats(4, 64), floats(2, 64), 16, floats(2), True, floats(3), -32, False, 4),
    ),
    "sample": named(
        "logits temperature top_k top_p min_p seed sequence position",
        lambda: (np.linspace(-1, 1, 200, dtype=np.float32), 0.8, 50, 0.9, 0.01, 7, 0, 3),
    ),
    "prepack": named(f"{STREAMS} threads", lambda: (*asym_int4(48, 64), 2)),
    "unpack": named(
        f"{STREAMS} steps threads", lambda: ("asym_int4", 48, 64, 32, *_native.prepack(*asym_int4(48, 64), 2), 2)
    ),
    "read_bandwidth": lambda: {"bytes": 4096, "threads": 1, "isa": ""},
    "integer_peak": lambda: {"threads": 1, "isa": ""},
    "LinearPool.__init__": lambda: {"threads": 2, "isa": ""},
    "LinearPool.isa": dict,
    "LinearPool.threads": dict,
    "LinearPool.weight_bytes": dict,
    "LinearLayer.__init__": named(f"pool {STREAMS} bias", lambda: (pool(), *asym_int4(48, 64), floats(48))),
    "LinearLayer.n_in": dict,
    "LinearLayer.n_out": dict,
    "LinearLayer.export": dict,
    "LinearLayer.into": lambda: {"x": floats(3, 64), "out": floats(3, 48)},
    "LinearLayer.run_at": lambda: {"x": X.ctypes.data, "rows": 3, "out": OUT.ctypes.data},
    "LinearLayer.__call__": lambda: {"x": floats(3, 64)},
    "SuffixTrie.__init__": lambda: {"depth": 4},
    "SuffixTrie.__len__": dict,
    "SuffixTrie.extend": lambda: {"text": ints(1, 2, 3)},
    "SuffixTrie.followers": lambda: {"context": ints(1, 2)},
    "Predictor.__init__": lambda: {"depth": 4, "width": 4, "store": trie()},
    "Predictor.begin": lambda: {"prompt": ints(1, 2, 3)},
    "Predictor.propose": lambda: {"budget": 8},
    "Predictor.observe": lambda: {
        "tokens": [3, 4],
        "parents": [-1, 0],
        "emitted": [3, 5],
        "top": ints(*range(9)).reshape(3, 3),
    },
    "KVCache.length": dict,
    "KVCache.keep": lambda: {"rows": [0, 2]},
    "KVCache.crop": lambda: {"length": 1},
    "KVCache.fork": dict,
    "KVCache.fill_blank": lambda: {"length": 5},
    "Slot.__init__": lambda: {"value": 0},
    "Vector.__init__": lambda: {"value": 0},
    "Rope.__init__": lambda: dict(ROPE),
    "Layer.__init__": lambda: dict(LAYER),
    "Decoder.__init__": lambda: dict(DECODER),
    "Decoder.set_matrix": named(
        f"layer slot {STREAMS} bias expert", lambda: (1, _native.Slot.q, *asym_int4(32, 32), floats(32), -1)
    ),
    "Decoder.set_lm_head": named(f"{STREAMS} bias", lambda: (*fp32(VOCAB, HIDDEN), floats(VOCAB))),
    "Decoder.set_embedding": named(STREAMS, lambda: asym_int4(VOCAB, HIDDEN)),
    "Decoder.tie_embedding": dict,
    "Decoder.set_vector": lambda: {"layer": 1, "vector": _native.Vector.mlp_norm, "values": floats(HIDDEN)},
    "Decoder.set_order": lambda: {"layer": 1, "slot": _native.Slot.q, "order": ints(*range(HIDDEN))},
    "Decoder.set_final_norm": lambda: {"values": floats(HIDDEN)},
    "Decoder.missing": dict,
    "Decoder.new_cache": dict,
    "Decoder.experts_touched": dict,
    "Decoder.forward": lambda: {
        "caches": [kept_cache(), cache_after_a_step()],
        "counts": [2, 1],
        "tokens": ints(1, 2, 3),
        "parents": ints(-1, 0, -1),
        "want": ints(0, 2),
        "logits": True,
        "top": 3,
    },
    "Decoder.export_matrix": lambda: {"layer": 1, "slot": _native.Slot.down, "expert": -1},
    "Decoder.export_bias": lambda: {"layer": 1, "slot": _native.Slot.q, "expert": -1},
    "Decoder.export_vector": lambda: {"layer": 1, "vector": _native.Vector.mlp_norm},
    "Decoder.export_order": lambda: {"layer": 1, "slot": _native.Slot.down},
    "Decoder.export_lm_head": dict,
    "Decoder.export_lm_head_bias": dict,
    "Decoder.export_embedding": dict,
    "Decoder.export_final_norm": dict,
    "Decoder.isa": dict,
    "Decoder.threads": dict,
    "Decoder.weight_bytes": dict,
}
"""Everything that is bound -> arguments that are right, by the names of their parameters."""


def bound() -> set[str]:
    """The names of everything bound, by introspection."""
    found = set()
    for name, thing in vars(_native).items():
        if inspect.isclass(thing):
            own = {n for n in vars(thing) if not n.startswith("_") or n in ("__init__", "__call__", "__len__")}
            if issubclass(thing, (_native.Slot, _native.Vector)):
                own = {"__init__"}  # a Python enum: its members are no methods
            elif name == "KVCache":
                own -= {"__init__"}  # new_cache and fork make them
            found |= {f"{name}.{n}" for n in own}
        elif callable(thing) and not name.startswith("__"):
            found.add(name)
    return found


# ---- what is handed over instead ------------------------------------------------------------------------------------


def numbers() -> list[Any]:
    edges = [2**e + d for e in (8, 16, 31, 32, 62, 63, 64) for d in (-1, 0)]
    return [
        0,
        -1,
        1,
        3,
        33,
        *edges,
        *(-e for e in edges),
        True,
        1.5,
        float("nan"),
        float("inf"),
        -float("inf"),
        1e308,
        5e-324,
    ]


def arrays() -> list[Any]:
    """Of every dtype and order, empty ones, and ones with strange numbers in them."""
    made: list[Any] = []
    for shape in ((0,), (3,), (32,), (0, 0), (3, 0), (0, 64), (3, 64), (3, 48), (48, 32), (2, 3, 4), ()):
        made += [np.ones(shape, kind) for kind in (np.float32, np.float64, np.int32, np.int64, np.uint16, np.uint8)]
    made += [np.ones((3, 64), kind) for kind in (np.bool_, np.complex64, np.float16, ">i4", "S3", object, "M8[s]")]
    made += [np.asfortranarray(floats(3, 64)), floats(6, 64)[::2], floats(3, 128)[:, ::2], floats(3, 64)[::-1]]
    made += [np.asfortranarray(floats(3, 48)), floats(3, 96)[:, ::2], floats(6)[::2], ints(1, 2, 3, 4, 5, 6)[::2]]
    made += [np.broadcast_to(np.float32(1), (3, 64)), np.broadcast_to(np.int32(1), (3,))]
    made += [np.full((3, 64), v, np.float32) for v in (np.nan, np.inf, 3e38)]
    made += [
        ints(*v) for v in ((-1,) * 3, (-2, 0, 1), (0, 1, 2), (2**31 - 1,) * 3, (-(2**31),) * 3, (2, 1, 0), (0, 0, 0))
    ]
    read_only = floats(3, 48)
    read_only.flags.writeable = False
    return [*made, read_only, np.frombuffer(b"\1" * 13, np.uint8)[1:].view(np.float32)]


def others() -> list[Any]:
    raw = [getattr(_native, name).__new__(getattr(_native, name)) for name in SUBJECTS if name not in ENUMS]
    made = [make() for name, states in SUBJECTS.items() for make in states.values()]
    lists = [
        [],
        [None],
        [None, None],
        [-1, -1],
        [2**31 - 1] * 2,
        [2**62] * 2,
        [1.5],
        ["x"],
        [[]],
        [0] * 1000,
        [object()],
    ]
    cache = cache_after_a_step()
    caches = [[cache, cache], [cache], [DECODERS["other"].new_cache(), cache], (cache, None), [raw[1], raw[1]]]
    words = ["", "x", "fp32", "bf16", "sym_int4", "sym_int8", "scalar", "int8", "a" * 10_000, "\0", "\ud800", b"fp32"]
    return [None, ..., object(), {}, {1: 2}, int, memoryview(b"abcd"), *lists, *caches, *words, *raw, *made]


STRANGE = [*numbers(), *arrays(), *others()]


def alike(right: Any) -> list[Any]:
    """Those of the right one's kind: strange, but they come further."""
    kinds: tuple[type, ...] = (int, float) if isinstance(right, (int, float)) else (type(right),)
    return [value for value in STRANGE if isinstance(value, kinds)] or STRANGE


def is_tried(name: str, parameter: str, value: Any) -> bool:
    """Not what takes seconds and gigabytes, and is allowed; nor numbers that ``run_at`` leaves to its caller."""
    if not isinstance(value, int):
        return True
    if parameter == "threads":  # they stay, asleep
        return not 3 < value <= 1024
    if name == "read_bandwidth" and parameter == "bytes":
        return not 2**24 < value <= 2**34
    if name == "LinearLayer.run_at":
        if parameter == "rows":
            return value <= 3 or value >= 2**24
        return value <= 1 or value % 4 != 0 or value >= 2**64 - 4
    return True


# ---- the calls -------------------------------------------------------------------------------------------------------


class Calls:
    """Makes them one by one, and remembers how they ended."""

    def __init__(self, last: str) -> None:
        self._last = os.open(last, os.O_WRONLY | os.O_CREAT)
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    def call(self, name: str, state: str, subject: Any, arguments: dict[str, Any], extra: tuple[Any, ...] = ()) -> None:
        text = f"{name} on {state} with " + ", ".join(f"{k}={brief(v)}" for k, v in arguments.items())
        os.pwrite(self._last, text[:500].encode("utf-8", "replace").ljust(500), 0)
        start = time.perf_counter()
        try:
            self._do(name, subject, arguments, extra)
            end = "a result"
        except EXPECTED as error:
            end = type(error).__name__
        except BaseException as error:
            end = type(error).__name__
            self.wrong.append(f"{text}: {end}: {error}")
        if time.perf_counter() - start > LIMIT_SECONDS:
            self.wrong.append(f"{text}: took {time.perf_counter() - start:.1f} s")
        self.ended[end] += 1

    def _do(self, name: str, subject: Any, arguments: dict[str, Any], extra: tuple[Any, ...]) -> None:
        owner, _, method = name.rpartition(".")
        if not owner:
            getattr(_native, name)(*arguments.values(), *extra)
        elif method == "__init__":
            kind = getattr(_native, owner)
            kind(**arguments) if owner in KEYWORDS else kind(*arguments.values(), *extra)
        elif isinstance(inspect.getattr_static(getattr(_native, owner), method), property):
            getattr(subject, method)
        else:
            getattr(subject, method)(*arguments.values(), *extra)


def brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} strides {value.strides} {value.ravel()[:3].tolist()}"
    return repr(value)[:60]


def states_of(name: str) -> dict[str, Callable[[], Any]]:
    owner, _, method = name.rpartition(".")
    if not owner or method == "__init__":
        return {"nothing": lambda: None}
    kind = getattr(_native, owner)
    return {**SUBJECTS[owner], "unmade": lambda: kind.__new__(kind)}


def one_at_a_time(calls: Calls) -> None:
    for name in sorted(GOOD):
        for state, make in states_of(name).items():
            calls.call(name, state, make(), GOOD[name]())
            calls.call(name, state, make(), GOOD[name](), (None,))
            for parameter in GOOD[name]():
                missing = GOOD[name]()
                del missing[parameter]
                calls.call(name, state, make(), missing)
                for value in STRANGE:
                    if is_tried(name, parameter, value):
                        calls.call(name, state, make(), {**GOOD[name](), parameter: value})


def several_at_once(calls: Calls, chance: random.Random, count: int) -> None:
    with_arguments = [name for name in sorted(GOOD) if GOOD[name]()]
    for _ in range(count):
        name = chance.choice(with_arguments)
        state, make = chance.choice(list(states_of(name).items()))
        arguments = GOOD[name]()
        for parameter in chance.sample(list(arguments), min(len(arguments), chance.choice((1, 2, 2, 3, 4)))):
            value = chance.choice(alike(arguments[parameter]) if chance.random() < 0.8 else STRANGE)
            if is_tried(name, parameter, value):
                arguments[parameter] = value
        calls.call(name, state, make(), arguments)


def main(last: str, seed: str, count: str) -> int:
    warnings.simplefilter("ignore")  # nanobind warns of every object that was not made
    calls = Calls(last)
    one_at_a_time(calls)
    several_at_once(calls, random.Random(int(seed)), int(count))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > MOST_PEAK_KB:
        calls.wrong.append(f"the calls took {peak} KB of memory")
    print(json.dumps({"calls": sum(calls.ended.values()), "peak_kb": peak, **calls.ended}))
    print("\n".join(calls.wrong[:20]), file=sys.stderr)
    return 1 if calls.wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
