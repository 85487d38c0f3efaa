"""EAGLE-3 (Li et al., arXiv 2503.01840): a head for drafting that has a folder or file of its own.

Row p of such a head is made of token p + 1 and of the target's hidden states of position p behind several of its
layers: g = fc(features). Its first layer reads (norm(embedding) | norm(g)); what leaves the last one goes to the
lm_head through a norm, and in again as g of the token that is drafted. The lm_head may have a part of the vocabulary
alone, and ``d2t`` says which token each of its outputs is. EAGLE 3.1 has a norm over each of the hidden states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.hparams import MAX_VOCAB, SIZES, Check, Source, boolean, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys
from ipex_lookahead.architectures.names import Names, usual
from ipex_lookahead.architectures.rope import rope
from ipex_lookahead.architectures.spec import Block, FeatureInputs, Linear, ModelSpec, Norm, Tensor
from ipex_lookahead.architectures.windows import fill_layer_types
from ipex_lookahead.errors import InputError, UnsupportedModelError
from ipex_lookahead.files.refusal import Refusal

MOST_STATES = 16
"""Hidden states of the target that a head may read."""
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
NESTED = "eagle_config"
"""An object of a folder's config that may hold some of the head's keys."""

_TENSORS_SAY = "the tensors that are there say so"


def _check(config: dict[str, Any], source: Source) -> None:
    if config.pop("use_sliding_window", False) and config.get("layer_types") is None:
        raise source.error("use_sliding_window", "is true, but no layer_types say which layers have a window")
    fill_layer_types(config, source, lambda layer: False)


KEYS = ConfigKeys(
    used=usual("hidden_act sliding_window layer_types use_sliding_window"),
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
        "draft_vocab_size": "the head's, and not its layers'",
        "max_window_layers": "layer_types say which layers have a window",
        "mlp_bias": _TENSORS_SAY,
        "pretraining_tp": "the same products in slices; the sums round a little differently",
        "tie_word_embeddings": _TENSORS_SAY,
    },
    check=_check,
)
"""What configs say of a head's layers, which are Llama's; with norms over heads they are Qwen3's."""
LAYERS = ("llama", "qwen3", "qwen2", "mistral")
"""The ``model_type`` that they may have: these differ in biases and norms over heads, and the tensors show these."""


