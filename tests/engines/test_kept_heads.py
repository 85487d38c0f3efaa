"""Heads in what is saved: a low-bit folder keeps them, and what is read back drafts the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", minversion="5", reason="the tiny models are transformers 5's")

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints import LowBitCheckpoint
from ipex_lookahead.engines.convert import convert
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.load import load
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.errors import InputError
from tests.support.assistant_folders import Pair, write_assistant_gguf
from tests.support.family_table import VOCAB, variants
from tests.support.gguf_families import write_gguf
from tests.support.heads import write
from tests.support.mtp_folders import LAYERS, add_to_gguf, block_alone, with_mtp

FAMILY = "qwen3_5_text"


def weights(head: Any) -> dict[str, Any]:
    return {name: (w.format, [(key, a.tobytes()) for key, a in w.arrays()]) for name, w in head.weights()}


def drafts(engine: Any) -> Any:
    tokens, cache = np.random.default_rng(0).integers(3, VOCAB, 12).astype(np.int32), engine.new_cache()
    engine.head.follow(cache)
    engine.forward(chain(cache, tokens[:-1]))
    cache.keep(list(range(11)))
    return engine.head.draft(cache, int(tokens[-1]), 6)


def engine_of(path: Path, **more: Any) -> Any:
    return load(LoadRequest(path, threads=1, **more)).engine


def head_of(path: Path, **more: Any) -> Any:
    return engine_of(path, **more).head


def formats(head: Any) -> set[str]:
    return {w.format for _, w in head.weights() if len(w.shape) == 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``folder`` and ``whole.gguf`` with the block, ``model.gguf`` without it and ``mtp-model.gguf`` with it alone."""
    root = tmp_path_factory.mktemp("kept")
    target, block = with_mtp(root / "folder", FAMILY, variants(FAMILY)[0])
    layers = target.config.num_hidden_layers
    write_gguf(root / "whole.gguf", target, change=add_to_gguf(block, layers))
    (root / "apart").mkdir()
    write_gguf(root / "apart" / "model.gguf", target)
    write_gguf(root / "apart" / "mtp-model.gguf", target, change=block_alone(block, layers))
    return root


@pytest.mark.parametrize("family", LAYERS)
def test_a_folder_keeps_the_head(tmp_path: Path, family: str) -> None:
    with_mtp(tmp_path / "model", family, variants(family)[0])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", load_in_low_bit="sym_int4", progress=False)
    loaded.save_low_bit(tmp_path / "saved")
    convert(LoadRequest(tmp_path / "model", low_bit="sym_int4"), tmp_path / "converted")
    for name in ("saved", "converted"):
        engine = engine_of(tmp_path / name)
        found = engine.head
        assert weights(found) == weights(loaded.engine.head)
        assert drafts(engine) == drafts(loaded.engine)
        assert formats(found) <= {"sym_int8", "fp32", "fp16", "bf16"}
        checkpoint = LowBitCheckpoint(tmp_path / name)
        assert not any(one in checkpoint.names() for one, _ in found.weights())
        checkpoint.close()


@pytest.mark.parametrize("source", ["folder", "whole.gguf", "apart/model.gguf"])
@pytest.mark.parametrize("told", [None, "sym_int4", "fp16"])
def test_its_format_is_what_was_told(made: Path, tmp_path: Path, source: str, told: str | None) -> None:
    more = {"low_bit": "sym_int4", "drafter_low_bit": told}
    convert(LoadRequest(made / source, **more), tmp_path / "saved")
    found, expected = engine_of(tmp_path / "saved"), engine_of(made / source, **more)
    assert formats(found.head) == {told or "sym_int8"}
    assert weights(found.head) == weights(expected.head)
    assert drafts(found) == drafts(expected)


def test_a_named_head_becomes_the_models_own(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "apart" / "model.gguf", tmp_path / "model.gguf")
    named = made / "apart" / "mtp-model.gguf"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model.gguf", drafter=named, progress=False)
    model.save_low_bit(tmp_path / "saved")
    assert weights(head_of(tmp_path / "saved")) == weights(model.engine.head)


def in_files_of_its_own(kind: str, root: Path) -> tuple[Path, Path]:
    """A model, and its head in a folder or file of another kind than the model's own block."""
    model, head = write(kind.removesuffix(" gguf"), root)
    assert head is not None
    if kind.endswith(" gguf"):
        head = write_assistant_gguf(root / "head.gguf", Pair("e2b", False).assistant)
    return model, head


