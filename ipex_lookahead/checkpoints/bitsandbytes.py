"""bitsandbytes checkpoints: nf4 and fp4 (QLoRA, arXiv 2305.14314), and LLM.int8() (arXiv 2208.07339).

Tensors of a layer ``NAME`` with four bits, values numbered row by row and grouped in blocks of ``blocksize``:
  NAME.weight                   n_out * n_in / 2 bytes of any dtype, two codes per byte, the first in the high nibble
  NAME.weight.absmax            [blocks], float32; with double quantization uint8 codes for
  NAME.weight.nested_quant_map  float32 [256], which are multiplied by
  NAME.weight.nested_absmax     float32, one per ``nested_blocksize`` codes; then ``nested_offset`` is added
  NAME.weight.quant_map         float32 [16], the values of the weight's codes
  NAME.weight.quant_state.bitsandbytes__nf4 (or fp4)  JSON in bytes: the numbers named here, shape and dtype

w = quant_map[code] * absmax[block]. With eight bits NAME.weight is int8 [n_out, n_in] and NAME.SCB float32 [n_out], the
value of code 127: w[o, i] = code * (SCB[o] / 127), whereas bitsandbytes rounds code * SCB before the division.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import Source, boolean, integer, number, shown, text
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_layers import (
    Layer,
    Scheme,
    Settings,
    choice,
    rows_of,
    unsupported,
)
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject, parse
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.table import BLOCK_FORMATS

_SETTINGS = Settings(
    used={
        "load_in_4bit": boolean,
        "load_in_8bit": boolean,
        "_load_in_4bit": boolean,
        "_load_in_8bit": boolean,
        "bnb_4bit_quant_type": choice("nf4", "fp4"),
    },
    neutral={
        "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload", "llm_int8_skip_modules", "llm_int8_threshold",
    },
    refused={
        "quant_method": Refusal(unless=("bitsandbytes",)),
        "llm_int8_has_fp16_weight": Refusal(unless=(None, False)),
    },
)  # fmt: skip
_STATE = Settings(
    used={
        "quant_type": choice("nf4", "fp4"),
        "blocksize": integer(1, 1 << 20),
        "shape": lambda source, key, value: value,
        "nested_blocksize": integer(1, 1 << 20),
        "nested_offset": number(-1e30, 1e30),
        "nested_dtype": choice("float32"),
        "dtype": text,
    }
)
_MAX_STATE = 4096
_OF_4_BITS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
_BLOCK = BLOCK_FORMATS["bnb_nf4"].inputs
"""Inputs that share a scale in all formats here."""


@dataclass(frozen=True, slots=True)
class State:
    """Settings from a layer's JSON."""

    format: BlockFormat
    blocksize: int
    nested_blocksize: int
    nested_offset: float


