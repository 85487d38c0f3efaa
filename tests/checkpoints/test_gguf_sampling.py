"""``general.sampling.*``: what llama.cpp's converter takes from generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.gguf_bytes import F32, I32, STRING, build, llama_parts, write

KINDS = {"temp": F32, "top_k": I32, "top_p": F32, "min_p": F32, "penalty_repeat": F32, "sequence": STRING}


def opened(folder: Path, **sampling: Any) -> GgufCheckpoint:
    entries, tensors = llama_parts()
    entries += [(f"general.sampling.{name}", KINDS[name], value) for name, value in sampling.items()]
    return GgufCheckpoint(write(folder / "made.gguf", bytes(build(entries, tensors).data)))


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ({}, {}),
        (
            {"temp": 0.6, "top_k": 20, "top_p": 0.95},
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"top_k": 64, "min_p": 0.05}, {"do_sample": True, "top_k": 64, "min_p": 0.05}),
        ({"temp": 1.0, "top_k": -1}, {"do_sample": True, "temperature": 1.0, "top_k": 0}),
        ({"temp": 0.0, "top_p": 0.9}, {"do_sample": False}),
        ({"temp": -1.0}, {"do_sample": False}),
        ({"penalty_repeat": 1.1, "sequence": "kp"}, {}),
    ],
)
def test_read_as_a_generation_config(said, means, tmp_path):
    found = opened(tmp_path, **said)
    assert found.generation_config == {"eos_token_id": 3, **means}
    found.close()


@pytest.mark.parametrize(
    ("said", "problem"),
    [({"top_p": 1.5}, "from 0 to 1"), ({"min_p": -0.1}, "from 0 to 1"), ({"temp": float("nan")}, "is nan")],
)
def test_values_out_of_range(said, problem, tmp_path):
    with pytest.raises(ModelFormatError, match=problem) as caught:
        opened(tmp_path, **said)
    assert caught.value.field == f"general.sampling.{next(iter(said))}"
    assert caught.value.offset is not None
