"""The plan of weight formats, and reading a checkpoint's tensors in the formats of the plan."""

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
"""The largest value of a vector: the maximum of binary16, the format of the KV cache."""
HEAD_BITS = 6
"""Least bits of a drafting head's matrices: a head is small, and fewer bits lower its acceptance rate."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The format of each matrix.

    Attributes:
        low_bit: a format, an alias, a preset, or the path of a file of rules (``formats/rules.py``); None: every tensor
            keeps the file's format.
        group_size: number of inputs that share a scale, 32 or 64 (ipex-llm's), in formats that offer both.
        mixed_precision: a first rule: the lm_head in sym_int8.
        not_converted: parts of names. Matrices with such a name keep the file's float format.
        head: name of the tensor that serves as lm_head.
        label: name of the model's format.
        embedding: name of an untied embedding, which rules may give a format.
        embedding_qtype: a first rule: the format of that embedding.
        model: the facts about the model that rules use; see :meth:`over`.
        imatrix: weights of the quantization error of each input; None: all are equal.
        least_bits: a matrix with fewer bits becomes sym_int8, or keeps the file's low-bit codes.
        rules: the rules of ``low_bit`` after those of the other arguments.
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
        """The name of the model's format: ``low_bit``; for a file of rules, its name without the folder."""
        return None if self.low_bit is None else label_of(self.low_bit)

    def of_spec(self, spec: ModelSpec) -> WeightPlan:
        """Return the plan for a model; see :meth:`over`. Warns about matrices that the importance matrix lacks.

        Raises:
            InputError: an ``embedding_qtype`` of a tied embedding.
            ModelFormatError: an importance matrix of another model.
        """
        if self.embedding_qtype is not None and spec.tied:
            raise InputError(
                f"embedding_qtype={self.embedding_qtype!r}: this model's embedding is its output layer too, and has one"
                " format",
                hint="leave embedding_qtype out; set its format with load_in_low_bit or a rule for 'head'",
            )
        embedding = "" if spec.tied else spec.embedding.name
        plan = replace(self, head=spec.head_weight.name, embedding=embedding).over(matrices(spec))
        if self.imatrix is not None:
            imatrix = replace(self.imatrix, tables=spec.tables())
            plan = replace(plan, imatrix=imatrix)
            shapes = {name: shape for name, shape in matrices(spec).items() if name not in imatrix.tables}
            wanted = [one for one in spec.tensors() if one.name in shapes and plan._quantizes(one.name, one.shape)]
            if missing := imatrix.missing(wanted, spec):
                log.warning(
                    "%s has no entry for %d of %d matrices, which weight all inputs equally: %s", self.imatrix.path,
                    len(missing), len(wanted), ", ".join(_alike(missing)),
                )  # fmt: skip
        return plan

    def _quantizes(self, name: str, shape: Shape) -> bool:
        return any(target not in FLOATS for target in self.target(name, shape))

    def of_head(self, low_bit: str | None, of_model: str = "") -> WeightPlan:
        """Return the plan for a head that drafts for this model.

        Args:
            low_bit: the head's format; None: this plan's formats, with at least ``HEAD_BITS`` bits.
            of_model: name of the model's format. If its files are in low bits, a head in floats would take twice as
                long as one in sym_int8, which it gets then. "": the head keeps its file's format.
        """
        if low_bit is None and self.low_bit is None and of_model not in ("", *FLOATS):
            return WeightPlan("sym_int8", head=self.head, least_bits=HEAD_BITS, imatrix=self.imatrix)
        if low_bit is None:
            return replace(self, least_bits=HEAD_BITS)
        groups = self.group_size if self.group_size in get_format(low_bit).group_sizes else 32
        return WeightPlan(low_bit, groups, head=self.head, label=low_bit, imatrix=self.imatrix)

    def stays(self, info: TensorInfo) -> bool:
        """Return True if a matrix keeps the file's codes, which ``least_bits`` would round a second time."""
        return self.least_bits > 0 and info.format not in FLOATS

    def over(self, shapes: Mapping[str, Shape]) -> WeightPlan:
        """Return the plan for a model with matrices of these names and shapes.

        Raises LowBitFormatError for a rule that applies to such a model and matches no matrix.
        """
        model = ModelFacts.of(shapes)
        self.rules.check(shapes, model, self.head, self.embedding)
        return replace(self, model=model)

    def target(self, name: str, shape: Shape) -> Formats:
        """Return the formats to choose the best one from for a matrix; empty: it keeps the file's format."""
        return tuple(dict.fromkeys(self._fitting(self._wide_enough(one), shape) for one in self._wanted(name)))

    def fallbacks(self, shapes: Mapping[str, Shape]) -> str:
        """Describe the matrices that get a fallback format, since the block size does not divide their inputs.

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
    """Return ``down_proj`` for ``model.layers.3.mlp.down_proj.weight``."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _of_all_layers(name: str) -> str:
    return re.sub(r"\.\d+\.", ".*.", name.removesuffix(".weight"))


