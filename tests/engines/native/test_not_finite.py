"""What is no finite number on its way through the decoder: an error on every ISA, never a number again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import NonFiniteError
from tests.engines.native.test_kernels import FORMATS, ISAS, linear, make_weight
from tests.support.native import chain, ids_of, load, run
from tests.support.tiny import write_tiny_llama

NOT_FINITE = [np.nan, -np.nan, np.inf, -np.inf]
HIDDEN, VOCAB = 64, 99  # three vectors of 32 logits and a rest of 3


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("IPEX_LOOKAHEAD_ISA", request.param)
    return str(request.param)


def changed(folder: Path, **tensors: Callable[[np.ndarray], None]) -> Path:
    """The checkpoint with tensors changed in place, named by the end of their names with _ for a dot."""
    file = folder / "model.safetensors"
    found = dict(load_file(file))
    for end, change in tensors.items():
        [name] = [name for name in found if name.replace(".", "_").endswith(end)]
        change(found[name])
    save_file(found, file)
    return folder


def first_row(engine: NativeEngine, token: int = 3) -> np.ndarray:
    return run(engine, engine.new_cache(), np.array([token], np.int32))[0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.rotating(8)
def test_a_row_of_a_linear_layer_is_nan_and_no_other(name: str) -> None:
    """One value of a row anywhere in a group spoils all outputs; the bytes are the same on every ISA."""
    weight = make_weight(name, 33, 95, seed=2)
    x = np.random.default_rng(3).standard_normal((6, 95), dtype=np.float32)
    for isa in ISAS:
        sound = linear(weight, x, isa=isa)
        for bad in NOT_FINITE:
            for place in (0, 15, 16, 31, 32, 63, 94):
                spoiled = x.copy()
                spoiled[4, place] = bad
                found = linear(weight, spoiled, isa=isa)
                assert not np.isfinite(found[4]).any(), (isa, bad, place)
                assert np.delete(found, 4, 0).tobytes() == np.delete(sound, 4, 0).tobytes()
                if name not in ("fp32", "fp16", "bf16"):
                    assert found.tobytes() == linear(weight, spoiled, isa="scalar").tobytes()


SLOTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OVERFLOWS = [(3e38, None, kv_cache, slot) for kv_cache in ("fp16", "int8") for slot in SLOTS]
OVERFLOWS += [(6e4, "sym_int4", "fp16", slot) for slot in ("k_proj", "v_proj")]  # finite, but not as binary16


@pytest.mark.parametrize(("value", "low_bit", "kv_cache", "slot"), OVERFLOWS)
@pytest.mark.rotating(20)
def test_an_overflow_in_any_layer_reaches_the_logits(
    tmp_path: Path, isa: str, value: float, low_bit: str | None, kv_cache: str, slot: str
) -> None:
    """Finite weights whose sums are not: on every row or on one, and nothing is committed."""
    folder = changed(write_tiny_llama(tmp_path, layers=1), **{f"{slot}_weight": lambda v: v[3].fill(value)})
    engine = load(folder, low_bit, kv_cache=kv_cache)
    cache = engine.new_cache()
    tokens = ids_of(engine, 3)
    for want in (None, np.array([2], np.int32)):
        with pytest.raises(NonFiniteError, match="logits are not finite"):
            engine.forward(Batch([cache], [3], tokens, chain(3), OutputRequest(want)))
    assert cache.length == 0


@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
def test_a_row_that_nobody_asked_for_spoils_those_that_attend_to_it(tmp_path: Path, isa: str, kv_cache: str) -> None:
    folder = write_tiny_llama(tmp_path, tie=False, layers=1)
    engine = load(changed(folder, embed_tokens_weight=lambda v: v[7].fill(3e38)), kv_cache=kv_cache)
    for tokens, right in (([7, 1, 2], False), ([1, 7, 2], False), ([1, 2, 3], True)):
        batch = Batch(
            [engine.new_cache()], [3], np.array(tokens, np.int32), chain(3), OutputRequest(np.array([2], np.int32))
        )
        if right:
            assert engine.forward(batch).argmax[0] >= 0
        else:
            with pytest.raises(NonFiniteError, match="logits are not finite"):
                engine.forward(batch)
    none, last = np.zeros(0, np.int32), np.array([2], np.int32)
    for rows, hidden_rows in ((none, None), (none, last)):
        wants = OutputRequest(rows, hidden=(1,), hidden_rows=hidden_rows)
        with pytest.raises(NonFiniteError, match="hidden states are not finite"):
            engine.forward(Batch([engine.new_cache()], [3], np.array([7, 1, 2], np.int32), chain(3), wants))
    tree = Batch([engine.new_cache()], [3], np.array([1, 7, 2], np.int32), np.array([-1, 0, 0], np.int32))
    tree.wants = OutputRequest(np.array([0, 2], np.int32))  # row 1 is nobody's ancestor
    assert (engine.forward(tree).argmax >= 0).all()


def test_squares_that_overflow_are_no_zeros(tmp_path: Path, isa: str) -> None:
    folder = write_tiny_llama(tmp_path, tie=False, layers=1)
    with pytest.raises(NonFiniteError, match="logits are not finite"):
        first_row(load(changed(folder, embed_tokens_weight=lambda v: v[3].fill(1e25))))


@pytest.mark.parametrize("kind", ["+inf", "-inf", "nan"])
@pytest.mark.parametrize("place", [0, 15, 40, 63, 64, 79, 95, 96, 98])
@pytest.mark.rotating(25)
def test_one_logit_among_finite_ones(tmp_path: Path, isa: str, kind: str, place: int) -> None:
    """The rest of the row says nothing of it: it is neither the likeliest nor, alone, the least likely."""
    sizes = {"tie": False, "hidden": HIDDEN, "vocab": VOCAB, "layers": 1}
    folder = write_tiny_llama(tmp_path, **sizes)

    def identity(values: np.ndarray) -> None:
        values[:] = 0
        values[:HIDDEN] = np.eye(HIDDEN)

    hidden = first_row(load(changed(folder, lm_head_weight=identity)))[:HIDDEN]
    assert np.abs(hidden).min() > 0

    def overflowing(values: np.ndarray) -> None:
        values[place] = np.sign(hidden) * np.float32(3e38) * (-1 if kind == "-inf" else 1)
        if kind == "nan":  # one of the sum's four parts is +inf, another -inf
            values[place, 1::4] *= -1

    engine = load(changed(folder, lm_head_weight=overflowing), threads=2)
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(load_file(folder / "model.safetensors")["lm_head.weight"][place] @ hidden)
    for logits in (False, True):
        step = Batch(
            [engine.new_cache()], [1], np.array([3], np.int32), np.array([-1], np.int32), OutputRequest(logits=logits)
        )
        with pytest.raises(NonFiniteError, match="logits are not finite"):
            engine.forward(step)
