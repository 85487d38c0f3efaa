"""The table of tiny checkpoints itself: it has every family here, and each of its switches shows in the logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ipex_lookahead.architectures import model_types
from tests.support.family_table import FAMILIES, SIZES, Variant, variants
from tests.support.tiny_families import build, config_of, kind_of, logits, text, with_weights

EVERY = [(model_type, variant) for model_type in FAMILIES for variant in variants(model_type)]
EACH = pytest.mark.parametrize(("model_type", "variant"), EVERY, ids=[f"{one}-{each.name}" for one, each in EVERY])


def test_every_family_is_in_the_table() -> None:
    missing = set(model_types()) - set(FAMILIES)
    assert not missing, f"give {sorted(missing)} a row in tests/support/tiny_families.py"


SILENT = {
    ("smollm3", "use_sliding_window"): "layer_types and sliding_window decide where both are there",
    ("phi3", "original_max_position_embeddings"): "only longrope looks at it",
    ("gemma2", "attn_logit_softcapping"): "no cap, or the default one of 50, are all but the same",
    ("gemma3", "mm_tokens_per_image"): "for images",
    ("lfm2_vl", "image_token_id"): "for images",
    ("llava_next", "image_grid_pinpoints"): "for images",
    ("llava_onevision", "image_grid_pinpoints"): "for images",
    ("gemma3_text", "sliding_window_pattern"): "layer_types goes before it",
    ("granitemoehybrid", "mamba_n_heads"): "of recurrent layers, and there are none",
}
"""Keys of the table that do not show by themselves, and why."""


@EACH
@pytest.mark.rotating(0)
def test_every_switch_of_a_variant_shows_in_the_logits(model_type: str, variant: Variant) -> None:
    """Else the tests that compare logits could not tell whether it is used."""
    model = build(model_type, variant)
    ids = text(model)
    expected = logits(model, ids)
    values = {**FAMILIES[model_type].base, **variant.values}
    for key, value in values.items():
        if value is None or key in SIZES or key.endswith("_config") or (model_type, key) in SILENT:
            continue
        without = Variant(f"without {key}", {name: value for name, value in values.items() if name != key})
        try:
            config = config_of(model_type, without, base={})
            if config.to_dict() == config_of(model_type, variant).to_dict():
                continue  # it says what is there without it
            if shapes(config) != shapes(model.config):
                continue  # without it there is another model altogether
            changed = logits(with_weights(config), ids)
        except (ValueError, KeyError, TypeError, RuntimeError, IndexError, ZeroDivisionError):
            continue  # transformers takes no such model
        difference = float(np.abs(changed - expected).max() / expected.std())
        assert difference > 0.02, f"{key} changes next to nothing"


def shapes(config: Any) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = kind_of(config).from_config(config)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}
