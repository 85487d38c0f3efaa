"""The one walk that brings a model's weights into an engine, and the walk that gives them back.

GPTQ's act order gives a matrix's inputs an order of their own. Matrices that read the same inputs share one order, and
the first of them decides it. A matrix in any other order is decoded to float32, which is exact.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Attention, GatedMlp, LatentAttention, ModelSpec, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.low_bit import packed_bytes
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.engines.prefetch import prefetched
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan, check_shape, random_matrix
from ipex_lookahead.formats import FLOATS, as_floats
from ipex_lookahead.formats.base import PackedWeight

log = logging.getLogger("ipex_lookahead")

Floats = npt.NDArray[np.float32]
Order = npt.NDArray[np.int32]
Progress = Callable[[int, int, str], None]
"""Called as progress(matrices read, matrices in total, name of the matrix to be read)."""
Read = Callable[[Tensor], PackedWeight]
"""Returns the weight of a tensor: a matrix in any format, a vector in fp32."""

READ_AHEAD = 32 << 20
"""Bytes of weights that may wait to be packed. A single larger weight may wait too."""
AT_A_TIME = 4 << 20
"""Least bytes of weights that the reading thread hands over together: a handover takes longer than a small weight."""


def walk(spec: ModelSpec, skip: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors in the order in which a step reads them, with the names of the fields that lead to them.

    A tied embedding comes last, since it is read as the lm_head.

    Args:
        spec: the model.
        skip: names to leave out.
    """
    embedding, *rest = named_tensors(spec)
    named = [*rest, embedding] if spec.tied else [embedding, *rest]
    return (one for one in named if one[0] not in skip)


def load_weights(
    spec: ModelSpec, read: Read, orders: dict[str, Order], skip: Collection[str] = ()
) -> Iterator[tuple[str, Tensor, PackedWeight]]:
    """Yield a model's weights in the order of :func:`walk`, as every engine is to hold them.

    Routers are decoded to floats. No yielded matrix has an order: its inputs come in the order that ``orders`` has for
    it, else in the model's.

    Args:
        spec: the model.
        read: called once for each tensor, in order.
        orders: receives the orders of inputs, each under the name of the first matrix that reads them, before that
            matrix is yielded.
        skip: names of tensors that the engine does not hold.
    """
    routers, deciding = {*spec.routers()}, _deciding(spec)
    decoded: Counter[str] = Counter()
    for name, tensor in walk(spec, skip):
        weight = read(tensor)
        if tensor.name in routers:
            weight = as_floats(weight)
        first = deciding.get(name, "")
        if name == first and weight.order is not None:
            orders[name] = np.require(weight.order, requirements=("C", "A"))
        made = _reordered(weight, orders.get(first))
        if made.format != weight.format:
            decoded[weight.format] += 1
        yield name, tensor, made
    for low_bit, count in decoded.items():
        log.warning(
            "%d matrices in %s are kept in float32: their inputs have another order than those of matrices that read "
            "the same", count, low_bit,
        )  # fmt: skip


def stored_weights(
    spec: ModelSpec,
    matrix: Callable[[str, Tensor], PackedWeight],
    vector: Callable[[str, Tensor], Floats],
    orders: dict[str, Order],
    skip: Collection[str] = (),
) -> Iterator[tuple[str, PackedWeight]]:
    """Yield a loaded model's weights under the checkpoint's names, one at a time: what ``save_low_bit`` writes.

    Norms have the values of Hugging Face's files: Gemma's are less by 1, which loses no bit of the sum with 1.

    Args:
        spec: the model.
        matrix: returns a matrix that the engine holds, in plain layout, by its name and tensor.
        vector: returns a vector that the engine holds.
        orders: as :func:`load_weights` filled it.
        skip: names of tensors that the engine does not hold.
    """
    deciding = _deciding(spec)
    for name, tensor in named_tensors(spec):
        if name in skip:
            continue
        if tensor.is_matrix:
            yield tensor.name, _with_order(matrix(name, tensor), orders.get(deciding.get(name, "")))
        else:
            values = PackedWeight("fp32", tensor.shape, vector(name, tensor).reshape(tensor.shape))
            yield tensor.name, with_offset(values, -tensor.hf.offset)


# ---- sources of weights ----------------------------------------------------------------------------------------------


