"""AWQ's checkpoints (arXiv 2306.00978) in the layout "gemm", as AutoAWQ writes them.

A layer ``NAME`` has 4 bits, 8 codes a word, all words along the outputs; the codes of outputs 8 j ... 8 j + 7 lie in a
word in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first:
  NAME.qweight  int32 [n_in, n_out / 8]
  NAME.qzeros   int32 [groups, n_out / 8]
  NAME.scales   [groups, n_out]

w[o, i] = scales[g, o] * (code - zero[g, o]), g = i // group_size.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import Source, shown
from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.quantized_layers import (
    FLOATS,
    Grouped,
    Layer,
    Settings,
    check_plain,
    choice,
    codes_of,
    group_size,
    named_parts,
    rows_of,
    unsupported,
)
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.safe_json import JsonObject

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_BACK = tuple(_ORDER.index(output) for output in range(8))


def _layout(source: Source, key: str, value: Any) -> str:
    if not isinstance(value, str) or value.lower() != "gemm":
        raise unsupported(source, key, value, "gemm")
    return "gemm"


_SETTINGS = Settings(
    used={
        "bits": choice(4),
        "w_bit": choice(4),
        "group_size": group_size,
        "q_group_size": group_size,
        "zero_point": choice(True),
        "version": _layout,
        "format": _layout,
    },
    neutral={
        "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent",
        "dataset", "do_fuse", "exllama_config", "fuse_max_seq_len", "lm_head", "max_input_length", "meta",
        "model_seqlen", "module_name_preceding_first_block", "modules_in_block_to_quantize", "modules_to_fuse",
        "modules_to_not_convert", "pad_token_id", "sym", "tokenizer", "true_sequential",
    },
    refused={
        "quant_method": ("awq",),
        "method": ("awq",),
        "desc_act": (None, False),
        "dynamic": (None, {}),
        "pack_dtype": (None, "int32"),
        "checkpoint_format": (None, "gemm"),
    },
)  # fmt: skip
_PARTS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True, slots=True)
class Awq:
    """The scheme; see ``quantized_layers.Scheme``."""

    grouped: Grouped
    name: str = "awq"

    def parts(self, name: str, names: Collection[str]) -> dict[str, str]:
        """See ``Scheme.parts``."""
        return named_parts(name, _PARTS, names, "qweight")

    def info(self, tensor: Tensor, layer: Layer) -> TensorInfo:
        """See ``Scheme.info``. Reads scales that are not binary16."""
        check_plain(tensor, layer, "qweight")
        n_out, n_in = tensor.hf.shape
        groups = self.grouped.groups(n_in)
        for part in ("qzeros", "scales"):
            if part not in layer:
                raise layer.error("qweight", f"is there without {part}")
        if n_out % 8:
            raise layer.error("qweight", f"belongs to {n_out} outputs, which are no whole words of 8 codes")
        layer.check("qweight", (n_in, n_out // 8), "I32")
        layer.check("qzeros", (groups, n_out // 8), "I32")
        layer.check("scales", (groups, n_out), *FLOATS)
        return self.grouped.info_of(tensor, layer, "scales")

    def read(self, tensor: Tensor, layer: Layer, info: TensorInfo) -> PackedWeight:
        """See ``Scheme.read``."""
        rows = rows_of(tensor)
        codes, zeros = (_in_order(layer.read(part))[:, rows].T for part in ("qweight", "qzeros"))
        return self.grouped.weight(info, codes, layer.floats("scales")[:, rows].T, zeros)


def _in_order(words: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Words [n, n_out / 8] to the codes [n, n_out] in the order of the outputs."""
    codes = codes_of(words, 4)
    return codes.reshape(len(codes), -1, 8)[:, :, _BACK].reshape(codes.shape)


def awq(raw: JsonObject, source: Source) -> Awq:
    """The scheme that a ``quantization_config`` describes. Raises UnsupportedModelError or ModelFormatError."""
    settings = _SETTINGS.read(raw, source, "awq")
    for key, other in (("w_bit", "bits"), ("q_group_size", "group_size"), ("format", "version")):
        if settings.setdefault(other, settings.get(key)) is None:
            raise source.error(other, "is missing")
        if key in settings and settings[key] != settings[other]:
            raise source.error(key, f"is {shown(settings[key])}, but {other} is {shown(settings[other])}")
    return Awq(Grouped(4, settings["group_size"], symmetric=False))
