"""Mamba-2 mixers with the usual tensor names of hybrids: one matrix for gate, convolution inputs and steps."""

from __future__ import annotations

from typing import Any

from ipex_lookahead.architectures.hparams import MAX_HEAD_DIM, Check, Source, integer, shown
from ipex_lookahead.architectures.names import Names
from ipex_lookahead.architectures.spec import Linear, Mamba2, Norm, Place, Tensor

MAX_KERNEL = 16
MAX_HEADS = 1 << 16
MAX_STATE = MAX_HEAD_DIM


def step_limit(source: Source, key: str, value: Any) -> list[float]:
    """Check for the two bounds of steps, the second of which may be infinite."""
    if isinstance(value, list) and len(value) == 2:
        low, high = (float(_number(one)) for one in value)
        if 0 <= low <= high:
            return [low, high]
    raise source.error(key, f"is {shown(value)}; it must be two numbers from 0, the smaller first")


def _number(value: Any) -> float:
    """Return a number of JSON, or an infinity as transformers 5 writes it; NaN for anything else."""
    if isinstance(value, dict) and value.keys() == {"__float__"} and value["__float__"] == "Infinity":
        return float("inf")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def no_limit(source: Source, key: str, value: Any) -> list[float]:
    """Check for bounds of steps that have no effect; with others, transformers' prefill and decode disagree."""
    limit = step_limit(source, key, value)
    if limit != [0.0, float("inf")]:
        raise source.error(key, f"is {shown(value)}; it must be [0, Infinity]: other limits have no agreed meaning")
    return limit


def head_size(source: Source, key: str, value: Any) -> int | str:
    """Check for the size of a recurrent head; "auto" derives it from other sizes."""
    return "auto" if value == "auto" else integer(1, MAX_STATE)(source, key, value)


def of_words(*pairs: tuple[str, str]) -> Check:
    """Return a check for a list of layer kinds; pairs are (word in a config, name here), transformers' words first."""
    words = dict(pairs)

    def check(source: Source, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) and one in words for one in value):
            raise source.error(key, f"is {shown(value)}; it must be a list of {', '.join(words)}")
        return [words[one] for one in value]

    return check


def mamba2(
    names: Names,
    layer: int,
    module: str,
    *,
    heads: int,
    head_dim: int,
    groups: int,
    state: int,
    kernel: int,
    bias: bool,
    convolution_bias: bool,
    out_bias: bool | None = None,
    normed: bool = True,
    **switches: Any,
) -> Mamba2:
    """Return the Mamba-2 mixer of block ``layer``.

    Args:
        names: tensors of the model.
        layer: number of the block.
        module: name of the mixer in a folder, as in ``model.layers.0.mamba``.
        heads: heads of x.
        head_dim: size of a head.
        groups: groups of B and C.
        state: size of B and C.
        kernel: taps of the convolution.
        bias: True if the linear layers have biases.
        convolution_bias: True if the convolution has a bias.
        out_bias: True if the output's matrix has a bias; None: as the others.
        normed: False if there is no norm.
        switches: further fields of ``Mamba2``.
    """
    inner, hidden = heads * head_dim, names.hidden
    channels = inner + 2 * groups * state
    whole = (inner + channels + heads, hidden)

    def part(name: str, first: int, n: int) -> Linear:
        hf = Place(f"{module}.in_proj", whole, rows=(first, 1))
        return names.part(
            layer, f"{module}.{name}", hf, Place("ssm_in", whole, rows=(first, 1)), (n, hidden), bias=bias
        )

    def of_heads(name: str, gguf: str) -> Tensor:
        ours, theirs = f"model.layers.{layer}.{module}.{name}", f"blk.{layer}.{gguf}"
        return Tensor(
            ours, (heads,), Place(ours, (heads,)), Place(theirs, (heads, 1), negative_exponential=gguf == "ssm_a")
        )

    weight, shape = f"model.layers.{layer}.{module}.norm.weight", (groups, inner // groups)
    place = Place(f"blk.{layer}.ssm_norm.weight", shape)
    norm = Norm(Tensor(weight, (inner,), Place(weight, (inner,)), place), names.epsilon)
    return Mamba2(
        heads=heads,
        groups=groups,
        key_dim=state,
        value_dim=head_dim,
        kernel=kernel,
        norm_group=inner // groups,
        inputs=part("inputs_proj", inner, channels),
        gate=part("gate_proj", 0, inner),
        steps=part("steps_proj", inner + channels, heads),
        convolution=names.convolution(layer, f"{module}.conv1d", "ssm_conv1d", channels, kernel),
        convolution_bias=names.vector(layer, f"{module}.conv1d.bias", "ssm_conv1d.bias", channels)
        if convolution_bias
        else None,
        rate=of_heads("A_log", "ssm_a"),
        step_bias=names.vector(layer, f"{module}.dt_bias", "ssm_dt.bias", heads),
        skip=of_heads("D", "ssm_d"),
        norm=norm if normed else None,
        out=names.linear(
            layer, f"{module}.out_proj", "ssm_out", hidden, inner, bias=bias if out_bias is None else out_bias
        ),
        **switches,
    )
