"""From a checkpoint's tensors to the formats of a plan, checked against the config on the way."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.checkpoints.base import Checkpoint, TensorInfo
from ipex_lookahead.checkpoints.imatrix import Imatrix
from ipex_lookahead.errors import InputError, LowBitFormatError, ModelFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.formats import FLOATS, as_floats, dequantize, get_format, quantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.rules import (
    EMBEDDING,
    HEAD,
    FormatRules,
    Formats,
    ModelFacts,
    Rule,
    Shape,
    format_of,
    label_of,
    rules_of,
)
from ipex_lookahead.low_bits import is_rules_file

log = logging.getLogger("ipex_lookahead")

LARGEST = 65504.0
"""The largest value of a norm's weights or a bias: binary16's, in which keys and values are kept."""
HEAD_BITS = 6
"""Least bits of a drafting head's matrices: it is small beside its model, and fewer bits cost it accepted tokens."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Which format each matrix gets.

    Attributes:
        low_bit: a format, an alias, a preset or the path of a file of rules (``formats/rules.py``), or None: every
            tensor stays as it is in the file.
        group_size: inputs that share a scale, 32 or 64 (ipex-llm's), in the formats that leave a choice.
        mixed_precision: a rule before all others: the lm_head in sym_int8.
        not_converted: substrings of names whose matrices stay in the file's float format.
        head: name of the tensor that serves as lm_head.
        label: the name that the model's format goes by.
        embedding: name of an embedding that is no lm_head, which rules may give a format.
        embedding_qtype: a rule before all others: that embedding's format.
        model: what rules look at of the model; see :meth:`over`.
        imatrix: what the errors of each input's weights count; None: all alike.
        least_bits: a matrix that would have fewer bits becomes sym_int8, or stays as it is where the file has codes.
        rules: the rules of ``low_bit``, with those of the other arguments before them.
    """

    low_bit: str | None = None
    group_size: int = 32
    mixed_precision: bool = False
    not_converted: tuple[str, ...] = ()
    head: str = "lm_head.weight"
    label: str = ""
    embedding: str = ""
    embedding_qtype: str | None = None
    model: ModelFacts = field(default_factory=ModelFacts)
    imatrix: Imatrix | None = None
    least_bits: int = 0
    rules: FormatRules = field(init=False)

    def __post_init__(self) -> None:
        first = [Rule(HEAD, ("sym_int8",))] if self.mixed_precision else []
        if self.embedding_qtype is not None:
            first.append(Rule(EMBEDDING, (format_of(self.embedding_qtype),)))
        rules = FormatRules() if self.low_bit is None else rules_of(self.low_bit)
        object.__setattr__(self, "rules", replace(rules, rules=(*first, *rules.rules)))
        for name in self.rules.named():
            sizes = get_format(name).group_sizes
            if sizes != (0,) and self.group_size not in sizes:
                raise LowBitFormatError(
                    f"group size {self.group_size} does not go with {name}; it must be one of "
                    f"{', '.join(map(str, sizes))}"
                )

    @property
    def name(self) -> str | None:
        """What a model made so is called: ``low_bit``, of a file of rules its name without the folder."""
        return None if self.low_bit is None else label_of(self.low_bit)

    def of_spec(self, spec: ModelSpec) -> WeightPlan:
        """The plan for a model. See :meth:`over`; says which matrices have no importance, where others have.

        Raises:
            InputError: an ``embedding_qtype`` of a tied embedding.
            ModelFormatError: an importance matrix of another model.
        """
        if self.embedding_qtype is not None and spec.tied:
            raise InputError(
                f"embedding_qtype={self.embedding_qtype!r}: this model's embedding is its output layer too, and has one"
                " format",
                hint="leave embedding_qtype out; load_in_low_bit, or a rule for 'head', says that format",
            )
        embedding = "" if spec.tied else spec.embedding.name
        plan = replace(self, head=spec.head_weight.name, embedding=embedding).over(matrices(spec))
        if self.imatrix is not None:
            imatrix = replace(self.imatrix, tables=spec.tables())
            plan = replace(plan, imatrix=imatrix)
            shapes = {name: shape for name, shape in matrices(spec).items() if name not in imatrix.tables}
            wanted = [one for one in spec.tensors() if one.name in shapes and plan._quantises(one.name, one.shape)]
            if missing := imatrix.missing(wanted, spec):
                log.warning(
                    "%s says nothing of %d of %d matrices, whose inputs count alike: %s", self.imatrix.path,
                    len(missing), len(wanted), ", ".join(_alike(missing)),
                )  # fmt: skip
        return plan

    def _quantises(self, name: str, shape: Shape) -> bool:
        return any(target not in FLOATS for target in self.target(name, shape))

    def of_head(self, low_bit: str | None, of_model: str = "") -> WeightPlan:
        """The plan for a head that drafts for this model: in ``low_bit``, or in this plan's formats of enough bits.

        ``of_model``: the name of the format that the model has. Beside one that is in low bits as it lies in its files
        a head of floats would take twice as long, so these become sym_int8. "": all stays as it is.
        """
        if low_bit is None and self.low_bit is None and of_model not in ("", *FLOATS):
            return WeightPlan("sym_int8", head=self.head, least_bits=HEAD_BITS, imatrix=self.imatrix)
        if low_bit is None:
            return replace(self, least_bits=HEAD_BITS)
        groups = self.group_size if self.group_size in get_format(low_bit).group_sizes else 32
        return WeightPlan(low_bit, groups, head=self.head, label=low_bit, imatrix=self.imatrix)

    def stays(self, info: TensorInfo) -> bool:
        """Whether a matrix stays as it is in the file since it would else be rounded twice for ``least_bits``."""
        return self.least_bits > 0 and info.format not in FLOATS

    def over(self, shapes: Mapping[str, Shape]) -> WeightPlan:
        """The plan for a model that has matrices of those names and shapes.

        Raises LowBitFormatError for a rule that is for such a model and matches none of them.
        """
        model = ModelFacts.of(shapes)
        self.rules.check(shapes, model, self.head, self.embedding)
        return replace(self, model=model)

    def target(self, name: str, shape: Shape) -> Formats:
        """The formats that the matrix may get, of several the best; empty: it stays as it is in the file."""
        return tuple(dict.fromkeys(self._fitting(self._wide_enough(one), shape) for one in self._wanted(name)))

    def fallbacks(self, shapes: Mapping[str, Shape]) -> str:
        """Which matrices get another format than the rules say, since its blocks do not divide their inputs.

        ``3 of 22 matrices have 96 inputs, no whole blocks: sym_int5 for q4_k (2: down_proj), ...``; empty for none.
        """
        found: dict[tuple[str, str], list[str]] = {}
        inputs: set[int] = set()
        for name, shape in shapes.items():
            for wanted in self._wanted(name):
                if (got := self._fitting(wanted, shape)) != wanted:
                    found.setdefault((got, wanted), []).append(name)
                    inputs.add(shape[-1])
        if not found:
            return ""
        count = len({name for names in found.values() for name in names})
        kinds = [
            f"{got} for {wanted} ({len(names)}: {', '.join(dict.fromkeys(map(_of_any_layer, names)))})"
            for (got, wanted), names in found.items()
        ]
        sizes = " or ".join(map(str, sorted(inputs)))
        return f"{count} of {len(shapes)} matrices have {sizes} inputs, no whole blocks: {', '.join(kinds)}"

    def _wanted(self, name: str) -> Formats:
        if any(part in name for part in self.not_converted) and not (self.mixed_precision and name == self.head):
            return ()
        return self.rules.of(name, self.model, self.head, self.embedding)

    def _wide_enough(self, name: str) -> str:
        return name if get_format(name).bits >= self.least_bits else "sym_int8"

    def _fitting(self, name: str, shape: Shape) -> str:
        while name in self.rules.fallbacks and shape[-1] % (get_format(name).streams[0].inputs or self.group_size):
            name = self.rules.fallbacks[name]
        return name


def _of_any_layer(name: str) -> str:
    """``down_proj`` of ``model.layers.3.mlp.down_proj.weight``."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _of_all_layers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name.removesuffix(".weight"))


def _alike(names: list[str]) -> list[str]:
    """Names of all layers' tensors together, with how many there are: ``model.layers.*.mlp.down_proj (30)``."""
    return [f"{name} ({count})" for name, count in Counter(map(_of_all_layers, names)).items()]


def matrices(spec: ModelSpec) -> dict[str, Shape]:
    """Names and shapes of a model's matrices, without the routers, which are in no low-bit format."""
    kept = {*spec.kept()} - {spec.embedding.name}
    return {tensor.name: tensor.shape for tensor in spec.tensors() if tensor.is_matrix and tensor.name not in kept}


def label_in(checkpoint: Checkpoint, spec: ModelSpec) -> str:
    """What a checkpoint's format is called: as it was saved, else the one that most matrices of its layers are in."""
    if isinstance(saved := getattr(checkpoint, "low_bit", {}).get("low_bit"), str):
        return saved
    outside = (spec.embedding.name, spec.head_weight.name)
    found = Counter(checkpoint.info(name).format for name in matrices(spec) if name not in outside)
    return found.most_common(1)[0][0]


def log_fallbacks(plan: WeightPlan, shapes: Mapping[str, Shape]) -> None:
    """Say in a line which matrices get another format than the plan's rules want for them."""
    if said := plan.fallbacks(shapes):
        log.warning("%s: %s", plan.name, said)


def check_low_bit(name: object) -> str:
    """``name`` as the name of what weights can be loaded in: a format's own, a preset's, or a file's whole path."""
    rules_of(name)
    assert isinstance(name, str)  # rules_of takes nothing else
    return str(given_path(name).absolute()) if is_rules_file(name) else label_of(name)


def check_format(name: object) -> str:
    """``name`` as the name of one format, where all weights are to be alike."""
    return format_of(name)


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

    A weight that is low bit in the file and wanted in another format is dequantised to float32 and quantised again.
    """
    weight = _read(checkpoint, tensor)
    targets = () if keep else plan.target(tensor.name, tensor.shape)
    if not targets or weight.format in targets and weight.group_size in (0, plan.group_size):
        return weight
    weight = as_floats(weight)
    try:
        importance = None if plan.imatrix is None else plan.imatrix.of(tensor)
        return quantize_best(weight, targets, plan.group_size, threads, importance)
    except LowBitFormatError as error:
        raise ModelFormatError(checkpoint.path, tensor.name, None, str(error)) from None


class PlannedWeights:
    """A checkpoint's matrices in the formats of a plan, as every engine and every saved folder has them.

    An embedding that is no lm_head stays as it is in the file, unless the plan names it. Routers and gates of shared
    experts are in floats: low-bit codes of a file are decoded, since quantised activations would give other bits.

    Args:
        checkpoint: where they are read.
        spec: the model.
        plan: their formats, over that model.
        threads: to quantise with; None: one on each CPU that this process may use.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, threads: int | None = None) -> None:
        self._checkpoint, self._plan, self._threads = checkpoint, plan, threads
        self._kept, self._routers = {*spec.kept()} - {plan.embedding}, {*spec.routers()}

    def choices(self, tensor: Tensor) -> list[TensorInfo]:
        """What a matrix may become: one entry, but where its values decide among several formats."""
        info, plan = self._checkpoint.info(tensor.name), self._plan
        if tensor.name in self._routers and info.format not in FLOATS:
            return [TensorInfo(tensor.shape, "fp32")]
        targets = () if self._stays(tensor) else plan.target(tensor.name, tensor.shape)
        if not targets or info.format in targets and info.group_size in (0, plan.group_size):
            return [TensorInfo(tensor.shape, info.format, info.group_size)]
        sizes = [get_format(name).group_sizes for name in targets]
        groups = [plan.group_size if plan.group_size in allowed else allowed[0] for allowed in sizes]
        return [TensorInfo(tensor.shape, name, group) for name, group in zip(targets, groups, strict=True)]

    def read(self, tensor: Tensor) -> PackedWeight:
        """The matrix. Raises as :func:`read_matrix`."""
        weight = read_matrix(self._checkpoint, tensor, self._plan, keep=self._stays(tensor), threads=self._threads)
        return as_floats(weight) if tensor.name in self._routers else weight

    def _stays(self, tensor: Tensor) -> bool:
        return tensor.name in self._kept or self._plan.stays(self._checkpoint.info(tensor.name))


