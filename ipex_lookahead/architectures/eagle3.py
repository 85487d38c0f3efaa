"""EAGLE-3 (Li et al., arXiv 2503.01840): a drafting head with its own folder or file.

Row p of a head is computed from token p + 1 and from the target's hidden states at position p after several of its
layers: g = fc(features). The first layer reads (norm(embedding) | norm(g)). The output of the last layer passes through
a norm to the lm_head, and is g for the next drafted token. The lm_head may cover a part of the vocabulary, with ``d2t``
mapping its outputs to tokens. EAGLE 3.1 has a norm over each of the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import MAX_VOCAB, SIZES, Check, Source, boolean, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, common_keys
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, FeatureInputs, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.architectures.windows import fill_layer_types
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

MAX_STATES = 16
"""Maximum number of hidden states of the target that a head may read."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
"""Object in a folder's config that may hold some of the head's keys."""

_TENSORS_SAY = "the presence of tensors decides"


def _check(config: dict[str, Any], source: Source) -> None:
    if config.pop("use_sliding_window", False) and config.get("layer_types") is None:
        raise source.error("use_sliding_window", "is true, but layer_types is missing")
    fill_layer_types(config, source, lambda layer: False)


KEYS = ConfigKeys(
    used=common_keys("hidden_act sliding_window layer_types use_sliding_window"),
    defaults={
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "sliding_window": None,
    },
    nullable=("sliding_window",),
    neutral={
        "attention_bias": _TENSORS_SAY,
        "draft_vocab_size": "a key of the head, not of its layers",
        "max_window_layers": "layer_types lists the layers with a window",
        "mlp_bias": _TENSORS_SAY,
        "pretraining_tp": "the same products in slices, with slightly different rounding",
        "tie_word_embeddings": _TENSORS_SAY,
    },
    check=_check,
)
"""Config keys of a head's layers, which are Llama's; with norms over heads they are Qwen3's."""
LAYERS = ("llama", "qwen3", "qwen2", "mistral")
"""Supported ``model_type`` of the layers. The types differ in biases and head norms, which the tensors reveal."""


