"""GPTQ checkpoints (arXiv 2210.17323) of AutoGPTQ and GPTQModel.

Tensors of a layer ``NAME`` with b bits, lowest bits first; 3-bit codes cross word boundaries, 32 codes per three words:
  NAME.qweight  int32 [n_in * b / 32, n_out], words along the inputs
  NAME.qzeros   int32 [groups, n_out * b / 32], words along the outputs
  NAME.scales   [groups, n_out]
  NAME.g_idx    int32 [n_in], the group of each input; if missing, groups are consecutive inputs

w[o, i] = scales[g, o] * (code - zero[g, o]). Version 1 ("gptq", the default) stores zero points minus 1, "gptq_v2"
stores them unchanged. Here 1 is added to whole words, with carries between codes, as in GPTQModel: this undoes a
subtraction with borrows exactly. With 3 bits each zero point is incremented on its own, modulo 8, because packers
subtract 1 from each zero point separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ipex_lookahead.architectures.hparams import Source, boolean
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_groups import Grouped, codes_of, in_whole_words
from ipex_lookahead.checkpoints.quantized_layers import (
    AUTO_ROUND_NEUTRAL,
    AUTO_ROUND_REFUSED,
    Array,
    Layer,
    Rows,
    Scheme,
    Settings,
    choice,
    exclusions,
    group_size,
    rows_of,
)
from ipex_lookahead.checkpoints.safetensors_reader import FLOATS
from ipex_lookahead.files.refusal import Refusal
from ipex_lookahead.files.safe_json import JsonObject
from ipex_lookahead.formats.base import PackedWeight

_SETTINGS = Settings(
    provenance=True,
    used={
        "dynamic": exclusions,
        "bits": choice(2, 3, 4, 8),
        "group_size": group_size,
        "sym": boolean,
        "desc_act": boolean,
        "checkpoint_format": choice("gptq", "gptq_v2"),
        "format": choice("gptq", "gptq_v2"),
    },
    neutral={
        *AUTO_ROUND_NEUTRAL,
        "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs",
        "damp_auto_increment", "damp_percent", "dataset", "disable_exllama", "exllama_config", "hyb_act", "lm_head",
        "max_input_length", "meta",
        "model_file_base_name", "model_name_or_path", "model_seqlen", "module_name_preceding_first_block",
        "modules_in_block_to_quantize", "modules_to_not_convert", "mse", "pad_token_id", "quantizer", "static_groups",
        "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
    },
    refused={
        **AUTO_ROUND_REFUSED,
        "quant_method": Refusal(unless=("gptq",)),
        "method": Refusal(unless=("gptq",)),
        "adapter": Refusal(unless=(None,)),
        "is_marlin_format": Refusal(unless=(None, False)),
        "pack_dtype": Refusal(unless=(None, "int32")),
        "rotation": Refusal(unless=(None,)),
    },
)  # fmt: skip
_REQUIRED = ("bits", "group_size")
_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""Bits -> a word in which all codes are 1."""


@dataclass(frozen=True, slots=True)
class Gptq(Scheme):
    """The GPTQ scheme. ``first_version`` is True if zero points are stored minus 1."""

    grouped: Grouped
    first_version: bool
    name: ClassVar[str] = "gptq"
    tensors: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales", "g_idx")
    marks: ClassVar[tuple[str, ...]] = ("qweight",)

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        self._check(tensor, layer)
        order = self.grouped.order(tensor, layer, "g_idx")
        return self.grouped.info_of(tensor, layer, "scales", order)

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        rows, bits = rows_of(tensor), self.grouped.bits
        codes = codes_of(layer.read("qweight")[:, rows].T, bits)
        scales = layer.floats("scales")[:, rows].T
        order = self.grouped.order(tensor, layer, "g_idx")
        return self.grouped.weight(info, codes, scales, self._zeros(layer, rows), order)

    def _check(self, tensor: Tensor, layer: Layer) -> None:
        layer.check_plain(tensor, "qweight", "qzeros", "scales")
        (n_out, n_in), bits = tensor.hf.shape, self.grouped.bits
        groups, whole = self.grouped.groups(n_in), in_whole_words(bits)
        for size, what in ((n_in, "inputs"), (n_out, "outputs")):
            if size % whole:
                words = whole if bits != 3 else f"{whole} (three words)"
                raise layer.error("qweight", f"has {size} {what}; expected a multiple of {words}")
        layer.check("qweight", (n_in * bits // 32, n_out), "I32")
        layer.check("qzeros", (groups, n_out * bits // 32), "I32")
        layer.check("scales", (groups, n_out), *FLOATS)

    def _zeros(self, layer: Layer, rows: Rows) -> Array | None:
        words, bits = layer.read("qzeros").view(np.uint32), self.grouped.bits
        if self.first_version and bits != 3:
            words = words + np.uint32(_ONES[bits])
        zeros: Array = codes_of(words.view(np.int32), bits)
        if self.first_version and bits == 3:
            zeros = zeros + np.uint8(1) & np.uint8(7)
        middle = 1 << (bits - 1)
        if not self.grouped.symmetric:
            kept: Array = zeros[:, rows].T
            return kept
        if (bad := zeros != middle).any():
            at = int(bad.argmax())
            raise layer.error(
                "qzeros",
                f"zero point {at} is {zeros.reshape(-1)[at]}; it must be {middle}, because sym is true",
                at * bits // 32,  # index of the word with its first bit
            )
        return None


def gptq(raw: JsonObject, source: Source) -> Gptq:
    """Return the scheme of a ``quantization_config``. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "gptq")
    for key in _REQUIRED:
        if key not in settings:
            raise source.error(key, "is missing")
    version = settings.get("checkpoint_format", settings.get("format", "gptq"))
    if settings.get("format", version) != version:
        raise source.error("format", f"is {settings['format']!r}, but checkpoint_format is {version!r}")
    grouped = Grouped(settings["bits"], settings["group_size"], settings.get("sym", True))
    return Gptq(grouped, version == "gptq")
