"""GGUF's types of one and two bits, put into ``sym_int2``: every value kept, either size of block, damage found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.placed import row_order
from ipex_lookahead.cli.info import fact_rows
from ipex_lookahead.cli.model_facts import describe
from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.formats import dequantize
from tests.support.gguf_crumbs import ALL, Q1_0, Q2_0, Q2_0_OF_128, Crumbs, write_crumbs
from tests.support.native import ids_of, load, one_by_one, run

EACH = pytest.mark.parametrize("kind", ALL, ids=lambda kind: f"{kind.name}-{kind.inputs}")
LLAMA_CPP = {
    Q1_0: (
        "67262eee8909b6cc62b073cbd8d084db6b5e",
        "-+++-+---+++-++++--+---++--+-----++-++-+--++--++-+---++-----++-+"
        "++--+++-++-+--++---++-++----+-++--+----+++-++-++++-+-++--++++-+-",
    ),
    Q2_0: ("602a0b186895961686142459c661195904da", "2+---+0--++0000++00++00-+0-+-00--0+-0+00+0-20-+00+0-0+00-0--++02"),
}
"""A block and its values over the scale, as llama.cpp's dequantize_row_q1_0 and _q2_0 give them; + is 1, - is -1."""


@EACH
def test_every_value_is_the_definitions_and_said(
    tmp_path: Path, kind: Crumbs, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.gguf"
    stored = write_crumbs(path, kind)
    checkpoint = GgufCheckpoint(path)
    found = 0
    for tensor in checkpoint.spec.tensors():
        if tensor.gguf.name not in stored:
            continue
        info, weight = checkpoint.info(tensor.name), checkpoint.read(tensor.name)
        assert (info.format, info.decoded_from, weight.format) == ("sym_int2", kind.name, "sym_int2")
        expected = kind.values(stored[tensor.gguf.name])
        if (order := row_order(tensor, tensor.gguf)) is not None:
            expected[order] = expected.copy()
        np.testing.assert_array_equal(dequantize(weight), expected, err_msg=tensor.name)
        found += 1
    assert found == len(stored) == 12
    facts = describe(path)
    assert ("decoded when loaded", f"{kind.name} as sym_int2") in fact_rows(facts)
    assert f"12 matrices of type {kind.name} are decoded to sym_int2" in caplog.text


@pytest.mark.parametrize("kind", LLAMA_CPP, ids=lambda kind: kind.name)
def test_a_block_of_llama_cpps(kind: Crumbs) -> None:
    """The definition that other tests here compare with."""
    block, said = LLAMA_CPP[kind]
    data = np.frombuffer(bytes.fromhex(block), np.uint8)
    numbers = np.array([{"+": 1, "-": -1}.get(one) or float(one) for one in said], np.float32)
    expected = numbers * data[:2].view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(kind.values(data[None])[0], expected)


@EACH
def test_the_model_runs_and_rows_together_are_rows_alone(tmp_path: Path, kind: Crumbs) -> None:
    write_crumbs(tmp_path / "m.gguf", kind)
    engine = load(tmp_path / "m.gguf", threads=2)
    ids = ids_of(engine, 20)
    assert np.isfinite(run(engine, engine.new_cache(), ids)).all()
    assert run(engine, engine.new_cache(), ids).tobytes() == one_by_one(engine, ids).tobytes()


@EACH
def test_a_scale_that_is_no_number_is_found(tmp_path: Path, kind: Crumbs) -> None:
    path = tmp_path / "m.gguf"
    stored = write_crumbs(path, kind)
    data = bytearray(path.read_bytes())
    at = data.index(stored["blk.1.ffn_up.weight"].tobytes()) + 3 * kind.nbytes
    data[at : at + 2] = b"\xff\x7e"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match="the scale of this block is NaN or infinite") as caught:
        GgufCheckpoint(path).read("model.layers.1.mlp.up_proj.weight")
    assert (caught.value.field, caught.value.offset) == ("blk.1.ffn_up.weight", at)


def test_a_file_that_neither_size_of_block_fits_is_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "64.gguf", tmp_path / "128.gguf"
    write_crumbs(one, Q2_0)
    write_crumbs(other, Q2_0_OF_128)
    small, large = other.read_bytes(), one.read_bytes()
    assert len(small) < len(large)
    (tmp_path / "cut.gguf").write_bytes(large[: len(small) - 64])
    with pytest.raises(ModelFormatError, match="ends at byte|directly after the previous"):
        GgufCheckpoint(tmp_path / "cut.gguf")
