"""Tiny random models of many families, as transformers builds them, and a check of greedy text against their logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 96
CONTEXT = 256
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": CONTEXT,
}  # fmt: skip
_GPT = {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
_OPT = {key: value for key, value in _SIZES.items() if key != "intermediate_size"}
_GEMMA_3N = {
    **_SIZES, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 4, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8, "laurel_rank": 8,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8,
    "activation_sparsity_pattern": [0.9, 0.0, 0.9, 0.0],
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_SIZES, "num_key_value_heads": 2}),
    "gpt2": ("GPT2Config", _GPT),
    "opt": ("OPTConfig", {**_OPT, "ffn_dim": 96, "word_embed_proj_dim": 64}),
    "falcon": ("FalconConfig", _OPT),
    "falcon alibi": ("FalconConfig", {**_OPT, "alibi": True}),
    "bloom": ("BloomConfig", {"vocab_size": VOCAB, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "mpt": ("MptConfig", {"vocab_size": VOCAB, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": CONTEXT}),
    "gpt_neox": ("GPTNeoXConfig", _SIZES),
    "gptj": ("GPTJConfig", {**_GPT, "rotary_dim": 8}),
    "phi": ("PhiConfig", _SIZES),
    "qwen2": ("Qwen2Config", {**_SIZES, "num_key_value_heads": 2}),
    "mistral": ("MistralConfig", {**_SIZES, "num_key_value_heads": 2, "sliding_window": 8}),
    "gemma2": ("Gemma2Config", {**_SIZES, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8}),
    "gemma3n_text": ("Gemma3nTextConfig", _GEMMA_3N),
    "mixtral": ("MixtralConfig", {**_SIZES, "num_key_value_heads": 2, "num_local_experts": 4}),
}
"""Name -> class of the config, and its values."""

CHAINS = ("falcon alibi", "bloom", "mpt", "mistral", "gemma2", "gemma3n_text")
"""Families that take no trees: no positions, alibi, or a sliding window."""
STATEFUL = {
    "mamba": ("MambaConfig", {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2}),
    "rwkv": ("RwkvConfig", {"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2}),
}


def build(name: str, seed: int = 0, **values: Any) -> Any:
    """A random model whose logits differ enough for greedy text to mean something."""
    kind, known = {**FAMILIES, **STATEFUL}[name]
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, kind)(**{**ends, **known, **values})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def write(folder: Path, name: str, seed: int = 0, **values: Any) -> Path:
    """The same model as a Hugging Face folder."""
    build(name, seed, **values).save_pretrained(folder)
    return folder


def shortfall(logits_of: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor, prompt: int) -> float:
    """Teacher-forced: by how much an emitted token's logit is below the largest, at most over one sequence [1, n].

    ``logits_of`` reads all of it at once and gives [1, n, vocab_size].
    """
    with torch.no_grad():
        logits = logits_of(ids)[0, prompt - 1 : -1].float()
    chosen = logits.gather(1, ids[0, prompt:, None])[:, 0]
    return float((logits.max(-1).values - chosen).max())
