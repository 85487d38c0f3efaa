"""safetensors files that are nearly right, and their indices."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path
from typing import Any

from ipex_lookahead.formats import FORMATS
from tests.support import json_attacks
from tests.support.gguf_attacks import COUNTS, extreme

DTYPES = ("F32", "F16", "BF16", "F64", "I8", "U8", "I64", "BOOL", "F4", "F8_E4M3", "x", "", 3, None)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A file's header and its data."""
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def attacked(chance: random.Random, file: bytes) -> bytes:
    """The file with one or two changes."""
    header, data = split(file)
    for _ in range(chance.choice((1, 1, 2))):
        data = _change(chance, header, data)
    text = json_attacks.text(chance, header) if chance.random() < 0.15 else json.dumps(header).encode()
    way = chance.random()
    if way < 0.06:
        return join(text, data, chance.choice((*COUNTS, len(text) + 1, len(text) - 1)))
    if way < 0.1:
        return join(text, data)[: chance.randrange(8 + len(text) + len(data))]
    return join(text + b" " * chance.choice((0, 0, 0, 3, 8)), data + chance.choice((b"", b"", b"", b"", b"\0")))


def _change(chance: random.Random, header: dict[str, Any], data: bytes) -> bytes:
    names = sorted(name for name in header if name != "__metadata__" and isinstance(header[name], dict))
    if not names:
        return data
    name, other, way = chance.choice(names), chance.choice(names), chance.random()
    entry = header[name]
    offsets = entry.get("data_offsets")
    if way < 0.3:
        return extreme(chance, data)
    if way < 0.38:
        del header[name]
    elif way < 0.46:
        header[chance.choice((other, name + "x", "", "__metadata__", name[:-7], "x" * 1025, "é"))] = header.pop(name)
    elif way < 0.52:  # one place of the file under two names
        header[name + "2"] = dict(entry)
    elif way < 0.58 and isinstance(header[other], dict):
        header[name], header[other] = header[other], header[name]
    elif way < 0.68 and isinstance(entry.get("shape"), list):
        shape = entry["shape"]
        size = [n for n in shape if isinstance(n, int)]
        product = 1
        for n in size:
            product *= n
        entry["shape"] = chance.choice(
            (
                shape[::-1],
                [product],
                [1, product],
                [product, 1],
                [*shape, 1],
                [],
                [0],
                [2**32, 2**32],
                [2**63, 2],
                [-1, -product],
            )
        )
    elif way < 0.76:
        entry["dtype"] = chance.choice(DTYPES)
    elif way < 0.88 and isinstance(offsets, list) and [type(at) for at in offsets] == [int, int]:
        begin, end = offsets
        far = chance.choice(COUNTS)
        entry["data_offsets"] = chance.choice(
            (
                [begin + 4, end + 4],
                [begin - 4, end],
                [begin, end + 4],
                [end, begin],
                [0, end - begin],
                [far, far + 4],
                [begin],
                [begin, None],
            )
        )
    elif way < 0.96:
        _change_metadata(chance, header)
    else:
        entry[chance.choice(("dtype", "shape", "data_offsets", "x"))] = json_attacks.value(chance)
    return data


def without_checksums(folder: Path) -> Path:
    """A saved folder made one of version 1, which had none."""
    path, config_path = folder / "model.safetensors", folder / "config.json"
    header, data = split(path.read_bytes())
    lines = {name: line.rpartition("sha256:")[0].strip() for name, line in header["__metadata__"].items()}
    header["__metadata__"] = {"format": "pt", **{name: line for name, line in lines.items() if line}}
    path.write_bytes(join(json.dumps(header, separators=(",", ":")).encode(), data))
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["ipex_lookahead"]["version"] = 1
    config_path.write_text(json.dumps(config), encoding="utf-8")
    return folder


FLOATS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def resealed(file: bytes) -> bytes:
    """A file of a saved folder, changed, with the checksums that it would have had if it had been saved so.

    Where the header is no longer one, or a weight has no arrays, there is nothing to be done.
    """
    try:
        header, data = split(file)
        metadata = header["__metadata__"]
        for name, line in metadata.items():
            if name == "format":
                continue
            described = line.rpartition("sha256:")[0].strip()
            if not described:
                entry = header[name]
                described = f"{FLOATS[entry['dtype']]} 0 {'x'.join(map(str, entry['shape']))}"
            parts = [
                header[name + suffix] for suffix in ("", ".codes", ".scales", ".minimums") if name + suffix in header
            ]
            total = hashlib.sha256(f"{name}\0{described}\0".encode())
            for part in parts:
                begin, end = part["data_offsets"]
                total.update(data[begin:end])
            before = f"{described} " if described.split()[0] not in FLOATS.values() else ""
            metadata[name] = f"{before}sha256:{total.hexdigest()}"
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, struct.error):
        return file
    return join(json.dumps(header).encode(), data)


def _change_metadata(chance: random.Random, header: dict[str, Any]) -> None:
    """The lines of a saved folder: format, group size, rows and columns."""
    metadata = header.get("__metadata__")
    packed = [name for name in metadata if name != "format"] if isinstance(metadata, dict) else []
    if not packed or chance.random() < 0.2:
        header["__metadata__"] = chance.choice(({"format": "pt"}, {"x": "y"}, {"x": 1}, [], None, "x"))
        return
    name = chance.choice(packed)
    way, (line, mark, digest) = chance.random(), str(metadata[name]).partition(" sha256:")
    if mark and chance.random() < 0.1:
        metadata[name] = chance.choice((line, line + mark, line + mark + digest[1:], line + mark + digest.upper()))
        return
    kind, _, rest = line.partition(" ")
    group, _, shape = rest.partition(" ")
    if way < 0.2:
        del metadata[name]
    elif way < 0.3:
        metadata[name + "2"] = line + mark + digest
    else:
        kind = chance.choice((kind, kind, kind, *FORMATS, ""))
        group = chance.choice((group, group, "32", "64", "0", "4096", "-32", "9999"))
        rows, _, columns = shape.partition("x")
        sizes = (f"{columns}x{rows}", f"{rows}x{columns}1", f"0x{columns}", f"{2**40}x{2**40}", f"{10**12}x{columns}")
        metadata[name] = f"{kind} {group} {chance.choice((shape, shape, *sizes, 'x'))}{mark}{digest}"


def attacked_index(chance: random.Random, files: dict[str, bytes]) -> dict[str, bytes | None]:
    """A folder with shards: the index changed, or shards missing, doubled, exchanged, attacked. None = no such file."""
    index_name = "model.safetensors.index.json"
    index = json.loads(files[index_name])
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    one, other = chance.choice(shards), chance.choice(shards)
    weights = index["weight_map"]
    name, way = chance.choice(sorted(weights)), chance.random()
    if way < 0.1:
        return {one: None}
    if way < 0.2:
        return {one: files[other]}
    if way < 0.35:
        return {one: attacked(chance, files[one])}
    if way < 0.4:
        return {"model.safetensors": files[one]}
    if way < 0.55:
        weights[name] = chance.choice(
            (other, "../" + one, "/etc/passwd", "x.bin", "x.safetensors", "", 3, None, [one], one + "\0")
        )
    elif way < 0.65:
        del weights[name]
    elif way < 0.75:
        weights[chance.choice(("x", "", name + "2", "x" * 1025))] = one
    elif way < 0.85:
        index["weight_map"] = chance.choice(({}, [], None, {name: one}, dict.fromkeys(weights, one)))
    elif way < 0.95:
        index[chance.choice(("metadata", "x", "weight_map"))] = json_attacks.value(chance)
    return {index_name: json_attacks.text(chance, index)}
