"""Mixtral: counts of experts in all spellings and beyond all bounds, and the GGUF files that say ``llama``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ipex_lookahead.architectures.experts import MAX_EXPERTS, MAX_TOTAL
from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import ModelFormatError
from tests.gates.test_family_files import parts_of
from tests.support.family_configs import read_config
from tests.support.family_table import variants
from tests.support.gguf_bytes import Tensor
from tests.support.gguf_bytes import build as gguf_bytes
from tests.support.gguf_families import add_keys, gguf_tensors, write_gguf
from tests.support.tiny_families import build, write_folder

PLAIN = variants("mixtral")[0]


def changed(folder: Path, **values: Any) -> Path:
    """The config of a plain folder with some values of its own; the path of the file."""
    path = write_folder(folder, build("mixtral", PLAIN)) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")
    return path


def with_router(folder: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """A GGUF file in Q8_0 whose routers have the values of Q8_0, stored as that or as F32."""
    entries, tensors = parts_of(write_gguf(folder / "m.gguf", build("mixtral", PLAIN), quant="Q8_0"))
    changed: list[Tensor] = []
    for name, dims, old, data in tensors:
        if name.endswith("ffn_gate_inp.weight"):
            values = np.frombuffer(data, np.float32).reshape(dims[::-1])
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            rounded = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
            changed.append((name, dims, int(kind), (packed if kind.name == "Q8_0" else rounded).tobytes()))
        else:
            changed.append((name, dims, old, data))
    path = folder / f"{kind.name}.gguf"
    path.write_bytes(gguf_bytes(entries, changed).data)
    return path


def test_a_router_in_low_bits_is_run_with_its_values(tmp_path: Path) -> None:
    """Nobody writes one; its values are the file's all the same, for the core has routers in floats alone."""
    found = []
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32):
        checkpoint = GgufCheckpoint(with_router(tmp_path, kind))
        engine = NativeEngine.load(checkpoint, checkpoint.spec, WeightPlan(), threads=1)
        cache = engine.new_cache()
        batch = Batch(
            [cache], [5], np.arange(5, dtype=np.int32), np.arange(-1, 4, dtype=np.int32), OutputRequest(logits=True)
        )
        logits = engine.forward(batch).logits
        assert logits is not None
        found.append(logits.tobytes())
        checkpoint.close()
    assert found[0] == found[1]


def test_the_count_of_experts_has_two_names(tmp_path: Path) -> None:
    path = changed(tmp_path)
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["num_local_experts"]
    path.write_text(json.dumps({**values, "num_experts": 3}), encoding="utf-8")
    assert read_config(path)["num_local_experts"] == 3
    path.write_text(json.dumps(values), encoding="utf-8")
    assert read_config(path)["num_local_experts"] == 8, "transformers' own number"
    path.write_text(json.dumps({**values, "num_experts": 3, "num_local_experts": 4}), encoding="utf-8")
    with pytest.raises(ModelFormatError, match="is 3, but num_local_experts is 4"):
        read_config(path)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"num_local_experts": 0}, "num_local_experts", "1 to 1024"),
        ({"num_local_experts": MAX_EXPERTS + 1}, "num_local_experts", "1 to 1024"),
        (
            {"num_local_experts": MAX_EXPERTS, "num_hidden_layers": 40},
            "num_local_experts",
            f"the maximum in total is {MAX_TOTAL}",
        ),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok", "there are 4 experts"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok", "1 to 1024"),
        ({"num_local_experts": 4.0}, "num_local_experts", "whole number"),
    ],
)
def test_counts_that_cannot_be_are_found_in_the_config(
    tmp_path: Path, values: dict[str, Any], field: str, words: str
) -> None:
    path = changed(tmp_path, **values)
    with pytest.raises(ModelFormatError, match=words) as caught:
        read_config(path)
    assert caught.value.field == field
    assert caught.value.offset == path.read_text(encoding="utf-8").index(f'"{field}"') + len(f'"{field}": ')


@pytest.mark.parametrize("key", ["llama.expert_used_count"])
def test_a_file_says_how_many_experts_a_row_goes_to(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFormatError, match="is missing") as caught:
        GgufCheckpoint(_written(tmp_path / "m.gguf", build("mixtral", PLAIN), {key: None}))
    assert caught.value.field == key


def test_experts_in_tensors_of_their_own(tmp_path: Path) -> None:
    """As files of early 2024 have them."""
    model = build("mixtral", PLAIN)
    split = {}
    for name, values in gguf_tensors(model).items():
        parts = {name.replace("_exps.", f".{e}."): part for e, part in enumerate(values)} if "_exps" in name else {}
        split |= parts or {name: values}
    one = GgufCheckpoint(_written(tmp_path / "split.gguf", model, {}, split))
    two = GgufCheckpoint(write_gguf(tmp_path / "m.gguf", model))
    assert list(one.names()) == list(two.names())
    for name in one.names():
        assert one.read(name).codes.tobytes() == two.read(name).codes.tobytes(), name
    one.close()
    two.close()
    del split["blk.1.ffn_up.2.weight"]
    with pytest.raises(ModelFormatError, match="is missing") as caught:
        GgufCheckpoint(_written(tmp_path / "short.gguf", model, {}, split))
    assert caught.value.field == "blk.1.ffn_up.2.weight"


def _written(file: Path, model: Any, keys: dict[str, int | None], tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A GGUF file with other keys (None: without it) or tensors than the model's."""
    writer = gguf.GGUFWriter(file, "llama")
    add_keys(writer, model.config)
    for key, value in keys.items():
        del writer.kv_data[0][key]
        if value is not None:
            writer.add_uint32(key, value)
    for name, values in (tensors or gguf_tensors(model)).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
