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
from tests.support.native_subjects import DECODERS, GOOD, SUBJECTS, cache_after_a_step, floats, ints

LIMIT_SECONDS = 5.0
"""Of processor time: a machine may be busy. What waits for ever is found by who waits for this program."""
MOST_PEAK_KB = 1_500_000
"""Resident memory of the whole program; sanitizers keep what was freed for a while."""
EXPECTED = (TypeError, ValueError, IndexError, RuntimeError, OverflowError, MemoryError, AttributeError)

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
    raw = [getattr(_native, name).__new__(getattr(_native, name)) for name in SUBJECTS]
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
        start = time.thread_time()
        try:
            self._do(name, subject, arguments, extra)
            end = "a result"
        except EXPECTED as error:
            end = type(error).__name__
        except BaseException as error:
            end = type(error).__name__
            self.wrong.append(f"{text}: {end}: {error}")
        if (took := time.thread_time() - start) > LIMIT_SECONDS:
            self.wrong.append(f"{text}: took {took:.1f} s")
        self.ended[end] += 1

    def _do(self, name: str, subject: Any, arguments: dict[str, Any], extra: tuple[Any, ...]) -> None:
        owner, _, method = name.rpartition(".")
        if not owner:
            getattr(_native, name)(*arguments.values(), *extra)
        elif method == "__init__":
            getattr(_native, owner)(*arguments.values(), *extra)
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
