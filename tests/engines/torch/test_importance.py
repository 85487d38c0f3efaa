"""What ``imatrix`` measures of a model is what ``quantize --imatrix`` of the same model reads, in every family."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import model_types
from ipex_lookahead.architectures.spec import LatentAttention
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.imatrix import read_imatrix, write_imatrix
from ipex_lookahead.engines.torch.importance import measure_importance, model_to_measure
from ipex_lookahead.engines.weights import WeightPlan, matrices, read_matrix
from ipex_lookahead.errors import UnsupportedModelError
from tests.gates import cases
from tests.support.family_engines import each
from tests.support.family_table import VOCAB, Variant, variants
from tests.support.tiny_families import NOT_ON_TORCH, build, keeps_states, refused_by_torch, write_folder

TOKENS, WINDOW = 11, 4
"""The last window is shorter than the others."""
SAMPLE = ("llama", "gemma4_text", "deepseek_v2", "qwen3_5_text", "qwen2_moe")
"""Families with each kind of matrix: tables by layer, latents, recurrent layers, experts; the gates take all."""
FAMILIES = model_types() if cases(0, 1) else SAMPLE


@each(
    [(one, variant) for one in (model_types() if cases(0, 1) else SAMPLE) for variant in variants(one)[: cases(1, 100)]]
)
def test_a_matrix_of_a_familys_model_fits_the_same_model(
    tmp_path: Path, model_type: str, variant: Variant, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_folder(tmp_path / "m", build(model_type, variant))
    if refused_by_torch(model_type, variant) and not keeps_states(model_type, variant):
        with pytest.raises(UnsupportedModelError, match=NOT_ON_TORCH):
            model_to_measure(folder, text=False)
        return
    model, spec, _ = model_to_measure(folder, text=False)
    checkpoint = open_checkpoint(folder)
    try:
        found = measure_importance(model, spec, [(7 * i) % VOCAB for i in range(TOKENS)], window=WINDOW)
        out = tmp_path / "m.gguf"
        write_imatrix(out, found.sums, found.counts, dataset="text", chunks=3, chunk=WINDOW)
        plan = WeightPlan("sym_int4", imatrix=read_imatrix(out)).of_spec(spec)
        quantized = matrices(spec)
        latents = [block.mixer for block in spec.layers if isinstance(block.mixer, LatentAttention)]
        without = spec.tables() | {linear.weight.name for one in latents for linear in (*one.k_b, *one.v_b)}
        for tensor in spec.tensors():
            if tensor.name in quantized:
                read_matrix(checkpoint, tensor, plan)
                importance = plan.imatrix.of(tensor)
                assert (importance is None) == (tensor.name in without), tensor.name
    finally:
        checkpoint.close()
    assert ("has no entry for" in caplog.text) == bool(latents)
