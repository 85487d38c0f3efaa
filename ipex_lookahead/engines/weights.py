"""From a checkpoint's tensors to the formats an engine was asked for, checked against the config on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.errors import InputError, LowBitFormatError, ModelFormatError
from ipex_lookahead.formats import FLOATS, FORMATS, dequantize, get_format, quantize
from ipex_lookahead.formats.base import PackedWeight

LARGEST = 65504.0
"""The largest value of a norm's weights or a bias: binary16's, in which keys and values are kept."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Which format each matrix gets.

    Attributes:
        low_bit: a key of ``FORMATS``, or None: every tensor stays as it is in the file.
        group_size: inputs that share a scale, 32 or 64 (ipex-llm's).
        mixed_precision: the lm_head in sym_int8 whatever ``low_bit`` says.
        not_converted: substrings of names whose matrices stay in the file's float format.
        head: name of the tensor that serves as lm_head.
    """

    low_bit: str | None = None
    group_size: int = 32
    mixed_precision: bool = False
    not_converted: tuple[str, ...] = ()
    head: str = "lm_head.weight"
    label: str = ""

    def __post_init__(self) -> None:
        if self.low_bit is not None:
            sizes = get_format(self.low_bit).group_sizes
            if sizes != (0,) and self.group_size not in sizes:
                raise LowBitFormatError(
                    f"group size {self.group_size} does not go with {self.low_bit}; it must be one of "
                    f"{', '.join(map(str, sizes))}"
                )

    def target(self, name: str) -> str | None:
        """The format for the matrix of that name; None = as in the file."""
        if self.low_bit is None or any(part in name for part in self.not_converted):
            return "sym_int8" if self.mixed_precision and name == self.head else None
        return "sym_int8" if self.mixed_precision and name == self.head else self.low_bit


def check_low_bit(name: object) -> str:
    """``name`` as the name of a format that weights can be loaded in."""
    if not isinstance(name, str) or name not in FORMATS:
        raise LowBitFormatError(
            f"unknown low-bit format {name!r}; the known formats are {', '.join(FORMATS)}",
            hint='for example load_in_low_bit="sym_int4"',
        )
    return name


def check_shape(checkpoint: Checkpoint, tensor: Tensor) -> None:
    """Raise ModelFormatError for a tensor that is not there, or whose shape is not the one that the config implies."""
    got = checkpoint.info(tensor.name).shape
    if tuple(got) != tensor.shape:
        raise ModelFormatError(
            checkpoint.path, tensor.name, None, f"has shape {list(got)}, but the config implies {list(tensor.shape)}"
        )


def _read(checkpoint: Checkpoint, tensor: Tensor) -> PackedWeight:
    check_shape(checkpoint, tensor)
    return checkpoint.read(tensor.name)


def read_matrix(
    checkpoint: Checkpoint,
    tensor: Tensor,
    plan: WeightPlan,
    *,
    keep: bool = False,
    threads: int | None = None,
) -> PackedWeight:
    """A weight matrix in the format of the plan; ``keep`` leaves it as it is in the file (the embedding).

    A weight that is low bit in the file and asked for in another format is dequantised to float32 and quantised again.
    """
    weight = _read(checkpoint, tensor)
    target = None if keep else plan.target(tensor.name)
    if target is None or weight.format == target and weight.group_size in (0, plan.group_size):
        return weight
    if weight.format not in FLOATS:
        weight = PackedWeight("fp32", weight.shape, dequantize(weight))
    try:
        return quantize(weight, target, plan.group_size, threads)
    except LowBitFormatError as error:
        raise ModelFormatError(checkpoint.path, tensor.name, None, str(error)) from None


def random_matrix(shape: tuple[int, int], name: str, group_size: int, rng: np.random.Generator) -> PackedWeight:
    """A matrix of random codes with values of about 1 / sqrt(n_in), so that activations stay of one size."""
    return get_format(name).random(shape, group_size, rng)


def read_vector(checkpoint: Checkpoint, tensor: Tensor) -> npt.NDArray[np.float32]:
    """A norm's weights, a bias or sinks, as float32 [n].

    Raises ModelFormatError for values beyond ``LARGEST``: a step's products would overflow, far from what is wrong.
    """
    values = np.require(dequantize(_read(checkpoint, tensor)), np.float32, ("C", "A"))  # as the core takes it
    at = int(np.argmax(np.abs(values)))
    if abs(values[at]) > LARGEST:
        raise ModelFormatError(
            checkpoint.path, tensor.name, None,
            f"value {at} is {values[at]:g}; values of vectors are at most {LARGEST:g}",
            hint="the checkpoint is damaged: download or convert it again",
        )  # fmt: skip
    return values


def not_converted(names: object) -> tuple[str, ...]:
    """``modules_to_not_convert`` as a tuple of name parts. Raises InputError if it is not a list of strings."""
    if names is None:
        return ()
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in names):  # type: ignore[attr-defined]
        raise InputError(f"modules_to_not_convert is {names!r}; it must be a list of (parts of) module names")
    return tuple(names)  # type: ignore[arg-type]