@dataclass(frozen=True, slots=True)
class BitsAndBytes(Scheme):
    """The bitsandbytes scheme. ``bits`` is 4 or 8; ``quant_type`` is "nf4" or "fp4" for four bits."""

    bits: int
    quant_type: str | None
    name: ClassVar[str] = "bitsandbytes"

    def parts(self, name: str, names: Collection[str]) -> dict[str, str]:
        module = name.removesuffix(".weight")
        if self.bits == 8:
            known = {"SCB": f"{module}.SCB", "weight_format": f"{module}.weight_format"}
        else:
            known = {part: f"{name}.{part}" for part in (*_OF_4_BITS, *_STATES)}
        found = {part: full for part, full in known.items() if full in names}
        return {"weight": name, **found} if found and name in names else found

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        first = next(iter(layer.tensors))
        needed = ("weight", "SCB") if self.bits == 8 else ("weight", "absmax", "quant_map")
        layer.check_plain(tensor, first, *needed)
        if self.bits == 8:
            layer.check("weight", tensor.hf.shape, "I8")
            layer.check("SCB", tensor.hf.shape[:1], "F32")
            if "weight_format" in layer:
                layer.check("weight_format", (), "U8")
                if found := int(layer.read("weight_format")):
                    raise layer.error("weight_format", f"is {found}; only 0, rows in their order, is supported", 0)
            return TensorInfo(tensor.shape, "sym_int8_fp32")
        state = self._state(tensor, layer)
        if tensor.hf.shape[1] % _BLOCK or state.blocksize % _BLOCK:
            decoded = f"{state.format.name}, blocks of {state.blocksize} in rows of {tensor.hf.shape[1]}"
            return TensorInfo(tensor.shape, "fp32", decoded_from=decoded)
        return TensorInfo(tensor.shape, state.format.name)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows = rows_of(tensor)
        n_out, n_in = tensor.hf.shape
        if self.bits == 8:
            codes = layer.read("weight")[rows].view(np.uint8)
            scales = layer.floats("SCB")[rows] / np.float32(127)
            numbers = np.repeat(scales[:, None], -(-n_in // _BLOCK), axis=1)
            return BLOCK_FORMATS["sym_int8_fp32"].matrix(codes, numbers)
        state = self._state(tensor, layer)
        data = layer.data("weight")
        codes = np.stack((data >> 4, data & 15), axis=-1).reshape(-1)[: n_out * n_in].reshape(n_out, n_in)[rows]
        if not np.array_equal(layer.floats("quant_map"), np.array(state.format.table, np.float32)):
            raise layer.error("quant_map", f"is not the table of {state.format.name.removeprefix('bnb_')}")
        absmax = self._absmax(layer, state)
        if info.format == "fp32":
            scales = absmax[np.arange(n_out * n_in) // state.blocksize].reshape(n_out, n_in)[rows]
            return PackedWeight("fp32", info.shape, state.format.whole(codes) * scales)
        scales = absmax[np.arange(0, n_out * n_in, _BLOCK) // state.blocksize].reshape(n_out, -1)[rows]
        return state.format.matrix(codes, np.ascontiguousarray(scales))

    def _state(self, tensor: Tensor, layer: Layer) -> State:
        """Read a layer's JSON and check the layer's tensors against it."""
        given = [part for part in _STATES if part in layer]
        if len(given) != 1:
            raise layer.error("weight", f"has {len(given)} quant_state tensors; it must have one")
        part = given[0]
        file, stored = layer.tensors[part]
        if stored.dtype != "U8" or len(stored.shape) != 1 or not 2 <= stored.nbytes <= _MAX_STATE:
            raise layer.error(
                part, f"is {stored.dtype} {list(stored.shape)}; it must be U8, of at most {_MAX_STATE} bytes"
            )
        raw = parse(layer.data(part).tobytes(), file.path, stored.name, start=stored.offset, max_depth=2)
        if not isinstance(raw, JsonObject):
            raise layer.error(part, "is not a JSON object", 0)
        source = Source.of(raw, file.path, stored.name)
        said = _STATE.read(raw, source, "bitsandbytes")
        kind = part.rpartition("__")[2]
        if said.get("quant_type") != kind or self.quant_type not in (None, kind):
            known = self.quant_type or kind
            raise layer.error(part, f"has quant_type {shown(said.get('quant_type'))}; name and settings imply {known}")
        n_out, n_in = tensor.hf.shape
        if said.get("shape") != [n_out, n_in]:
            raise layer.error(part, f"has shape {shown(said.get('shape'))}, but the config implies {[n_out, n_in]}")
        if "blocksize" not in said:
            raise source.error("blocksize", "is missing")
        blocks = -(-n_out * n_in // said["blocksize"])
        weight = layer.tensors["weight"][1]
        if weight.nbytes != (size := -(-n_out * n_in // 2)):
            raise layer.error("weight", f"has {weight.nbytes} bytes; {n_out} x {n_in} codes take {size}")
        layer.check("quant_map", (16,), "F32")
        layer.check("absmax", (blocks,), "F32", "U8")
        if nested := layer.kind("absmax") == "U8":
            for needed in ("nested_absmax", "nested_quant_map"):
                if needed not in layer:
                    raise layer.error("absmax", f"has eight bits, but {needed} is missing")
            for key in ("nested_blocksize", "nested_offset"):
                if key not in said:
                    raise source.error(key, "is missing, but absmax has eight bits")
            layer.check("nested_quant_map", (256,), "F32")
            layer.check("nested_absmax", (-(-blocks // said["nested_blocksize"]),), "F32")
        return State(
            BLOCK_FORMATS[f"bnb_{kind}"],
            said["blocksize"],
            said["nested_blocksize"] if nested else 0,
            said["nested_offset"] if nested else 0.0,
        )

    def _absmax(self, layer: Layer, state: State) -> npt.NDArray[np.float32]:
        """Return the float32 scale of each block."""
        if not state.nested_blocksize:
            return layer.floats("absmax")
        codes = layer.read("absmax")
        outer = layer.floats("nested_absmax")[np.arange(codes.size) // state.nested_blocksize]
        with np.errstate(over="ignore"):
            scales: npt.NDArray[np.float32] = layer.floats("nested_quant_map")[codes] * outer
            scales += np.float32(state.nested_offset)
        if not (ordinary := np.isfinite(scales)).all():
            at = int((~ordinary).argmax())
            raise layer.error("absmax", f"scale {at} is infinite", at)
        return scales


def bitsandbytes(raw: JsonObject, source: Source) -> BitsAndBytes:
    """Return the scheme of a ``quantization_config``. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "bitsandbytes")
    four, eight = (settings.get(f"load_in_{n}bit", settings.get(f"_load_in_{n}bit", False)) for n in (4, 8))
    if four == eight:
        raise unsupported(source, "load_in_4bit", four, f"{not four} with load_in_8bit {shown(eight)}")
    return BitsAndBytes(4 if four else 8, settings.get("bnb_4bit_quant_type") if four else None)
