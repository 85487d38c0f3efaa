"""The presets beside llama.cpp: ``llama-quantize`` gives every matrix of a file the type that the preset says.

Runs where the program is found, on the path or in ``IPEX_LOOKAHEAD_LLAMA_QUANTIZE``.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.engines.weights import WeightPlan, matrices
from tests.support.family_table import Variant
from tests.support.gguf_families import write_gguf
from tests.support.tiny import write_tiny_gguf
from tests.support.tiny_families import config_of, with_weights

PROGRAM = os.environ.get("IPEX_LOOKAHEAD_LLAMA_QUANTIZE") or shutil.which("llama-quantize")
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="llama.cpp's llama-quantize is not on the path, nor named by IPEX_LOOKAHEAD_LLAMA_QUANTIZE"
)
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 9}


def compare(file, tmp_path):
    """Every matrix of both mixtures."""
    for preset, kind in (("gguf_q4k_m", "Q4_K_M"), ("gguf_q4k_s", "Q4_K_S")):
        out = tmp_path / f"{kind}.gguf"
        subprocess.run([str(PROGRAM), str(file), str(out), kind, "1"], check=True, capture_output=True, timeout=400)
        checkpoint = open_checkpoint(out)
        plan = WeightPlan(preset).of_spec(checkpoint.spec)
        shapes = matrices(checkpoint.spec)
        found = {name: (checkpoint.info(name).format,) for name in shapes}
        checkpoint.close()
        assert {name: plan.target(name, shape) for name, shape in shapes.items()} == found


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 256, "intermediate": 512, "layers": 30, "kv_heads": 4, "tie": False},
        {"hidden": 256, "intermediate": 96, "layers": 17},
        {"heads": 8, "kv_heads": 1, "intermediate": 256, "layers": 80, "tie": False},
    ],
)
def test_llama(sizes, tmp_path):
    compare(write_tiny_gguf(tmp_path / "f.gguf", quant="F16", **sizes), tmp_path)


@pytest.mark.parametrize(
    ("family", "more"),
    [("mixtral", {"num_local_experts": 8}), ("mixtral", {}), ("qwen2", {}), ("gemma2", {}), ("gpt_oss", {}),
     ("qwen3_moe", {"num_experts": 8, "moe_intermediate_size": 256})],
)  # fmt: skip
def test_other_families(family, more, tmp_path):
    model = with_weights(config_of(family, Variant("wide", WIDE | more)))
    compare(write_gguf(tmp_path / "f.gguf", model, quant="F16"), tmp_path)
