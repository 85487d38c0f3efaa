"""Drafting heads of a loaded model: from the model's own files, from an adjacent folder, or from a given path."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import ModelSpec
from ipex_lookahead.checkpoints import Checkpoint, LowBitCheckpoint, kind_of
from ipex_lookahead.checkpoints.draft_vocab import ids_of
from ipex_lookahead.checkpoints.drafters import Drafter, drafters_near, model_with_block, no_head, open_drafter
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.head import NativeHead
from ipex_lookahead.engines.weights import WeightPlan, outputs_of
from ipex_lookahead.errors import InputError, LookaheadError, arg
from ipex_lookahead.formats import dequantize

log = logging.getLogger(__name__)

_COMPARED = 64
"""Rows of the two embeddings that are compared."""
_ALIKE = 0.9
"""Minimum correlation: a model's embedding quantized to 2 bits keeps 0.94; those of two models have about 0."""


def head_for(
    request: LoadRequest, checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, target: Any, kind: Any = NativeHead
) -> Any:
    """Load the head that drafts for a model just loaded, a ``kind`` for the engine ``target``; None if there is none.

    A head that was not requested by name and cannot be used is a warning: the model then decodes without it.

    Raises:
        Exceptions of :func:`load_drafter` for a head that was requested by name, InputError for head settings without a
        head, and exceptions of ``ids_of`` for an unusable vocabulary file.
    """
    ids_of(request.draft_vocab, spec.vocab)  # an unreadable file is an error, not a warning
    model, found = model_with_block(checkpoint.config, request.max_context), None
    if request.drafter is not None:
        return load_drafter(request.drafter, model, request, plan, target, kind)
    if spec.mtp is not None:
        try:
            found = _loaded(Drafter("mtp", checkpoint, spec.mtp), request.path, request, plan, target, kind)
        except LookaheadError as error:
            log.warning("the model's block for drafting cannot be used, since %s", error)
    for path in drafters_near(request.path) if found is None else ():
        try:
            found = load_drafter(path, model, request, plan, target, kind)
            break
        except InputError as error:  # a head for another model
            log.info("not used: %s", error)
        except LookaheadError as error:
            log.warning("%s cannot be used, since %s", path.name, error)
    for name in ("draft_vocab", "drafter_low_bit") if found is None else ():
        if (value := getattr(request, name)) is not None:
            raise no_head(name, value)
    return found


def load_drafter(
    path: Path, model: ModelSpec, request: LoadRequest, plan: WeightPlan, target: Any, kind: Any = NativeHead
) -> Any:
    """Load a head from its own files.

    Args:
        path: a folder or a GGUF file.
        model: the target, as ``checkpoints.drafters.model_with_block`` returns it.
        request: provides ``draft_vocab``, ``drafter_low_bit`` and ``threads``.
        plan: the target's formats.
        target: the loaded model.
        kind: the class of the head on the target's engine.

    Raises:
        InputError: the files have no head, or one for another model, by its sizes or by its embedding.
        ModelFormatError, UnsupportedModelError: the files cannot be read.
    """
    drafter = open_drafter(path, model)
    try:
        _check_embedding(drafter, path, target, kind)
        head = _loaded(drafter, path, request, plan, target, kind)
    finally:
        drafter.checkpoint.close()
    head.facts["from"] = str(path)
    return head


def _loaded(drafter: Drafter, path: Path, request: LoadRequest, plan: WeightPlan, target: Any, kind: Any) -> Any:
    if request.draft_vocab is not None and (drafter.ids is not None or drafter.spec.candidates is not None):
        brings = "chooses candidates among all" if drafter.ids is None else f"brings its own {len(drafter.ids)}"
        raise InputError(
            f"{arg('draft_vocab')} is for heads with an output for each of the model's tokens; this one {brings}, which"
            " cannot be changed"
        )
    plan, ids = plan_of_head(drafter, request, plan, target.low_bit, target.vocab_size)
    head = kind.load(drafter.checkpoint, drafter.spec, plan, target, threads=request.threads, ids=ids)
    head.source, head.facts["kind"] = kind_of(path)[1], drafter.kind
    return head


def plan_of_head(
    drafter: Drafter, request: LoadRequest, plan: WeightPlan, low_bit: str, vocab: int
) -> tuple[WeightPlan, npt.NDArray[np.int32] | None]:
    """Return the formats of a head for a model in ``low_bit``, and the tokens of its outputs; None: all that it has."""
    ids = ids_of(request.draft_vocab, vocab) if drafter.ids is None else drafter.ids
    saved = isinstance(drafter.checkpoint, LowBitCheckpoint)  # keep its formats
    return plan.of_head(request.drafter_low_bit, "" if saved else low_bit), ids


def _check_embedding(drafter: Drafter, path: Path, target: Any, kind: Any) -> None:
    """Compare the embedding in a head's files with the target's, in any format.

    Raises InputError if they differ and the head reads the target's embedding: it is a head for another model. A
    different embedding that the head reads itself may have been trained with it: this logs a warning, and the
    acceptance record decides. Embeddings of different widths are not compared.
    """
    checkpoint, name, features = drafter.checkpoint, target.spec.embedding.name, drafter.spec.features
    own_embedding = features is not None and "embedding" not in features.shares
    own_head = features is not None and "head" not in features.shares
    if name not in checkpoint.names() or (own_head and drafter.spec.head_weight.name == name):  # the lm_head
        return
    if own_embedding and checkpoint.info(name).shape != target.spec.embedding.shape:
        return
    rows = np.linspace(0, target.vocab_size - 1, _COMPARED).astype(np.intp)
    theirs = dequantize(outputs_of(checkpoint.read(name), rows)).ravel()
    ours = dequantize(outputs_of(kind.embedding_of(target), rows)).ravel()
    alike = float(theirs @ ours) / max(float(np.linalg.norm(theirs) * np.linalg.norm(ours)), 1e-30)
    if not alike >= _ALIKE and own_embedding:
        log.warning(
            "%s: the embedding that this head carries has a correlation of %.2f with this model's: it was trained with"
            " the head, or the head is another model's and few of its drafts will be accepted",
            path, alike,
        )  # fmt: skip
    elif not alike >= _ALIKE:
        raise InputError(
            f"{path}: is a head for another model: the embedding that it carries has a correlation of {alike:.2f} with"
            f" this model's, and it must be at least {_ALIKE}",
            hint=f"name the head that was trained for this model with {arg('drafter')}, or leave it out",
        )
