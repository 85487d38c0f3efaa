"""The kernels of recurrent layers by themselves: right beside numpy, and of the scalar ones' bytes on every ISA."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

native = pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

ROOT = Path(__file__).resolve().parents[2]
SIMD = ["-mavx2", "-mfma", "-mf16c"]
FLAGS = {
    "scalar": [],
    "avx2": SIMD,
    "avx_vnni": [*SIMD, "-mavxvnni"],
    "avx512_vnni": [*SIMD, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"],
}
"""As CMakeLists.txt has them; amx_int8 takes these kernels from avx512_vnni."""
ISAS = [name for name in FLAGS if name in native.available_isas()]
SIZES = [1, 2, 5, 15, 16, 17, 31, 33, 48, 100]
GATES = [
    "none",
    "sigmoid",
    "silu",
    "gelu_tanh",
    "gelu",
    "gelu_quick",
    "softplus",
    "tanh",
    "relu",
]  # in the order of csrc/kernels/kernels.h

pytestmark = pytest.mark.timeout(600)
F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Each available instruction set's kernels."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler to build the test with")
    folder, made = tmp_path_factory.mktemp("kernels"), {}
    for isa in ISAS:
        library = folder / f"{isa}.so"
        subprocess.run(
            [compiler, "-std=c++17", "-O3", "-w", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC",
             f"-DISA={isa}", *FLAGS[isa], f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'csrc/kernels' / isa}",
             str(ROOT / "tests/csrc/recurrence_kernels.cc"), "-o", str(library)],
            check=True,
        )  # fmt: skip
        made[isa] = ctypes.CDLL(str(library))
    return made


def at(values: F32 | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if values is None else values.ctypes.data)


def room(n: int) -> F32:
    """For n values, and 16 behind them that nobody may touch."""
    return np.full(n + 16, 12345, np.float32)


def taken(values: F32, n: int) -> F32:
    assert (values[n:] == 12345).all(), "what lies behind the last value was written to"
    return values[:n]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> F32:
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def alike(found: dict[str, list[F32]]) -> list[F32]:
    """One answer that all instruction sets gave, by bytes."""
    for isa, values in found.items():
        for value, scalar in zip(values, found["scalar"], strict=True):
            assert value.tobytes() == scalar.tobytes(), isa
    return found["scalar"]


def sigmoid(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def behind(values: F32) -> F32:
    """Those values with room behind them."""
    held = room(len(values))
    held[: len(values)] = values
    return held


@pytest.mark.parametrize("kind", range(len(GATES)), ids=GATES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.rotating(8)
def test_gate(libraries: dict[str, Any], n: int, kind: int) -> None:
    by, x = normal(n, scale=4), normal(n, seed=1)
    found = {}
    for isa, library in libraries.items():
        values = behind(x)
        library.gate(at(by), ctypes.c_int64(n), kind, at(values))
        found[isa] = [taken(values, n)]
    (got,) = alike(found)
    factor = {
        "none": by,
        "sigmoid": sigmoid(by),
        "silu": by * sigmoid(by),
        "gelu_tanh": by * sigmoid(2 * math.sqrt(2 / math.pi) * (by + 0.044715 * by.astype(np.float64) ** 3)),
        "gelu": by * (1 + np.vectorize(math.erf)(by.astype(np.float64) / math.sqrt(2))) / 2,
        "gelu_quick": by * sigmoid(1.702 * by),
        "softplus": np.logaddexp(by.astype(np.float64), 0),
        "tanh": np.tanh(by.astype(np.float64)),
        "relu": np.maximum(by, 0),
    }[GATES[kind]]
    np.testing.assert_allclose(got, x * factor, rtol=1e-6, atol=1e-6 if "gelu" in GATES[kind] else 1e-7)


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_a_value_that_is_not_finite_is_not_hidden(libraries: dict[str, Any], kind: str) -> None:
    wrong = np.array([np.nan, np.inf, -np.inf, 1e-9], np.float32)
    values = behind(np.ones_like(wrong))
    libraries["scalar"].gate(at(wrong), ctypes.c_int64(4), GATES.index(kind), at(values))
    assert not np.isfinite(taken(values, 4)[[0, 2]]).any()
    assert not np.isfinite(taken(values, 4)[1])
    np.testing.assert_allclose(taken(values, 4)[3], 1e-9, rtol=1e-6)


def test_gelu_follows_the_error_function_everywhere(libraries: dict[str, Any]) -> None:
    x = np.linspace(-8, 8, 20001).astype(np.float32)
    values = behind(np.ones_like(x))
    libraries["scalar"].gate(at(x), ctypes.c_int64(len(x)), GATES.index("gelu"), at(values))
    exact = x * (1 + np.vectorize(math.erf)(x.astype(np.float64) / math.sqrt(2))) / 2
    assert np.abs(taken(values, len(x)) - exact).max() < 1e-6
    wrong = np.array([np.nan, np.inf, -np.inf], np.float32)
    values = behind(np.ones_like(wrong))
    libraries["scalar"].gate(at(wrong), ctypes.c_int64(3), GATES.index("gelu"), at(values))
    assert np.array_equal(taken(values, 3), [np.nan, np.inf, np.nan], equal_nan=True)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.rotating(3)
def test_clamp(libraries: dict[str, Any], n: int) -> None:
    x = normal(n)
    x[0] = np.nan
    found = {}
    for isa, library in libraries.items():
        values = behind(x)
        library.clamp(at(values), ctypes.c_int64(n), ctypes.c_float(-0.5), ctypes.c_float(0.25))
        found[isa] = [taken(values, n)]
    (got,) = alike(found)
    assert np.array_equal(got, np.clip(x, np.float32(-0.5), np.float32(0.25)), equal_nan=True)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kernel", [1, 3, 4, 7])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.rotating(12)
def test_convolve(libraries: dict[str, Any], n: int, kernel: int, biased: bool, silu: bool) -> None:
    """The taps lie anywhere, the weights' rows further apart than they are long."""
    stride = n + 3
    taps, weight = [normal(n, seed=t) for t in range(kernel)], normal(kernel, stride, seed=9)
    bias = normal(n, seed=10) if biased else None
    pointers = (ctypes.c_void_p * kernel)(*(tap.ctypes.data for tap in taps))
    found = {}
    for isa, library in libraries.items():
        out = room(n)
        library.convolve(
            pointers, kernel, at(weight), ctypes.c_int64(stride), at(bias), ctypes.c_int64(n), silu, at(out)
        )
        found[isa] = [taken(out, n)]
    (got,) = alike(found)
    total = sum(weight[t, :n].astype(np.float64) * taps[t] for t in range(kernel)) + (0 if bias is None else bias)
    np.testing.assert_allclose(got, total * sigmoid(total) if silu else total, rtol=1e-5, atol=1e-6)