@pytest.mark.parametrize("kind", ["eagle3", "gemma4_assistant ordered", "gemma4_assistant gguf"])
def test_a_head_in_files_of_its_own_goes_along_with_them(tmp_path: Path, kind: str) -> None:
    model, head = in_files_of_its_own(kind, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(
        model, drafter=head, load_in_low_bit="sym_int4", progress=False, threads=1
    )
    loaded.save_low_bit(tmp_path / "saved")
    shutil.move(head, tmp_path / "elsewhere")
    found = engine_of(tmp_path / "saved")
    assert Path(found.head.describe()["from"]).parent in (tmp_path / "saved", tmp_path / "saved" / "drafter")
    assert weights(found.head) == weights(loaded.engine.head)
    assert drafts(found) == drafts(loaded.engine)
    again = AutoModelForCausalLM.load_low_bit(tmp_path / "saved", progress=False, threads=1)
    again.save_low_bit(tmp_path / "again")
    assert weights(head_of(tmp_path / "again")) == weights(found.head)
    again.save_low_bit(tmp_path / "saved", overwrite=True)  # which it was read from
    assert weights(head_of(tmp_path / "saved")) == weights(found.head)
    (tmp_path / "saved" / "drafter" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds drafter/notes.txt, which save_low_bit did not write"):
        again.save_low_bit(tmp_path / "saved", overwrite=True)


def test_a_head_beside_a_model_goes_along_when_that_is_converted(tmp_path: Path) -> None:
    """As ``pull`` leaves a Gemma 4 and its assistant: of the assistant's tensors some have the model's names."""
    model, head = in_files_of_its_own("gemma4_assistant gguf", tmp_path)
    shutil.move(head, model / "mtp-model.gguf")
    convert(LoadRequest(model, low_bit="sym_int4"), tmp_path / "saved")
    found, expected = engine_of(tmp_path / "saved"), engine_of(model, low_bit="sym_int4")
    assert weights(found.head) == weights(expected.head)
    assert drafts(found) == drafts(expected)
    with pytest.raises(InputError, match="goes along as it is"):
        convert(LoadRequest(model, low_bit="sym_int4", drafter_low_bit="sym_int8"), tmp_path / "told")


@pytest.mark.parametrize(
    ("low_bit", "told", "expected"),
    [
        (None, None, "fp32"),
        ("sym_int4", None, "sym_int8"),
        ("sym_int4", "fp16", "fp16"),
        ("sym_int4", "sym_int4", "sym_int4"),
    ],
)
def test_floats_beside_a_model_that_lies_there_in_low_bits(
    tmp_path: Path, low_bit: str | None, told: str | None, expected: str
) -> None:
    """They would cost more than the bits of the model allow; a model of floats has a head of floats."""
    model, head = write("eagle3", tmp_path)
    if low_bit is not None:
        convert(LoadRequest(model, low_bit=low_bit), tmp_path / "low")
        model = tmp_path / "low"
    assert formats(head_of(model, drafter=head, drafter_low_bit=told)) == {expected}


def test_a_head_that_is_quantized_in_its_file_keeps_its_bits(tmp_path: Path) -> None:
    target, block = with_mtp(tmp_path / "folder", FAMILY, variants(FAMILY)[0])
    change = add_to_gguf(block, target.config.num_hidden_layers)
    file = write_gguf(tmp_path / "m.gguf", target, quant="Q4_0", change=change)
    found = engine_of(file)
    assert formats(found.head) == {"sym_int4"}
    convert(LoadRequest(file), tmp_path / "saved")
    saved = engine_of(tmp_path / "saved")
    assert weights(saved.head) == weights(found.head)
    assert drafts(saved) == drafts(found)


def test_a_format_for_no_head_is_refused(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "apart" / "model.gguf", tmp_path / "model.gguf")
    with pytest.raises(InputError, match="drafter_low_bit='sym_int8' needs a drafting head"):
        convert(LoadRequest(tmp_path / "model.gguf", drafter_low_bit="sym_int8"), tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf"]


def test_self_speculation_copies_the_model_alone(made: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        made / "folder", load_in_low_bit="sym_int8", speculative=True, progress=False
    )
    assert not any(name.startswith("mtp.") for name in model.state_dict())
