"""AWQ checkpoints (arXiv 2306.00978) in the three layouts of AutoAWQ.

Layers have 4 bits. In "gemm" words of 8 codes run along the outputs; a word holds the codes of outputs 8 j ... 8 j + 7
in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first. Tensors of a layer ``NAME``:
  NAME.qweight  int32 [n_in, n_out / 8]
  NAME.qzeros   int32 [groups, n_out / 8]
  NAME.scales   [groups, n_out]
In "gemv" words run along the inputs, in order; rows of zero points and scales are padded with zeros:
  NAME.qweight  int32 [n_out, n_in / 8]
  NAME.qzeros   int32 [n_out, width]
  NAME.scales   [n_out, width * 8], of which the first ``groups`` are used
In "gemv_fast" a word has 16 bits and holds one code of each of four outputs, in a special order within 64 inputs
(``_fast_codes``), and a zero point is stored as binary16 -scale * zero:
  NAME.qweight  int16 [n_out / 4, n_in]
  NAME.qzeros   [width * 8, n_out]
  NAME.scales   [width * 8, n_out]

w[o, i] = scales[g, o] * (code - zero[g, o]), g = i // group_size; in "gemv_fast" scales[g, o] * code + qzeros[g, o].
``_width`` computes ``width``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import Source, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_groups import Grouped, codes_of, fitting
from ipex_lookahead.checkpoints.quantized_layers import (
    AUTO_ROUND_NEUTRAL,
    AUTO_ROUND_REFUSED,
    Layer,
    Scheme,
    Settings,
    choice,
    exclusions,
    group_size,
    rows_of,
    unsupported,
)
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.float_base import to_binary16
from ipex_lookahead.formats.groups import pack_nibbles

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BACK = tuple(_ORDER.index(output) for output in range(8))
_LAYOUTS = ("gemm", "gemv", "gemv_fast")


def _layout(source: Source, key: str, value: Any) -> str:
    if not isinstance(value, str) or value.lower() not in _LAYOUTS:
        raise unsupported(source, key, value, *_LAYOUTS)
    return value.lower()


_SETTINGS = Settings(
    provenance=True,
    used={
        "dynamic": exclusions,
        "bits": choice(4),
        "w_bit": choice(4),
        "group_size": group_size,
        "q_group_size": group_size,
        "zero_point": choice(True),
        "version": _layout,
        "format": _layout,
    },
    neutral={
        *AUTO_ROUND_NEUTRAL,
        "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent",
        "dataset", "do_fuse", "exllama_config", "hyb_act", "fuse_max_seq_len", "lm_head", "max_input_length", "meta",
        "model_seqlen", "module_name_preceding_first_block", "modules_in_block_to_quantize", "modules_to_fuse",
        "modules_to_not_convert", "pad_token_id", "sym", "tokenizer", "true_sequential",
    },
    refused={
        **AUTO_ROUND_REFUSED,
        "quant_method": Refusal(unless=("awq",)),
        "method": Refusal(unless=("awq",)),
        "desc_act": Refusal(unless=(None, False)),
        "pack_dtype": Refusal(unless=(None, "int32")),
        "checkpoint_format": Refusal(unless=(None, *_LAYOUTS)),
    },
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Awq(Scheme):
    """AWQ in the layout "gemm"."""

    grouped: Grouped
    name: ClassVar[str] = "awq"
    tensors: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")
    marks: ClassVar[tuple[str, ...]] = ("qweight",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        layer.check_plain(tensor, "qweight", "qzeros", "scales")
        n_out, n_in = tensor.hf.shape
        groups = self.grouped.groups(n_in)
        if n_out % 8:
            raise layer.error("qweight", f"has {n_out} outputs; expected a multiple of 8")
        layer.check("qweight", (n_in, n_out // 8), "I32")
        layer.check("qzeros", (groups, n_out // 8), "I32")
        layer.check("scales", (groups, n_out), *FLOATS)
        return self.grouped.info_of(tensor, layer, "scales")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows = rows_of(tensor)
        codes, zeros = (_in_order(layer.read(part))[:, rows].T for part in ("qweight", "qzeros"))
        return self.grouped.weight(info, codes, layer.floats("scales")[:, rows].T, zeros)


@dataclass(frozen=True, slots=True)
class AwqGemv(Awq):
    """AWQ in the layout "gemv"."""

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        layer.check_plain(tensor, "qweight", "qzeros", "scales")
        n_out, n_in = tensor.hf.shape
        width = _width(self.grouped, layer, n_in)
        if n_in % 8:
            raise layer.error("qweight", f"has {n_in} inputs; expected a multiple of 8")
        layer.check("qweight", (n_out, n_in // 8), "I32")
        layer.check("qzeros", (n_out, width), "I32")
        layer.check("scales", (n_out, width * 8), *FLOATS)
        return self.grouped.info_of(tensor, layer, "scales")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows, groups = rows_of(tensor), self.grouped.groups(tensor.hf.shape[1])
        codes, zeros = (codes_of(layer.read(part)[rows], 4) for part in ("qweight", "qzeros"))
        return self.grouped.weight(info, codes, layer.floats("scales")[rows, :groups], zeros[:, :groups])


@dataclass(frozen=True, slots=True)
class AwqGemvFast(Awq):
    """AWQ in the layout "gemv_fast": scale * code + minimum, as in ``asym_int4``."""

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        layer.check_plain(tensor, "qweight", "qzeros", "scales")
        n_out, n_in = tensor.hf.shape
        rows, size = _width(self.grouped, layer, n_in) * 8, self.grouped.size(n_in)
        if n_out % 4 or n_in % 64:
            raise layer.error("qweight", f"has {n_out} outputs and {n_in} inputs; expected multiples of 4 and 64")
        layer.check("qweight", (n_out // 4, n_in), "I16")
        for part in ("qzeros", "scales"):
            layer.check(part, (rows, n_out), "F16")
        group_size = fitting("asym_int4", size, n_in)
        if group_size is None:
            return TensorInfo(tensor.shape, "fp32", decoded_from=f"int4, groups of {size}")
        return TensorInfo(tensor.shape, "asym_int4", group_size)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows, n_in = rows_of(tensor), tensor.hf.shape[1]
        codes = _fast_codes(layer.read("qweight"))[rows]
        scales, minimums = (layer.floats(part)[:, rows].T for part in ("scales", "qzeros"))
        of_inputs = np.arange(n_in) // self.grouped.size(n_in)
        if info.format == "fp32":
            return PackedWeight("fp32", info.shape, codes * scales[:, of_inputs] + minimums[:, of_inputs])
        first = of_inputs[:: info.group_size]
        scale, minimum = (to_binary16(np.ascontiguousarray(numbers[:, first])) for numbers in (scales, minimums))
        return PackedWeight("asym_int4", info.shape, pack_nibbles(codes), info.group_size, scale, minimum)


def _width(grouped: Grouped, layer: Layer, n_in: int) -> int:
    """Return the words in a row of zero points; raise ModelFormatError for a group size unknown to AutoAWQ."""
    size = grouped.size(n_in)
    words_of = {32: 4, 64: 2}
    if size < 128 and size not in words_of or n_in % size:
        raise layer.error("qweight", f"has {n_in} inputs in groups of {size}; groups must be 32, 64, or 128 and more")
    words = words_of.get(size, 1)
    return -(-(n_in // size) // (8 * words)) * words


def _in_order(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Unpack words [n, n_out / 8] to codes [n, n_out] in the order of the outputs."""
    codes = codes_of(words, 4)
    return codes.reshape(len(codes), -1, 8)[:, :, _BACK].reshape(codes.shape)


