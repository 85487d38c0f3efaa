"""Cohere 2: one norm a block, attention and MLP side by side, rope in layers with a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows


def test_a_block_has_one_norm_for_both_branches(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "cohere2", num_hidden_layers=5, sliding_window=9, logit_scale=0.5)
    assert windows(spec) == [9, 9, 9, None, 9]
    assert spec.logit_multiplier == 0.5
    assert spec.tied
    assert [block.mixer.rope is not None for block in spec.layers] == [True, True, True, False, True]
    for block in spec.layers:
        assert block.parallel
        assert block.feed_forward_norm is None
        assert block.mixer_norm.centered
        assert block.mixer_norm.bias is None
    assert spec.layers[0].mixer.rope.interleaved


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"use_qk_norm": True}, "use_qk_norm is True, which adds norms to queries and keys"),
        ({"use_parallel_block": False}, "use_parallel_block is False"),
        ({"rotary_pct": 0.5}, "rotary_pct is 0.5"),
        ({"head_dim": 32}, "head_dim is 32, but hidden_size implies heads of 16"),
    ],
)
def test_what_is_refused(tmp_path: Path, values: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        checked(tmp_path, "cohere2", **values)


def test_older_files_name_the_pattern(tmp_path: Path) -> None:
    assert windows(spec_of(tmp_path, "cohere2", sliding_window=9, sliding_window_pattern=2)) == [9, None]
    with pytest.raises(ModelFormatError, match="sliding_window_pattern at byte .* is 0"):
        checked(tmp_path, "cohere2", sliding_window_pattern=0)


def test_a_file_says_window_and_scale(tmp_path: Path) -> None:
    file = opened(tmp_path, "cohere2", {"cohere2.attention.sliding_window_pattern": [True, False, True, False]})
    assert windows(file.spec) == [9, None, 9, None]
    assert file.config["logit_scale"] == 0.25
    with pytest.raises(UnsupportedModelError, match="freq_base_swa is 10.0"):
        opened(tmp_path, "cohere2", {"cohere2.rope.freq_base_swa": 10.0})
