"""compressed-tensors (llm-compressor) folders: settings, and integer weights, packed or as bytes.

``compressed_floats.py`` reads float weights. Integer tensors of a layer ``NAME`` with b bits, 32 / b codes per word,
lowest bits first, codes numbered from -2^(b-1):
  NAME.weight_packed      int32 [n_out, ceil(n_in * b / 32)]; in unpacked formats NAME.weight, int8 [n_out, n_in]
  NAME.weight_scale       [n_out, groups]; [n_out, 1] for one per row, [1] for one in all
  NAME.weight_zero_point  int32 [ceil(n_out * b / 32), groups], words along the outputs, or int8 [n_out, groups];
                          absent if symmetric
  NAME.weight_shape       [2], n_out and n_in
  NAME.weight_g_idx       int32 [n_in], the group of each input; if absent, groups are consecutive inputs

w[o, i] = scale[o, g] * (code - zero[o, g]).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ipex_lookahead.architectures.hparams import Source, boolean, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.compressed_floats import CompressedFp8, CompressedMxfp4, CompressedNvfp4
from ipex_lookahead.checkpoints.quantized_floats import FloatBlocks
from ipex_lookahead.checkpoints.quantized_groups import Grouped, codes_of
from ipex_lookahead.checkpoints.quantized_layers import (
    Array,
    Layer,
    Scheme,
    Settings,
    block_shape,
    choice,
    group_size,
    rows_of,
    unsupported,
)
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight

_PACKED, _INT, _EITHER = ("pack-quantized",), ("int-quantized",), ("naive-quantized",)
_FLOAT8, _FLOAT4 = ("float-quantized", "mxfp8-quantized"), ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_SETTINGS = Settings(
    provenance=True,
    used={
        "format": choice(*_PACKED, *_INT, *_EITHER, *_FLOAT8, *_FLOAT4),
        "config_groups": lambda source, key, value: value,
    },
    neutral={"global_compression_ratio", "ignore", "version"},
    refused={
        "quant_method": Refusal(unless=("compressed-tensors",)),
        "quantization_status": Refusal(unless=(None, "compressed", "frozen")),  # "frozen": releases of 2024
        "kv_cache_scheme": Refusal(unless=(None,)),
        "sparsity_config": Refusal(unless=(None, {})),
        "transform_config": Refusal(unless=(None, {})),
    },
)
_GROUP = Settings(
    used={"weights": lambda source, key, value: value, "input_activations": lambda source, key, value: value},
    neutral={"targets", "format"},
    refused={"output_activations": Refusal(unless=(None,))},
)
_FOUND = ("actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")
"""Keys that describe the calibration, or repeat what the tensors say."""
_INTEGERS = Settings(
    used={
        "num_bits": choice(4, 8),
        "type": choice("int"),
        "symmetric": boolean,
        "strategy": choice("group", "channel", "tensor"),
        "group_size": group_size,
    },
    neutral=_FOUND,
    refused={"dynamic": Refusal(unless=(None, False)), "block_structure": Refusal(unless=(None,))},
)
_FLOATS8 = Settings(
    used={
        "num_bits": choice(8),
        "type": choice("float"),
        "symmetric": choice(True),
        "strategy": choice("group", "channel", "tensor", "block"),
        "group_size": group_size,
        "block_structure": block_shape,
    },
    neutral=_FOUND,
    refused={"dynamic": Refusal(unless=(None, False))},
)
_FLOATS4 = Settings(
    used={
        "num_bits": choice(4),
        "type": choice("float"),
        "symmetric": choice(True),
        "strategy": choice("group", "tensor_group"),
        "group_size": group_size,
    },
    neutral=_FOUND,
    refused={"dynamic": Refusal(unless=(None, False)), "block_structure": Refusal(unless=(None,))},
)
_ACTIVATIONS = Settings(
    used={"num_bits": choice(8), "type": choice("int"), "dynamic": choice(True)},
    neutral={*_FOUND, "strategy", "symmetric"},
    refused={"group_size": Refusal(unless=(None,)), "block_structure": Refusal(unless=(None,))},
)
"""Dynamic quantization of activations. The native core's own (8 bits in groups of 32) is finer."""
_FLOAT_ACTIVATIONS = Settings(
    used={"num_bits": choice(4, 8), "type": choice("float")},
    neutral={*_FOUND, "strategy", "symmetric", "dynamic", "group_size", "block_structure"},
)
"""Rounding of activations to 8- or 4-bit floats. The native core's own quantization is more precise."""


