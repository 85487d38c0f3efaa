"""What the native engine says where memory is short, the system fails or weights are damaged."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.engines.native.core import core_error
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.errors import EngineError, ModelFormatError, OutOfMemoryError
from tests.support.native import ids_of, load, run
from tests.support.specs import make_spec
from tests.support.tiny import write_tiny_llama


def test_too_little_memory_for_a_step_is_an_error_of_ours(tmp_path: Path) -> None:
    engine = load(write_tiny_llama(tmp_path))

    def no_memory(*arguments: object, **named: object) -> None:
        raise MemoryError

    engine._forward = no_memory
    with pytest.raises(OutOfMemoryError, match="no memory for 5 more tokens"):
        run(engine, engine.new_cache(), ids_of(engine, 5))


def test_too_little_memory_for_a_cache_is_an_error_of_ours() -> None:
    engine = NativeEngine.random(replace(make_spec(), max_context=1 << 22), "sym_int4", threads=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), hard))
    try:
        with pytest.raises(OutOfMemoryError, match="no memory for the cache"):
            engine.new_cache(1 << 22)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_an_error_of_the_system_is_no_second_thread() -> None:
    found = core_error(RuntimeError("Resource temporarily unavailable"))
    assert type(found) is EngineError
    assert str(found) == "Resource temporarily unavailable"
    assert not found.hint


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    import safetensors.numpy

    folder = write_tiny_llama(tmp_path)
    file = folder / "model.safetensors"
    tensors = dict(safetensors.numpy.load_file(file))
    name = "model.layers.1.mlp.up_proj.weight"
    for bad in (np.nan, np.inf):
        spoiled = tensors[name].copy()
        spoiled[3, 5] = bad
        safetensors.numpy.save_file({**tensors, name: spoiled}, file)
        for low_bit in (None, "sym_int4"):
            with pytest.raises(ModelFormatError, match="up_proj.*NaN or infinite"):
                load(folder, low_bit)
    safetensors.numpy.save_file({k: v for k, v in tensors.items() if k != name}, file)
    with pytest.raises(ModelFormatError, match="up_proj"):
        load(folder)
    safetensors.numpy.save_file({**tensors, name: np.zeros((3, 3), dtype=np.float32)}, file)
    with pytest.raises(ModelFormatError, match=r"up_proj.*\[3, 3\]"):
        load(folder)
