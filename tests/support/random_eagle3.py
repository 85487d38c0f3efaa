"""A useless head for any model: an EAGLE-3 one with random weights."""

from __future__ import annotations

from ipex_lookahead.architectures import eagle3
from ipex_lookahead.architectures.spec import Attention
from ipex_lookahead.checkpoints.eagle3 import head_config
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.files.safe_json import JsonObject


def random_eagle3(target: NativeEngine, low_bit: str = "sym_int8") -> NativeHead:
    """An EAGLE-3 head of the usual sizes for a model that is loaded, with its embedding and lm_head, else random."""
    spec, mixer = target.spec, target.spec.layers[0].mixer
    assert isinstance(mixer, Attention)
    raw = {
        "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": spec.hidden, "vocab_size": spec.vocab,
        "intermediate_size": 3 * spec.hidden // 64 * 64, "num_hidden_layers": 1, "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads, "head_dim": mixer.head_dim, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    config = head_config(JsonObject(raw), "config.json", len(spec.layers))
    return NativeHead.random(eagle3.spec(config, spec, lambda tensor: False), low_bit, target)
