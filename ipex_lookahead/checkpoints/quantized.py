"""Selection of a quantized folder's scheme by the ``quantization_config`` of its config."""

from __future__ import annotations

from os import PathLike

from ipex_lookahead.architectures.hparams import FLOAT_ORIGINAL, Source, shown
from ipex_lookahead.checkpoints.awq import awq
from ipex_lookahead.checkpoints.bitsandbytes import bitsandbytes
from ipex_lookahead.checkpoints.compressed_tensors import compressed_tensors
from ipex_lookahead.checkpoints.fp8 import fp8
from ipex_lookahead.checkpoints.gptq import gptq
from ipex_lookahead.checkpoints.quantized_layers import Reader, Scheme
from ipex_lookahead.errors import UnsupportedModelError
from ipex_lookahead.files.safe_json import JsonObject

KEY = "quantization_config"
SCHEMES: dict[str, Reader] = {
    "gptq": gptq,
    "awq": awq,
    "compressed-tensors": compressed_tensors,
    "bitsandbytes": bitsandbytes,
    "fp8": fp8,
}
"""``quant_method`` -> the function that creates the scheme. A scheme is one file and one row here."""
_HINTS = {
    "hqq": "support for HQQ folders was removed in 0.3; quantize the original float checkpoint: " + FLOAT_ORIGINAL,
    "torchao": "torchao's weight layouts depend on its kernels and releases and are defined by its code only: "
    + FLOAT_ORIGINAL,
}
"""``quant_method`` -> why it is not supported, and the alternative."""


def scheme_of(raw: JsonObject, path: str | PathLike[str]) -> Scheme | None:
    """Return the scheme that a config names, or None.

    Raises:
        UnsupportedModelError: if the method, a key or a value is not supported.
        ModelFormatError: if the settings are malformed.
    """
    settings = raw.get(KEY)
    if settings is None:
        return None
    source = Source.of(raw, path)
    if not isinstance(settings, JsonObject):
        raise source.error(KEY, f"is {shown(settings)}; it must be an object")
    method = settings.get("quant_method")
    if not isinstance(method, str) or method not in SCHEMES:
        raise UnsupportedModelError(
            f"{path}: the checkpoint is already quantized with {KEY}.quant_method {shown(method)}; supported are"
            f" {', '.join(SCHEMES)}",
            hint=_HINTS.get(str(method), FLOAT_ORIGINAL),
        )
    return SCHEMES[method](settings, Source.of(settings, path, KEY))


def without_scheme(raw: JsonObject) -> JsonObject:
    """Return the config without its ``quantization_config``."""
    return JsonObject({key: value for key, value in raw.items() if key != KEY}, raw._text, raw._number)
