"""Every family's file against transformers: its spec, run in plain float64 on what each kind of file gives.

No engine takes part, so a failure here is the family's, the reader's or the checkpoint's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.architectures import family, model_types, spec_for
from ipex_lookahead.checkpoints import GgufCheckpoint, open_checkpoint
from tests.support import family_table, tiny_families
from tests.support.family_table import Variant, variants
from tests.support.gguf_families import as_in_file, write_gguf
from tests.support.spec_model import SpecModel
from tests.support.tiny_families import build, keeps_states, logits, rename_text_part, text, write_folder

EVERY = [(model_type, variant) for model_type in model_types() for variant in variants(model_type)]
IN_GGUF = [(model_type, variant) for model_type, variant in EVERY if variant.gguf]
CLOSE, CHUNKED = 2e-5, 5e-5
"""Of the logits' standard deviation: transformers computes in float32, and recurrent layers by chunks of positions."""


def names(of: list[tuple[str, Variant]]) -> list[str]:
    return [f"{model_type}-{variant.name}" for model_type, variant in of]


def assert_as_transformers(path: Path, model_type: str, variant: Variant) -> None:
    model = build(model_type, variant)
    ids = text(model)
    expected = logits(model, ids)
    close = CHUNKED if keeps_states(model_type, variant) else CLOSE
    checkpoint = open_checkpoint(path)
    got = SpecModel(checkpoint, spec_for(checkpoint.config, family_table.CONTEXT)).logits(ids)
    if (most := checkpoint.spec.max_context) < len(ids):  # one set of frequencies for so many, another beyond
        short = SpecModel(checkpoint).logits(ids[:most])
        assert np.abs(short - logits(model, ids[:most])).max() / expected.std() < close
        assert np.abs(short - got[:most]).max() / expected.std() > 0.02
    checkpoint.close()
    assert np.abs(got - expected).max() / expected.std() < close


@pytest.mark.parametrize(("model_type", "variant"), EVERY, ids=names(EVERY))
@pytest.mark.parametrize("old_words", [False, True], ids=["", "old"])
@pytest.mark.rotating(172)
def test_a_folder_has_the_logits_of_transformers(
    tmp_path: Path, model_type: str, variant: Variant, old_words: bool
) -> None:
    write_folder(tmp_path, build(model_type, variant), old_words=old_words)
    assert_as_transformers(tmp_path, model_type, variant)


@pytest.mark.parametrize(("model_type", "variant"), IN_GGUF, ids=names(IN_GGUF))
@pytest.mark.rotating(54)
def test_a_gguf_file_has_the_logits_of_transformers(tmp_path: Path, model_type: str, variant: Variant) -> None:
    file = write_gguf(tmp_path / "m.gguf", build(model_type, variant))
    assert_as_transformers(file, model_type, variant)


@pytest.mark.parametrize(("model_type", "variant"), IN_GGUF, ids=names(IN_GGUF))
@pytest.mark.rotating(54)
def test_gguf_and_folder_give_the_same_weights_bit_for_bit(tmp_path: Path, model_type: str, variant: Variant) -> None:
    model = build(model_type, variant)
    folder = open_checkpoint(write_folder(tmp_path / "folder", model))
    file = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model))
    theirs = [tensor.name for tensor in file.spec.tensors()]
    assert theirs == [tensor.name for tensor in folder.spec.tensors()] == list(file.names()) == list(folder.names())
    for name in theirs:
        one, two = folder.read(name), file.read(name)
        assert (one.format, one.shape) == (two.format, two.shape) == ("fp32", file.info(name).shape)
        values = as_in_file(name, one.codes, model.config)
        if name.endswith(".A_log"):  # of which a file has -e^x: the last bit is lost
            np.testing.assert_allclose(two.codes, values, rtol=3e-7)
        else:
            assert values.tobytes() == two.codes.tobytes(), name
    folder.close()
    file.close()


@pytest.mark.parametrize("model_type", [one for one in model_types() if family(one).KEYS.inside])
def test_a_text_part_has_either_of_its_names(tmp_path: Path, model_type: str) -> None:
    variant = variants(model_type)[0]
    write_folder(tmp_path, build(model_type, variant))
    rename_text_part(tmp_path)
    assert_as_transformers(tmp_path, model_type, variant)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("model_type", model_types())
@pytest.mark.rotating(27)
def test_halves_are_read_as_they_are(tmp_path: Path, model_type: str, dtype: str) -> None:
    """Norms with 1 added, parts and transposed entries of 2-byte tensors: the values that torch has."""
    import torch

    model = build(model_type, variants(model_type)[0])
    rounded = tiny_families.rounded(model, dtype)
    full = open_checkpoint(write_folder(tmp_path / "full", rounded))
    half = open_checkpoint(write_folder(tmp_path / "half", model, dtype=dtype))
    for tensor in half.spec.tensors():
        one, two = full.read(tensor.name), half.read(tensor.name)
        assert two.format in ({"float16": "fp16", "bfloat16": "bf16"}[dtype], "fp32")
        values = torch.from_numpy(np.ascontiguousarray(two.codes))
        if two.format != "fp32":
            values = values.view(getattr(torch, dtype)).float()
        assert values.numpy().tobytes() == one.codes.tobytes(), tensor.name
    full.close()
    half.close()
