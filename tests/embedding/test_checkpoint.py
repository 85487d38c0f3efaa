"""Text encoders from files: every format, alone and in batches, saved and read again, and MiniLM's real weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ipex_lookahead.checkpoints.encoders import open_encoder
from ipex_lookahead.embedding.checkpoint import LoadedEncoder, open_text_encoder, save_encoder
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.formats import FORMATS
from tests.support.text_encoders import CASES, HIDDEN, POSITIONS, VOCAB, build, write_folder, write_gguf

pytest.importorskip("transformers", minversion="5.23")

Floats = npt.NDArray[np.float32]
MINILM = "IPEX_LOOKAHEAD_MINILM"
"""Variable with the folder of all-MiniLM-L6-v2; `make test-peers` sets it."""
RNG = np.random.default_rng(3)
IDS = [RNG.integers(5, VOCAB, n) for n in (3, 1, 40, 8)]
IN_GGUF = [name for name, case in CASES.items() if case.gguf]


def joined(loaded: LoadedEncoder, ids: list[Any] = IDS) -> bytes:
    return b"".join(one.tobytes() for one in loaded.encoder.rows(ids))


def cosine(one: Floats, other: Floats) -> Floats:
    found: Floats = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    return found


@pytest.mark.parametrize("name", ["bert", "modernbert-silu", "gemma"])
@pytest.mark.parametrize("low_bit", [None, "sym_int4", "sym_int8", "fp8_e4m3", "nf4", "bf16"])
def test_a_text_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path, name: str, low_bit: str | None) -> None:
    folder = write_folder(tmp_path, name, build(name))
    one, two = open_text_encoder(folder, low_bit, threads=1), open_text_encoder(folder, low_bit, threads=2)
    alone = [one.encoder.rows([ids])[0].tobytes() for ids in IDS]
    assert [rows.tobytes() for rows in one.encoder.rows(IDS)] == alone
    assert [rows.tobytes() for rows in two.encoder.rows(IDS[::-1])] == alone[::-1]
    assert one.low_bit == low_bit


@pytest.mark.parametrize("low_bit", [name for name in FORMATS if name not in ("fp32",)])
def test_every_format_of_decoders_is_one_of_encoders(tmp_path: Path, low_bit: str) -> None:
    """Blocks that do not divide the rows get a fallback, as in decoders."""
    folder = write_folder(tmp_path, "bert", build("bert"))
    exact = open_text_encoder(folder, threads=1).encoder.rows(IDS)[2]
    loaded = open_text_encoder(folder, low_bit, threads=1)
    least = 0.99 if FORMATS[low_bit].bits >= 8 else 0.9 if FORMATS[low_bit].bits >= 4 else 0.4
    assert cosine(loaded.encoder.rows(IDS)[2], exact).mean() > least


@pytest.mark.parametrize("name", ["bert", "nomic", "modernbert", "gemma"])
def test_rules_name_the_matrices_of_encoders_as_those_of_decoders(tmp_path: Path, name: str) -> None:
    rules = tmp_path / "rules.yaml"
    some = ("{match: '*.v_proj', format: sym_int4}", "{match: '*.down_proj', format: fp16}")
    rules.write_text(f"default: sym_int8\nrules: [{', '.join(some)}]\n", encoding="utf-8")
    save_encoder(write_folder(tmp_path / "m", name, build(name)), tmp_path / "saved", str(rules), threads=1)
    checkpoint = open_encoder(tmp_path / "saved")
    spec: Any = checkpoint.spec
    wanted = {"v": "sym_int4", "down": "fp16", "q": "sym_int8", "o": "sym_int8", "up": "sym_int8"}
    found = {
        field.split(".")[3]: checkpoint.info(tensor.name).format
        for field, tensor in spec.named_tensors()
        if field.startswith("layers.") and field.endswith(".weight") and tensor.is_matrix
    }
    assert {part: found[part] for part in wanted} == wanted


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_gives_the_bytes_of_the_folder(tmp_path: Path, name: str) -> None:
    model = build(name)
    folder, file = write_folder(tmp_path / "folder", name, model), write_gguf(tmp_path / "m.gguf", name, model)
    for low_bit in (None, "sym_int4"):
        one, other = (open_text_encoder(path, low_bit, threads=1) for path in (folder, file))
        assert joined(one) == joined(other)
        assert one.config["max_length"] == other.config["max_length"]
    assert other.metadata["general.architecture"] == CASES[name].gguf
    assert not one.metadata


@pytest.mark.parametrize("quant", ["F16", "Q8_0", "Q4_0"])
def test_a_gguf_file_keeps_its_own_formats(tmp_path: Path, quant: str) -> None:
    model = build("xlm-roberta")
    exact = open_text_encoder(write_gguf(tmp_path / "f.gguf", "xlm-roberta", model), threads=1)
    small = open_text_encoder(write_gguf(tmp_path / "q.gguf", "xlm-roberta", model, quant=quant), threads=1)
    found = cosine(small.encoder.rows(IDS)[2], exact.encoder.rows(IDS)[2])
    assert (0.9 if quant == "Q4_0" else 0.999) < found.min() < 1 - 1e-8


# ---- what the files state --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("bert", POSITIONS),
        ("xlm-roberta", POSITIONS - 2),
        ("xlm-roberta-pad", POSITIONS - 5),
        ("gte", POSITIONS),
    ],
)
def test_the_largest_length_is_the_number_of_positions(tmp_path: Path, name: str, longest: int) -> None:
    loaded = open_text_encoder(write_folder(tmp_path, name, build(name)), threads=1)
    assert loaded.config["max_length"] == longest
    assert len(loaded.encoder.rows([[5] * longest])[0]) == longest
    if loaded.encoder.spec.positions is not None:
        with pytest.raises(InputError):
            loaded.encoder.rows([[5] * (longest + 1)])


@pytest.mark.parametrize(("kind", "pooling"), [(0, "none"), (1, "mean"), (2, "cls"), (3, "last"), (4, "rank")])
def test_a_gguf_file_states_its_pooling(tmp_path: Path, kind: int, pooling: str) -> None:
    file = write_gguf(tmp_path / "m.gguf", "bert", build("bert"), metadata={"bert.pooling_type": kind})
    assert open_text_encoder(file, threads=1).config["pooling"] == pooling
    assert "pooling" not in open_text_encoder(write_gguf(tmp_path / "n.gguf", "bert", build("bert")), threads=1).config


def test_a_pooling_that_does_not_exist_is_named(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", "bert", build("bert"), metadata={"bert.pooling_type": 9})
    with pytest.raises(ModelFormatError, match=r"bert\.pooling_type at byte \d+: is 9"):
        open_text_encoder(file, threads=1)


def test_dense_layers_of_a_gguf_file_follow_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    up, down = RNG.standard_normal((96, HIDDEN), np.float32), RNG.standard_normal((HIDDEN, 96), np.float32)
    file = write_gguf(
        tmp_path / "m.gguf", "gemma", build("gemma"),
        change=lambda tensors: tensors.update({"dense_2.weight": up, "dense_3.weight": down}),
    )  # fmt: skip
    loaded = open_text_encoder(file, threads=1)
    assert "dense" not in caplog.text
    assert open_text_encoder(write_gguf(tmp_path / "n.gguf", "gemma", build("gemma")), threads=1).heads is None
    assert "n.gguf: has no dense layers" in caplog.text
    assert loaded.heads is not None
    assert (loaded.head, loaded.heads.outputs) == (None, HIDDEN)
    pooled = RNG.standard_normal((4, HIDDEN), np.float32)
    np.testing.assert_allclose(loaded.heads(pooled), pooled @ up.T @ down.T, rtol=1e-4, atol=1e-3)


# ---- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), [*((name, "folder") for name in CASES), *((one, "gguf") for one in IN_GGUF)])
def test_a_saved_encoder_gives_the_same_bytes(tmp_path: Path, name: str, kind: str) -> None:
    model, low_bit = build(name), "sym_int8"
    source = (
        write_folder(tmp_path / "m", name, model) if kind == "folder" else write_gguf(tmp_path / "m.gguf", name, model)
    )
    assert save_encoder(source, tmp_path / "saved", low_bit, threads=1) == low_bit
    one, two = open_text_encoder(source, low_bit, threads=1), open_text_encoder(tmp_path / "saved", threads=1)
    assert joined(one) == joined(two)
    assert one.config["max_length"] == two.config["max_length"]
    assert (one.head is None) == (two.head is None)
    if one.head is not None and two.head is not None:
        rows = one.encoder.rows(IDS[:1])[0]
        assert one.head(rows).tobytes() == two.head(rows).tobytes()
        assert one.head.pooling == two.head.pooling


def test_files_for_pooling_and_tokens_go_along(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "m", "bert", build("bert"))
    (source / "1_Pooling").mkdir()
    (source / "other").mkdir()
    copied = ("modules.json", "1_Pooling/config.json", "vocab.txt")
    for name in (*copied, "notes.txt", "other/x.json"):
        (source / name).write_text("{}", encoding="utf-8")
    save_encoder(source, tmp_path / "saved", "sym_int4", threads=1)
    there = {str(path.relative_to(tmp_path / "saved")) for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert there == {"config.json", "model.safetensors", *copied}


def test_the_pooling_of_a_gguf_file_is_written_as_modules(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", "bert", build("bert"), metadata={"bert.pooling_type": 2})
    save_encoder(source, tmp_path / "saved", "sym_int4", threads=1)
    pooling = json.loads((tmp_path / "saved" / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    assert pooling == {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True}
    modules = json.loads((tmp_path / "saved" / "modules.json").read_text(encoding="utf-8"))
    assert [one["path"] for one in modules] == ["", "1_Pooling"]


def test_a_second_rounding_needs_a_word(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "m", "bert", build("bert"))
    save_encoder(source, tmp_path / "eight", "sym_int8", threads=1)
    with pytest.raises(InputError, match="already in sym_int8"):
        save_encoder(tmp_path / "eight", tmp_path / "four", "sym_int4", threads=1)
    assert not (tmp_path / "four").exists()
    save_encoder(tmp_path / "eight", tmp_path / "four", "sym_int4", threads=1, allow_requantize=True)
    assert open_text_encoder(tmp_path / "four", threads=1).encoder.rows(IDS)


# ---- real weights ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(MINILM not in os.environ, reason=f"{MINILM} names no all-MiniLM-L6-v2; make test-peers does")
def test_minilm_has_the_vectors_of_transformers() -> None:
    import transformers

    folder = os.environ[MINILM]
    loaded = open_text_encoder(folder)
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["Berlin is the capital of Germany.", "A cat sat on the mat, didn't it?", "naïve café " * 40]
    ids = [tokens(text, truncation=True, max_length=256)["input_ids"] for text in texts]
    for one, rows in zip(ids, loaded.encoder.rows(ids), strict=True):
        with torch.no_grad():
            wanted = model(torch.tensor(one)[None]).last_hidden_state[0].numpy()
        assert np.abs(rows - wanted).max() < 1e-5 * 10
        assert 1 - cosine(rows.mean(0), wanted.mean(0)) < 1e-6
    eight = open_text_encoder(folder, "sym_int8").encoder.rows(ids)
    assert min(cosine(a.mean(0), b.mean(0)) for a, b in zip(eight, loaded.encoder.rows(ids), strict=True)) > 0.999
