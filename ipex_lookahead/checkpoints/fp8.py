"""Folders with ``quant_method`` fp8: e4m3 floats with scales, as DeepSeek, Qwen and MiniMax publish them.

Tensors of a layer ``NAME``, with blocks of ``weight_block_size`` (for example 128 x 128) outputs and inputs:
  NAME.weight            F8_E4M3 [n_out, n_in]
  NAME.weight_scale_inv  [ceil(n_out / 128), ceil(n_in / 128)]; without blocks a single number, in AutoFP8 called
                         ``weight_scale``; floats, or the exponents of powers of two ("ue8m0")
  NAME.activation_scale, NAME.input_scale   ignored: activations stay floats here

w[o, i] = weight[o, i] * scale[o // 128, i // 128]; despite its name the scale is not inverted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_floats import FloatBlocks
from ipex_lookahead.checkpoints.quantized_layers import (
    Layer,
    Scheme,
    Settings,
    block_shape,
    choice,
    rows_of,
)
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight

_SETTINGS = Settings(
    used={"weight_block_size": block_shape, "scale_fmt": choice("float", "ue8m0")},
    neutral={"activation_scheme", "dequantize", "ignored_layers", "modules_to_not_convert"},
    refused={
        "quant_method": Refusal(unless=("fp8",)),
        "fmt": Refusal(unless=(None, "e4m3", "float8_e4m3fn")),
        "expert_dtype": Refusal(unless=(None, "fp8")),
        "kv_cache_scheme": Refusal(unless=(None,)),
        "modules_to_convert": Refusal(unless=(None, [])),
    },
)
_SCALES = ("weight_scale_inv", "weight_scale")


@dataclass(frozen=True, slots=True)
class Fp8(Scheme):
    """The fp8 scheme."""

    blocks: FloatBlocks
    name: ClassVar[str] = "fp8"
    tensors: ClassVar[tuple[str, ...]] = ("weight", *_SCALES, "activation_scale", "input_scale")
    marks: ClassVar[tuple[str, ...]] = _SCALES

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        scales = self._scales(layer)
        layer.check_plain(tensor, scales, "weight")
        return self.blocks.info(tensor, layer, "weight", scales)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        return self.blocks.weight(info, layer, "weight", self._scales(layer), rows_of(tensor))

    def _scales(self, layer: Layer) -> str:
        first, second = _SCALES
        if first in layer and second in layer:
            raise layer.error(second, f"is present in addition to {first}")
        return first if first in layer else second


def fp8(raw: JsonObject, source: Source) -> Fp8:
    """Return the scheme of a ``quantization_config``. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "fp8")
    return Fp8(FloatBlocks(*settings.get("weight_block_size", (-1, -1))))