def _alike(names: list[str]) -> list[str]:
    """Return names with their counts, equal ones of all layers as one: ``model.layers.*.mlp.down_proj (30)``."""
    return [f"{name} ({count})" for name, count in Counter(map(_of_all_layers, names)).items()]


def matrices(spec: ModelSpec) -> dict[str, Shape]:
    """Return the names and shapes of a model's matrices, without routers, which are always in floats."""
    kept = {*spec.kept()} - {spec.embedding.name}
    return {tensor.name: tensor.shape for tensor in spec.tensors() if tensor.is_matrix and tensor.name not in kept}


def label_in(checkpoint: Checkpoint, spec: ModelSpec) -> str:
    """Return the name of a checkpoint's format: the saved one, else the most frequent one in its layers."""
    if isinstance(saved := getattr(checkpoint, "low_bit", {}).get("low_bit"), str):
        return saved
    outside = (spec.embedding.name, spec.head_weight.name)
    found = Counter(checkpoint.info(name).format for name in matrices(spec) if name not in outside)
    return found.most_common(1)[0][0]


def log_fallbacks(plan: WeightPlan, shapes: Mapping[str, Shape]) -> None:
    """Log the matrices that get a fallback format."""
    if said := plan.fallbacks(shapes):
        log.warning("%s: %s", plan.name, said)


def check_low_bit(name: object) -> str:
    """Return a format's or preset's canonical name, or a rules file's absolute path."""
    rules_of(name)
    assert isinstance(name, str)  # rules_of takes nothing else
    return str(given_path(name).absolute()) if is_rules_file(name) else label_of(name)


def check_format(name: object) -> str:
    """Return the canonical name of a single format."""
    return format_of(name)


def check_shape(checkpoint: Checkpoint, tensor: Tensor) -> None:
    """Raise ModelFormatError for a tensor that is missing or has another shape than the config implies."""
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
    """Read a matrix in the format of the plan; with ``keep``, in the file's format."""
    weight = _read(checkpoint, tensor)
    try:
        return weight if keep else in_plan(weight, tensor, plan, threads)
    except LowBitFormatError as error:
        raise ModelFormatError(checkpoint.path, tensor.name, None, str(error)) from None


def in_plan(weight: PackedWeight, tensor: Tensor, plan: WeightPlan, threads: int | None = None) -> PackedWeight:
    """Return a matrix in the format that the plan has for it.

    Low-bit codes in another format are decoded to float32 and quantized again. Raises LowBitFormatError for values
    that the format cannot hold.
    """
    targets = plan.target(tensor.name, tensor.shape)
    if not targets or weight.format in targets and weight.group_size in (0, plan.group_size):
        return weight
    importance = None if plan.imatrix is None else plan.imatrix.of(tensor)
    return quantize_best(as_floats(weight), targets, plan.group_size, threads, importance)


