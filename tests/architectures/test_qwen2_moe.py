"""Qwen2-MoE: the expert for every row and its gate, layers without experts, windows that releases read differently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.family_engines import in_chunks, load
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build


def test_the_gate_may_lie_in_a_file_as_a_vector(tmp_path: Path) -> None:
    """As llama-quantize writes a matrix of one row."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    name, model = "blk.0.ffn_gate_inp_shexp.weight", build("qwen2_moe", variants("qwen2_moe")[0])
    shapes = []

    def logits_of(file: str, *shape: int) -> Any:
        def reshape(_: dict[str, Any], tensors: dict[str, Any]) -> None:
            tensors[name] = tensors[name].reshape(*shape, -1)
            shapes.append(tensors[name].ndim)

        return in_chunks(load(write_gguf(tmp_path / file, model, change=reshape)), np.arange(20, dtype=np.int32), [20])

    assert np.array_equal(logits_of("matrix.gguf", 1), logits_of("vector.gguf"))
    assert shapes == [2, 1]
