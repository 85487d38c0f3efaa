"""The first Gemma, and CodeGemma: a Llama with Gemma's norms, GELU, and embeddings times the root of their size."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.families import gemma2
from ipex_lookahead.architectures.hparams import Source, one_of
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Activation, ModelSpec
from ipex_lookahead.architectures.windows import no_window
from ipex_lookahead.files.refusal import Refusal


def _check(config: dict[str, Any], source: Source) -> None:
    config["hidden_act"] = gemma2.GELU  # which the first files call gelu


KEYS = ConfigKeys(
    used={**usual("tie_word_embeddings attention_bias"), "hidden_act": one_of(gemma2.GELU, "gelu")},
    defaults={
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": gemma2.GELU,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    },
    refused={
        **no_window("Gemma"),
        "hidden_activation": Refusal(
            "names another activation, which some releases of transformers take and others do not",
            unless=(None, gemma2.GELU),
        ),
        "use_bidirectional_attention": Refusal("lets every token see the ones behind it", unless=(None, False)),
    },
    check=_check,
)
GGUF = GgufKeys("gemma", "GemmaForCausalLM", constants={"attention_bias": False})


def spec(config: dict[str, Any]) -> ModelSpec:
    """The decoder that a gemma ``config`` describes."""
    names, turn = gemma2.names(config), rope(config)
    gelu = Activation("gelu_tanh")
    return names.model(
        lambda i: names.block(i, names.attention(i, rope=turn), names.gated_mlp(i, activation=gelu)),
        embedding_multiplier=config["hidden_size"] ** 0.5,
    )
