"""Text encoders: the row type of ``families/text_encoders.py``, and the encoders in the order of BERT.

An encoder in the order of BERT has norms over the sums of a block's input and output. Its rows are the sum of three
tables: tokens, token types and, unless it rotates queries and keys, positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipex_lookahead.architectures.encoder import EncoderSpec, Link
from ipex_lookahead.architectures.hparams import Source
from ipex_lookahead.architectures.keys import ConfigKeys, GgufKeys, GgufSource
from ipex_lookahead.architectures.rope import power, rope
from ipex_lookahead.architectures.spec import Activation, Attention, Block, GatedMlp, Linear, Norm, Place, Tensor
from ipex_lookahead.errors import UnsupportedModelError

Config = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
"""Name of a folder's tensor, as in the spec -> shape."""

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
"""Name of an activation in transformers -> ``Activation.kind``."""
LABELS, DENSE = "num_labels", "dense_features"
"""Keys of a config that follow from the tensors: the outputs of a classifier, 0 for none, and [inputs, outputs] of each
dense layer after pooling."""


@dataclass(frozen=True)
class TextEncoder:
    """A family of text encoders.

    Attributes:
        about: the models, a colon, and their special features; a line of docs/families.md.
        KEYS: keys of its config.json.
        GGUF: its GGUF files; None: there are none.
        spec: returns the encoder for a checked config.
        prefixes: what may precede the names of tensors in folders.
        root: what precedes them in the spec.
        renames: parts of names in folders of other programs -> in the spec, applied in order.
        fused: parts of the spec's names -> the tensor of other programs that has these rows, the number of the part,
            and the number of parts.
        unread: beginnings of the names of tensors that an encoder does not use, after the prefix.
        classifier: matrices of a classifier; the last has a row for each label.
        respelled: returns a config.json with transformers' keys.
        foreign: parts of names of tensors of similar models that are not supported.
    """

    about: str
    KEYS: ConfigKeys
    GGUF: GgufKeys | None
    spec: Callable[[Config], EncoderSpec]
    prefixes: tuple[str, ...]
    root: str = ""
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, int, int]] | None = None
    unread: tuple[str, ...] = ()
    classifier: tuple[str, ...] = ()
    respelled: Callable[[Mapping[str, Any], Source], dict[str, Any]] | None = None
    foreign: tuple[str, ...] = ()

    def renamed(self, name: str) -> str | None:
        """Return the spec's name of a folder's tensor; None for tensors that an encoder does not use."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        for other, own in self.renames:
            name = name.replace(other, own)
        if name.endswith(_OLD):  # the first BERTs, converted from TensorFlow
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        name = name if name.startswith("dense_") else self.root + name
        return None if name.endswith(_IMPLIED) or name.startswith(self.unread) else name

    def complete(self, config: Config, shapes: Shapes) -> None:
        """Fill in the keys that follow from a folder's tensors: labels and dense layers.

        A classifier counts if all its matrices are there and the class in the config, if any, classifies texts.

        Raises:
            UnsupportedModelError: the folder has a tensor of a similar model that is not supported.
        """
        for name in shapes:
            if any(part in name for part in self.foreign):
                raise UnsupportedModelError(f"tensor {name[:200]} is of a kind of model that is not supported")
        classes = config.get("architectures") or ["ForSequenceClassification"]
        scores = any(one.endswith("ForSequenceClassification") for one in classes)
        there = bool(self.classifier) and all(name in shapes for name in self.classifier)
        config[LABELS] = shapes[self.classifier[-1]][0] if scores and there else 0
        dense = [name for name in ("dense_2.weight", "dense_3.weight") if len(shapes.get(name, ())) == 2]
        config[DENSE] = [[shapes[name][1], shapes[name][0]] for name in dense]

    def placed(self, tensor: Tensor, shapes: Shapes) -> Tensor:
        """Return a weight with its place in a folder that has it as rows of another tensor."""
        place = tensor.hf
        for part, (whole, number, parts) in (self.fused or {}).items():
            name = place.name.replace(part, whole)
            if place.name in shapes or name == place.name or name not in shapes:
                continue
            rows = place.shape[0]
            return Tensor(
                tensor.name,
                tensor.shape,
                Place(name, (parts * rows, *place.shape[1:]), rows=(number * rows, 1)),
                tensor.gguf,
            )
        return tensor


_OLD = (".gamma", ".beta")
_IMPLIED = (".position_ids", ".token_type_ids", ".inv_freq")
"""Ends of the names of tensors that follow from the config."""


def whole(name: str, gguf: str, shape: tuple[int, ...], own: str = "") -> Tensor:
    """Return a weight that is a tensor in both kinds of files; ``own`` is its name here if that differs."""
    return Tensor(own or name, shape, Place(name, shape), Place(gguf, shape))


def linear(name: str, gguf: str, n_out: int, n_in: int, *, bias: bool, own: str = "") -> Linear:
    """Return a linear layer; the names omit ``.weight``.

    Args:
        name: name in a folder.
        gguf: name in a GGUF file.
        n_out: outputs.
        n_in: inputs.
        bias: True if it has a bias.
        own: name here, as in decoders, so that rules for formats fit both (``layers.0.mlp.down_proj``); "": ``name``.
    """
    own = own or name
    return Linear(
        whole(f"{name}.weight", f"{gguf}.weight", (n_out, n_in), f"{own}.weight"),
        whole(f"{name}.bias", f"{gguf}.bias", (n_out,), f"{own}.bias") if bias else None,
    )


def layer_norm(name: str, gguf: str, config: Config, *, bias: bool = True) -> Norm:
    """Return a layer norm over the rows of an encoder."""
    shape = (config["hidden_size"],)
    own = whole(f"{name}.bias", f"{gguf}.bias", shape) if bias else None
    return Norm(whole(f"{name}.weight", f"{gguf}.weight", shape), config["rms_norm_eps"], own, centered=True)


def tokens(config: Config, name: str) -> Tensor:
    """Return the table of tokens."""
    return whole(name, "token_embd.weight", (config["vocab_size"], config["hidden_size"]))


def chains(config: Config, classifier: Callable[[], tuple[Link, ...]]) -> tuple[tuple[Link, ...], ...]:
    """Return the classifier's chain, if there is one, then that of the dense layers, if there are any."""
    made = [classifier()] if config.get(LABELS) else []
    dense = tuple(
        linear(f"dense_{i + 2}", f"dense_{i + 2}", n_out, n_in, bias=False)
        for i, (n_in, n_out) in enumerate(config.get(DENSE) or ())
    )
    return (*made, dense) if dense else tuple(made)