def _layer_ids(source: Source, key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_STATES:
        raise source.error(key, f"is {shown(value)}; it must be a list of 1 to {MOST_STATES} numbers of layers")
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
"""What configs say of a head beside its layers; a key that is not there, or null, is left to the tensors or is false.

- ``norm_before_residual``: what goes past the first layer's attention is norm(g) too, not g.
- ``norm_before_fc``, ``fc_norm``: a norm over all features (``input_norm``), or one over each hidden state.
- ``norm_output``: what is fed back has gone through the norm before the lm_head, as vLLM has it; else it has not.
"""


REFUSED = {
    "parallel_draft_step": Refusal("drafts several tokens in a step", unless=(None, 1)),
    "use_aux_hidden_state": Refusal("has the head read one hidden state, as EAGLE 1 and 2 do", unless=(None, True)),
    "use_input_layernorm_in_first_layer": Refusal("leaves out the norm over the embedding", unless=(None, True)),
    "use_last_layernorm": Refusal("leaves out the norm before the lm_head", unless=(None, True)),
    "use_mtp_layernorm": Refusal("adds norms, as MTP has them", unless=(None, False)),
}
"""Switches of other kinds of heads, in configs that Model Optimizer and SpecForge write."""


def _hidden_states(source: Source, key: str, value: Any) -> tuple[int, ...]:
    """A GGUF file's ids, which name the layers whose inputs are meant: so many layers are behind these."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise source.error(key, f"is {shown(value)}; it must be a list of numbers of layers")
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
"""What GGUF files say of a head, and the checks of these and of the others."""


def wrong_id(ids: npt.NDArray[np.int64], vocab: int) -> tuple[int, str] | None:
    """The first of the tokens that outputs stand for which is no token, or another output's, and what is wrong."""
    beyond = (ids < 0) | (ids >= vocab)
    if beyond.any():
        at = int(beyond.argmax())
        return at, f"makes output {at} token {ids[at]}; the vocabulary has {vocab}"
    order = np.argsort(ids, kind="stable")
    again = np.flatnonzero(ids[order][1:] == ids[order][:-1])
    if not len(again):
        return None
    at = int(order[again[0] + 1])
    return at, f"makes output {at} token {ids[at]}, which output {order[again[0]]} is already"


def usual_states(layers: int) -> tuple[int, ...]:
    """The hidden states that a head of a target of so many layers reads where nothing says which.

    Raises UnsupportedModelError for a target of so few layers that there are no such.
    """
    if layers < 4:
        raise UnsupportedModelError(
            f"a head that names no layers reads the states of 2, {layers // 2} and {layers - 3} of {layers} layers,"
            " which are no such",
            hint=f"add {LAYER_IDS} to its config.json",
        )
    return tuple(sorted((2, layers // 2, layers - 3)))


def check_fits(config: dict[str, Any], target: ModelSpec, width: int, file: object) -> None:
    """Raise InputError where the head is not for this target, by its sizes.

    Args:
        config: as :func:`spec` reads it.
        target: the model that is drafted for.
        width: values of a row's features, by the tensor that reads them.
        file: names the head.
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
            f"reads what {layers[-1]} layers make; the model has {len(target.layers)}",
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
    """The head that a config describes, for ``target``, which it fits.

    Args:
        config: checked: of its layers, as ``KEYS`` has it, of the head what ``HEAD`` has, ``states``
            (``FeatureInputs.layers``), and ``outputs``, how many its lm_head has.
        target: the model that is drafted for; the head's context is as long.
        there: whether the file has a weight, by which embedding, lm_head, biases and norms over heads are known.
        first: what the folder's names of the first layer begin with; "": ``model.layers.0.``.
        pairs: as in ``Names``.

    Raises InputError for a head without an embedding or lm_head of its own that cannot use the target's.
    """
    names = _Names(config, there, first=first, pairs=pairs)
    hidden, width = names.hidden, len(config["states"]) * target.hidden
    embedding = names.tensor("model.embed_tokens.weight", "token_embd.weight", (target.vocab, hidden))
    head = names.tensor("lm_head.weight", "output.weight", (config["outputs"], hidden))
    shares = tuple(part for part, own in (("embedding", embedding), ("head", head)) if not there(own))
    if shares and hidden != target.hidden:
        raise InputError(
            f"this drafting head has no {'embedding' if 'embedding' in shares else 'lm_head'} of its own, and cannot"
            f" use the model's: its hidden size is {hidden}, the model's {target.hidden}",
            hint="give the head that was trained for this model, with all of its files",
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
    """The tensors of a head, some of which the files may have or not."""

    def __init__(self, config: dict[str, Any], there: Callable[[Tensor], bool], *, first: str, pairs: bool) -> None:
        super().__init__({"model_type": "eagle3", **config, "tie_word_embeddings": False}, pairs=pairs)
        self._there = there
        self._first = first
        self._rope = rope(config)

    def tensor(self, hf: str, gguf: str, shape: tuple[int, ...], *, pairs: int = 0, offset: float = 0.0) -> Tensor:
        """As ``Names``, with the folder's own name of the first layer."""
        root = "model.layers.0."
        named = self._first + hf.removeprefix(root) if self._first and hf.startswith(root) else hf
        return super().tensor(named, gguf, shape, pairs=pairs, offset=offset)

    def bias(self, weight: Tensor) -> Tensor | None:
        """The bias of a matrix, if the file has one."""
        hf, gguf = (place.name.removesuffix("weight") + "bias" for place in (weight.hf, weight.gguf))
        made = self.tensor(hf, gguf, weight.shape[:1], pairs=weight.gguf.pairs)
        return made if self._there(made) else None

    def with_bias(self, linear: Linear) -> Linear:
        """A linear layer with the bias that the file has."""
        return replace(linear, bias=self.bias(linear.weight))

    def feature_norms(self, width: int, states: int) -> tuple[Norm, ...]:
        """A norm over all features, or one over each hidden state: as the config says, or else the tensors."""
        config, each = self.config, width // states
        whole = self.tensor("input_norm.weight", "enc.output_norm.weight", (width,))
        parts = [self.tensor(f"fc_norm.{i}.weight", f"fc_norm.{i}.weight", (each,)) for i in range(states)]
        if self._there(whole) if config.get("norm_before_fc") is None else config["norm_before_fc"]:
            return (Norm(whole, self.epsilon),)
        if self._there(parts[0]) if config.get("fc_norm") is None else config["fc_norm"]:
            return tuple(Norm(part, self.epsilon) for part in parts)
        return ()

    def own_block(self, layer: int) -> Block:
        """A layer; the first one's attention reads the embedding too, and its norm may go before the whole layer."""
        head_norm = self.norm(layer, "self_attn.q_norm", "attn_q_norm", self.head_dim).weight
        head_norms = not self.pairs and self._there(head_norm)  # llama.cpp's heads, whose rows are in pairs, have none
        mixer = self.attention(layer, rope=self._rope, bias="", head_norms=head_norms)
        inputs = 2 * self.hidden if layer == 0 else self.hidden
        linears: dict[str, Any] = {x: self.with_bias(_reading(inputs, getattr(mixer, x))) for x in "qkv"}
        mixer = replace(mixer, **linears, o=self.with_bias(mixer.o), with_embedding=layer == 0)
        mlp = self.gated_mlp(layer)
        linears = {x: self.with_bias(getattr(mlp, x)) for x in ("gate", "up", "down")}
        norms: dict[str, Any] = {}
        if layer == 0:  # input_layernorm is the embedding's there
            norms["mixer_norm"] = None if self.config.get("norm_before_residual") else self.features_norm
        return self.block(layer, mixer, replace(mlp, **linears), **norms)

    @property
    def features_norm(self) -> Norm:
        """Over g, as the first layer's attention reads it."""
        return self.norm(0, "hidden_norm", "attn_norm_2")


def _reading(inputs: int, linear: Linear) -> Linear:
    """The linear layer with so many inputs."""
    weight = linear.weight
    shape = (weight.shape[0], inputs)
    places = {kind: replace(getattr(weight, kind), shape=shape) for kind in ("hf", "gguf")}
    return Linear(replace(weight, shape=shape, **places))
