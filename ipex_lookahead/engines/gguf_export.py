"""A GGUF model, or a folder made of one, as another GGUF file in the formats of a plan: one that llama.cpp runs."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from ipex_lookahead.architectures.spec import Tensor
from ipex_lookahead.checkpoints import GgufCheckpoint, LowBitCheckpoint
from ipex_lookahead.checkpoints.drafters import no_head
from ipex_lookahead.checkpoints.gguf_from_folder import FolderAsGguf
from ipex_lookahead.checkpoints.gguf_save import GGUF_FORMATS, Source, save_gguf
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.checkpoints.placed import head_tensors
from ipex_lookahead.engines.weights import WeightPlan, log_fallbacks, matrices, read_matrix
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import get_format
from ipex_lookahead.formats.base import PackedWeight

_log = logging.getLogger(__name__)
_NARROW = "sym_int8"
"""For matrices whose rows are no whole number of the format's blocks; its own blocks are the smallest, 32."""


def export_gguf(
    checkpoint: GgufCheckpoint | LowBitCheckpoint,
    target: Path,
    plan: WeightPlan,
    *,
    threads: int | None = None,
    drafter_low_bit: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the model of an opened GGUF file, or of a folder that was made of one, as ``target``.

    Matrices whose rows the format's blocks do not divide become sym_int8 (llama.cpp takes a larger type for them too),
    or stay as they are where its blocks do not divide them either; the log says how many.

    Its block for drafting goes along, in ``drafter_low_bit`` or as ``WeightPlan.of_head`` has it.

    Raises:
        InputError: the plan's format, or its group size, is not to be had in GGUF; a folder that was not made of a
            GGUF file.
        SaveError: writing failed.
    """
    check_export(plan)
    if isinstance(checkpoint, GgufCheckpoint):
        _export(checkpoint, checkpoint, target, plan, drafter_low_bit, threads, progress)
        return
    source = FolderAsGguf(checkpoint)
    try:
        _export(checkpoint, source, target, plan, drafter_low_bit, threads, progress)
    finally:
        source.close()


def _export(
    checkpoint: GgufCheckpoint | LowBitCheckpoint,
    source: Source,
    target: Path,
    plan: WeightPlan,
    drafter_low_bit: str | None,
    threads: int | None,
    progress: Progress | None,
) -> None:
    spec, head, of_head = source.spec, head_tensors(source.spec), plan.of_head(drafter_low_bit)
    kept = {*spec.kept(), *(() if spec.mtp is None else spec.mtp.routers())} - {plan.embedding}
    if drafter_low_bit is not None and not head:
        raise no_head("drafter_low_bit", drafter_low_bit)
    kept |= {name for name in head if of_head.stays(checkpoint.info(name))}
    log_fallbacks(plan, matrices(spec))
    formats: dict[str, str] = {}
    as_they_are: set[str] = set()
    narrow: Counter[str] = Counter()
    for tensor in (*spec.tensors(), *head.values()):
        own = of_head if tensor.name in head else plan
        targets = own.target(tensor.name, tensor.shape) if tensor.is_matrix and tensor.name not in kept else ()
        wanted = targets[0] if targets else None
        for choice in (wanted, _NARROW) if wanted else ():
            kind = get_format(choice).gguf
            if kind is not None and tensor.shape[1] % kind.inputs == 0:
                formats[tensor.name] = choice
                break
        if wanted and formats.get(tensor.name) != wanted:
            narrow[formats.get(tensor.name, "the file's own format")] += 1
        if source is not checkpoint and tensor.is_matrix and tensor.name not in formats:  # it has no blocks to copy
            formats[tensor.name] = _own_format(checkpoint, tensor)
            as_they_are.add(tensor.name)
    for choice, count in narrow.items():
        _log.warning("%s: %d matrices have rows that are no whole blocks; they are in %s", target, count, choice)

    plans = {
        name: WeightPlan(choice, 32, head="", imatrix=plan.imatrix)
        for name, choice in formats.items()
        if name not in as_they_are
    }

    def weight(tensor: Tensor) -> PackedWeight:
        keep = tensor.name in as_they_are
        return read_matrix(checkpoint, tensor, plans.get(tensor.name, plan), keep=keep, threads=threads)

    save_gguf(target, source, formats, weight, progress=progress)


def _own_format(checkpoint: LowBitCheckpoint | GgufCheckpoint, tensor: Tensor) -> str:
    info = checkpoint.info(tensor.name)
    kind = get_format(info.format).gguf
    if kind is None or info.group_size not in (0, 32) or tensor.shape[1] % kind.inputs:
        groups = f" with group size {info.group_size}" if info.group_size else ""
        raise InputError(
            f"{tensor.name} is in {info.format}{groups}, in rows of {tensor.shape[1]}, which GGUF has no blocks for",
            hint=f"name a format that it has: {', '.join(GGUF_FORMATS)}",
        )
    return info.format


def check_export(plan: WeightPlan) -> None:
    """Raise InputError for a plan whose format is no type of GGUF's."""
    for name in plan.rules.named():
        if name not in GGUF_FORMATS:
            raise InputError(f"{name} is no type of GGUF's", hint=f"take one of {', '.join(GGUF_FORMATS)}")
    if any(len(formats) > 1 for formats in (plan.rules.default, *(rule.format for rule in plan.rules.rules))):
        raise InputError(f"{plan.name} lets matrices choose; a GGUF file's types are written before its weights are",
                         hint="name one format in each rule")  # fmt: skip
    if plan.group_size != 32:
        raise InputError(
            f"group size {plan.group_size} is not to be had in GGUF", hint="leave it out: GGUF's groups are of 32"
        )
