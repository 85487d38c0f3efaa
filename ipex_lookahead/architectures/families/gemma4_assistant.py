"""Gemma 4's assistants: drafting heads that use the target's keys and values and cache nothing themselves.

The input of a row is the target's embedding of the last token, and the target's features of the previous position after
the final norm. The layers have queries only. Each attends to the keys and values of the target's last layer of its kind
(full attention or window) that does not share another layer's. All tokens of a draft are at the position of the first
one and see the target's committed tokens. Features of drafted tokens pass through a projection.

Assistants of E2B and E4B compute logits only for the tokens of a row's best centroids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from ipex_lookahead.architectures.families import gemma4_text
from ipex_lookahead.architectures.hparams import SIZES, Source, boolean, integer, shown
from ipex_lookahead.architectures.keys import ConfigKeys
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import (
    Attention,
    Block,
    Candidates,
    FeatureInputs,
    Linear,
    ModelSpec,
    Place,
    Tensor,
)
from ipex_lookahead.errors import InputError, UnsupportedModelError

_WIDTH, _ORDERED, _CENTROIDS, _USED = (
    "backbone_hidden_size",
    "use_ordered_embeddings",
    "num_centroids",
    "centroid_intermediate_top_k",
)
_NONE = {"hidden_size_per_layer_input": 0, "enable_moe_block": False, "use_double_wide_mlp": False}
_TILE = 16
"""The number of tokens per centroid is a multiple of this, so that they fill whole tiles of the packed lm_head."""
_SEEN = 2
"""Positions that a row in a layer with a window sees in addition to the target's, which includes its own: transformers'
mask shows the last ``sliding_window + 1`` committed ones, vLLM ``sliding_window``, and llama.cpp one less. No
difference was measured with trained assistants."""


def _check(config: dict[str, Any], source: Source) -> None:
    for key, wanted in _NONE.items():
        if config[key] != wanted:
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(config[key])}; for an assistant it must be {wanted!r}"
            )
    gemma4_text.check_layers(config, source)
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    if shared not in (0, layers):
        raise source.error("num_kv_shared_layers", f"is {shared}; all {layers} layers of an assistant share keys")
    if not config[_ORDERED]:
        return
    vocab, centroids, used = config["vocab_size"], config[_CENTROIDS], config[_USED]
    if vocab % (centroids * _TILE):
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(_CENTROIDS)} is {centroids}; it must divide the {vocab} tokens into parts"
            f" of a multiple of {_TILE}"
        )
    if used > centroids:
        raise source.error(_USED, f"is {used}, more than the {centroids} centroids")


def keys_of(part: str, text: ConfigKeys, width: int) -> ConfigKeys:
    """Return the keys of an assistant.

    Args:
        part: ``model_type`` of its ``text_config``.
        text: keys of that family.
        width: default size of the target's features.
    """
    own = {
        _WIDTH: SIZES["hidden_size"],
        _ORDERED: boolean,
        _CENTROIDS: integer(1, 1 << 20),
        _USED: integer(1, 1 << 10),
    }
    per_layer = "vocab_size_per_layer_input"
    if per_layer in text.used:
        own[per_layer] = integer(0, 4 << 20)
    inside = replace(
        text,
        family="gemma4_assistant",
        used={**text.used, **own},
        defaults={**text.defaults, _WIDTH: width, _ORDERED: False, _CENTROIDS: 2048, _USED: 32},
        check=_check,
    )
    return ConfigKeys(inside="text_config", parts={part: inside}, outer=(_WIDTH, _ORDERED, _CENTROIDS, _USED))


KEYS = keys_of("gemma4_text", gemma4_text.KEYS, 1536)
_TEXT_GGUF = gemma4_text.GGUF
GGUF = replace(
    _TEXT_GGUF,
    architecture="gemma4-assistant",
    class_name="Gemma4AssistantForCausalLM",
    used={**_TEXT_GGUF.used, _WIDTH: "embedding_length_out"},
    neutral={"nextn_predict_layers": "the number of drafting blocks, which is all of them"},
)
"""llama.cpp's converter omits the centroids, so all logits are computed for its files."""


