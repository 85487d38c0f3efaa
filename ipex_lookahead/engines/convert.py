"""Converting a checkpoint to a low-bit folder without an engine, with one matrix at a time in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.checkpoints import Checkpoint, LowBitCheckpoint, TensorInfo, open_checkpoint, save
from ipex_lookahead.checkpoints.drafters import IN_A_MODEL, counting, drafter_of, no_head
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.engines.hf_config import config_to_save, generation_defaults
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.weights import PlannedWeights, WeightPlan, check_shape
from ipex_lookahead.errors import InputError, LookaheadError, arg
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.formats.base import PackedWeight

log = logging.getLogger(__name__)


def convert(
    request: LoadRequest, folder: str | PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
) -> str:
    """Write the requested weights as a low-bit folder, and return the name of their format.

    The tensors have the bytes that a model on the native engine saves. Matrices for which rules give several formats
    are quantized twice, since the file's header, which is written first, names the format.

    Raises:
        InputError: the folder holds something else.
        ModelFormatError: a tensor is missing, has another shape than the config implies, or has NaN or infinity.
        SaveError: writing failed; the folder's former content is unchanged.
    """
    checkpoint = open_checkpoint(request.path)
    parts: list[Conversion] = []
    try:
        spec = checkpoint.spec
        for tensor in spec.tensors():
            check_shape(checkpoint, tensor)
        label, plan, rounded_from = request.planned(checkpoint, spec)
        tokenizer, _ = request.tokenizer(checkpoint.text_tokenizer)
        made = Conversion(checkpoint, spec, spec.tensors(), plan, request.threads)
        infos = made.infos()
        (drafting, copied), config = _drafting(checkpoint, request, plan, label), checkpoint.config
        parts.append(made)
        of_head: dict[str, TensorInfo] = {}
        if drafting is not None:
            parts.append(drafting)
            of_head, config = drafting.infos(), counting(config, 1)
        low_bit: dict[str, Any] = {
            "low_bit": label,
            "group_size": max(info.group_size for info in infos.values()),
            "mixed_precision": infos[spec.head_weight.name].format == "sym_int8" != label and label in FORMATS,
        }
        save(
            folder,
            config=config_to_save(config, infos.keys()),
            generation_config=generation_defaults(checkpoint),
            infos=infos | of_head,
            weights=(named for part in parts for named in part.weights()),
            low_bit=low_bit | ({} if rounded_from is None else {"requantized_from": rounded_from}),
            tokenizer=tokenizer,
            source=Path(request.path),
            drafter=copied,
            progress=progress,
            overwrite=overwrite,
        )
        return label
    finally:
        for part in parts:
            part.close()
        checkpoint.close()


def _drafting(
    checkpoint: Checkpoint, request: LoadRequest, plan: WeightPlan, label: str
) -> tuple[Conversion | None, Path | None]:
    """Return the usable head in or next to the model's files: one to convert, or files to copy.

    Raises InputError for a ``drafter_low_bit`` if there is no head, or one with files that are copied.
    """
    if (found := drafter_of(checkpoint, Path(request.path))) is not None:
        head, where = found
        if head.kind not in IN_A_MODEL:
            head.checkpoint.close()
            if request.drafter_low_bit is not None:
                raise InputError(
                    f"{arg('drafter_low_bit', request.drafter_low_bit)} is for a block of the model's own (MTP); the"
                    f" head in {where} goes along as it is",
                    hint="name its format when the model is loaded",
                )
            return None, where
        saved = isinstance(head.checkpoint, LowBitCheckpoint)
        plan = plan.of_head(request.drafter_low_bit, "" if saved else label)
        made = Conversion(head.checkpoint, head.spec, head.tensors(), plan, request.threads)
        try:
            for tensor in head.tensors():
                check_shape(head.checkpoint, tensor)
            return made, None
        except LookaheadError as error:  # the model answers without
            log.warning("the model's block for drafting is left out, since %s", error)
            if head.checkpoint is not checkpoint:
                made.close()
    if request.drafter_low_bit is not None:
        raise no_head("drafter_low_bit", request.drafter_low_bit)
    return None, None


class Conversion:
    """Weights of a checkpoint in the formats of a plan."""

    def __init__(
        self, checkpoint: Checkpoint, spec: ModelSpec, tensors: Iterable[Tensor], plan: WeightPlan, threads: int | None
    ) -> None:
        self._checkpoint, self._tensors = checkpoint, [*tensors]
        self._planned = PlannedWeights(checkpoint, spec, plan, threads)

    def infos(self) -> dict[str, TensorInfo]:
        """Return each tensor's shape and format in the folder."""
        return {tensor.name: self._info(tensor) for tensor in self._tensors}

    def close(self) -> None:
        """Release the checkpoint's files."""
        self._checkpoint.close()

    def _info(self, tensor: Tensor) -> TensorInfo:
        if not tensor.is_matrix:
            return TensorInfo(tensor.shape, "fp32")
        choices = self._planned.choices(tensor)
        return choices[0] if len(choices) == 1 else TensorInfo.of(self._planned.read(tensor))

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Yield each weight under its name."""
        for tensor in self._tensors:
            yield tensor.name, with_offset(self._planned.read(tensor), -tensor.hf.offset)
