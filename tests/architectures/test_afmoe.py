"""Trinity (AFMoE): windows, the multiplier of embeddings, and options of its router."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.architectures.spec import Experts
from ipex_lookahead.errors import UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows

_FEW = {"num_experts": 8, "moe_intermediate_size": 32}


def test_only_layers_with_a_window_have_rope(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "afmoe", **_FEW, num_hidden_layers=5, num_dense_layers=2)
    assert windows(spec) == [1024, 1024, 1024, None, 1024]
    assert [block.mixer.rope is None for block in spec.layers] == [False, False, False, True, False]
    assert [isinstance(block.feed_forward, Experts) for block in spec.layers] == [False, False, True, True, True]


def test_the_config_decides_about_the_multiplier_and_a_gguf_file_always_has_it(tmp_path: Path) -> None:
    """llama.cpp multiplies embeddings for every file of this architecture."""
    assert spec_of(tmp_path, "afmoe", **_FEW).embedding_multiplier == 1.0
    assert spec_of(tmp_path, "afmoe", **_FEW, mup_enabled=True).embedding_multiplier == 8.0
    assert opened(tmp_path, "afmoe", {}).spec.embedding_multiplier == 8.0


@pytest.mark.parametrize(
    ("key", "value"),
    [("route_norm", False), ("score_func", "softmax"), ("n_group", 2), ("num_limited_groups", 2)],
)
def test_another_router_is_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} is {value!r}"):
        checked(tmp_path, "afmoe", **_FEW, **{key: value})
    published = {"route_norm": True, "score_func": "sigmoid", "n_group": 1, "topk_group": 1, "load_balance_coeff": 5e-5}
    assert key not in checked(tmp_path, "afmoe", **_FEW, **published)


def test_another_base_for_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="freq_base_swa is 10.0"):
        opened(tmp_path, "afmoe", {"afmoe.rope.freq_base_swa": 10.0})
