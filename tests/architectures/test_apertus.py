"""Apertus: xIELU, whose parameters are tensors of a folder and lists of a GGUF file, and a rope that is stretched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.family_configs import checked, spec_of
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build, write_folder


def test_without_words_rope_is_the_familys(tmp_path: Path) -> None:
    assert checked(tmp_path, "apertus")["rope_scaling"]["rope_type"] == "llama3"
    plain = checked(tmp_path, "apertus", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    assert (plain["rope_scaling"], plain["rope_theta"]) == ({"rope_type": "default"}, 1e4)
    with pytest.raises(UnsupportedModelError, match="hidden_act is 'silu'"):
        checked(tmp_path, "apertus", hidden_act="silu")


def test_parameters_are_numbers_of_each_layer(tmp_path: Path) -> None:
    mlp = spec_of(tmp_path, "apertus").layers[1].feed_forward
    assert mlp.gate is None
    assert mlp.parameters.alpha_p.shape == (1,)
    assert mlp.parameters.beta.shape == ()
    place = mlp.parameters.eps.gguf
    assert (place.layout, place.name, place.rows) == ("key", "xielu.eps", (1, 1))


def test_they_are_read_from_either_file(tmp_path: Path) -> None:
    model = build("apertus", variants("apertus")[0])
    folder = open_checkpoint(write_folder(tmp_path / "folder", model))
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model))
    for layer, block in enumerate(model.model.layers):
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            weight = f"model.layers.{layer}.mlp.act_fn.{name}"
            expected = getattr(block.mlp.act_fn, name).detach().numpy()
            for checkpoint in (folder, file):
                assert checkpoint.info(weight).shape == expected.shape
                assert np.array_equal(checkpoint.read(weight).codes, expected)
    folder.close()
    file.close()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0.5], "xielu.beta at byte [0-9]+: is not a list of 2 numbers, one per layer"),
        ([0.5, float("nan")], "xielu.beta at byte [0-9]+: value 1 is NaN or infinite"),
        ("much", "is not a list of 2 numbers"),
        (None, "xielu.beta: is not a list of 2 numbers"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, value: Any, words: str) -> None:
    def change(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        if value is None:
            del keys["xielu.beta"]
        elif isinstance(value, str):
            keys["xielu.beta"] = gguf.GGUFValue(value, gguf.GGUFValueType.STRING)
        else:
            keys["xielu.beta"].value = value

    file = write_gguf(tmp_path / "m.gguf", build("apertus", variants("apertus")[0]), change=change)
    with pytest.raises(ModelFormatError, match=words):
        GgufCheckpoint(file)