def steps_and_decays(
    libraries: dict[str, Any], x: F32, bias: F32, rate: F32, least: float, most: float
) -> tuple[F32, F32]:
    n, found = len(x), {}
    for isa, library in libraries.items():
        steps, decays = room(n), room(n)
        library.recurrence_steps(
            at(x), at(bias), at(rate), ctypes.c_float(least), ctypes.c_float(most), ctypes.c_int64(n), at(steps),
            at(decays),
        )  # fmt: skip
        found[isa] = [taken(steps, n), taken(decays, n)]
    steps, decays = alike(found)
    return steps, decays


@pytest.mark.parametrize(("least", "most"), [(0.0, np.inf), (0.5, 2.0)])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.rotating(8)
def test_steps_and_decays(libraries: dict[str, Any], n: int, least: float, most: float) -> None:
    x, bias, rate = normal(n, scale=8), normal(n, seed=1), -np.exp(normal(n, seed=2))
    steps, decays = steps_and_decays(libraries, x, bias, rate, least, most)
    expected = np.clip(np.logaddexp(0, (x + bias).astype(np.float64)), least, most)
    np.testing.assert_allclose(steps, expected, rtol=1e-6)
    allowed = 1e-6 * (1 + np.abs(rate) * steps)  # of the exponent, whose rounding grows with it
    assert (np.abs(decays - np.exp(steps.astype(np.float64) * rate)) <= allowed * decays + 1e-37).all()


