"""A checkpoint into a folder of ours, tensor by tensor: no engine is made, and one matrix at a time is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints import Checkpoint, TensorInfo, open_checkpoint, save
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.engines.hf_config import config_to_save, generation_defaults
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.weights import (
    WeightPlan,
    check_shape,
    read_matrix,
    read_vector,
)
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight


def convert(
    request: LoadRequest, folder: str | PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
) -> str:
    """Write the weights that ``request`` asks for as a folder of ours, and return the name of their format.

    The folder is the one that a model on the native engine saves, to the last byte of its tensors. Of rules that let a
    matrix choose among formats, those matrices are quantised twice: once to know which, since a file begins with what
    is in it.

    Raises:
        InputError: the folder is something else.
        ModelFormatError: a tensor is missing, has another shape than the config says, or holds NaN or infinity.
        SaveError: writing failed; what was there before is as it was.
    """
    checkpoint = open_checkpoint(request.path)
    try:
        spec = checkpoint.spec
        for tensor in spec.tensors():
            check_shape(checkpoint, tensor)
        label, plan, rounded_from = request.planned(checkpoint, spec)
        kept = {*spec.kept()} - {plan.embedding}
        tokenizer, _ = request.tokenizer(checkpoint.text_tokenizer)
        made = _Conversion(checkpoint, plan, kept, request.threads)
        infos = {tensor.name: made.info(tensor) for tensor in spec.tensors()}
        low_bit: dict[str, Any] = {
            "low_bit": label,
            "group_size": max(info.group_size for info in infos.values()),
            "mixed_precision": infos[spec.head_weight.name].format == "sym_int8" != label and label in FORMATS,
        }
        save(
            folder,
            config=config_to_save(checkpoint.config, infos.keys()),
            generation_config=generation_defaults(checkpoint),
            infos=infos,
            weights=made.weights(),
            low_bit=low_bit | ({} if rounded_from is None else {"requantized_from": rounded_from}),
            tokenizer=tokenizer,
            source=Path(request.path),
            progress=progress,
            overwrite=overwrite,
        )
        return label
    finally:
        checkpoint.close()


class _Conversion:
    """The weights of a checkpoint in the formats of a plan."""

    def __init__(self, checkpoint: Checkpoint, plan: WeightPlan, kept: set[str], threads: int | None) -> None:
        self._checkpoint, self._plan, self._kept, self._threads = checkpoint, plan, kept, threads

    def info(self, tensor: Tensor) -> TensorInfo:
        """What a tensor will be."""
        if not tensor.is_matrix:
            return TensorInfo(tensor.shape, "fp32")
        here = self._checkpoint.info(tensor.name)
        targets = () if tensor.name in self._kept else self._plan.target(tensor.name, tensor.shape)
        if not targets or here.format in targets and here.group_size in (0, self._plan.group_size):
            return TensorInfo(tensor.shape, here.format, here.group_size)
        name = targets[0] if len(targets) == 1 else self._matrix(tensor).format
        sizes = FORMATS[name].group_sizes
        return TensorInfo(tensor.shape, name, self._plan.group_size if self._plan.group_size in sizes else sizes[0])

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Every weight under its name."""
        for tensor in self._checkpoint.spec.tensors():
            if tensor.is_matrix:
                yield tensor.name, self._matrix(tensor)
            else:
                values = PackedWeight("fp32", tensor.shape, read_vector(self._checkpoint, tensor).reshape(tensor.shape))
                yield tensor.name, with_offset(values, -tensor.hf.offset)

    def _matrix(self, tensor: Tensor) -> PackedWeight:
        keep = tensor.name in self._kept
        return read_matrix(self._checkpoint, tensor, self._plan, keep=keep, threads=self._threads)
