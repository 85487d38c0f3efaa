"""Apertus: xIELU, whose parameters are tensors of a folder and lists of a GGUF file, and a rope that is stretched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest

from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.errors import ModelFormatError
from tests.support.family_table import variants
from tests.support.gguf_families import write_gguf
from tests.support.tiny_families import build


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