def _fast_codes(words: npt.NDArray[np.int16]) -> npt.NDArray[np.uint8]:
    """Unpack words [n_out / 4, n_in] to codes [n_out, n_in].

    64 consecutive words hold 64 inputs of four outputs: 16 words per output, four codes per word, lowest bits first.
    Within 32 inputs, position 8 a + 4 b + c holds input 8 c + 2 a + b.
    """
    fours, n_in = words.shape
    data = words.view(np.uint16)
    codes = np.stack([(data >> shift & 15).astype(np.uint8) for shift in (0, 4, 8, 12)], axis=-1)
    # Axes: groups of 64 inputs, four outputs, two times 32 inputs, a, b, c.
    rows = codes.reshape(fours, n_in // 64, 4, 2, 4, 2, 4)
    return np.ascontiguousarray(rows.transpose(0, 2, 1, 3, 6, 4, 5)).reshape(4 * fours, n_in)


def awq(raw: JsonObject, source: Source) -> Awq:
    """Return the scheme of a ``quantization_config``. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "awq")
    for key, other in (("w_bit", "bits"), ("q_group_size", "group_size"), ("format", "version")):
        if settings.setdefault(other, settings.get(key)) is None:
            raise source.error(other, "is missing")
        if key in settings and settings[key] != settings[other]:
            raise source.error(key, f"is {shown(settings[key])}, but {other} is {shown(settings[other])}")
    layout = {"gemm": Awq, "gemv": AwqGemv, "gemv_fast": AwqGemvFast}[settings["version"]]
    return layout(Grouped(4, settings["group_size"], symmetric=False))
