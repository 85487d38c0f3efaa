"""A loaded engine's weights as one more engine, in four bits: the copy that self-speculation drafts with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.engines.api import Engine
from ipex_lookahead.engines.weights import WeightPlan
from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.formats.base import PackedWeight

DRAFT_FORMAT = "sym_int4"
GAINFUL = ("sym_int8", "fp16", "bf16", "fp32")
"""Formats of a target from which a copy in ``DRAFT_FORMAT`` is faster."""


def check_gains(low_bit: str) -> None:
    """Raise InputError where a four-bit copy of a model in ``low_bit`` could not be faster than the model."""
    if low_bit not in GAINFUL:
        raise InputError(
            f"self-speculation drafts with a copy of the model in {DRAFT_FORMAT}, which is no faster"
            f" than this model in {low_bit}; load it in one of {', '.join(GAINFUL[:3])}, or"
            " use lookahead instead"
        )


def low_bit_copy(engine: Engine) -> Engine:
    """The engine's own weights as an engine of the same kind in ``sym_int4``, groups of 32, with as many threads.

    Its keys and values are held as the engine's are, for the copy works on the engine's own caches.
    Only one tensor at a time is held besides the copy (for a tied embedding, that one too).

    Example: of a sym_int8 engine with 135 million weights, which takes 143 MB, the copy takes 76 MB more.

    Raises:
        InputError: the engine cannot give its weights back, or is in four bits already.
    """
    if not all(hasattr(engine, name) for name in ("weights", "spec", "load")):
        raise InputError(
            f"the {engine.name} engine cannot give its weights back; self-speculation needs the native one"
        )
    native: Any = engine
    facts = engine.describe()
    check_gains(facts["low_bit"])
    spec = native.spec
    plan = WeightPlan(DRAFT_FORMAT, head=spec.head_weight.name, label=DRAFT_FORMAT)
    offsets = {tensor.name: tensor.hf.offset for tensor in spec.tensors()}
    weights = _Weights(spec, ((name, with_offset(weight, offsets[name])) for name, weight in native.weights()))
    copy: Engine = type(native).load(weights, spec, plan, threads=facts["threads"], kv_cache=facts["kv_cache"])
    return copy


class _Weights:
    """A stream of tensors as a checkpoint: what comes before the tensor asked for is held until it is asked for."""

    path = Path("the model in memory")

    def __init__(self, spec: ModelSpec, stream: Iterator[tuple[str, PackedWeight]]) -> None:
        self.spec = spec
        self._stream = stream
        self._held: dict[str, PackedWeight] = {}
        self.config: dict[str, Any] = {}
        self.generation_config: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Names of the tensors in hand."""
        return list(self._held)

    def info(self, name: str) -> TensorInfo:
        """Shape and format of a tensor."""
        while name not in self._held:
            try:
                found, weight = next(self._stream)
            except StopIteration:
                raise ModelFormatError(self.path, name, None, "is missing") from None
            self._held[found] = weight
        weight = self._held[name]
        return TensorInfo(weight.shape, weight.format, weight.group_size)

    def read(self, name: str) -> PackedWeight:
        """A tensor, handed out once."""
        self.info(name)
        return self._held.pop(name)

    def text_tokenizer(self) -> None:
        """Not part of the weights."""

    def close(self) -> None:
        """Nothing to release."""