@dataclass(frozen=True)
class Parts:
    """Names of a block's parts in folders, and the biases that they have.

    Attributes:
        layers: what precedes the number of a block.
        q, k, v, o, attention_norm, gate, up, down, mlp_norm: names within a block; ``gate`` is "" for none.
        attention_bias: True for biases of q, k, v and o.
        up_bias, down_bias: True for biases of gate and up, and of down.
    """

    layers: str = "layers"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    o: str = "self_attn.o_proj"
    attention_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    mlp_norm: str = "post_mlp_layernorm"
    attention_bias: bool = True
    up_bias: bool = True
    down_bias: bool = True


OWN = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
"""Name of a linear layer in GGUF files -> name here."""
BERT = Parts(
    "encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip


def post_norm(
    config: Config,
    parts: Parts,
    *,
    classifier: tuple[str, str],
    between: str = "tanh",
    rotates: bool = False,
    alibi: bool = False,
    offset: int = 0,
) -> EncoderSpec:
    """Return an encoder in the order of BERT.

    Args:
        config: the checked config.
        parts: names in folders.
        classifier: names of the classifier's two linear layers in folders.
        between: activation between them.
        rotates: True for rope. Without rope and ALiBi, there is a table of positions.
        alibi: True for scores that fall with the distance of two tokens.
        offset: row of the first position in a folder's table.
    """
    hidden, heads, d, inner = (
        config[key] for key in ("hidden_size", "num_attention_heads", "head_dim", "intermediate_size")
    )
    turn = rope(config) if rotates else None
    activation = Activation(ACTIVATIONS[config["hidden_act"]])

    def block(layer: int) -> Block:
        ours, theirs = f"{parts.layers}.{layer}", f"blk.{layer}"

        def part(name: str, gguf: str, n_out: int, n_in: int, bias: bool) -> Linear:
            own = f"layers.{layer}.{OWN[gguf]}"
            return linear(f"{ours}.{name}", f"{theirs}.{gguf}", n_out, n_in, bias=bias, own=own)

        def norm(name: str, gguf: str) -> Norm:
            return layer_norm(f"{ours}.{name}", f"{theirs}.{gguf}", config)

        biased = parts.attention_bias
        return Block(
            mixer=Attention(
                heads=heads, kv_heads=heads, head_dim=d, scale=float(d) ** -0.5, rope=turn,
                q=part(parts.q, "attn_q", hidden, hidden, biased), k=part(parts.k, "attn_k", hidden, hidden, biased),
                v=part(parts.v, "attn_v", hidden, hidden, biased),
                o=part(parts.o, "attn_output", hidden, hidden, biased),
            ),
            mixer_after=norm(parts.attention_norm, "attn_output_norm"),
            feed_forward=GatedMlp(
                part(parts.gate, "ffn_gate", inner, hidden, parts.up_bias) if parts.gate else None,
                part(parts.up, "ffn_up", inner, hidden, parts.up_bias),
                part(parts.down, "ffn_down", hidden, inner, parts.down_bias),
                activation,
            ),
            feed_forward_after=norm(parts.mlp_norm, "layer_output_norm"),
        )  # fmt: skip

    def head() -> tuple[Link, ...]:
        dense, out = classifier
        last = linear(out, "cls.output", config[LABELS], hidden, bias=True)
        return linear(dense, "cls", hidden, hidden, bias=True), Activation(between), last

    types, positions = config["type_vocab_size"], config["max_position_embeddings"]
    table = "embeddings.position_embeddings.weight"
    places = Place(table, (positions, hidden), rows=(offset, 1) if offset else None)
    usable, kinds = (positions - offset, hidden), (types, hidden)
    return EncoderSpec(
        model_type=config["model_type"],
        hidden=hidden,
        embedding=tokens(config, "embeddings.word_embeddings.weight"),
        types=whole("embeddings.token_type_embeddings.weight", "token_types.weight", kinds) if types else None,
        positions=None if rotates or alibi else Tensor(table, usable, places, Place("position_embd.weight", usable)),
        embedding_norm=layer_norm("embeddings.LayerNorm", "token_embd_norm", config),
        chains=chains(config, head),
        layers=tuple(block(layer) for layer in range(config["num_hidden_layers"])),
        post_norm=True,
        slopes=alibi_slopes(heads) if alibi else (),
    )


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return ALiBi's factor of each head (arXiv 2108.12409), rounded to float32.

    They are 2^(-8 / n), 2^(-16 / n), ... for n heads, the largest power of 2; further heads have every second factor of
    2 n heads.
    """
    n = 1 << (heads.bit_length() - 1)
    powers = [-8 * (i + 1) / n for i in range(n)] + [-4 * (2 * i + 1) / n for i in range(heads - n)]
    return tuple(float(one) for one in power(2.0, np.array(powers, np.float32)))


def check_bert(config: Config, source: Source) -> None:
    """Store the norms' epsilon under its usual name, and refuse sizes of heads that the family does not have."""
    config["rms_norm_eps"] = config["layer_norm_eps"]
    check_whole_heads(config, source)


def check_whole_heads(config: Config, source: Source) -> None:
    """Raise UnsupportedModelError unless the heads divide the hidden size and have keys and values of their own."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    if heads * config["head_dim"] != hidden or config["num_key_value_heads"] != heads:
        raise UnsupportedModelError(
            f"{source.file}: {heads} attention heads of {config['head_dim']} values with"
            f" {config['num_key_value_heads']} heads of keys in rows of {hidden}; the heads of this family divide its"
            " rows evenly, and each has keys and values of its own"
        )


def complete_bert(file: GgufSource, config: Config) -> None:
    """Fill in what follows from the tensors of a GGUF file in the order of BERT."""
    config["layer_norm_eps"] = config["rms_norm_eps"]
    config["type_vocab_size"] = _rows(file, "token_types.weight")
    complete_labels(file, config)
    if config[LABELS] and not config["type_vocab_size"]:
        raise UnsupportedModelError(
            f"{file.path}: has a classifier and no token types, as DistilBERT; llama.cpp computes another one than"
            " transformers there",
            hint="use the model's Hugging Face folder",
        )
    if config[LABELS] and "cls.weight" not in file.tensors:
        raise UnsupportedModelError(
            f"{file.path}: has a classifier (cls.output) without the pooler before it (cls), which llama.cpp's"
            " converter leaves out for BERT; its scores would be wrong",
            hint="use the model's Hugging Face folder",
        )


def complete_labels(file: GgufSource, config: Config) -> None:
    """Fill in the number of labels, and the dense layers, of a GGUF file."""
    config[LABELS] = _rows(file, "cls.output.weight")
    shapes = (file.tensors[f"dense_{i}.weight"].shape for i in (2, 3) if f"dense_{i}.weight" in file.tensors)
    config[DENSE] = [[shape[1], shape[0]] for shape in shapes if len(shape) == 2]


def _rows(file: GgufSource, name: str) -> int:
    """Return the number of rows of a tensor; 0 if there is none. llama.cpp's tools omit leading dimensions of 1."""
    if name not in file.tensors:
        return 0
    shape = file.tensors[name].shape
    return int(shape[0]) if len(shape) > 1 else 1