@contextmanager
def reading(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    plan: WeightPlan,
    tensors: Iterable[Tensor],
    threads: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Read]:
    """Read a checkpoint's weights in the formats of a plan, in a thread of its own, ahead of the engine's requests.

    Args:
        checkpoint: the source.
        spec: the model.
        plan: the formats.
        tensors: what the engine will request, in order.
        threads: number of threads that quantize; None: one for each CPU that this process may use.
        progress: see :data:`Progress`.

    Raises:
        ModelFormatError: a tensor is missing, has another shape than the config implies, or holds NaN or infinity.
    """
    tensors = [*tensors]
    for tensor in tensors:
        check_shape(checkpoint, tensor)
    total, done = sum(tensor.is_matrix for tensor in tensors), 0

    def size(tensor: Tensor) -> int:
        return packed_bytes(checkpoint.info(tensor.name))

    planned = PlannedWeights(checkpoint, spec, plan, threads)
    with prefetched(planned.read, tensors, size, run=AT_A_TIME, most=READ_AHEAD) as weights:

        def read(tensor: Tensor) -> PackedWeight:
            nonlocal done
            if tensor.is_matrix:
                if progress is not None:
                    progress(done, total, tensor.name)
                done += 1
            return next(weights)

        yield read
    if progress is not None:
        progress(total, total, "")


def weights_of(engine: Any) -> Read:
    """Return a reader of the weights that a loaded engine gives back.

    Weights that come before the requested one are held until they are requested.
    """
    stream: Iterator[tuple[str, PackedWeight]] = engine.weights()
    held: dict[str, PackedWeight] = {}

    def read(tensor: Tensor) -> PackedWeight:
        while tensor.name not in held:
            name, weight = next(stream)
            held[name] = weight
        return with_offset(held.pop(tensor.name), tensor.hf.offset)

    return read


def random_weights(
    spec: ModelSpec, low_bit: str, *, group_size: int = 32, head_low_bit: str | None = None, seed: int = 0
) -> Read:
    """Return a reader of random weights, for measuring: the speed is real, the text is not.

    Tensors of one shape and format have the same values. ``head_low_bit`` is the lm_head's format.
    """
    rng = np.random.default_rng(seed)
    routers = {*spec.routers()}
    norms = {tensor.name for name, tensor in named_tensors(spec) if name.endswith(".weight")}  # of the vectors
    matrices: dict[tuple[tuple[int, ...], str], PackedWeight] = {}
    vectors: dict[tuple[int, ...], Floats] = {}

    def read(tensor: Tensor) -> PackedWeight:
        if not tensor.is_matrix:
            if tensor.shape not in vectors:
                vectors[tensor.shape] = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.1)
            values = vectors[tensor.shape]
            return PackedWeight("fp32", tensor.shape, values + np.float32(1) if tensor.name in norms else values)
        name = (head_low_bit or low_bit) if tensor is spec.head_weight else low_bit
        key = (tensor.shape, "fp32" if tensor.name in routers else name)
        if key not in matrices:
            matrices[key] = random_matrix((tensor.shape[0], tensor.shape[1]), key[1], group_size, rng)
        return matrices[key]

    return read


# ---- orders of inputs ------------------------------------------------------------------------------------------------


def _deciding(spec: ModelSpec) -> dict[str, str]:
    """The matrices that an order of inputs is supported for: each name -> the first matrix that reads the same."""
    found: dict[str, str] = {}
    for number, block in enumerate(spec.layers):
        for field, part in (("mixer", block.mixer), ("feed_forward", block.feed_forward)):
            for group in _reading_the_same(part):
                names = [f"layers.{number}.{field}.{name}.weight" for name in group]
                found |= dict.fromkeys(names, names[0])
    return found


def _reading_the_same(part: object) -> tuple[tuple[str, ...], ...]:
    """Matrices of a mixer or a feed-forward that kernels reorder the inputs of, grouped by what they read."""
    if isinstance(part, Attention):
        return ("q", "k", "v", "gate"), ("o",)
    if isinstance(part, LatentAttention):
        return (("o",),) if part.q_a is None else (("q",), ("o",))
    if isinstance(part, GatedMlp):
        return (("down",),) if part.gate is None else (("gate", "up"), ("down",))
    return ()


def _reordered(weight: PackedWeight, order: Order | None) -> PackedWeight:
    """The weight for inputs in ``order``, without changing a value: in float32 where it has another order."""
    own = weight.order
    if own is order or (own is not None and order is not None and np.array_equal(own, order)):
        return replace(weight, order=None)
    weight = as_floats(weight)
    return weight if order is None else replace(weight, codes=np.ascontiguousarray(weight.codes[:, order]))


def _with_order(weight: PackedWeight, order: Order | None) -> PackedWeight:
    """The opposite of :func:`_reordered`: low-bit codes keep the order, floats return to the model's."""
    if order is None or weight.format not in FLOATS:
        return replace(weight, order=order)
    codes = np.empty_like(weight.codes)
    codes[:, order] = weight.codes
    return replace(weight, codes=codes)
