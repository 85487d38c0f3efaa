"""Importance matrices of both of llama.cpp's kinds: what they say, of which tensors, and what is refused."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from ipex_lookahead.architectures.spec import Place, Tensor
from ipex_lookahead.checkpoints import open_checkpoint
from ipex_lookahead.checkpoints.imatrix import Imatrix, read_imatrix, write_imatrix
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError
from tests.support.gguf_bytes import F32, STRING, build
from tests.support.imatrix_bytes import ENTRIES, gguf_kind, older_kind, tensors_of
from tests.support.tiny import write_tiny_gguf

VALUES = {"blk.0.ffn_down.weight": ([1.0, 0.0, 0.25, 4.0], 8), "blk.0.attn_q.weight": ([2.0, 3.0], 8)}
NAME = "blk.0.ffn_down.weight"


def read(path, data) -> Imatrix:
    path.write_bytes(bytes(data))
    return read_imatrix(path)


@pytest.mark.parametrize("make", [gguf_kind, older_kind])
def test_both_kinds_say_the_means(tmp_path, make):
    found = read(tmp_path / "x", make(VALUES).data)
    assert set(found.means) == set(VALUES)
    for name, (means, _) in VALUES.items():
        assert found.means[name].dtype == np.float32
        assert found.means[name].tolist() == means
    assert found.datasets == (("a.txt", "b.txt") if make is gguf_kind else ("a.txt",))


def test_files_of_before_the_text_had_a_name(tmp_path):
    assert read(tmp_path / "x", older_kind(VALUES, dataset=None).data).datasets == ()
    assert read(tmp_path / "x", older_kind(VALUES, dataset=None).data + struct.pack("<i", 3)).datasets == ()
    without = older_kind({NAME: ([1.0, 2.0], 0)}).data
    assert read(tmp_path / "x", without).means[NAME].tolist() == [1.0, 2.0]


def test_what_is_written_the_gguf_package_reads(tmp_path):
    sums = {"b.weight": np.array([1.5, 0.0, 2.25]), "a.weight": np.array([7.0])}
    write_imatrix(tmp_path / "x.gguf", sums, {"b.weight": 3, "a.weight": 2}, dataset="é.txt", chunks=2, chunk=512)
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["é.txt"]
    assert reader.fields["imatrix.chunk_count"].contents() == 2
    assert reader.fields["imatrix.chunk_size"].contents() == 512
    assert "general.architecture" not in reader.fields
    assert {t.name: (t.shape.tolist(), t.data.ravel().tolist()) for t in reader.tensors} == {
        "a.weight.in_sum2": ([1, 1], [7.0]), "a.weight.counts": ([1, 1], [2.0]),
        "b.weight.in_sum2": ([3, 1], [1.5, 0.0, 2.25]), "b.weight.counts": ([1, 1], [3.0]),
    }  # fmt: skip
    found = read_imatrix(tmp_path / "x.gguf")
    assert found.means["b.weight"].tolist() == [0.5, 0.0, 0.75]
    assert found.datasets == ("é.txt",)


def expert(number: int | None, name: str, experts: int = 3) -> Tensor:
    place = Place(name, (5, 2) if number is None else (experts, 5, 2), number)
    return Tensor("a matrix", (5, 2), place, place)


def test_stacked_experts_have_a_part_each(tmp_path):
    means = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    name = "blk.1.ffn_up_exps.weight"
    for data in (gguf_kind({name: (means, 4)}, experts=3).data, older_kind({name: (means, 4)}).data):
        found = read(tmp_path / "x", data)
        parts = [found.of(expert(number, name)) for number in range(3)]
        assert [part.tolist() for part in parts] == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        with pytest.raises(ModelFormatError, match=r"has 6 values; the model needs 2 for each of 4 experts"):
            found.of(expert(0, name, experts=4))


def test_an_expert_that_no_token_reached_counts_all_inputs_alike(tmp_path):
    tensors = tensors_of({"e": ([1.0, 2.0, 3.0, 4.0], 2)}, experts=2)
    tensors[1] = (*tensors[1][:3], np.array([2, 0], "<f4").tobytes())
    assert read(tmp_path / "x", build(ENTRIES, tensors).data).means["e"].tolist() == [1.0, 2.0, 1.0, 1.0]


def test_names_of_another_time(tmp_path):
    found = read(
        tmp_path / "x", older_kind({"blk.1.ffn_up.2.weight": ([1.0, 2.0], 1), "output.weight": ([3.0, 4.0], 1)}).data
    )
    assert found.of(expert(2, "blk.1.ffn_up_exps.weight")).tolist() == [1.0, 2.0]
    assert found.of(expert(1, "blk.1.ffn_up_exps.weight")) is None
    assert found.of(expert(None, "token_embd.weight")).tolist() == [3.0, 4.0]
    assert found.of(expert(None, "blk.0.attn_q.weight")) is None


def without(key: str):
    return build([entry for entry in ENTRIES if entry[0] != key], tensors_of(VALUES)).data


def changed(index: int, **how):
    tensors = tensors_of(VALUES)
    name, shape, kind, data = tensors[index]
    tensors[index] = (how.get("name", name), how.get("shape", shape), how.get("kind", kind), how.get("data", data))
    return build(ENTRIES, tensors).data


GOOD = older_kind(VALUES)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "has 0 bytes"),
        (b"GGU", "has 3 bytes"),
        (without("general.type"), "general.type.*is missing; in an importance matrix it is 'imatrix'"),
        (build([("general.type", STRING, "model")], []).data, "is 'model'; in an importance matrix it is"),
        (build([("general.type", F32, 1.0)], []).data, "is '1.0'"),
        (build(ENTRIES, []).data, "the file has no entries"),
        (changed(0, name="x.weight"), "ends neither in"),
        (changed(0, name=".in_sum2"), "ends neither in"),
        (changed(0, name="x.in_sum2"), r"has no matching x\.counts"),
        (changed(1, kind=1, data=b"\0\0"), "has type F16; it must be F32"),
        (changed(0, data=np.array([1, 2, np.nan, 3], "<f4").tobytes()), "value 2 is nan"),
        (changed(0, data=np.array([1, -2, 0, 3], "<f4").tobytes()), "value 1 is -2"),
        (changed(1, data=np.array([np.inf], "<f4").tobytes()), "value 0 is inf"),
        (changed(1, shape=(1, 3), data=np.ones(3, "<f4").tobytes()), "3 counts, which do not divide 4 sums"),
        (gguf_kind(VALUES).data[:-40], "ends at byte"),
        (GOOD.patched("entries", struct.pack("<i", 0)), "number of entries.*is 0"),
        (GOOD.patched("entries", struct.pack("<i", -1)), "number of entries.*is -1"),
        (GOOD.patched("entries", struct.pack("<i", 1 << 30)), "number of entries.*is 1073741824"),
        (GOOD.patched("entries", struct.pack("<i", 3)), "name of entry 2"),
        (GOOD.patched("entries", struct.pack("<i", 1)), "text's name"),
        (GOOD.patched(f"{NAME}:length", struct.pack("<i", 0)), "length of name of entry 0.*is 0; it must be 1 to"),
        (GOOD.patched(f"{NAME}:length", struct.pack("<i", 1 << 30)), "length of name of entry 0.*is 1073741824"),
        (GOOD.patched(f"{NAME}:name", b"\xff"), "is not valid UTF-8"),
        (GOOD.patched(f"{NAME}:name", b"\0"), "NUL"),
        (GOOD.patched(f"{NAME}:calls", struct.pack("<i", -1)), "calls of .* is -1"),
        (GOOD.patched(f"{NAME}:count", struct.pack("<i", 0)), "is 0; it must be 1 to"),
        (GOOD.patched(f"{NAME}:count", struct.pack("<i", 2**31 - 1)), "is 2147483647; it must be 1 to"),
        (GOOD.patched(f"{NAME}:data", struct.pack("<f", float("nan"))), "value 0 is nan"),
        (GOOD.patched(f"{NAME}:data", struct.pack("<f", -1.0)), "value 0 is -1"),
        (older_kind({NAME: ([1.0], 1)}).data[:-2], "needs 5 bytes"),
        (GOOD.data + b"x", "1 bytes follow the last field"),
        (GOOD.patched("text:length", struct.pack("<i", -1)), "length of text's name.*is -1"),
    ],
)
def test_what_is_none_is_refused_with_file_and_field(tmp_path, data, what):
    file = tmp_path / "x"
    with pytest.raises(ModelFormatError, match=what) as caught:
        read(file, data)
    assert str(file) in str(caught.value)


def test_an_entry_that_comes_twice_is_refused(tmp_path):
    once = older_kind({NAME: ([1.0], 1)}, dataset=None).data[4:]
    with pytest.raises(ModelFormatError, match="appears twice"):
        read(tmp_path / "x", struct.pack("<i", 2) + once + once)


# ---- in a plan -------------------------------------------------------------------------------------------------------


def plan_over(file, means, low_bit="sym_int4"):
    checkpoint = open_checkpoint(file)
    try:
        return WeightPlan(low_bit, imatrix=Imatrix(file, means)).of_spec(checkpoint.spec)
    finally:
        checkpoint.close()


def sizes_of(file):
    checkpoint = open_checkpoint(file)
    found = {t.gguf.name: t.shape[1] for t in checkpoint.spec.tensors() if t.is_matrix}
    checkpoint.close()
    return found


def test_what_has_no_entry_is_said(tmp_path, caplog):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="F16")
    means = {name: np.ones(n_in, np.float32) for name, n_in in sizes_of(file).items()}
    plan_over(file, means)
    assert "says nothing" not in caplog.text
    del means["blk.0.ffn_down.weight"], means["blk.1.ffn_down.weight"]
    plan_over(file, means)
    assert (
        "has no entry for 2 of 15 matrices, which weight all inputs equally: model.layers.*.mlp.down_proj (2)"
        in caplog.text
    )


def test_an_importance_matrix_of_another_model_is_refused(tmp_path):
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="F16")
    with pytest.raises(
        ModelFormatError, match="none of the 1 entries, such as 'blk.99.x', matches a matrix of this llama"
    ):
        plan_over(file, {"blk.99.x": np.ones(3, np.float32)})
    with pytest.raises(ModelFormatError, match=r"blk\.0\.ffn_down\.weight.*has 3 values; the model needs"):
        plan_over(file, {"blk.0.ffn_down.weight": np.ones(3, np.float32)})
