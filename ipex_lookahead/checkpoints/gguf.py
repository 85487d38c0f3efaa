"""GGUF files (llama.cpp's format): blocks are split into the streams of a format without changing a bit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec, family, gguf_architectures, gguf_family, refuse_encoder, spec_for
from ipex_lookahead.architectures.hparams import shown
from ipex_lookahead.architectures.keys import GgufKeys
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.adapter_gguf import declares_adapter
from ipex_lookahead.checkpoints.adapters import given_as_model
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.gguf_config import ROPE_TENSORS, gguf_config, gguf_sampling, gguf_suppressed
from ipex_lookahead.checkpoints.gguf_decoded import read_decoded, stored_format
from ipex_lookahead.checkpoints.gguf_parts import GgufParts
from ipex_lookahead.checkpoints.gguf_reader import GgufTensor
from ipex_lookahead.checkpoints.gguf_types import names_of_read_types
from ipex_lookahead.checkpoints.placed import (
    Run,
    as_logarithm,
    head_tensors,
    joined,
    row_order,
    run_of,
    stored_rows,
    tensors_by_name,
    transpose,
    transposed_format,
    with_mtp,
    with_offset,
    with_old_names,
)
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError, arg
from ipex_lookahead.formats import FLOATS, FORMATS
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import first_not_finite

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 4 << 20


class GgufCheckpoint:
    """A model in a GGUF file or in the parts of a split one.

    Attributes:
        metadata: metadata of the (first) file as stored: key to int, float, bool, str, list of str, or numpy array.
        read_past: number of ignored tensors that belong to MTP blocks.
        unknown_keys: metadata keys of the architecture that are unknown here; a warning lists them.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Open and validate the file, and all parts if it is one of several, without reading tensors.

        Raises:
            ModelFormatError: if the file is invalid.
            UnsupportedModelError: if the model is not supported.
        """
        self._file = GgufParts(path)
        self.path = self._file.path
        self.metadata = self._file.metadata
        self._stored_formats: dict[str, str] = {}
        try:
            self.config: dict[str, Any] = {}
            self.spec, declared = self._described()
            ids = ("bos_token_id", "eos_token_id", "pad_token_id")
            self.generation_config: dict[str, Any] = {key: self.config[key] for key in ids if key in self.config}
            self.generation_config |= gguf_sampling(self._file)
            self.generation_config |= gguf_suppressed(self._file, self.config["vocab_size"])
            there = self._file.tensors
            self._tensors = {
                name: self._in_file(tensor)
                for name, tensor in {**tensors_by_name(self.spec), **head_tensors(self.spec)}.items()
            }
            self._numbers = {t.name: self._number(t) for t in self._tensors.values() if t.gguf.layout == "key"}
            self._check_tensors()
            self._check_names(declared.unused_tensors)
            own = {tensor.gguf.name for tensor in self._tensors.values()}
            self.read_past = sum(name.startswith(self.spec.read_past) and name not in own for name in there)
            self.unknown_keys = declared.unknown(self.metadata)
        except BaseException:
            self._file.close()
            raise
        for kind, count in Counter(t.type for t in self._file.tensors.values() if t.type.decoded).items():
            _log.warning("%s: %d matrices of type %s are decoded to %s", self.path, count, kind.name, kind.format)
        if self.unknown_keys:
            names = ", ".join(key[:60] for key in self.unknown_keys[:8]) + (", ..." if self.unknown_keys[8:] else "")
            _log.warning(
                "%s: ignoring unknown metadata: %s; if it changes what the model computes, the output is wrong",
                self.path, names,
            )  # fmt: skip

    def _described(self) -> tuple[ModelSpec, GgufKeys]:
        """Read the tensor table and the config; return the described model and the keys that its family knows."""
        model_type = self._model_type()
        self._file.read_tensor_table()
        refuse_unread_types(self._file)
        self.config = gguf_config(self._file, model_type)
        there = self._file.tensors
        keys = family(model_type).GGUF
        assert keys is not None  # gguf_family selects only families with GGUF keys
        spec = with_mtp(spec_for(self.config, file=self.path), lambda tensor: tensor.gguf.name in there)
        return spec, keys.of(self._file)

    def _model_type(self) -> str:
        if declares_adapter(self.metadata):
            raise given_as_model(self.path)
        key = "general.architecture"
        if key not in self.metadata:
            raise self._file.error(key, None, "is missing")
        architecture = self._file.scalar(key)
        if architecture not in gguf_architectures():
            refuse_encoder(self.path, architecture)
            raise UnsupportedModelError(
                f"{self.path}: {key} is {shown(architecture)}; supported architectures are "
                f"{', '.join(gguf_architectures())}",
                hint="other families run on the torch engine from a Hugging Face folder with safetensors",
            )
        found = gguf_family(self._file, architecture)
        if found is None:
            raise UnsupportedModelError(
                f"{self.path}: no supported family matches the metadata of architecture {architecture}"
            )
        return found

    def _in_file(self, tensor: Tensor) -> Tensor:
        """Return the weight with its place in this file, considering the names of other converters."""
        return with_old_names(tensor, self._file.tensors)

    def _check_tensors(self) -> None:
        """Check that every tensor is present with the shape that the config implies.

        Raises:
            ModelFormatError: if a tensor is missing or has a wrong shape.
            UnsupportedModelError: if a vector is quantized.
        """
        file = self._file
        for tensor in self._tensors.values():
            place = tensor.gguf
            if tensor.name in self._numbers:
                continue
            if place.name not in file.tensors:
                alone = self.spec.mtp is not None and not any(name.startswith("blk.0.") for name in file.tensors)
                raise file.error(
                    place.name, None, "is missing from the file",
                    hint=f"the file has only an MTP block: give the model, and {arg('drafter', str(file.path))}"
                    if alone else "",
                )  # fmt: skip
            found = file.tensors[place.name]
            # llama.cpp's tools omit leading dimensions of 1.
            if (*(1,) * (len(place.shape) - len(found.shape)), *found.shape) != place.shape:
                raise found.error(found.entry, f"has shape {list(found.shape)}; the metadata imply {list(place.shape)}")
            if not tensor.is_matrix and found.type.block > 1:
                raise UnsupportedModelError(
                    f"{file.path}: {place.name} is a vector of type {found.type.name}; vectors must be F32, F16 or BF16"
                )

    def _check_names(self, unused: tuple[str, ...]) -> None:
        """Raise UnsupportedModelError for a tensor that is not part of the model."""
        file = self._file
        known = {tensor.gguf.name for tensor in self._tensors.values()} | set(ROPE_TENSORS)
        for name in file.tensors:
            passed = name.startswith((*self.spec.read_past, *self.spec.unread))
            if name not in known and not name.endswith(unused) and not passed:
                raise UnsupportedModelError(
                    f"{file.path}: tensor {name} is not part of the supported {self.spec.model_type} model"
                )

    def _number(self, tensor: Tensor) -> PackedWeight:
        """Return a weight that is an entry of a list in the metadata; raise ModelFormatError if it is invalid."""
        key, at = tensor.gguf.name, self._file.offsets.get(tensor.gguf.name)
        values = self.metadata.get(key)
        if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.shape != tensor.gguf.shape:
            raise self._file.error(key, at, f"is not a list of {tensor.gguf.shape[0]} numbers, one per layer")
        (first, _) = tensor.gguf.rows or (0, 1)
        if not np.isfinite(values[first]):
            raise self._file.error(key, at, f"value {first} is NaN or infinite")
        return PackedWeight("fp32", tensor.shape, np.full(tensor.shape, values[first], np.float32))

    def names(self) -> Sequence[str]:
        return [tensor.name for tensor in self.spec.own_tensors()]

    def info(self, name: str) -> TensorInfo:
        if name in self._numbers:
            return TensorInfo(self._numbers[name].shape, "fp32")
        tensor, source = self._find(name)
        low_bit = self._stored_format(source)
        decoded = source.type.name if source.type.decoded else ""
        if tensor.gguf.layout == "by_input" and low_bit != transposed_format(low_bit):
            low_bit, decoded = transposed_format(low_bit), source.type.name
        return TensorInfo(tensor.shape, low_bit, FORMATS[low_bit].group_sizes[0], decoded)

    def _stored_format(self, source: GgufTensor) -> str:
        if not source.type.decoded:
            return source.type.format
        if source.name not in self._stored_formats:
            form = self._stored_formats[source.name] = stored_format(source)
            if form != source.type.format:
                _log.warning("%s: decoding %s (%s) to %s, because its scales are too small for %s", self.path,
                             source.name, source.type.name, form, source.type.format)  # fmt: skip
        return self._stored_formats[source.name]

    def read(self, name: str) -> PackedWeight:
        """Read a tensor, with rows in Hugging Face's order. Codes and scales keep their bits, see ``info`` for others.

        Takes 4 MiB in addition to the tensor, or twice the tensor for float tensors with reordered rows.

        Raises:
            ModelFormatError: if a float or scale is NaN or infinite, or the file was truncated meanwhile.
        """
        if name in self._numbers:
            return self._numbers[name]
        tensor, source = self._find(name)
        if tensor.gguf.layout == "by_input":
            rows = stored_rows(tensor, tensor.gguf)
            return transpose(self._read(rows, source, run_of(rows, rows.gguf)))
        run = run_of(tensor, tensor.gguf)
        parts = [
            self._read(replace(tensor, shape=(count, *tensor.shape[1:])), source, Run(first, count, 1))
            for first, count in run.stretches()
        ]
        weight = parts[0] if len(parts) == 1 else joined(parts)
        if not (tensor.gguf.negative_exponential or tensor.gguf.exponential):
            return weight
        return self._as_logarithm(weight, source, 1 if tensor.gguf.exponential else -1)

    @staticmethod
    def _as_logarithm(weight: PackedWeight, source: GgufTensor, sign: int) -> PackedWeight:
        values = as_logarithm(weight, sign)
        if not (good := np.isfinite(values.codes)).all():
            bad = int(np.argmin(good))
            raise source.error(source.offset + 4 * bad, f"value {bad} must be {'positive' if sign > 0 else 'negative'}")
        return values

    def _read(self, tensor: Tensor, source: GgufTensor, run: Run) -> PackedWeight:
        """Read consecutive rows of a tensor."""
        order = row_order(tensor, tensor.gguf)
        if source.type.decoded:
            return read_decoded(source, tensor.shape, run, order, self._stored_format(source))
        if source.type.format in FLOATS:
            return with_offset(self._read_floats(tensor, source, run, order), tensor.gguf.offset)
        target = FORMATS[source.type.format]
        assert target.gguf is not None
        record, group_size = target.gguf.record, target.group_sizes[0]
        fields: Any = record.fields
        rows, blocks = tensor.shape[0], tensor.shape[1] // target.gguf.inputs
        arrays = {
            stream.name: np.empty(stream.shape(tensor.shape, group_size), stream.dtype) for stream in target.streams
        }
        row_bytes = blocks * record.itemsize
        step = max(1, _READ_AT_ONCE // row_bytes)
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            first = run.first + start
            place: Any = slice(start, stop) if order is None else order[start:stop]
            whole = len(target.streams) == 1 and order is None  # blocks are unchanged and can be read in place
            buffer: Any = arrays["codes"][place].view(record) if whole else np.empty((stop - start, blocks), record)
            source.file.read_into(source.offset + first * row_bytes, buffer, source.name)
            for stream in target.streams:
                part = _field(buffer, stream.name).reshape(stop - start, -1)
                if (bad := target.bad_scale(stream.name, part)) is not None:
                    block, element = divmod(bad.index, part.size // buffer.size)
                    field = int(fields[stream.name][1]) + element * stream.itemsize
                    at = source.offset + first * row_bytes + block * record.itemsize + field
                    raise source.error(at, f"{bad.what} {first * blocks + block} {bad.problem}")
                if not whole:
                    arrays[stream.name][place] = part
        return PackedWeight(source.type.format, tensor.shape, group_size=group_size, **arrays)

    def _read_floats(
        self, tensor: Tensor, source: GgufTensor, run: Run, order: npt.NDArray[np.intp] | None
    ) -> PackedWeight:
        values: npt.NDArray[np.generic] = np.empty(tensor.shape, FORMATS[source.type.format].streams[0].dtype)
        start = source.offset + run.first * (values.nbytes // tensor.shape[0])
        source.file.read_into(start, values, source.name)
        if (bad := first_not_finite(values, source.type.format)) is not None:
            raise source.error(start + bad * values.itemsize, f"value {bad} is NaN or infinite")
        if order is not None:
            in_file, values = values, np.empty_like(values)
            values[order] = in_file
        return PackedWeight(source.type.format, tensor.shape, values)

    def _find(self, name: str) -> tuple[Tensor, GgufTensor]:
        if name not in self._tensors:
            raise self._file.error(name, None, "no tensor has this name")
        tensor = self._tensors[name]
        return tensor, self._file.tensors[tensor.gguf.name]

    def text_tokenizer(self) -> Any | None:
        if "tokenizer.ggml.tokens" not in self.metadata:
            return None
        from ipex_lookahead.tokenization.gguf import text_from_gguf

        try:
            return text_from_gguf(self.metadata, self.path)
        except ModelFormatError as error:
            if error.offset is None and error.field in self._file.offsets:
                at = self._file.offsets[error.field]
                raise self._file.error(error.field, at, error.problem, hint=error.hint) from None
            raise

    def close(self) -> None:
        self._file.close()


def _field(records: npt.NDArray[np.void], name: str) -> npt.NDArray[Any]:
    """Return a field of records [rows, blocks] as a contiguous array.

    numpy copies elements of 16 bytes several times faster than 16 single bytes.
    """
    fields: Any = records.dtype.fields
    kind, start = fields[name][:2]
    if kind.itemsize % 16 or kind.itemsize == records.itemsize:  # the whole record is contiguous already
        return np.ascontiguousarray(records[name])
    found: npt.NDArray[Any] = np.empty((*records.shape, kind.itemsize // 16), "V16")
    for piece in range(found.shape[-1]):
        part: Any = {"names": ["x"], "formats": ["V16"], "offsets": [start + 16 * piece], "itemsize": records.itemsize}
        found[..., piece] = records.view(np.dtype(part))["x"]
    return found.view(kind.base)


def refuse_unread_types(file: GgufParts) -> None:
    """Raise UnsupportedModelError, with a command for conversion, if tensors have types that cannot be read."""
    unread = Counter(tensor.type.name for tensor in file.tensors.values() if not tensor.type.format)
    if not unread:
        return
    first = next(tensor for tensor in file.tensors.values() if not tensor.type.format)
    counts = ", ".join(f"{count} of {name}" for name, count in unread.most_common())
    raise UnsupportedModelError(
        f"{file.path}: tensor {first.name} has type {first.type.name}; supported types are {names_of_read_types()}"
        f" (unsupported in this file: {counts})",
        hint=f"use a Q8_0 or Q4_0 file of this model, or convert: llama-quantize --allow-requantize {file.path.name} "
        f"{file.path.stem}-Q8_0.gguf Q8_0",
    )
