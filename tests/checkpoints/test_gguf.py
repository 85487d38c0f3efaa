"""Llamas in GGUF: bits unchanged, rows preempted, metadata in Hugging Face's words, and every contradiction refused."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ipex_lookahead.checkpoints.gguf import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_types import DECODED_TYPES, TENSOR_TYPES
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I32,
    STRING,
    U32,
    Entry,
    Tensor,
    build,
    llama_parts,
    tensor,
    write,
)
from tests.support.packed_values import values_of
from tests.support.tiny import TinyLlama, gguf_name, llama3_frequency_divisors, write_tiny_gguf

BIASED: dict[str, Any] = {"tie": False, "attention_bias": True, "mlp_bias": True}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def rows_put_back(name: str, stored: npt.NDArray[Any], tiny: TinyLlama) -> npt.NDArray[Any]:
    """The inverse of llama.cpp's reordering, written from its converter's forward direction."""
    heads = tiny.heads if ".q_proj" in name else tiny.kv_heads if ".k_proj" in name else 0
    if not heads:
        return stored
    where = np.arange(heads * tiny.head).reshape(heads, 2, tiny.head // 2).swapaxes(1, 2).reshape(-1)
    back = np.empty_like(stored)
    back[where] = stored
    return back


@pytest.mark.parametrize("quant", [kind.name for kind in (TENSOR_TYPES | DECODED_TYPES).values()])
@pytest.mark.rotating(13)
def test_every_value_is_the_gguf_packages(tmp_path: Path, quant: str) -> None:
    import gguf
    from gguf import quants

    kind = gguf.GGMLQuantizationType[quant]
    sizes: dict[str, Any] = {**BIASED, "hidden": 256} if gguf.GGML_QUANT_SIZES[kind][0] > 32 else BIASED
    tiny = TinyLlama(seed=5, **sizes)
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, seed=5, **sizes)
    checkpoint = GgufCheckpoint(path)
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert len(checkpoint.names()) == len(theirs)
    for name, shape in tiny.shapes().items():
        weight = checkpoint.read(name)
        info = checkpoint.info(name)
        assert (weight.shape, weight.format, weight.group_size) == (info.shape, info.format, info.group_size)
        assert weight.shape == shape
        other = theirs[gguf_name(name)]
        expected = rows_put_back(name, quants.dequantize(other.data, other.tensor_type), tiny)
        if info.decoded_from.startswith("IQ2"):  # up to 22 bits of mantissa; all others are held exactly
            expected = expected.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(values_of(weight), expected, err_msg=name)
        assert weight.codes.flags.c_contiguous
    checkpoint.close()


@pytest.mark.parametrize(("quant", "scale"), [("Q4_K", 0), ("Q6_K", 208), ("MXFP4", 0), ("Q2_K", 82)])
def test_a_scale_in_a_block_that_is_no_number_is_found(tmp_path: Path, quant: str, scale: int) -> None:
    import gguf

    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, hidden=256)
    source = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    size = {"Q4_K": 144, "Q6_K": 210, "MXFP4": 17, "Q2_K": 84}[quant]
    at = int(source.data_offset) + 5 * size + scale
    data = bytearray(path.read_bytes())
    data[at : at + 2] = b"\xff\x7e"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"(scale|minimum) 5 is NaN or infinite") as caught:
        GgufCheckpoint(path).read("model.layers.1.mlp.up_proj.weight")
    assert (caught.value.field, caught.value.offset) == ("blk.1.ffn_up.weight", at)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0", "Q4_1"])
def test_blocks_are_kept_bit_for_bit(tmp_path: Path, quant: str) -> None:
    import gguf

    tiny = TinyLlama(seed=6)
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, seed=6)
    checkpoint = GgufCheckpoint(path)
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        weight = checkpoint.read(name)
        assert weight.scales is not None
        rows = weight.shape[0]
        head = [weight.scales[..., None].view(np.uint8)]
        if weight.minimums is not None:
            head.append(weight.minimums[..., None].view(np.uint8))
        codes = weight.codes.view(np.uint8).reshape(rows, weight.scales.shape[1], -1)
        again = np.concatenate([*head, codes], axis=2).reshape(rows, -1)
        stored = np.asarray(theirs[gguf_name(name)].data).view(np.uint8).reshape(rows, -1)
        np.testing.assert_array_equal(again, rows_put_back(name, stored, tiny))


def test_reading_in_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ipex_lookahead.checkpoints import gguf as module

    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", quant="Q4_1"))
    whole = {name: checkpoint.read(name) for name in checkpoint.names()}
    monkeypatch.setattr(module, "_READ_AT_ONCE", 100)
    for name, weight in whole.items():
        again = checkpoint.read(name)
        np.testing.assert_array_equal(again.codes, weight.codes)
        if weight.scales is not None:
            np.testing.assert_array_equal(again.scales, weight.scales)  # type: ignore[arg-type]


def test_config_is_the_folders(tmp_path: Path) -> None:
    from ipex_lookahead.checkpoints import open_checkpoint
    from tests.support.tiny import write_tiny_llama

    sizes: dict[str, Any] = {"rope_theta": 500000.0, "hidden": 96, "heads": 6, "kv_heads": 3, **BIASED}
    ours = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", **sizes)).config
    folder = open_checkpoint(write_tiny_llama(tmp_path / "m", **sizes)).config
    folder.pop("dtype")
    assert ours == folder


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, None),
        (
            {"rope_type": "linear", "factor": 2.5},
            {"rope_type": "linear", "factor": 2.5, "original_max_position_embeddings": 256},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        (LLAMA3, {"rope_type": "freq_factors"}),
    ],
)
def test_rope_scaling(tmp_path: Path, scaling: dict[str, Any] | None, expected: dict[str, Any] | None) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", rope_scaling=scaling))
    if scaling is LLAMA3:
        divisors = checkpoint.config["rope_scaling"].pop("factors")
        np.testing.assert_array_equal(np.float32(divisors), llama3_frequency_divisors(16, 10000.0, LLAMA3))
    assert checkpoint.config["rope_scaling"] == expected


def opened(tmp_path: Path, entries: list[Entry], tensors: list[Tensor]) -> GgufCheckpoint:
    return GgufCheckpoint(write(tmp_path / "x.gguf", bytes(build(entries, tensors).data)))


def changed(**values: Any) -> tuple[list[Entry], list[Tensor]]:
    """The smallest Llama with metadata replaced, added, or (None) left out; ``__`` stands for a dot."""
    entries, tensors = llama_parts()
    wanted = {key.replace("__", "."): value for key, value in values.items()}
    kept = [e for e in entries if e[0] not in wanted]
    return kept + [(key, *value) for key, value in wanted.items() if value is not None], tensors


BAD_SIZES: list[tuple[dict[str, Any], str, str]] = [
    ({"llama__block_count": (U32, 0)}, "llama.block_count", "1 to 512"),
    ({"llama__block_count": (U32, 513)}, "llama.block_count", "1 to 512"),
    ({"llama__block_count": (BOOL, True)}, "llama.block_count", "whole number"),
    ({"llama__block_count": None}, "llama.block_count", "1 to 512"),
    ({"llama__block_count": (U32, 2)}, "blk.1.attn_norm.weight", "missing"),
    ({"llama__attention__head_count": (U32, 0)}, "llama.attention.head_count", "is 0"),
    ({"llama__attention__head_count": (STRING, "8")}, "llama.attention.head_count", "is '8'"),
    ({"llama__attention__head_count": (ARRAY, (U32, [1, 1]))}, "llama.attention.head_count", "2 values for 1 layers"),
    ({"llama__attention__head_count": (ARRAY, (U32, []))}, "llama.attention.head_count", "0 values for 1 layers"),
    ({"llama__attention__head_count_kv": (U32, 0)}, "llama.attention.head_count_kv", "is 0"),
    ({"llama__attention__head_count_kv": (U32, 2)}, "llama.attention.head_count_kv", "does not divide"),
    ({"llama__attention__key_length": (U32, 0)}, "llama.attention.key_length", "1 to 1024"),
    ({"llama__attention__key_length": (U32, 1032)}, "llama.attention.key_length", "1 to 1024"),
    ({"llama__attention__key_length": (U32, 16)}, "blk.0.attn_q.weight", "the metadata imply [16, 8]"),
    ({"llama__attention__key_length": None, "llama__embedding_length": (U32, 4096)},
     "llama.attention.key_length", "1 to 1024"),
    ({"llama__attention__key_length": None, "llama__attention__head_count": (U32, 3)},
     "llama.embedding_length", "is not a multiple of"),
    ({"llama__embedding_length": (U32, 0)}, "llama.embedding_length", "is 0"),
    ({"llama__embedding_length": (U32, 16)}, "token_embd.weight", "the metadata imply [4, 16]"),
    ({"llama__embedding_length": None}, "llama.embedding_length", "missing"),
    ({"llama__feed_forward_length": (U32, 0)}, "llama.feed_forward_length", "is 0"),
    ({"llama__feed_forward_length": (U32, 16)}, "blk.0.ffn_gate.weight", "the metadata imply [16, 8]"),
    ({"llama__context_length": (U32, 0)}, "llama.context_length", "is 0"),
    ({"llama__context_length": (U32, (16 << 20) + 1)}, "llama.context_length", "1 to 16777216"),
    ({"llama__attention__layer_norm_rms_epsilon": (F32, 0.0)}, "llama.attention.layer_norm_rms_epsilon", "from 1e-30"),
    ({"llama__attention__layer_norm_rms_epsilon": (F32, 2.0)}, "llama.attention.layer_norm_rms_epsilon", "to 1"),
    ({"llama__attention__layer_norm_rms_epsilon": (F32, math.nan)}, "llama.attention.layer_norm_rms_epsilon", "nan"),
    ({"llama__attention__layer_norm_rms_epsilon": (F32, math.inf)}, "llama.attention.layer_norm_rms_epsilon", "inf"),
    ({"llama__attention__layer_norm_rms_epsilon": (F64, 1e308)}, "llama.attention.layer_norm_rms_epsilon", "to 1"),
    ({"llama__attention__layer_norm_rms_epsilon": None}, "llama.attention.layer_norm_rms_epsilon", "missing"),
    ({"llama__rope__freq_base": (F32, 0.0)}, "llama.rope.freq_base", "from 1e-06"),
    ({"llama__rope__freq_base": (F32, math.nan)}, "llama.rope.freq_base", "nan"),
    ({"llama__rope__scaling__type": (STRING, "linear"), "llama__rope__scaling__factor": (F32, math.nan)},
     "llama.rope.scaling.factor", "nan"),
    ({"llama__rope__scaling__type": (STRING, "linear"), "llama__rope__scaling__factor": (F32, -2.0)},
     "llama.rope.scaling.factor", "from 1e-06"),
    ({"llama__rope__scaling__type": (STRING, "yarn"), "llama__rope__scaling__factor": (ARRAY, (F32, [1.0]))},
     "llama.rope.scaling.factor", "array"),
    ({"llama__rope__dimension_count": (U32, 2000)}, "llama.rope.dimension_count", "1 to 1024"),
    ({"llama__vocab_size": (U32, 0)}, "llama.vocab_size", "is 0"),
    ({"llama__vocab_size": (U32, (4 << 20) + 1)}, "llama.vocab_size", "1 to 4194304"),
    ({"llama__vocab_size": (U32, 5)}, "token_embd.weight", "the metadata imply [5, 8]"),
    ({"tokenizer__ggml__tokens": (ARRAY, (STRING, []))}, "tokenizer.ggml.tokens", "has 0 tokens"),
    ({"tokenizer__ggml__tokens": (ARRAY, (U32, [1, 2, 3, 4]))}, "tokenizer.ggml.tokens", "1 to 4 strings"),
    ({"tokenizer__ggml__tokens": (ARRAY, (STRING, "abcde"))}, "tokenizer.ggml.tokens", "has 5 tokens"),
    ({"tokenizer__ggml__scores": (ARRAY, (F32, [0.0] * 3))}, "tokenizer.ggml.scores", "3 values for 4 tokens"),
    ({"tokenizer__ggml__scores": (ARRAY, (STRING, "abcd"))}, "tokenizer.ggml.scores", "floating"),
    ({"tokenizer__ggml__token_type": (ARRAY, (I32, [1] * 5))}, "tokenizer.ggml.token_type", "5 values for 4 tokens"),
    ({"tokenizer__ggml__token_type": (U32, 1)}, "tokenizer.ggml.token_type", "integer"),
    ({"tokenizer__ggml__eos_token_id": (U32, 4)}, "tokenizer.ggml.eos_token_id", "0 to 3"),
    ({"tokenizer__ggml__bos_token_id": (I32, -1)}, "tokenizer.ggml.bos_token_id", "0 to 3"),
    ({"tokenizer__ggml__padding_token_id": (U32, 2**32 - 1)}, "tokenizer.ggml.padding_token_id", "0 to 3"),
    ({"tokenizer__ggml__unknown_token_id": (F32, 1.0)}, "tokenizer.ggml.unknown_token_id", "whole number"),
    ({"general__architecture": None}, "general.architecture", "missing"),
    ({"general__architecture": (ARRAY, (STRING, ["llama"]))}, "general.architecture", "array"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "field", "words"), BAD_SIZES)
def test_bad_metadata(tmp_path: Path, values: dict[str, Any], field: str, words: str) -> None:
    entries, tensors = changed(**values)
    made = build(entries, tensors)
    with pytest.raises(ModelFormatError) as caught:
        opened(tmp_path, entries, tensors)
    assert caught.value.field == field
    assert words in caught.value.problem
    place = made.at.get(f"{field}:value", made.at.get(f"{field}:name"))
    assert caught.value.offset == place


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"general__architecture": (STRING, "mamba")}, "'mamba'; supported architectures are .*llama"),
        ({"general__architecture": (STRING, "nomic-bert")}, "nomic-bert is an encoder.* generates no text"),
        ({"llama__expert_group_count": (U32, 8)}, "llama.expert_group_count is 8"),
        ({"llama__attention__scale": (F32, 0.5)}, "llama.attention.scale is 0.5"),
        ({"llama__attention__causal": (BOOL, False)}, "llama.attention.causal is False"),
        ({"llama__attention__key_length": (U32, 12)}, "multiples of 8"),
        ({"llama__attention__value_length": (U32, 16)}, "value_length is 16"),
        ({"llama__rope__dimension_count": (U32, 4)}, "dimension_count is 4"),
        ({"llama__rope__scaling__type": (STRING, "longrope")}, "rope_factors_long.weight is missing"),
        (
            {"llama__block_count": (U32, 2), "llama__feed_forward_length": (ARRAY, (U32, [8, 16]))},
            "differs between layers",
        ),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        opened(tmp_path, *changed(**values))


def test_neutral_values_and_equal_arrays_are_taken(tmp_path: Path) -> None:
    values = {
        "llama__expert_count": (U32, 0),
        "llama__attention__causal": (BOOL, True),
        "llama__attention__head_count": (ARRAY, (I32, [1])),
        "llama__rope__scaling__type": (STRING, "none"),
        "split__count": (U32, 1),
    }
    assert opened(tmp_path, *changed(**values)).config["num_attention_heads"] == 1


def test_ends_of_turn_are_ends(tmp_path: Path) -> None:
    values = {"tokenizer__ggml__eot_token_id": (U32, 2), "tokenizer__ggml__eom_token_id": (U32, 3)}
    assert opened(tmp_path, *changed(**values)).generation_config == {"eos_token_id": [3, 2]}


def test_yarn_attention_factor_in_hugging_faces_meaning(tmp_path: Path) -> None:
    values = {
        "llama__rope__scaling__type": (STRING, "yarn"),
        "llama__rope__scaling__factor": (F32, 4.0),
        "llama__rope__scaling__attn_factor": (F32, 2.0),
        "llama__rope__scaling__yarn_beta_fast": (F32, 16.0),
    }
    assert opened(tmp_path, *changed(**values)).config["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "attention_factor": 2.0 * (0.1 * math.log(4.0) + 1.0),
    }


def test_missing_extra_and_unfit_tensors(tmp_path: Path) -> None:
    entries, tensors = llama_parts()
    for index, (name, *_) in enumerate(tensors):
        with pytest.raises(ModelFormatError, match="missing") as caught:
            opened(tmp_path, entries, tensors[:index] + tensors[index + 1 :])
        assert caught.value.field == name
    for extra in ("blk.0.ffn_gate_inp.weight", "blk.1.attn_norm.weight", "blk.0.attn_v.bias"):
        with pytest.raises(UnsupportedModelError, match=f"tensor {extra} is not part"):
            opened(tmp_path, entries, [*tensors, tensor(extra, (8,), 0)])
    with pytest.raises(ModelFormatError, match=r"blk.0.attn_q.bias|blk.0.attn_k.bias"):  # one bias asks for all
        opened(tmp_path, entries, [*tensors, tensor("blk.0.attn_q.bias", (8,), 0)])
    with pytest.raises(ModelFormatError, match=r"has shape \[8\]; the metadata imply \[8, 8\]"):
        opened(tmp_path, entries, [t if t[0] != "blk.0.attn_q.weight" else tensor(t[0], (8,), 0) for t in tensors])


def test_quantised_vectors_are_refused(tmp_path: Path) -> None:
    entries, tensors = llama_parts(quantised=True)
    with pytest.raises(UnsupportedModelError, match="output_norm.weight is a vector of type Q8_0"):
        opened(tmp_path, entries, [*tensors[:-1], tensor("output_norm.weight", (32,), 8)])


def test_frequency_divisors_are_checked(tmp_path: Path) -> None:
    entries, tensors = llama_parts()
    for bad in (0.0, -1.0, math.nan, math.inf):
        freqs = ("rope_freqs.weight", (4,), 0, struct.pack("<4f", 1.0, 1.0, bad, 1.0))
        with pytest.raises(ModelFormatError, match="divisor 2 is") as caught:
            opened(tmp_path, entries, [*tensors, freqs])
        assert caught.value.field == "rope_freqs.weight"
    with pytest.raises(ModelFormatError, match=r"must be F32 \[4\]"):
        opened(tmp_path, entries, [*tensors, tensor("rope_freqs.weight", (8,), 0)])
    values = {"llama__rope__scaling__type": (STRING, "linear"), "llama__rope__scaling__factor": (F32, 2.0)}
    with pytest.raises(UnsupportedModelError, match=r"has rope_freqs\.weight and rope scaling of type 'linear'"):
        opened(tmp_path, changed(**values)[0], [*tensors, tensor("rope_freqs.weight", (4,), 0)])


def test_a_file_cut_while_open_is_an_error(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    checkpoint = GgufCheckpoint(path)
    os.truncate(path, path.stat().st_size // 2)
    checkpoint.read("model.embed_tokens.weight")
    with pytest.raises(ModelFormatError, match="became shorter"):
        checkpoint.read("model.norm.weight")


def test_after_close_and_unknown_names(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf"))
    with pytest.raises(ModelFormatError, match="no tensor has this name"):
        checkpoint.info("nope")
    kept = checkpoint.read("model.norm.weight")
    checkpoint.close()
    checkpoint.close()
    assert np.isfinite(kept.codes.astype(np.float32)).all()
    with pytest.raises(ModelFormatError, match="closed"):
        checkpoint.read("model.norm.weight")


def test_no_tokens_no_tokenizer(tmp_path: Path) -> None:
    assert GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf")).text_tokenizer() is None


def test_a_bad_tokenizer_is_an_error_with_its_place(tmp_path: Path) -> None:
    entries, tensors = changed(tokenizer__ggml__tokens=(ARRAY, (STRING, ["<s>", "a", "a", "</s>"])))
    with pytest.raises(ModelFormatError, match="tokenizer") as caught:
        opened(tmp_path, entries, tensors).text_tokenizer()
    assert caught.value.offset == build(entries, tensors).at[f"{caught.value.field}:value"]
