"""Pickles of torch's, read without unpickling; folders converted; and files that are none, by every way of breaking."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ipex_lookahead.checkpoints.ipex_llm_convert import convert_ipex_llm
from ipex_lookahead.checkpoints.torch_pickle import DTYPES, MAX_OPCODES, MAX_PICKLE, TorchFile, chunks
from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.ipex_llm_folder import write_ipex_llm

MADE: dict[str, Any] = {
    "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros(0, 0),
    "bool": torch.tensor([True, False]),
    **{
        str(kind): torch.arange(4).to(kind) for kind in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    },
    **{str(kind): torch.arange(4).to(kind) for kind in (torch.float16, torch.bfloat16, torch.float64)},
}
SIZES: dict[str, Any] = {"vocab": 3, "hidden": 64, "intermediate": 64, "heads": 1, "kv_heads": 1, "layers": 1}


def contents(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    file = TorchFile(path)
    try:
        return {
            name: (tensor.dtype, tensor.shape, b"".join(chunks(file, tensor, name, size=5)))
            for name, tensor in file.tensors.items()
        }
    finally:
        file.close()


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write(path: Path, data: bytes, entries: dict[str, bytes] | None = None, **settings: Any) -> Path:
    """An archive of a pickle and storages that torch did not write."""
    with zipfile.ZipFile(path, "w", **settings) as archive:
        for name, content in {"data.pkl": data, **(entries or {})}.items():
            archive.writestr(f"archive/{name}", content)
    return path


def test_what_torch_saves(tmp_path: Path) -> None:
    torch.save(MADE, tmp_path / "m.bin")
    found = contents(tmp_path / "m.bin")
    assert list(found) == list(MADE)
    for name, tensor in MADE.items():
        assert found[name][1:] == (tuple(tensor.shape), bytes_of(tensor) if tensor.numel() else b"")
    assert {dtype for dtype, _, _ in found.values()} == set(DTYPES.values())


def test_a_state_dict_with_shared_and_partial_storages(tmp_path: Path) -> None:
    """Its order and versions, parameters, a storage of two tensors, and rows of a larger one."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    stored = module.state_dict(keep_vars=True)
    stored["tied"] = stored["0.weight"]
    stored["rows"] = torch.arange(20.0).reshape(5, 4)[2:4]
    assert isinstance(stored, OrderedDict)
    torch.save(stored, tmp_path / "m.bin")
    found = contents(tmp_path / "m.bin")
    assert {name: data for name, (_, _, data) in found.items()} == {n: bytes_of(t) for n, t in stored.items()}


