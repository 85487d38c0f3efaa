"""The row type of ``families/dense.py`` and ``mixtures.py``, and the decoder built from a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ipex_lookahead.architectures.hparams import SIZES, Check
from ipex_lookahead.architectures.keys import LAYER_THETA, LOCAL_THETA, ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import SILU, Names, common_keys
from ipex_lookahead.architectures.rope import local_rope, rope, ropes_by_layer
from ipex_lookahead.architectures.spec import Attention, Block, FeedForward, GatedMlp, Linear, ModelSpec, Place, Rope
from ipex_lookahead.architectures.windows import window_of

Config = dict[str, Any]

PRE = {"mixer_norm": ("input_layernorm", "attn_norm"), "feed_forward_norm": ("post_attention_layernorm", "ffn_norm")}
"""Norms before attention and MLP, a value for ``Dense.norms``."""
POST = {
    "mixer_after": ("post_attention_layernorm", "post_attention_norm"),
    "feed_forward_after": ("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Norms after attention and MLP, a value for ``Dense.norms``."""
_DEFAULTS = {
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_FIRST = ("num_key_value_heads", "head_dim")
_NULLABLE = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")


def keys(words: str, defaults: Config, own: Mapping[str, Check] | None = None, **more: Any) -> ConfigKeys:
    """Return the keys of a Llama-like family.

    Args:
        words: used keys of ``names.COMMON_KEYS``, separated by spaces.
        defaults: transformers' defaults for missing keys that Llama lacks or has other defaults for.
        own: further used keys -> check.
        more: further fields of ``ConfigKeys``.
    """
    used = {**common_keys(words), **(own or {})}
    first = {key: defaults[key] for key in _FIRST if key in defaults}
    common = {key: value for key, value in _DEFAULTS.items() if key in used or key in SIZES}
    more.setdefault("nullable", tuple(key for key in _NULLABLE if key in used))
    return ConfigKeys(used=used, defaults={**first, **common, **defaults}, **more)


@dataclass(frozen=True)
class Dense:
    """A Llama-like family. Features that its config expresses by a common key need no field here.

    Common keys are ``attention_bias`` and ``mlp_bias``, or ``use_bias`` for both; ``layer_types`` for windows; the rope
    base of layers with a window (``LOCAL_THETA``) or of each layer (``LAYER_THETA``); the soft caps on scores and
    logits; Granite's multipliers and Cohere's ``logit_scale``.

    Attributes:
        about: the models, a colon, and their special features; a line of docs/families.md.
        KEYS: keys of its config.json.
        GGUF: its GGUF files.
        pairs, norm_offset, layer_norm: see ``Names``.
        norms: field of ``Block`` -> the norm's name in a folder and in a GGUF file.
        parallel: True if attention and MLP both read the block's input.
        bias: which of "qkvo" have a bias; None: all if the config has ``attention_bias``.
        qk_norm: norms over each of the "heads" of q and k, or over the "whole" of q and of k; "": none.
        qk_names: names of these norms in a folder.
        norm_after_rope: True if they are applied after rope.
        scale: factor on scores; None: 1 / sqrt(head_dim).
        make_rope: creates the rotary embedding.
        interleaved: True if rope rotates adjacent values of a head in both kinds of files.
        has_rope: whether a layer uses rope.
        fused_qkv: True if q, k and v are rows of one matrix.
        feed_forward: creates the MLP or mixture of a layer.
        scaled_embedding: True if embeddings are multiplied by the square root of the hidden size.
        gated: True if the heads' outputs are multiplied by the sigmoid of a projection.
        sinks: True if each head has an additional logit in the softmax's denominator.
        unread, read_past: see ``ModelSpec``.
    """

    about: str
    KEYS: ConfigKeys
    GGUF: GgufKeys
    pairs: bool = False
    norm_offset: float = 0.0
    layer_norm: str = ""
    norms: Mapping[str, tuple[str, str]] = field(default_factory=lambda: PRE)
    parallel: bool = False
    bias: Callable[[Config], str] | None = None
    qk_norm: str = ""
    qk_names: tuple[str, str] = ("q_norm", "k_norm")
    norm_after_rope: bool = False
    scale: Callable[[Config], float] | None = None
    make_rope: Callable[[Config], Rope] = rope
    interleaved: bool = False
    has_rope: Callable[[Config, int], bool] = lambda config, layer: True
    fused_qkv: bool = False
    feed_forward: Callable[[Names, int], FeedForward] = lambda names, layer: names.gated_mlp(layer)
    scaled_embedding: bool = False
    gated: bool = False
    sinks: bool = False
    unread: tuple[str, ...] = ()
    read_past: tuple[str, ...] = ()

    def spec(self, config: Config) -> ModelSpec:
        """Return the decoder for a checked ``config``."""
        if "use_bias" in config:
            config = {**config, "attention_bias": config["use_bias"], "mlp_bias": config["use_bias"]}
        names = Names(config, pairs=self.pairs, norm_offset=self.norm_offset, layer_norm=self.layer_norm)
        far = replace(self.make_rope(config), interleaved=self.interleaved)
        near = local_rope(config, config[LOCAL_THETA]) if LOCAL_THETA in config else far
        by_layer = ropes_by_layer(config) if LAYER_THETA in config else None

        def block(layer: int) -> Block:
            turn: Rope | None = far if window_of(config, layer) is None else near
            turn = turn if by_layer is None else by_layer[layer]
            norms: Any = {place: names.norm(layer, *found) for place, found in self.norms.items()}
            return Block(
                mixer=self._attention(names, layer, turn if self.has_rope(config, layer) else None),
                feed_forward=self.feed_forward(names, layer),
                residual_multiplier=config.get("residual_multiplier", 1.0),
                parallel=self.parallel,
                **norms,
            )

        more = {"embedding_multiplier": config["hidden_size"] ** 0.5} if self.scaled_embedding else {}
        ignored = {"unread": self.unread, "read_past": self.read_past}
        return names.model(block, **{**multipliers(config), **more, **ignored})

    def _attention(self, names: Names, layer: int, turn: Rope | None) -> Attention:
        config, d = dict(names.config), names.head_dim
        switches: dict[str, Any] = {}
        if self.gated:
            switches["gate"] = names.linear(layer, "self_attn.gate_proj", "attn_gate", names.heads * d, names.hidden)
        if self.sinks:
            switches["sinks"] = names.sinks(layer)
        if self.qk_norm:
            sizes = (d, d) if self.qk_norm == "heads" else (names.heads * d, names.kv_heads * d)
            for x, name, size in zip("qk", self.qk_names, sizes, strict=True):
                switches[f"{x}_norm"] = names.norm(layer, f"self_attn.{name}", f"attn_{x}_norm", size)
        attention = names.attention(
            layer,
            rope=turn,
            bias=None if self.bias is None else self.bias(config),
            scale=None if self.scale is None else self.scale(config),
            softcap=config.get("attn_logit_softcapping"),
            norm_after_rope=self.norm_after_rope,
            **switches,
        )
        return replace(attention, **fused_qkv(names, layer)) if self.fused_qkv else attention


def multipliers(config: Config) -> dict[str, Any]:
    """Return the fields of ``ModelSpec`` for the scaling of embeddings and logits in a config."""
    return {
        "embedding_multiplier": config.get("embedding_multiplier", 1.0),
        "logit_multiplier": config.get("logit_scale", 1.0) / config.get("logits_scaling", 1.0),
        "logit_softcap": config.get("final_logit_softcapping"),
    }


def fused_qkv(names: Names, layer: int) -> dict[str, Any]:
    """Return q, k and v of a block as rows of one matrix (Phi-3)."""
    q, kv = names.heads * names.head_dim, names.kv_heads * names.head_dim
    return {
        x: _rows(names, layer, f"self_attn.{x}_proj", ("self_attn.qkv_proj", "attn_qkv"), first, rows, q + 2 * kv)
        for x, first, rows in (("q", 0, q), ("k", q, kv), ("v", q + kv, kv))
    }


def fused_mlp(names: Names, layer: int) -> GatedMlp:
    """Return the MLP of a block with gate and up as halves of one matrix (Phi-3, GLM-4)."""
    hidden, inner = names.hidden, names.config["intermediate_size"]
    gate, up = (
        _rows(names, layer, f"mlp.{x}_proj", ("mlp.gate_up_proj", "ffn_up"), first, inner, 2 * inner)
        for x, first in (("gate", 0), ("up", inner))
    )
    return GatedMlp(gate, up, names.linear(layer, "mlp.down_proj", "ffn_down", hidden, inner), SILU)


def _rows(names: Names, layer: int, name: str, files: tuple[str, str], first: int, rows: int, in_all: int) -> Linear:
    hf, gguf = (Place(one, (in_all, names.hidden), rows=(first, 1)) for one in files)
    return names.part(layer, name, hf, gguf, (rows, names.hidden))
