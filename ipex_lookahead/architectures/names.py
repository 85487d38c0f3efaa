"""Tensors with the names that nearly all families use, so that a family's file contains only the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ipex_lookahead.architectures.experts import count
from ipex_lookahead.architectures.hparams import Check, boolean, integer, one_of
from ipex_lookahead.architectures.spec import (
    Activation,
    Attention,
    Block,
    Experts,
    FeedForward,
    GatedMlp,
    Linear,
    Mixer,
    ModelSpec,
    Norm,
    Place,
    Rope,
    Tensor,
    Xielu,
)  # fmt: skip
from ipex_lookahead.architectures.windows import layer_types, window_of, window_size

SILU = Activation("silu")
COMMON_KEYS: Mapping[str, Check] = {
    "hidden_act": one_of("silu"),
    "tie_word_embeddings": boolean,
    "attention_bias": boolean,
    "mlp_bias": boolean,
    "use_sliding_window": boolean,
    "sliding_window": window_size,
    "max_window_layers": integer(0, 1 << 16),
    "layer_types": layer_types,
    "num_experts": count,
    "num_local_experts": count,
    "num_experts_per_tok": count,
}
"""Config keys that several families use -> check."""


def common_keys(keys: str) -> dict[str, Check]:
    """Return entries of ``COMMON_KEYS``, given as a space-separated string, for ``ConfigKeys.used``."""
    return {key: COMMON_KEYS[key] for key in keys.split()}


class Names:
    """Creates the tensors of a model.

    Args:
        config: the checked config.
        pairs: True if the GGUF converter reorders the rows of q and k into adjacent rotary pairs.
        root: prefix of tensor names in a folder.
        norm_offset: amount by which norm weights in Hugging Face's files are smaller than in GGUF files (Gemma: 1).
        layer_norm: "biased" or "plain" for layer norms with or without biases; "" for RMS norms.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        pairs: bool = False,
        norm_offset: float = 0.0,
        root: str = "model",
        layer_norm: str = "",
    ) -> None:
        self.config = config
        self.root = root
        self.hidden: int = config["hidden_size"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config["head_dim"]
        self.epsilon: float = config["rms_norm_eps"]
        self.pairs = pairs
        self.norm_offset = norm_offset
        self.layer_norm = layer_norm

    def tensor(self, hf: str, gguf: str, shape: tuple[int, ...], *, pairs: int = 0, offset: float = 0.0) -> Tensor:
        """Return a weight that is a whole tensor in both kinds of files."""
        return Tensor(hf, shape, Place(hf, shape, offset=offset), Place(gguf, shape, pairs=pairs))

    def linear(
        self, layer: int, hf: str, gguf: str, n_out: int, n_in: int, *, bias: bool = False, pairs: int = 0
    ) -> Linear:
        """Return a linear layer of block ``layer``; ``pairs`` is the number of heads reordered by the converter."""
        ours, theirs = f"{self.root}.layers.{layer}.{hf}", f"blk.{layer}.{gguf}"
        return Linear(
            self.tensor(f"{ours}.weight", f"{theirs}.weight", (n_out, n_in), pairs=pairs),
            self.tensor(f"{ours}.bias", f"{theirs}.bias", (n_out,), pairs=pairs) if bias else None,
        )

    def part(
        self, layer: int, name: str, hf: Place, gguf: Place, shape: tuple[int, int], *, bias: bool = False
    ) -> Linear:
        """Return a linear layer of block ``layer`` with rows from the larger matrices ``hf`` and ``gguf``.

        The names in both places omit the block and ``weight``; their shapes are those of the whole matrices.
        """

        def placed(place: Place, prefix: str, kind: str) -> Place:
            whole = place.shape if kind == "weight" else place.shape[:1]
            return replace(place, name=f"{prefix}{layer}.{place.name}.{kind}", shape=whole)

        def tensor(kind: str, of: tuple[int, ...]) -> Tensor:
            ours, theirs = placed(hf, f"{self.root}.layers.", kind), placed(gguf, "blk.", kind)
            return Tensor(f"{self.root}.layers.{layer}.{name}.{kind}", of, ours, theirs)

        return Linear(tensor("weight", shape), tensor("bias", shape[:1]) if bias else None)

    def convolution(self, layer: int, hf: str, gguf: str, channels: int, kernel: int) -> Tensor:
        """Return a depthwise convolution as a vector; ``Conv1d`` weights have an additional dimension of 1."""
        ours, theirs = f"{self.root}.layers.{layer}.{hf}.weight", f"blk.{layer}.{gguf}.weight"
        return Tensor(ours, (channels * kernel,), Place(ours, (channels, 1, kernel)), Place(theirs, (channels, kernel)))

    def vector(self, layer: int, hf: str, gguf: str, n: int) -> Tensor:
        """Return a vector of block ``layer``."""
        return self.tensor(f"{self.root}.layers.{layer}.{hf}", f"blk.{layer}.{gguf}", (n,))

    def logarithm(self, hf: str, gguf: str, n: int) -> Tensor:
        """Return a vector x that GGUF files store as -e^x."""
        return Tensor(hf, (n,), Place(hf, (n,)), Place(gguf, (n,), negative_exponential=True))

    def sinks(self, layer: int) -> Tensor:
        """Return an additional logit per head of block ``layer``."""
        name = f"{self.root}.layers.{layer}.self_attn.sinks"
        return self.tensor(name, f"blk.{layer}.attn_sinks.weight", (self.heads,))

    def norm(self, layer: int, hf: str, gguf: str, n: int | None = None, *, pairs: int = 0) -> Norm:
        """Return a norm of block ``layer`` over ``n`` values; None: the hidden size."""
        shape = (self.hidden if n is None else n,)
        return self._norm(f"{self.root}.layers.{layer}.{hf}", f"blk.{layer}.{gguf}", shape, pairs)

    def _norm(self, hf: str, gguf: str, shape: tuple[int], pairs: int = 0) -> Norm:
        weight = self.tensor(f"{hf}.weight", f"{gguf}.weight", shape, pairs=pairs, offset=self.norm_offset)
        bias = self.tensor(f"{hf}.bias", f"{gguf}.bias", shape) if self.layer_norm == "biased" else None
        return Norm(weight, self.epsilon, bias, centered=bool(self.layer_norm))

    def attention(
        self,
        layer: int,
        *,
        rope: Rope | None,
        bias: str | None = None,
        scale: float | None = None,
        head_norms: bool = False,
        **switches: Any,
    ) -> Attention:
        """Return the attention of block ``layer``, with the window from the config.

        Args:
            layer: number of the block.
            rope: see ``Attention``.
            bias: those of "qkvo" with a bias; None: all if the config has ``attention_bias``.
            scale: factor on scores; None: 1 / sqrt(head_dim).
            head_norms: True for a norm over each head of q and k.
            switches: further fields of ``Attention``.
        """
        d = self.head_dim
        if bias is None:
            bias = "qkvo" if self.config.get("attention_bias") else ""
        if head_norms:
            switches |= {f"{x}_norm": self.norm(layer, f"self_attn.{x}_norm", f"attn_{x}_norm", d) for x in "qk"}
        rows = {"q": self.heads * d, "k": self.kv_heads * d, "v": self.kv_heads * d}
        pairs = {"q": self.heads, "k": self.kv_heads} if self.pairs else {}
        made = {
            x: self.linear(
                layer, f"self_attn.{x}_proj", f"attn_{x}", n, self.hidden, bias=x in bias, pairs=pairs.get(x, 0)
            )
            for x, n in rows.items()
        }
        o = self.linear(layer, "self_attn.o_proj", "attn_output", self.hidden, rows["q"], bias="o" in bias)
        return Attention(
            heads=self.heads, kv_heads=self.kv_heads, head_dim=d, q=made["q"], k=made["k"], v=made["v"], o=o,
            scale=d**-0.5 if scale is None else scale, rope=rope, window=window_of(self.config, layer), **switches,
        )  # fmt: skip

    def gated_mlp(self, layer: int, *, activation: Activation = SILU) -> GatedMlp:
        """Return the gated MLP of block ``layer``, with biases if the config has ``mlp_bias``."""
        hidden, inner, bias = self.hidden, self.config["intermediate_size"], bool(self.config.get("mlp_bias"))
        return GatedMlp(
            gate=self.linear(layer, "mlp.gate_proj", "ffn_gate", inner, hidden, bias=bias),
            up=self.linear(layer, "mlp.up_proj", "ffn_up", inner, hidden, bias=bias),
            down=self.linear(layer, "mlp.down_proj", "ffn_down", hidden, inner, bias=bias),
            activation=activation,
        )

    def mlp(
        self,
        layer: int,
        activation: Activation,
        parts: tuple[str, str] = ("up_proj", "down_proj"),
        parameters: Xielu | None = None,
    ) -> GatedMlp:
        """Return an MLP without gate; ``parts`` are the folder's names of up and down."""
        hidden, inner, bias = self.hidden, self.config["intermediate_size"], bool(self.config.get("mlp_bias"))
        up, down = parts
        return GatedMlp(
            gate=None,
            up=self.linear(layer, f"mlp.{up}", "ffn_up", inner, hidden, bias=bias),
            down=self.linear(layer, f"mlp.{down}", "ffn_down", hidden, inner, bias=bias),
            activation=activation,
            parameters=parameters,
        )

    def experts(
        self,
        layer: int,
        module: str,
        parts: tuple[str, str, str],
        *,
        count: int,
        used: int,
        inner: int,
        renormalize: bool = True,
        router: str = "gate",
        scores: str = "all",
        **switches: Any,
    ) -> Experts:
        """Return a mixture. In folders each expert has three matrices; in GGUF files all share three tensors.

        Args:
            layer: number of the block.
            module: name of the MLP in a folder.
            parts: names of gate, up and down in a folder.
            count: number of experts.
            used: number of experts per row.
            inner: intermediate size of an expert.
            renormalize: see ``Experts``.
            router: name of the router within the module in a folder.
            scores: see ``Experts``.
            switches: further fields of ``Experts``.
        """
        hidden, sizes = self.hidden, ((inner, self.hidden), (inner, self.hidden), (self.hidden, inner))
        stacked = [
            (f"blk.{layer}.ffn_{gguf}_exps.weight", (count, *size))
            for gguf, size in zip(("gate", "up", "down"), sizes, strict=True)
        ]

        def part(expert: int, which: int) -> Linear:
            name = f"{self.root}.layers.{layer}.{module}.experts.{expert}.{parts[which]}.weight"
            return Linear(Tensor(name, sizes[which], Place(name, sizes[which]), Place(*stacked[which], expert)))

        return Experts(
            router=self.linear(layer, f"{module}.{router}", "ffn_gate_inp", count, hidden),
            experts=tuple(GatedMlp(part(e, 0), part(e, 1), part(e, 2), SILU) for e in range(count)),
            used=used,
            scores=scores,
            renormalize=renormalize,
            **switches,
        )

    def shared_expert(
        self, layer: int, module: str, inner: int, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> GatedMlp:
        """Return the shared expert of block ``layer``; ``module`` and ``parts`` are names in a folder."""
        gate, up, down = parts
        return GatedMlp(
            gate=self.linear(layer, f"{module}.{gate}", "ffn_gate_shexp", inner, self.hidden),
            up=self.linear(layer, f"{module}.{up}", "ffn_up_shexp", inner, self.hidden),
            down=self.linear(layer, f"{module}.{down}", "ffn_down_shexp", self.hidden, inner),
            activation=SILU,
        )

    def block(self, layer: int, mixer: Mixer, feed_forward: FeedForward, **switches: Any) -> Block:
        """Return a block with norms before attention and MLP; ``switches`` are further fields of ``Block``."""
        norms = {
            "mixer_norm": self.norm(layer, "input_layernorm", "attn_norm"),
            "feed_forward_norm": self.norm(layer, "post_attention_layernorm", "ffn_norm"),
        }
        return Block(mixer=mixer, feed_forward=feed_forward, **{**norms, **switches})

    def model(self, block: Callable[[int], Block], **switches: Any) -> ModelSpec:
        """Return the model: embedding, blocks ``block(0)``, ``block(1)``, ..., final norm and head."""
        table = (self.config["vocab_size"], self.hidden)
        norm = self._norm(f"{self.root}.norm", "output_norm", (self.hidden,))
        embedding = self.tensor(f"{self.root}.embed_tokens.weight", "token_embd.weight", table)
        head = Linear(self.tensor("lm_head.weight", "output.weight", table))
        return ModelSpec(
            model_type=self.config["model_type"],
            hidden=self.hidden,
            vocab=table[0],
            max_context=self.config["max_position_embeddings"],
            layers=tuple(block(i) for i in range(self.config["num_hidden_layers"])),
            head=None if self.config["tie_word_embeddings"] else head,
            **{"embedding": embedding, "final_norm": norm, **switches},
        )