def test_a_step_that_is_no_number_stays_none(libraries: dict[str, Any]) -> None:
    """In the last, incomplete vector too; its neighbours are as they were."""
    n = 21
    x, bias, rate = normal(n), normal(n, seed=1), -np.exp(normal(n, seed=2))
    sound = steps_and_decays(libraries, x, bias, rate, 0.0, np.inf)
    for bad in (np.nan, np.inf, -np.inf):
        for place in (3, 20):
            spoilt = x.copy()
            spoilt[place] = bad
            for got, was in zip(steps_and_decays(libraries, spoilt, bias, rate, 0.0, np.inf), sound, strict=True):
                assert not np.isfinite(got[place])
                assert np.delete(got, place).tobytes() == np.delete(was, place).tobytes()


@pytest.mark.parametrize("n", SIZES)
def test_exponentials(libraries: dict[str, Any], n: int) -> None:
    x = np.random.default_rng(n).uniform(-80, 80, n).astype(np.float32)
    found = {}
    for isa, library in libraries.items():
        values = behind(x)
        library.exponentials(at(values), ctypes.c_int64(n))
        found[isa] = [taken(values, n)]
    (got,) = alike(found)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("bound", [-5.0, -0.5])
@pytest.mark.parametrize("n", SIZES)
def test_bounded_decays(libraries: dict[str, Any], n: int, bound: float) -> None:
    """A value that is no number stays none, in the last, incomplete vector too."""
    x, bias, rate = normal(n, scale=8), normal(n, seed=1), np.exp(normal(n, seed=2))
    for bad in (None, np.nan, np.inf, -np.inf):
        if bad is not None:
            x[-1] = bad
        found = {}
        for isa, library in libraries.items():
            decays = room(n)
            library.bounded_decays(at(x), at(bias), at(rate), ctypes.c_float(bound), ctypes.c_int64(n), at(decays))
            found[isa] = [taken(decays, n)]
        (got,) = alike(found)
        finite = n if bad is None else n - 1
        expected = np.exp(bound * sigmoid(rate * (x + bias)))
        np.testing.assert_allclose(got[:finite], expected[:finite], rtol=3e-6)
        assert not np.isfinite(got[finite:]).any()


@pytest.mark.parametrize("kind", ["Mamba-2", "delta", "delta by key"])
@pytest.mark.parametrize("keys", [1, 3, 4, 5, 12, 17, 64, 101])
@pytest.mark.rotating(10)
def test_recur(libraries: dict[str, Any], keys: int, kind: str) -> None:
    """Rows one after the other; one whose output nobody wants leaves the same state."""
    delta, by_key = kind != "Mamba-2", kind == "delta by key"
    rows = 6
    q, k, v = normal(rows, keys), normal(rows, keys, seed=1), normal(rows, 16, seed=2)
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    decay = np.random.default_rng(keys).uniform(0.3, 1, (rows, keys if by_key else 1)).astype(np.float32)
    beta = np.random.default_rng(keys + 1).uniform(0, 1, rows)
    found = {}
    for isa, library in libraries.items():
        kept = []
        for wanted in (True, False):
            state = behind(normal(keys * 16, seed=3))
            outs = [room(16) for _ in range(rows)]
            for r in range(rows):
                library.recur(
                    at(state), ctypes.c_int64(keys), at(q[r]), at(k[r]), at(v[r]), ctypes.c_float(decay[r, 0]),
                    ctypes.c_float(beta[r]), delta, at(outs[r]) if wanted or r == rows - 1 else at(None),
                    at(decay[r] if by_key else None),
                )  # fmt: skip
            kept += [taken(state, keys * 16).reshape(keys, 16), taken(outs[-1], 16)]
            if wanted:
                kept += [taken(out, 16) for out in outs[:-1]]
        state, last, *others, unwanted, unwanted_last = kept
        assert state.tobytes() == unwanted.tobytes()
        assert last.tobytes() == unwanted_last.tobytes()
        found[isa] = [state, *others, last]
    state, *outs = alike(found)
    expected = normal(keys * 16, seed=3).reshape(keys, 16).astype(np.float64)
    for r in range(rows):
        expected *= decay[r][:, None]
        d = beta[r] * (v[r] - (expected.T @ k[r] if delta else 0))
        expected += np.outer(k[r], d)
        np.testing.assert_allclose(outs[r], expected.T @ q[r], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-5)
