"""Mistral 7B, Mistral Nemo, Mistral Small: a Llama with heads of a size of their own and, at first, a window.

Their GGUF files call themselves ``llama`` and know no window (llama.cpp's converter leaves it out). Those with a
hidden size that the heads do not divide are read as this family: transformers' Llama takes none such.
"""

from __future__ import annotations

from ipex_lookahead.architectures.families import llama
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import usual
from ipex_lookahead.architectures.windows import one_kind_of_layer

KEYS = ConfigKeys(
    used=usual("hidden_act tie_word_embeddings sliding_window"),
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096 * 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "sliding_window": 4096,
    },
    nullable=("sliding_window",),
    refused=one_kind_of_layer("Mistral"),
)
GGUF = GgufKeys(
    "llama",
    "MistralForCausalLM",
    constants={"sliding_window": None},
    claims=lambda file: llama.is_dense(file) and not llama.has_even_heads(file),
)


spec = llama.spec