class PlannedWeights:
    """A checkpoint's weights in the formats of a plan, for engines and saved folders.

    An untied embedding keeps the file's format unless the plan names it. Routers and gates of shared experts are in
    floats: low-bit codes are decoded, since products with quantized activations would give other bits.

    Args:
        checkpoint: the source.
        spec: the model.
        plan: the formats, for this model.
        threads: number of threads that quantize; None: one for each CPU that this process may use.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, threads: int | None = None) -> None:
        self._checkpoint, self._plan, self._threads = checkpoint, plan, threads
        self._kept, self._routers = {*spec.kept()} - {plan.embedding}, {*spec.routers()}

    def choices(self, tensor: Tensor) -> list[TensorInfo]:
        """Return the possible formats of a matrix: one, or several if its values decide."""
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
        """The matrix, or a vector's values in fp32. Raises as :func:`read_matrix` and :func:`read_vector`."""
        if not tensor.is_matrix:
            return read_vector(self._checkpoint, tensor)
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
    """Quantize a float matrix to the format with the least squared error; of equal ones, the first.

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
"""Number of values that are compared at a time."""


def outputs_of(weight: PackedWeight, rows: slice | npt.NDArray[np.integer[Any]]) -> PackedWeight:
    """Return the selected outputs of a matrix as a matrix."""
    arrays: dict[str, Any] = {name: array[rows] for name, array in weight.arrays()}
    return replace(weight, shape=(len(arrays["codes"]), weight.shape[1]), **arrays)


def together(parts: Sequence[PackedWeight]) -> PackedWeight:
    """Concatenate the outputs of matrices of one format and width; the opposite of :func:`outputs_of`."""
    if len(parts) == 1:
        return parts[0]
    named = [dict(part.arrays()) for part in parts]
    arrays: dict[str, Any] = {name: np.concatenate([one[name] for one in named]) for name in named[0]}
    return replace(parts[0], shape=(len(arrays["codes"]), parts[0].shape[1]), **arrays)


def random_matrix(shape: tuple[int, int], name: str, group_size: int, rng: np.random.Generator) -> PackedWeight:
    """Return a matrix of random codes with values of about 1 / sqrt(n_in), which keep the size of activations."""
    return get_format(name).random(shape, group_size, rng)


def read_vector(checkpoint: Checkpoint, tensor: Tensor) -> PackedWeight:
    """Read a norm's weights, a bias, sinks or a number, in fp32.

    Raises ModelFormatError for values beyond ``LARGEST``, which would make a later product overflow.
    """
    values = np.require(dequantize(_read(checkpoint, tensor)), np.float32, ("C", "A"))  # as the core takes it
    at = int(np.argmax(np.abs(values)))
    if abs(found := values.reshape(-1)[at]) > LARGEST:
        raise ModelFormatError(
            checkpoint.path, tensor.name, None,
            f"value {at} is {found:g}; values of vectors are at most {LARGEST:g}",
            hint="the checkpoint is damaged: download or convert it again",
        )  # fmt: skip
    return PackedWeight("fp32", tensor.shape, values)


def read_order(checkpoint: Checkpoint, tensor: Tensor) -> npt.NDArray[np.int32]:
    """Read a permutation of 0 to n - 1 as int32 [n]. Raises ModelFormatError if the vector is none."""
    order: npt.NDArray[np.int32] = dequantize(_read(checkpoint, tensor)).astype(np.int32)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ModelFormatError(checkpoint.path, tensor.name, None, f"does not name each of {len(order)} tokens once")
    return order


def not_converted(names: object) -> tuple[str, ...]:
    """Return ``modules_to_not_convert`` as a tuple. Raises InputError if it is not a list of strings."""
    if names is None:
        return ()
    if isinstance(names, str) or not all(isinstance(n, str) and n for n in names):  # type: ignore[attr-defined]
        raise InputError(argument="modules_to_not_convert", got=names, allowed="a list of (parts of) module names")
    return tuple(names)  # type: ignore[arg-type]