def _layer_ids(source: Source, key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_STATES:
        raise source.error(key, f"is {shown(value)}; it must be a list of 1 to {MAX_STATES} layer numbers")
    return tuple(integer(0, 1 << 16)(source, key, one) for one in value)


HEAD: dict[str, Check] = {
    "draft_vocab_size": integer(1, MAX_VOCAB),
    "target_hidden_size": SIZES["hidden_size"],
    "norm_before_residual": boolean,
    "norm_before_fc": boolean,
    "fc_norm": boolean,
    "norm_output": boolean,
    LAYER_IDS: _layer_ids,
}
"""Config keys of a head other than those of its layers. Missing or null keys follow from the tensors or are false.

- ``norm_before_residual``: the residual connection of the first layer's attention carries norm(g) instead of g.
- ``norm_before_fc``, ``fc_norm``: a norm over all features (``input_norm``), or one over each hidden state.
- ``norm_output``: the output fed back has passed the norm before the lm_head, as in vLLM.
"""


REFUSED = {
    "parallel_draft_step": Refusal("drafts several tokens per step", unless=(None, 1)),
    "use_aux_hidden_state": Refusal("selects a single hidden state, as in EAGLE 1 and 2", unless=(None, True)),
    "use_input_layernorm_in_first_layer": Refusal("omits the norm over the embedding", unless=(None, True)),
    "use_last_layernorm": Refusal("omits the norm before the lm_head", unless=(None, True)),
    "use_mtp_layernorm": Refusal("adds norms as in MTP", unless=(None, False)),
}
"""Options of other kinds of heads, in configs of Model Optimizer and SpecForge."""


def _hidden_states(source: Source, key: str, value: Any) -> tuple[int, ...]:
    """Convert the layer ids of a GGUF file, which name layers by their input, to ``FeatureInputs.layers``."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise source.error(key, f"is {shown(value)}; it must be a list of layer numbers")
    return tuple(sorted(_layer_ids(source, key, value.tolist())))


GGUF_KEYS = replace(KEYS, used={**KEYS.used, **HEAD, "states": _hidden_states})
GGUF = GgufKeys(
    "eagle3",
    "LlamaForCausalLMEagle3",
    used={
        "states": "target_layers",
        "target_hidden_size": "target_hidden_size",
        "norm_before_residual": "norm_before_residual",
        "norm_before_fc": "norm_before_fc",
    },
)
"""Keys of GGUF files of heads; ``GGUF_KEYS`` holds all checks."""


def wrong_id(ids: npt.NDArray[np.int64], vocab: int) -> tuple[int, str] | None:
    """Return the index of the first invalid or duplicate token among the outputs' tokens, with a description."""
    beyond = (ids < 0) | (ids >= vocab)
    if beyond.any():
        at = int(beyond.argmax())
        return at, f"maps output {at} to token {ids[at]}; the vocabulary has {vocab}"
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if not len(again):
        return None
    at = int(order[again[0] + 1])
    return at, f"maps output {at} to token {ids[at]}, which is already mapped to output {order[again[0]]}"


def default_states(layers: int) -> tuple[int, ...]:
    """Return the default hidden states of a head for a target with ``layers`` layers.

    Raises:
        UnsupportedModelError: if the target has too few layers.
    """
    if layers < 4:
        raise UnsupportedModelError(
            f"a head without layer ids reads the states after layers 2, {layers // 2} and {layers - 3} of at"
            f" least 4; the model's number of layers is {layers}",
            hint=f"add {LAYER_IDS} to its config.json",
        )
    return tuple(sorted((2, layers // 2, layers - 3)))


def check_fits(config: dict[str, Any], target: ModelSpec, width: int, file: object) -> None:
    """Raise InputError if the sizes of a head do not match a target.

    Args:
        config: config for :func:`spec`.
        target: the target model.
        width: number of features per row, from the shape of ``fc``.
        file: the head, for messages.
    """
    layers = config["states"]
    problems = (
        (
            width != len(layers) * target.hidden,
            f"reads {len(layers)} hidden states of {width / len(layers):g} values; the model's have {target.hidden}",
        ),
        (
            config.get("target_hidden_size") not in (None, target.hidden),
            f"is for a hidden size of {config.get('target_hidden_size')}; the model's is {target.hidden}",
        ),
        (
            config["vocab_size"] != target.vocab,
            f"has a vocabulary of {config['vocab_size']} tokens; the model's has {target.vocab}",
        ),
        (
            layers[-1] > len(target.layers),
            f"reads the state after layer {layers[-1]}; the model has {len(target.layers)} layers",
        ),
    )
    for wrong, what in problems:
        if wrong:
            raise InputError(
                f"{file}: this drafting head does not fit the model: it {what}",
                hint="give the head that was trained for this model",
            )


def spec(
    config: dict[str, Any], target: ModelSpec, there: Callable[[Tensor], bool], *, first: str = "", pairs: bool = False
) -> ModelSpec:
    """Return the spec of a head for ``target``, which it must fit.

    Args:
        config: checked config of the layers (``KEYS``) and of the head (``HEAD``), with ``states``
            (``FeatureInputs.layers``) and ``outputs`` (number of outputs of the lm_head).
        target: the target model; it determines the context length.
        there: returns True if the file has a weight; decides about embedding, lm_head, biases and head norms.
        first: prefix of the first layer's names in a folder; "": ``model.layers.0.``.
        pairs: see ``Names``.

    Raises:
        InputError: if the head lacks an embedding or lm_head and cannot use the target's.
    """
    names = _Names(config, there, first=first, pairs=pairs)
    hidden, width = names.hidden, len(config["states"]) * target.hidden
    embedding = names.tensor("model.embed_tokens.weight", "token_embd.weight", (target.vocab, hidden))
    head = names.tensor("lm_head.weight", "output.weight", (config["outputs"], hidden))
    shares = tuple(part for part, own in (("embedding", embedding), ("head", head)) if not there(own))
    if shares and hidden != target.hidden:
        raise InputError(
            f"this drafting head has no {'embedding' if 'embedding' in shares else 'lm_head'} and cannot use the"
            f" model's: its hidden size is {hidden}, the model's {target.hidden}",
            hint="give the complete head that was trained for this model",
        )
    blocks = tuple(names.own_block(layer) for layer in range(config["num_hidden_layers"]))
    fc = names.tensor("fc.weight", "fc.weight", (hidden, width))
    features = FeatureInputs(
        width=width,
        layers=config["states"],
        feeds_back=-1 if config.get("norm_output") else len(blocks),
        keep_embedding=True,
        shares=shares,
        embedding_norm=names.norm(0, "input_layernorm", "attn_norm"),
        norms=names.feature_norms(width, len(config["states"])),
        project=Linear(fc, names.bias(fc)),
        after=names.features_norm if config.get("norm_before_residual") else None,
    )
    return replace(
        names.model(lambda layer: blocks[layer]),
        features=features,
        unread=tuple(
            name
            for layer in range(1, len(blocks))
            for name in (f"model.layers.{layer}.hidden_norm.", f"blk.{layer}.attn_norm_2.")
        ),
        vocab=target.vocab,
        max_context=target.max_context,
        model_type="eagle3",
        embedding=embedding if "embedding" not in shares else target.embedding,
        head=Linear(head if "head" not in shares else target.head_weight),
    )


class _Names(Names):
    """Tensors of a head, some of which are optional."""

    def __init__(self, config: dict[str, Any], there: Callable[[Tensor], bool], *, first: str, pairs: bool) -> None:
        super().__init__({"model_type": "eagle3", **config, "tie_word_embeddings": False}, pairs=pairs)
        self._there = there
        self._first = first
        self._rope = rope(config)

    def tensor(self, hf: str, gguf: str, shape: tuple[int, ...], *, pairs: int = 0, offset: float = 0.0) -> Tensor:
        """Return a tensor, see ``Names``, with the folder's own name for the first layer."""
        root = "model.layers.0."
        named = self._first + hf.removeprefix(root) if self._first and hf.startswith(root) else hf
        return super().tensor(named, gguf, shape, pairs=pairs, offset=offset)

    def bias(self, weight: Tensor) -> Tensor | None:
        """Return the bias of a matrix if the file has one."""
        hf, gguf = (place.name.removesuffix("weight") + "bias" for place in (weight.hf, weight.gguf))
        made = self.tensor(hf, gguf, weight.shape[:1], pairs=weight.gguf.pairs)
        return made if self._there(made) else None

    def with_bias(self, linear: Linear) -> Linear:
        """Return a linear layer with its bias if the file has one."""
        return replace(linear, bias=self.bias(linear.weight))

    def feature_norms(self, width: int, states: int) -> tuple[Norm, ...]:
        """Return a norm over all features or one per hidden state, from the config or else the tensors."""
        config, each = self.config, width // states
        whole = self.tensor("input_norm.weight", "enc.output_norm.weight", (width,))
        parts = [self.tensor(f"fc_norm.{i}.weight", f"fc_norm.{i}.weight", (each,)) for i in range(states)]
        if self._there(whole) if config.get("norm_before_fc") is None else config["norm_before_fc"]:
            return (Norm(whole, self.epsilon),)
        if self._there(parts[0]) if config.get("fc_norm") is None else config["fc_norm"]:
            return tuple(Norm(part, self.epsilon) for part in parts)
        return ()

    def own_block(self, layer: int) -> Block:
        """Return a layer. The first one's attention also reads the embedding, and its norm may include the residual."""
        head_norm = self.norm(layer, "self_attn.q_norm", "attn_q_norm", self.head_dim).weight
        head_norms = not self.pairs and self._there(head_norm)  # heads in llama.cpp's row order have no head norms
        mixer = self.attention(layer, rope=self._rope, bias="", head_norms=head_norms)
        inputs = 2 * self.hidden if layer == 0 else self.hidden
        linears: dict[str, Any] = {x: self.with_bias(_reading(inputs, getattr(mixer, x))) for x in "qkv"}
        mixer = replace(mixer, **linears, o=self.with_bias(mixer.o), with_embedding=layer == 0)
        mlp = self.gated_mlp(layer)
        linears = {x: self.with_bias(getattr(mlp, x)) for x in ("gate", "up", "down")}
        norms: dict[str, Any] = {}
        if layer == 0:  # its input_layernorm is the norm over the embedding
            norms["mixer_norm"] = None if self.config.get("norm_before_residual") else self.features_norm
        return self.block(layer, mixer, replace(mlp, **linears), **norms)

    @property
    def features_norm(self) -> Norm:
        """Norm over g, as read by the first layer's attention."""
        return self.norm(0, "hidden_norm", "attn_norm_2")


def _reading(inputs: int, linear: Linear) -> Linear:
    """Return the linear layer with this number of inputs."""
    weight = linear.weight
    shape = (weight.shape[0], inputs)
    places = {kind: replace(getattr(weight, kind), shape=shape) for kind in ("hf", "gguf")}
    return Linear(replace(weight, shape=shape, **places))
