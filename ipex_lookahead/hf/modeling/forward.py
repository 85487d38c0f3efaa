"""A call of the model: token ids and what came before in, logits and hidden states out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.engines.api import AppliedAdapter, OutputRequest, image_rows
from ipex_lookahead.engines.images import ImageRows
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.hf.generation.images import See, images_of
from ipex_lookahead.hf.generation.past import LookaheadCache, check_positions


def outputs_after(
    past: LookaheadCache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    *,
    kept: torch.Tensor,
    hidden: Sequence[int] = (),
    adapter: AppliedAdapter | None = None,
    see: See | None = None,
    seen: dict[str, Any] | None = None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and hidden states of new columns, which ``past`` holds afterwards; where this raises it is as before.

    Args:
        past: what came before.
        input_ids: int64 [rows, columns].
        attention_mask: [rows, columns before and new]; each row's ones must be contiguous. None: the new ones are ones.
        position_ids: int64 [rows or 1, columns]; must follow from the mask; values at padding are ignored.
        cache_position: int64 [columns]; the columns' numbers.
        kept: int64 [k], the new columns to return logits for.
        hidden: layers to return hidden states of, as in ``OutputRequest``.
        adapter: the low-rank adapter of all rows; None: the base model.
        see: returns the model's vision part; None: there is none.
        seen: image arguments of the new columns (:func:`~ipex_lookahead.hf.generation.images.images_of`).

    Returns:
        float32 [rows, k, vocab_size], and for each of ``hidden`` float32 [rows, columns, hidden size], all zeros at
        padding.

    Raises:
        InputError: ids, mask or positions outside what is allowed.
        ContextLengthError: a row is longer than the model holds.
    """
    engine, before = past.engine, past.get_seq_length()
    past.check_adapter(adapter)
    mask = _whole_mask(past, input_ids, attention_mask)
    if mask.sum(1).max() > engine.max_context:
        raise ContextLengthError(f"input_ids need {mask.shape[1]} positions; the model has {engine.max_context}")
    check_positions(mask, before, position_ids, cache_position)
    new = mask[:, before:]
    chains = [row[real].numpy().astype(np.int64) for row, real in zip(input_ids.cpu(), new, strict=True)]
    for chain in chains:
        wrong = chain[(chain < 0) | (chain >= engine.vocab_size)]
        if len(wrong):
            raise InputError(f"input_ids holds {wrong[0]}; ids range from 0 to {engine.vocab_size - 1} for this model")
    logits = torch.zeros((len(chains), len(kept), engine.vocab_size))
    at = new.cumsum(1) - 1  # a column's place in its row's chain
    places = [
        {int(at[row, column]): place for place, column in enumerate(kept.tolist()) if new[row, column]}
        for row in range(len(chains))
    ]
    rows = [row for row, chain in enumerate(chains) if len(chain)]  # the others have nothing but padding here
    fed = [(past.rows[row], chains[row].astype(np.int32)) for row in rows]
    images = _images(past, chains, input_ids, see, seen)
    of_fed = [images[row] for row in rows] if any(images) else ()
    columns = [row.nonzero()[:, 0] for row in new]
    states: dict[int, torch.Tensor] = {}
    try:
        wants = OutputRequest(logits=True, hidden=tuple(hidden))
        wanted = [sorted(places[row]) for row in rows]
        for pieces, output in prefill(engine, fed, wanted=wanted, wants=wants, adapter=adapter, images=of_fed):
            for piece in pieces:
                row = rows[piece.chain]
                for layer, values in (output.hidden or {}).items():
                    if layer not in states:
                        states[layer] = torch.zeros((*new.shape, values.shape[1]))
                    own = torch.from_numpy(values[piece.rows.start : piece.rows.stop])
                    states[layer][row, columns[row][piece.first : piece.first + piece.count]] = own
                for place, answer in zip(piece.wanted, piece.answers, strict=True):
                    assert output.logits is not None
                    logits[row, places[row][place]] = torch.from_numpy(output.logits[answer])
    except BaseException:
        for row in range(len(past.rows)):
            past.cut(row)
        raise
    past.ids, past.mask = torch.cat([past.ids, input_ids.cpu().to(torch.int64)], 1), mask
    past.images = images
    return logits, [states[layer] for layer in hidden]


def _images(
    past: LookaheadCache,
    chains: Sequence[npt.NDArray[Any]],
    input_ids: torch.Tensor,
    see: See | None,
    seen: dict[str, Any] | None,
) -> list[ImageRows | None]:
    """Return the images of each row, those of its new tokens included."""
    new = [[] for _ in chains] if seen is None else images_of(see, past.engine, input_ids, chains, seen)
    found = list(past.images)
    for row, own in enumerate(new):
        if not own:
            continue
        checked = image_rows(past.engine, chains[row].astype(np.int32), own)
        old, held = past.images[row], past.rows[row].length
        moved = [replace(image, start=image.start + held) for image in own]
        found[row] = checked.changed(moved) if old is None else old.changed([*old.images, *moved])
    return found


def _whole_mask(past: LookaheadCache, input_ids: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """bool [rows, columns before and new]."""
    rows, length = input_ids.shape
    before = past.get_seq_length()
    if attention_mask is None:
        mask = torch.cat([past.mask, torch.ones((rows, length), dtype=torch.bool)], 1)
    else:
        if attention_mask.shape != (rows, before + length):
            shapes = f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {(rows, length)}"
            where = f" after {before} columns in past_key_values" if before else ""
            raise InputError(f"{shapes}{where}; attention_mask must be {(rows, before + length)}")
        mask = attention_mask.cpu() != 0
        if not torch.equal(mask[:, :before], past.mask):
            raise InputError(
                "attention_mask differs in the columns of past_key_values; pass the same mask followed by its"
                " continuation"
            )
    for number, row in enumerate(mask):
        count = int(row.sum())
        start = int(row.to(torch.int8).argmax())
        if not count or not row[start : start + count].all():
            raise InputError(
                f"row {number} of attention_mask must be one run of ones, with zeros before or after it only"
            )
    return mask
