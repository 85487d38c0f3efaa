"""Hunyuan: norms behind rope, and a base of rope stretched once for every length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import HunYuanDenseV1Config
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

from tests.support.family_configs import spec_of
from tests.support.family_table import SIZES

STRETCHED = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}


def test_alpha_stretches_the_base_as_transformers_does(tmp_path: Path) -> None:
    rope = spec_of(tmp_path, "hunyuan_v1_dense", rope_parameters=STRETCHED).layers[0].mixer.rope
    config = HunYuanDenseV1Config(**SIZES, head_dim=16, rope_parameters=dict(STRETCHED))
    with torch.no_grad():
        expected = HunYuanDenseV1RotaryEmbedding(config).inv_freq.numpy()
    np.testing.assert_allclose(rope.frequencies, expected, rtol=2e-6)
    plain = spec_of(tmp_path, "hunyuan_v1_dense", rope_parameters={**STRETCHED, "alpha": None}).layers[0].mixer.rope
    np.testing.assert_allclose(plain.frequencies, 10000.0 ** (-np.arange(8) / 8), rtol=1e-6)