@dataclass(frozen=True, slots=True)
class CompressedTensors(Scheme):
    """Integer weights of compressed-tensors.

    Attributes:
        grouped: meaning of the codes.
        strategy: "group", "channel" or "tensor".
        codes: name of the tensor with the codes, "weight_packed" or "weight".
    """

    grouped: Grouped
    strategy: str
    codes: str
    name: ClassVar[str] = "compressed-tensors"
    marks: ClassVar[tuple[str, ...]] = ("weight_scale", "weight_packed")

    @property
    def tensors(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.codes, "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        self._check(tensor, layer)
        order = self.grouped.order(tensor, layer, "weight_g_idx")
        return self.grouped.info_of(tensor, layer, "weight_scale", order)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows, bits = rows_of(tensor), self.grouped.bits
        n_out, n_in = tensor.hf.shape
        stored = layer.read(self.codes)
        codes = self._whole(layer, self.codes, stored) if self.codes == "weight" else codes_of(stored, bits)[:, :n_in]
        scales = self._of_rows(layer.floats("weight_scale"), n_out)[rows]
        zeros = self._zeros(layer, n_out)
        order = self.grouped.order(tensor, layer, "weight_g_idx")
        return self.grouped.weight(info, codes[rows], scales, None if zeros is None else zeros[rows], order)

    def _of_rows(self, numbers: Array, n_out: int) -> Array:
        """Broadcast the numbers of a file, one per scale, to [n_out, groups]."""
        numbers = numbers if self.strategy == "group" else numbers.reshape(-1, 1)
        return np.broadcast_to(numbers, (n_out, numbers.shape[1]))

    def _whole(self, layer: Layer, part: str, values: Array) -> Array:
        """Convert int8 numbers to codes that count from 0; raise ModelFormatError for one beyond the number of bits."""
        middle = 1 << (self.grouped.bits - 1)
        wide = values.astype(np.int16)
        if (bad := (wide < -middle) | (wide >= middle)).any():
            at = int(bad.argmax())
            raise layer.error(
                part, f"value {at} is {values.reshape(-1)[at]}, which exceeds {self.grouped.bits} bits", at
            )
        return (wide + middle).astype(np.uint8)

    def _shapes(self, n_out: int, groups: int) -> Sequence[tuple[int, ...]]:
        """Return the allowed shapes of a tensor with one number per scale."""
        if self.strategy == "group":
            return [(n_out, groups)]
        return [(n_out, 1), (n_out,)] if self.strategy == "channel" else [(1,), (), (1, 1)]

    def _check(self, tensor: Tensor, layer: Layer) -> None:
        layer.check_plain(tensor, next(iter(layer.tensors)), self.codes, "weight_scale")
        (n_out, n_in), bits = tensor.hf.shape, self.grouped.bits
        groups = self.grouped.groups(n_in)
        if self.codes == "weight":
            layer.check(self.codes, (n_out, n_in), "I8")
        else:
            layer.check(self.codes, (n_out, -(-n_in * bits // 32)), "I32")
        layer.check("weight_scale", self._shapes(n_out, groups), *FLOATS)
        if "weight_shape" in layer:
            layer.check_shape_tensor("weight_shape", (n_out, n_in))
        if "weight_zero_point" in layer:
            if layer.kind("weight_zero_point") == "I32":
                layer.check("weight_zero_point", (-(-n_out * bits // 32), groups), "I32")
            else:
                layer.check("weight_zero_point", self._shapes(n_out, groups), "I8")
        elif not self.grouped.symmetric:
            raise layer.error("weight_scale", "has no weight_zero_point, but symmetric is false")

    def _zeros(self, layer: Layer, n_out: int) -> Array | None:
        """Return zero points [n_out, groups], numbered like codes; None if all are the middle code."""
        if "weight_zero_point" not in layer:
            return None
        bits, stored = self.grouped.bits, layer.read("weight_zero_point")
        if stored.dtype == np.int8:
            zeros = self._of_rows(self._whole(layer, "weight_zero_point", stored), n_out)
        else:
            zeros = codes_of(stored.T, bits)[:, :n_out].T
        if not self.grouped.symmetric:
            return zeros
        if (bad := zeros != 1 << (bits - 1)).any():
            row, group = np.unravel_index(int(bad.argmax()), bad.shape)
            raise layer.error("weight_zero_point", f"is not 0 in row {row}, group {group}, but symmetric is true")
        return None


def compressed_tensors(raw: JsonObject, source: Source) -> Scheme:
    """Return the scheme of a ``quantization_config``. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "compressed-tensors")
    groups = settings.get("config_groups")
    if "format" not in settings:
        raise source.error("format", "is missing")
    if not isinstance(groups, JsonObject) or not groups:
        raise source.error("config_groups", f"is {shown(groups)}; it must be an object of groups of layers")
    found = {name: _group(name, group, source, settings["format"]) for name, group in groups.items()}
    kinds = set(found.values())
    if len(kinds) > 1:
        raise unsupported(source, "config_groups", ", ".join(found), "one kind of weights for all groups")
    return kinds.pop()


def _group(name: str, raw: Any, source: Source, form: str) -> Scheme:
    spelled = f"{source.spelling('config_groups')}.{name}"
    group = Source.of(_object(raw, source, "config_groups", f"{name} is"), source.file, spelled)
    settings = _GROUP.read(raw, group, "compressed-tensors")
    if raw.get("format") not in (None, form):
        raise unsupported(group, "format", raw["format"], form)
    weights = _object(settings.get("weights"), group, "weights", "is")
    at = Source.of(weights, source.file, f"{spelled}.weights")
    floats = form in (*_FLOAT8, *_FLOAT4) or form in _EITHER and weights.get("type") == "float"
    said = (_FLOATS4 if form in _FLOAT4 else _FLOATS8 if floats else _INTEGERS).read(weights, at, "compressed-tensors")
    activations = settings.get("input_activations")
    if activations is not None:
        found = _object(activations, group, "input_activations", "is")
        if not floats and found.get("dynamic") is not True:
            raise unsupported(group, "input_activations", found, None, "dynamic ones of 8 bits")
        of_activations = _FLOAT_ACTIVATIONS if floats else _ACTIVATIONS
        place = Source.of(found, source.file, f"{spelled}.input_activations")
        of_activations.read(found, place, "compressed-tensors")
    for key in ("num_bits", "strategy"):
        if key not in said:
            raise at.error(key, "is missing")
    if said["strategy"] in ("group", "tensor_group") and said.get("group_size", -1) == -1:
        raise at.error("group_size", f"is missing or -1, but strategy is {said['strategy']!r}")
    if form in _FLOAT4:
        return _of_four_bits(said, at, form)
    if floats:
        return CompressedFp8(_blocks(said, at))
    size = said["group_size"] if said["strategy"] == "group" else -1
    grouped = Grouped(said["num_bits"], size, said.get("symmetric", True))
    return CompressedTensors(grouped, said["strategy"], "weight_packed" if form in _PACKED else "weight")


def _of_four_bits(said: dict[str, Any], source: Source, form: str) -> Scheme:
    kind, size = (CompressedNvfp4(), 16) if form.startswith("nvfp4") else (CompressedMxfp4(), 32)
    if said["group_size"] != size:
        raise unsupported(source, "group_size", said["group_size"], size)
    return kind


def _blocks(said: dict[str, Any], source: Source) -> FloatBlocks:
    strategy = said["strategy"]
    if strategy == "block":
        if "block_structure" not in said:
            raise source.error("block_structure", "is missing, but strategy is 'block'")
        return FloatBlocks(*said["block_structure"])
    return FloatBlocks(-1 if strategy == "tensor" else 1, said["group_size"] if strategy == "group" else -1)


def _object(value: Any, source: Source, key: str, words: str) -> JsonObject:
    if not isinstance(value, JsonObject):
        raise source.error(key, f"{words} {shown(value)}; it must be an object")
    return value
