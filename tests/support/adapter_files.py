"""LoRA adapters in files, written as PEFT and llama.cpp's converter write them, without either of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Change = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
"""A [rank, n_in] and B [n_out, rank]."""
LLAMA = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
"""Module of a Llama block -> its name in GGUF files."""


def random_changes(shapes: Mapping[str, tuple[int, int]], rank: int = 4, seed: int = 0) -> dict[str, Change]:
    """Return random A and B for modules with these shapes [n_out, n_in]; B A is about as large as the weights."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, (n_out, n_in) in shapes.items():
        a, b = rng.standard_normal((rank, n_in)), rng.standard_normal((n_out, rank))
        made[name] = (a.astype(np.float32) / np.float32(np.sqrt(n_in)), b.astype(np.float32) / np.float32(2))
    return made


def llama_changes(shapes: Mapping[str, tuple[int, ...]], rank: int = 4, seed: int = 0) -> dict[str, Change]:
    """Return changes of all matrices of the blocks of a ``TinyLlama`` with these ``shapes()``."""
    matrices = {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for name, shape in shapes.items()
        if len(shape) == 2 and ".layers." in name
    }
    return random_changes(matrices, rank, seed)


def write_peft(folder: Path, changes: Mapping[str, Change], *, tensors: Mapping[str, Any] = {}, **config: Any) -> Path:
    """Write a PEFT folder; ``changes`` are by module name, ``tensors`` are further ones by name."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    rank = max((len(a) for a, _ in changes.values()), default=4)
    written = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someone/base", "r": rank,
        "lora_alpha": 2 * rank, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}, "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in changes}), "modules_to_save": None,
        "init_lora_weights": True, "fan_in_fan_out": False, "inference_mode": True, "use_dora": False,
        "peft_version": "0.21.2", "lora_bias": False, "exclude_modules": None, "layers_to_transform": None,
        "loftq_config": {}, "target_parameters": None, **config,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=2))
    stored = dict(tensors)
    for name, (a, b) in changes.items():
        stored[f"base_model.model.{name}.lora_A.weight"] = a
        stored[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(
        {name: np.ascontiguousarray(value) for name, value in stored.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def permuted(b: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Return the rows of B of q or k in the order of llama.cpp's GGUF files of Llama."""
    return np.ascontiguousarray(b.reshape(heads, 2, len(b) // heads // 2, -1).swapaxes(1, 2).reshape(b.shape))


def write_gguf_adapter(
    file: Path,
    changes: Mapping[str, Change],
    *,
    architecture: str = "llama",
    alpha: float = 8.0,
    kind: str = "F32",
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, npt.NDArray[Any]] = {},
) -> Path:
    """Write a GGUF adapter; ``changes`` are by the name of the changed tensor, without ``weight``."""
    import gguf
    from gguf.quants import quantize

    writer = gguf.GGUFWriter(file, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for key, value in metadata.items():
        writer.add_array(key, value) if isinstance(value, list) else writer.add_string(key, value)
    stored = dict(tensors)
    for name, (a, b) in changes.items():
        stored |= {f"{name}.weight.lora_a": a, f"{name}.weight.lora_b": b}
    for name, values in stored.items():
        used = gguf.GGMLQuantizationType[kind if values.shape[-1] % 32 == 0 or kind != "Q8_0" else "F16"]
        writer.add_tensor(name, quantize(values, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def llama_gguf_changes(changes: Mapping[str, Change], heads: int, kv_heads: int) -> dict[str, Change]:
    """Return changes of a Llama model under the names, and with the rows, of its GGUF file."""
    made = {}
    for name, (a, b) in changes.items():
        _, _, layer, *module = name.split(".")
        theirs = LLAMA[".".join(module)]
        if theirs in ("attn_q", "attn_k"):
            b = permuted(b, heads if theirs == "attn_q" else kv_heads)
        made[f"blk.{layer}.{theirs}"] = (a, b)
    return made