def quantize_best(
    weight: PackedWeight,
    names: Formats,
    group_size: int,
    threads: int | None = None,
    importance: npt.NDArray[np.float32] | None = None,
) -> PackedWeight:
    """A float matrix in that of several formats whose values have the least squared error; the first among equals.

    ``importance`` as in ``LowBitFormat.quantize``.
    """
    if len(names) == 1:
        return quantize(weight, names[0], group_size, threads, importance)
    made = [quantize(weight, name, group_size, threads, importance) for name in names]
    errors = [_squared_error(weight, one, np.float32(1) if importance is None else importance) for one in made]
    return made[errors.index(min(errors))]


def _squared_error(
    weight: PackedWeight, packed: PackedWeight, importance: npt.NDArray[np.float32] | np.float32
) -> float:
    step = max(1, ROWS_OF // weight.shape[1])
    pieces = (slice(row, row + step) for row in range(0, weight.shape[0], step))
    return sum(
        float((np.square(lost, dtype=np.float64) * importance).sum())
        for lost in (dequantize(outputs_of(weight, p)) - dequantize(outputs_of(packed, p)) for p in pieces)
    )


ROWS_OF = 1 << 20
"""Values that are compared at a time."""


def outputs_of(weight: PackedWeight, rows: slice | npt.NDArray[np.integer[Any]]) -> PackedWeight:
    """Some outputs of a matrix, as a matrix."""
    arrays: dict[str, Any] = {name: array[rows] for name, array in weight.arrays()}
    return replace(weight, shape=(len(arrays["codes"]), weight.shape[1]), **arrays)


def together(parts: Sequence[PackedWeight]) -> PackedWeight:
    """Matrices of one format and width one below the other, as one; the opposite of :func:`outputs_of`."""
    if len(parts) == 1:
        return parts[0]
    named = [dict(part.arrays()) for part in parts]
    arrays: dict[str, Any] = {name: np.concatenate([one[name] for one in named]) for name in named[0]}
    return replace(parts[0], shape=(len(arrays["codes"]), parts[0].shape[1]), **arrays)


def random_matrix(shape: tuple[int, int], name: str, group_size: int, rng: np.random.Generator) -> PackedWeight:
    """A matrix of random codes with values of about 1 / sqrt(n_in), so that activations stay of one size."""
    return get_format(name).random(shape, group_size, rng)


def read_vector(checkpoint: Checkpoint, tensor: Tensor) -> npt.NDArray[np.float32]:
    """A norm's weights, a bias or sinks, as float32 [n]; a number as [1].

    Raises ModelFormatError for values beyond ``LARGEST``: a step's products would overflow, far from what is wrong.
    """
    values = np.require(dequantize(_read(checkpoint, tensor)), np.float32, ("C", "A")).reshape(
        -1
    )  # as the core takes it
    at = int(np.argmax(np.abs(values)))
    if abs(values[at]) > LARGEST:
        raise ModelFormatError(
            checkpoint.path, tensor.name, None,
            f"value {at} is {values[at]:g}; values of vectors are at most {LARGEST:g}",
            hint="the checkpoint is damaged: download or convert it again",
        )  # fmt: skip
    return values


def read_order(checkpoint: Checkpoint, tensor: Tensor) -> npt.NDArray[np.int32]:
    """Numbers that a vector holds in some order, 0 to n - 1, as int32 [n]. Raises ModelFormatError for others."""
    order: npt.NDArray[np.int32] = dequantize(_read(checkpoint, tensor)).astype(np.int32)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ModelFormatError(checkpoint.path, tensor.name, None, f"does not name each of {len(order)} tokens once")
    return order


def not_converted(names: object) -> tuple[str, ...]:
    """``modules_to_not_convert`` as a tuple of name parts. Raises InputError if it is not a list of strings."""
    if names is None:
        return ()
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in names):  # type: ignore[attr-defined]
        raise InputError(argument="modules_to_not_convert", got=names, allowed="a list of (parts of) module names")
    return tuple(names)  # type: ignore[arg-type]