class Payload:
    """What an attacker puts into a pickle."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


class Packed(torch.nn.Parameter):
    """A class of a program's own, as ipex-llm's FP4Params."""


@pytest.mark.parametrize("name", ["posix.system", "builtins.eval", "test_torch_pickle.Payload", "zeros"])
def test_nothing_is_run(tmp_path: Path, name: str) -> None:
    witness, path = tmp_path / "ran", tmp_path / "m.bin"
    payload = {
        "posix.system": Payload(os.system, f"touch {witness}"),
        "builtins.eval": Payload(eval, f"open({str(witness)!r}, 'w')"),
        "test_torch_pickle.Payload": Payload(Payload, 1),
        "zeros": Payload(np.zeros, 3),
    }[name]
    for value in ({"weight": payload}, {"weight": torch.ones(2), "x": payload}, payload):
        torch.save(value, path)
        with pytest.raises(ModelFormatError, match=name.removeprefix("builtins.")):
            TorchFile(path)
        with pytest.raises(ModelFormatError, match="which no state dict needs"):
            TorchFile(write(path, pickle.dumps(payload, 4)))
    assert not witness.exists()


def test_a_class_of_a_programs_own_is_named(tmp_path: Path) -> None:
    """As ipex-llm's FP4Params would be, had a state dict not plain tensors in it."""
    packed = Packed(torch.ones(2))
    packed.quantized = True
    torch.save({"w": packed}, tmp_path / "m.bin")
    with pytest.raises(ModelFormatError, match="call of torch._utils._rebuild_parameter_with_state"):
        TorchFile(tmp_path / "m.bin")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    torch.save(MADE, path, _use_new_zipfile_serialization=False)
    with pytest.raises(ModelFormatError, match="not a ZIP archive"):
        TorchFile(path)
    for value, said in (
        ([1, 2], "not a state dict|not a dict"),
        ({"a": 1}, "names and tensors"),
        ({}, "not a dict of tensors"),
    ):
        torch.save(value, path)
        with pytest.raises(ModelFormatError, match=said):
            TorchFile(path)
    torch.save({"a": torch.arange(6).reshape(2, 3).T}, path)
    with pytest.raises(ModelFormatError, match="not in row-major order"):
        TorchFile(path)
    torch.save({"a": torch.complex(torch.ones(1), torch.ones(1))}, path)
    with pytest.raises(ModelFormatError, match="ComplexFloatStorage"):
        TorchFile(path)
    with pytest.raises(ModelFormatError, match="data.pkl: is missing"):
        TorchFile(write(path, b"", {"x": b""}) and _renamed(path))
    with pytest.raises(ModelFormatError, match="compressed"):
        TorchFile(write(path, pickle.dumps({"a": "b" * 100}, 2), compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(ModelFormatError, match="only little-endian"):
        TorchFile(write(path, pickle.dumps({}, 2), {"byteorder": b"big"}))


def _renamed(path: Path) -> Path:
    path.write_bytes(path.read_bytes().replace(b"data.pkl", b"data.xyz"))
    return path


def test_pickles_that_are_too_long(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=f"more than {MAX_OPCODES} opcodes"):
        TorchFile(write(tmp_path / "m.bin", b"\x80\x02" + b"}" * (MAX_OPCODES + 2) + b"."))
    with pytest.raises(ModelFormatError, match="the maximum is"):
        TorchFile(write(tmp_path / "m.bin", bytes(MAX_PICKLE + 1)))


def test_a_storage_that_does_not_hold_the_tensor(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(3, dtype=torch.uint8)}, tmp_path / "m.bin")
    with zipfile.ZipFile(tmp_path / "m.bin") as archive:
        data = archive.read("m/data.pkl")
    assert data.count(b"K\x03") == 2  # its elements, and its shape
    last = data.rindex(b"K\x03")
    for changed, said in (
        (data[:last] + b"K\x04" + data[last + 2 :], "4 elements from 0 on in a storage of 3"),
        (data.replace(b"K\x03", b"K\x09"), "a storage of 9 elements in 3 bytes"),
    ):
        with pytest.raises(ModelFormatError, match=said):
            TorchFile(write(tmp_path / "n.bin", changed, {"data/0": b"abc"}))
    with pytest.raises(ModelFormatError, match="data/0: is missing"):
        TorchFile(write(tmp_path / "n.bin", data))
    damaged = (tmp_path / "m.bin").read_bytes().replace(b"\x00\x01\x02", b"\x00\x01\x03", 1)
    (tmp_path / "m.bin").write_bytes(damaged)
    with pytest.raises(ModelFormatError, match="a at byte .*: does not match the checksum"):
        contents(tmp_path / "m.bin")


# ---- folders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
def test_a_folder_keeps_its_tensors_and_its_other_files(tmp_path: Path, shards: int) -> None:
    source = tmp_path / "m"
    write_ipex_llm(source, "nf4", shards=shards, **SIZES)
    (source / "tokenizer.json").write_text("{}")
    (source / "modeling.py").write_text("raise SystemExit")
    (source / "load_keys.json").write_text("{}")
    seen: list[tuple[int, int]] = []
    new = convert_ipex_llm(source, tmp_path / "n", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1]
    expected: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.bin")):
        expected |= torch.load(file, weights_only=True)
    found: dict[str, torch.Tensor] = {}
    for file in new.glob("*.safetensors"):
        found |= load_file(file)
    assert {name: bytes_of(t) for name, t in found.items()} == {name: bytes_of(t) for name, t in expected.items()}
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        n: (t.dtype, t.shape) for n, t in expected.items()
    }
    names = {path.name for path in new.iterdir() if path.suffix != ".safetensors"}
    assert names == {"config.json", "tokenizer.json", "load_keys.json"} | (
        {"model.safetensors.index.json"} if shards > 1 else set()
    )


def test_what_is_not_converted(tmp_path: Path) -> None:
    source = tmp_path / "m"
    write_ipex_llm(source, "sym_int4", **SIZES)
    new = convert_ipex_llm(source, tmp_path / "n")
    with pytest.raises(InputError, match="nothing to convert") as caught:
        convert_ipex_llm(new, tmp_path / "o")
    assert str(new) in caught.value.hint
    with pytest.raises(InputError, match="already exists"):
        convert_ipex_llm(source, new)
    with pytest.raises(InputError, match="absent: no such folder"):
        convert_ipex_llm(tmp_path / "absent", tmp_path / "o")
    config = json.loads((source / "config.json").read_text())
    del config["bigdl_transformers_low_bit"]
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="was not written by ipex-llm"):
        convert_ipex_llm(source, tmp_path / "o")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "n"]


def test_an_index_that_leads_elsewhere(tmp_path: Path) -> None:
    source = tmp_path / "m"
    write_ipex_llm(source, "sym_int4", shards=2, **SIZES)
    index = source / "pytorch_model.bin.index.json"
    for places in ({"a": "../m.bin"}, {"a": 3}, {}, {"a": "/etc/passwd"}):
        index.write_text(json.dumps({"weight_map": places}))
        with pytest.raises(ModelFormatError, match="weight_map|the name of a shard"):
            convert_ipex_llm(source, tmp_path / "n")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
