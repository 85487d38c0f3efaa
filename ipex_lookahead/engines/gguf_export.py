"""A GGUF model as another GGUF file, in the formats of a plan: what llama.cpp then runs with the same values."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

from ipex_lookahead.checkpoints import GgufCheckpoint
from ipex_lookahead.checkpoints.gguf_save import GGUF_FORMATS, save_gguf
from ipex_lookahead.checkpoints.low_bit_save import Progress
from ipex_lookahead.engines.weights import WeightPlan, log_fallbacks, matrices, read_matrix
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import get_format

_log = logging.getLogger(__name__)
_NARROW = "sym_int8"
"""For matrices whose rows are no whole number of the format's blocks; its own blocks are the smallest, 32."""


def export_gguf(
    checkpoint: GgufCheckpoint,
    target: Path,
    plan: WeightPlan,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the model of an opened GGUF file as ``target``.

    Matrices whose rows the format's blocks do not divide become sym_int8 (llama.cpp takes a larger type for them too),
    or stay as they are where its blocks do not divide them either; the log says how many.

    Raises:
        InputError: the plan's format, or its group size, is not to be had in GGUF.
        SaveError: writing failed.
    """
    check_export(plan)
    spec = checkpoint.spec
    kept = {*spec.kept()} - {plan.embedding}
    log_fallbacks(plan, matrices(spec))
    formats: dict[str, str] = {}
    narrow: Counter[str] = Counter()
    for tensor in spec.tensors():
        asked = plan.target(tensor.name, tensor.shape) if tensor.is_matrix and tensor.name not in kept else ()
        wanted = asked[0] if asked else None
        for choice in (wanted, _NARROW) if wanted else ():
            kind = get_format(choice).gguf
            if kind is not None and tensor.shape[1] % kind.inputs == 0:
                formats[tensor.name] = choice
                break
        if wanted and formats.get(tensor.name) != wanted:
            narrow[formats.get(tensor.name, "the file's own format")] += 1
    for choice, count in narrow.items():
        _log.warning("%s: %d matrices have rows that are no whole blocks; they are in %s", target, count, choice)

    plans = {choice: WeightPlan(choice, 32, head="", imatrix=plan.imatrix) for choice in {*formats.values()}}
    save_gguf(
        target,
        checkpoint,
        formats,
        lambda tensor: read_matrix(checkpoint, tensor, plans[formats[tensor.name]], threads=threads),
        progress=progress,
    )


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
