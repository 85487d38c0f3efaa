"""gpt-oss with its experts in MXFP4 (OCP Microscaling formats, v1.0), as its folders and its GGUF files hold them.

Codes and scales come from the ``gguf`` package. A folder has ``NAME_blocks``, two codes a byte, the first in the low
bits, [experts, outputs, inputs / 32, 16], and ``NAME_scales``, the exponents + 127; a GGUF block has the exponent first
and codes i and i + 16 in one byte.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from tests.support.tiny_families import write_folder

_KIND = gguf.GGMLQuantizationType.MXFP4
_EXPERTS = ("gate_up_proj", "down_proj")


def rounded(model: Any) -> Any:
    """The model with every expert's weights rounded to values that MXFP4 has; inputs must come in 32s."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(_EXPERTS):
                values = dequantize(_quantised(parameter), _KIND)
                parameter.copy_(torch.from_numpy(values.swapaxes(1, 2).copy()))
    return model


def write_mxfp4_folder(folder: Path, model: Any) -> Path:
    """The rounded model as a folder whose experts are blocks and scales; ``folder`` again."""
    write_folder(folder, model)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(_EXPERTS)]:
        blocks, scales = as_in_folders(_quantised(tensors.pop(name)))
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
    save_file(tensors, file, {"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    }  # fmt: skip
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def _quantised(parameter: torch.Tensor) -> npt.NDArray[np.uint8]:
    """GGUF's bytes [experts, outputs, blocks * 17] of a parameter [experts, inputs, outputs]."""
    return quantize(np.ascontiguousarray(parameter.detach().numpy().swapaxes(1, 2)), _KIND)


def as_in_folders(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Blocks [..., n, 16] and scales [..., n] of GGUF's bytes [..., n * 17]."""
    blocks = data.reshape(*data.shape[:-1], -1, 17)
    codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
    return np.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4), np.ascontiguousarray(blocks[..., 0])
