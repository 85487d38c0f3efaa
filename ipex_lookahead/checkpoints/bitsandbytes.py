"""Checkpoints of bitsandbytes: nf4 and fp4 (QLoRA, arXiv 2305.14314), LLM.int8() (arXiv 2208.07339).

A layer ``NAME`` of four bits, its values counted row by row and in blocks of ``blocksize``:
  NAME.weight                   n_out * n_in / 2 bytes of any dtype, two codes a byte, the first in the high nibble
  NAME.weight.absmax            [blocks], float32; or with double quantisation uint8, codes of
  NAME.weight.nested_quant_map  float32 [256], times the scales
  NAME.weight.nested_absmax     float32, one for ``nested_blocksize`` of those, and plus ``nested_offset``
  NAME.weight.quant_map         float32 [16], what the weight's codes stand for
  NAME.weight.quant_state.bitsandbytes__nf4 (or fp4)  JSON in bytes: the numbers named here, shape and dtype

w = quant_map[code] * absmax[block]. Of eight bits NAME.weight is int8 [n_out, n_in] and NAME.SCB float32 [n_out], what
127 stands for: w[o, i] = code * (SCB[o] / 127), where bitsandbytes rounds code * SCB before it divides.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

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
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.blocks import BlockFormat
from ipex_lookahead.formats.float_scales import INPUTS, packed

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


@dataclass(frozen=True, slots=True)
class State:
    """What the JSON of a layer says."""

    format: BlockFormat
    blocksize: int
    nested_blocksize: int
    nested_offset: float


@dataclass(frozen=True, slots=True)
class BitsAndBytes(Scheme):
    """The scheme; see ``quantized_layers.Scheme``. ``bits``: 4 or 8; ``quant_type``: "nf4" or "fp4" for four."""

    bits: int
    quant_type: str | None
    name: ClassVar[str] = "bitsandbytes"

    def parts(self, name: str, names: Collection[str]) -> dict[str, str]:
        """See ``Scheme.parts``."""
        module = name.removesuffix(".weight")
        if self.bits == 8:
            known = {"SCB": f"{module}.SCB", "weight_format": f"{module}.weight_format"}
        else:
            known = {part: f"{name}.{part}" for part in (*_OF_4_BITS, *_STATES)}
        found = {part: full for part, full in known.items() if full in names}
        return {"weight": name, **found} if found and name in names else found

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``. Reads the layer's JSON."""
        first = next(iter(layer.tensors))
        needed = ("weight", "SCB") if self.bits == 8 else ("weight", "absmax", "quant_map")
        layer.check_plain(tensor, first, *needed)
        if self.bits == 8:
            layer.check("weight", tensor.hf.shape, "I8")
            layer.check("SCB", tensor.hf.shape[:1], "F32")
            if "weight_format" in layer:
                layer.check("weight_format", (), "U8")
                if found := int(layer.read("weight_format")):
                    raise layer.error("weight_format", f"is {found}; rows in their order, 0, are read", 0)
            return TensorInfo(tensor.shape, "sym_int8_fp32")
        state = self._state(tensor, layer)
        if tensor.hf.shape[1] % INPUTS or state.blocksize % INPUTS:
            decoded = f"{state.format.name}, blocks of {state.blocksize} in rows of {tensor.hf.shape[1]}"
            return TensorInfo(tensor.shape, "fp32", decoded_from=decoded)
        return TensorInfo(tensor.shape, state.format.name)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        rows = rows_of(tensor)
        n_out, n_in = tensor.hf.shape
        if self.bits == 8:
            codes = layer.read("weight")[rows].view(np.uint8)
            scales = layer.floats("SCB")[rows] / np.float32(127)
            return packed(_format("sym_int8_fp32"), codes, np.repeat(scales[:, None], -(-n_in // INPUTS), axis=1))
        state = self._state(tensor, layer)
        data = layer.data("weight")
        codes = np.stack((data >> 4, data & 15), axis=-1).reshape(-1)[: n_out * n_in].reshape(n_out, n_in)[rows]
        if not np.array_equal(layer.floats("quant_map"), np.array(state.format.table, np.float32)):
            raise layer.error("quant_map", f"is not the table of {state.format.name.removeprefix('bnb_')}")
        absmax = self._absmax(layer, state)
        if info.format == "fp32":
            scales = absmax[np.arange(n_out * n_in) // state.blocksize].reshape(n_out, n_in)[rows]
            return PackedWeight("fp32", info.shape, state.format.whole(codes) * scales)
        scales = absmax[np.arange(0, n_out * n_in, INPUTS) // state.blocksize].reshape(n_out, -1)[rows]
        return packed(state.format, codes, np.ascontiguousarray(scales))

    def _state(self, tensor: Tensor, layer: Layer) -> State:
        """What the layer's JSON says, and whether its tensors go with it."""
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
            raise layer.error(part, f"says {shown(said.get('quant_type'))}; name and settings say {known}")
        n_out, n_in = tensor.hf.shape
        if said.get("shape") != [n_out, n_in]:
            raise layer.error(part, f"says shape {shown(said.get('shape'))}, but the config implies {[n_out, n_in]}")
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
                    raise layer.error("absmax", f"is of eight bits, and {needed} is not there")
            for key in ("nested_blocksize", "nested_offset"):
                if key not in said:
                    raise source.error(key, "is missing, and absmax is of eight bits")
            layer.check("nested_quant_map", (256,), "F32")
            layer.check("nested_absmax", (-(-blocks // said["nested_blocksize"]),), "F32")
        return State(
            _format(f"bnb_{kind}"),
            said["blocksize"],
            said["nested_blocksize"] if nested else 0,
            said["nested_offset"] if nested else 0.0,
        )

    def _absmax(self, layer: Layer, state: State) -> npt.NDArray[np.float32]:
        """The scale of each block, float32."""
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


def _format(name: str) -> BlockFormat:
    found: Any = FORMATS[name]
    assert isinstance(found, BlockFormat)
    return found


def bitsandbytes(raw: JsonObject, source: Source) -> BitsAndBytes:
    """The scheme that a ``quantization_config`` describes. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "bitsandbytes")
    four, eight = (settings.get(f"load_in_{n}bit", settings.get(f"_load_in_{n}bit", False)) for n in (4, 8))
    if four == eight:
        raise unsupported(source, "load_in_4bit", four, f"{not four} beside load_in_8bit {shown(eight)}")
    return BitsAndBytes(4 if four else 8, settings.get("bnb_4bit_quant_type") if four else None)
