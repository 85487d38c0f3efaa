"""Gemma 4's assistants: heads that draft for it from its own keys and values, and keep nothing themselves.

A row is made of the embedding of the text's last token, as the target has it, and of the target's features of the
position before, after the final norm. Its layers have queries alone: those that see all attend to the keys and values
of the target's last layer of that kind that has its own, and those with a window likewise. All tokens of a draft stand
at the position of the first, and see what the target has committed; what is fed back goes through a projection first.

Assistants of E2B and E4B compute logits for the tokens of the few centroids that a row likes best.
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
"""A centroid's tokens are a multiple of this: whole tiles of the lm_head as it is packed."""
_SEEN = 2
"""Positions that a row of a layer with a window sees more than one of the target's, which counts itself: transformers'
mask lets it see the last ``sliding_window + 1`` committed ones. vLLM has ``sliding_window``, and llama.cpp one less; no
trained assistant has told them apart here."""


def _check(config: dict[str, Any], source: Source) -> None:
    for key, wanted in _NONE.items():
        if config[key] != wanted:
            raise UnsupportedModelError(
                f"{source.file}: {source.spelling(key)} is {shown(config[key])}; in an assistant it must be {wanted!r}"
            )
    gemma4_text.check_layers(config, source)
    layers, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    if shared not in (0, layers):
        raise source.error("num_kv_shared_layers", f"is {shared}; an assistant's {layers} layers all share keys")
    if not config[_ORDERED]:
        return
    vocab, centroids, used = config["vocab_size"], config[_CENTROIDS], config[_USED]
    if vocab % (centroids * _TILE):
        raise UnsupportedModelError(
            f"{source.file}: {source.spelling(_CENTROIDS)} is {centroids}; each must stand for the same multiple of"
            f" {_TILE} of the {vocab} tokens here"
        )
    if used > centroids:
        raise source.error(_USED, f"is {used}, more than the {centroids} centroids")


TEXT = replace(
    gemma4_text.KEYS,
    family="gemma4_assistant",
    used={
        **gemma4_text.KEYS.used,
        "vocab_size_per_layer_input": integer(0, 4 << 20),
        _WIDTH: SIZES["hidden_size"],
        _ORDERED: boolean,
        _CENTROIDS: integer(1, 1 << 20),
        _USED: integer(1, 1 << 10),
    },
    defaults={
        **gemma4_text.KEYS.defaults,
        _WIDTH: 1536,
        _ORDERED: False,
        _CENTROIDS: 2048,
        _USED: 32,
    },
    check=_check,
)
KEYS = ConfigKeys(inside="text_config", parts={"gemma4_text": TEXT}, outer=(_WIDTH, _ORDERED, _CENTROIDS, _USED))
_TEXT_GGUF = gemma4_text.GGUF
GGUF = replace(
    _TEXT_GGUF,
    architecture="gemma4-assistant",
    class_name="Gemma4AssistantForCausalLM",
    used={**_TEXT_GGUF.used, _WIDTH: "embedding_length_out"},
    neutral={"nextn_predict_layers": "how many blocks are for drafting: all of them are"},
)
"""llama.cpp's converter leaves the centroids out: of such a file no candidates are chosen."""


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
    """The head that a gemma4_assistant ``config`` describes, for a target yet to be named: see :func:`for_target`."""
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
    """The head with the layers of ``target`` whose keys and values its own have, and with its embedding.

    Raises InputError, which names ``path``, for a target of other sizes than the head was trained for.
    """
    assert head.features is not None

    def refuse(what: str, own: object, theirs: object) -> InputError:
        return InputError(
            f"{path}: this drafting head does not fit the model: its {what} is {own}, and the model has {theirs}",
            hint="use the assistant that is named after the model, such as google/gemma-4-E2B-it-assistant",
        )

    if head.features.width != target.hidden:
        raise refuse("backbone_hidden_size", head.features.width, target.hidden)
    if head.vocab != target.vocab:
        raise refuse("vocab_size", head.vocab, target.vocab)
    producers = {
        None if one.mixer.window is None else one.mixer.window + _SEEN: (number, one.mixer)  # the last one stays
        for number, one in enumerate(target.layers)
        if isinstance(one.mixer, Attention) and one.mixer.shared is None
    }

    def bound(block: Block) -> Block:
        own = block.mixer
        assert isinstance(own, Attention)
        if own.window not in producers:
            raise refuse("sliding_window", (own.window or _SEEN) - _SEEN, "no layer with that")
        number, theirs = producers[own.window]
        for what in ("kv_heads", "head_dim"):
            if getattr(own, what) != getattr(theirs, what):
                where = "layers that see all" if own.window is None else "layers with a window"
                raise refuse(f"{what} in {where}", getattr(own, what), getattr(theirs, what))
        return replace(block, mixer=replace(own, shared=number))

    return replace(
        head,
        embedding=target.embedding,
        embedding_multiplier=target.embedding_multiplier,
        layers=tuple(map(bound, head.layers)),
        max_context=min(head.max_context, target.max_context),
    )