def _block(block: Block) -> Block:
    mixer = block.mixer
    assert isinstance(mixer, Attention)
    if mixer.window is None:
        return block
    return replace(block, mixer=replace(mixer, window=mixer.window + _SEEN))


def _candidates(names: Names, config: Mapping[str, Any]) -> Candidates | None:
    if not config[_ORDERED]:
        return None
    vocab, hidden = config["vocab_size"], names.hidden
    centroids, ordering = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
    return Candidates(
        used=config[_USED],
        centroids=Linear(names.tensor(centroids, "masked_embd_centroids.weight", (config[_CENTROIDS], hidden))),
        ordering=Tensor(
            ordering,
            (vocab,),
            Place(ordering, (vocab,), layout="whole"),
            Place("masked_embd_ordering", (vocab,), layout="whole"),
        ),
    )


def spec(config: dict[str, Any]) -> ModelSpec:
    """Return the head for a gemma4_assistant ``config``, without a target yet: see :func:`for_target`."""
    names = Names(config)
    width, vocab, hidden = config[_WIDTH], config["vocab_size"], names.hidden
    own = names.model(gemma4_text.blocks(config, lambda layer: 0))
    target = Place("target.embed_tokens.weight", (vocab, width))
    return replace(
        own,
        embedding=Tensor(target.name, target.shape, target, target),
        embedding_multiplier=width**0.5,
        features=FeatureInputs(
            width=width,
            shares=("embedding",),
            project=Linear(names.tensor("pre_projection.weight", "nextn.pre_projection.weight", (hidden, 2 * width))),
            back=Linear(names.tensor("post_projection.weight", "nextn.post_projection.weight", (width, hidden))),
        ),
        layers=tuple(map(_block, own.layers)),
        candidates=_candidates(names, config),
        head=Linear(own.head_weight),
        target_keys=True,
    )


def for_target(head: ModelSpec, target: ModelSpec, path: PathLike[str]) -> ModelSpec:
    """Bind a head to the layers of ``target`` that provide its keys and values, and to its embedding.

    Raises:
        InputError: if the head was trained for a target of other sizes; names ``path``.
    """
    assert head.features is not None

    def refuse(what: str, own: object, theirs: object) -> InputError:
        return InputError(
            f"{path}: this drafting head does not fit the model: its {what} is {own}, but the model has {theirs}",
            hint="use the assistant named after the model, such as google/gemma-4-E2B-it-assistant",
        )

    if head.features.width != target.hidden:
        raise refuse("backbone_hidden_size", head.features.width, target.hidden)
    if head.vocab != target.vocab:
        raise refuse("vocab_size", head.vocab, target.vocab)
    producers = {
        None if one.mixer.window is None else one.mixer.window + _SEEN: (number, one.mixer)  # the last layer wins
        for number, one in enumerate(target.layers)
        if isinstance(one.mixer, Attention) and one.mixer.shared is None
    }

    def bound(block: Block) -> Block:
        own = block.mixer
        assert isinstance(own, Attention)
        if own.window not in producers:
            raise refuse("sliding_window", (own.window or _SEEN) - _SEEN, "no layer with this window")
        number, theirs = producers[own.window]
        for what in ("kv_heads", "head_dim"):
            if getattr(own, what) != getattr(theirs, what):
                where = "layers with full attention" if own.window is None else "layers with a window"
                raise refuse(f"{what} in {where}", getattr(own, what), getattr(theirs, what))
        return replace(block, mixer=replace(own, shared=number))

    return replace(
        head,
        embedding=target.embedding,
        embedding_multiplier=target.embedding_multiplier,
        layers=tuple(map(bound, head.layers)),
        max_context=min(head.max_context, target.max_context),
    )
