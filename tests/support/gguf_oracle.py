"""A Llama's GGUF file in transformers, in float32: weights decoded by the gguf package, nothing of this package's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def llama_from_gguf(file: Path) -> Any:
    """LlamaForCausalLM of an unscaled rope, rows of q and k back in Hugging Face's order."""
    reader = gguf.GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    heads, kv_heads = (int(_value(reader, f"attention.head_count{end}")) for end in ("", "_kv"))
    layers = int(_value(reader, "block_count"))
    config = LlamaConfig(
        hidden_size=_value(reader, "embedding_length"),
        intermediate_size=_value(reader, "feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=int(stored["token_embd.weight"].shape[1]),
        rms_norm_eps=_value(reader, "attention.layer_norm_rms_epsilon"),
        rope_theta=_value(reader, "rope.freq_base"),
        max_position_embeddings=_value(reader, "context_length"),
        tie_word_embeddings="output.weight" not in stored,
    )
    model = LlamaForCausalLM(config).float().eval()
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    state = {}
    for name in model.state_dict():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            state[name] = state["model.embed_tokens.weight"]
            continue
        tensor = stored[names.get_name(name, try_suffixes=(".weight",))]
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            groups = heads if "q_proj" in name else kv_heads
            values = values.reshape(groups, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        state[name] = torch.from_numpy(np.ascontiguousarray(values))
    model.load_state_dict(state)
    return model


def _value(reader: Any, key: str) -> Any:
    return reader.fields[f"llama.{key}"].contents()
