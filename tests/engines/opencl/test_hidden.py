"""Hidden states of a model on a device: the native engine's, byte for byte, whichever layers and rows are requested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed (make test-opencl runs these tests)")

from ipex_lookahead.engines.api import FINAL_NORM, Batch, OutputRequest
from ipex_lookahead.engines.opencl.device import Device
from ipex_lookahead.errors import InputError
from tests.engines.opencl.test_engine import both
from tests.engines.opencl.test_split import divided
from tests.support.native import chain, ids_of
from tests.support.specs import NAMED, make_spec

SPEC: dict[str, Any] = {**NAMED["gemma2"], "layers": 3}


def states(engine: Any, tokens: np.ndarray, layers: tuple[int, ...], rows: list[int] | None) -> dict[int, np.ndarray]:
    """The hidden states of rows of a step without logits, and of a cache with five positions."""
    cache = engine.new_cache()
    engine.forward(Batch([cache], [5], np.arange(5, dtype=np.int32), chain(5)))
    cache.keep(range(5))
    own = None if rows is None else np.array(rows, np.int32)
    wants = OutputRequest(np.zeros(0, np.int32), hidden=layers, hidden_rows=own)
    found = engine.forward(Batch([cache], [len(tokens)], tokens, chain(len(tokens)), wants)).hidden
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("rows", [1, 4, 40])
def test_states_of_any_layers_and_rows(device: Device, rows: int) -> None:
    native, engine = both(make_spec(**SPEC), device, "sym_int4")
    _, engines = divided(make_spec(**SPEC), device, "sym_int4")
    tokens = ids_of(native, rows)
    for layers in ((FINAL_NORM,), (0, 3), (2, FINAL_NORM, 1), (0, 1, 2, 3, FINAL_NORM)):
        for own in (None, [rows - 1], [0, rows - 1] if rows > 1 else [0], []):
            expected = states(native, tokens, layers, own)
            for one in (engine, *engines):
                found = states(one, tokens, layers, own)
                assert sorted(found) == sorted(expected) == sorted(layers)
                for layer, values in expected.items():
                    assert found[layer].shape == values.shape
                    assert found[layer].tobytes() == values.tobytes(), (layers, own, layer)


def test_other_layers_and_rows_are_refused(device: Device) -> None:
    native, engine = both(make_spec(layers=2), device)
    _, (split,) = divided(make_spec(layers=2), device)
    tokens = ids_of(native, 3)
    for one in (engine, split):
        for layers in ((3,), (-2,), (0, 0)):
            with pytest.raises(InputError, match="hidden states are those of 0 to 2 layers"):
                states(one, tokens, layers, None)
        for rows in ([3], [-1], [1, 0]):
            with pytest.raises(InputError, match="hidden_rows: wanted rows must be ascending rows"):
                states(one, tokens, (1,), rows)
        with pytest.raises(InputError, match="no timings"):
            one.forward(Batch([one.new_cache()], [3], tokens, chain(3), OutputRequest(timings=True)))
