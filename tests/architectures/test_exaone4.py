"""EXAONE 4: rope in layers with a window alone, where there are any; patterns of letters are nobody's to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, opened, spec_of, windows

SLIDING, FULL = "sliding_attention", "full_attention"


def test_where_some_layers_have_a_window_only_they_have_rope(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "exaone4", num_hidden_layers=5, sliding_window=9)
    assert windows(spec) == [9, 9, 9, None, 9]
    assert [block.mixer.rope is not None for block in spec.layers] == [True, True, True, False, True]
    plain = spec_of(tmp_path, "exaone4", sliding_window=None, sliding_window_pattern=0)
    assert all(block.mixer.rope is not None and block.mixer.window is None for block in plain.layers)
    assert plain.layers[0].mixer_norm is None
    assert plain.layers[0].mixer_after is not None


def test_a_pattern_of_letters_needs_the_list_that_it_means(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="sliding_window_pattern is 'LLLG', and layer_types is missing"):
        checked(tmp_path, "exaone4", sliding_window_pattern="LLLG")
    config = checked(tmp_path, "exaone4", sliding_window_pattern="LLLG", layer_types=[SLIDING, FULL])
    assert config["layer_types"] == [SLIDING, FULL]
    with pytest.raises(ModelFormatError, match="sliding_window_pattern.*'LLXG'"):
        checked(tmp_path, "exaone4", sliding_window_pattern="LLXG")
    with pytest.raises(ModelFormatError, match="is 0, but there is a sliding_window"):
        checked(tmp_path, "exaone4", sliding_window_pattern=0)


def test_a_file_with_two_bases_is_refused(tmp_path: Path) -> None:
    assert opened(tmp_path, "exaone4", {"exaone4.rope.freq_base_swa": 10000.0}).config["rope_theta"] == 10000.0
    with pytest.raises(UnsupportedModelError, match="freq_base_swa is 10.0"):
        opened(tmp_path, "exaone4", {"exaone4.rope.freq_base_swa": 10.0})
