"""A call of the model: token ids and what came before in, logits out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ipex_lookahead.engines.base import Engine
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.modeling.cache import LookaheadCache


def logits_after(
    past: LookaheadCache,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cache_position: torch.Tensor | None = None,
    *,
    kept: torch.Tensor,
) -> torch.Tensor:
    """Logits of new columns; ``past`` holds them afterwards. Nothing has happened to it where this raises.

    Args:
        past: what came before.
        input_ids: int64 [rows, columns].
        attention_mask: [rows, columns before and new]; each row's ones must be contiguous. None: the new ones are ones.
        position_ids: int64 [rows or 1, columns]; those that follow from the mask, whatever stands at padding.
        cache_position: int64 [columns]; the columns' numbers.
        kept: int64 [k], the new columns whose logits are wanted.

    Returns:
        float32 [rows, k, vocab_size], zeros at padding.

    Raises:
        InputError: ids, mask or positions outside what is allowed.
        ContextLengthError: a row is longer than the model holds.
    """
    engine, before = past.engine, past.get_seq_length()
    mask = _whole_mask(past, input_ids, attention_mask)
    if mask.sum(1).max() > engine.max_context:
        raise ContextLengthError(f"input_ids make {mask.shape[1]} positions; the model holds {engine.max_context}")
    _check_positions(mask, before, position_ids, cache_position)
    new = mask[:, before:]
    chains = [row[real].numpy().astype(np.int64) for row, real in zip(input_ids.cpu(), new, strict=True)]
    for chain in chains:
        wrong = chain[(chain < 0) | (chain >= engine.vocab_size)]
        if len(wrong):
            raise InputError(f"input_ids holds {wrong[0]}; ids go from 0 to {engine.vocab_size - 1} for this model")
    logits = torch.zeros((len(chains), len(kept), engine.vocab_size))
    at = new.cumsum(1) - 1  # a column's place in its row's chain
    places = [
        {int(at[row, column]): place for place, column in enumerate(kept.tolist()) if new[row, column]}
        for row in range(len(chains))
    ]
    lengths = [cache.length for cache in past.rows]
    rows = [row for row, chain in enumerate(chains) if len(chain)]  # the others have nothing but padding here
    fed = [(past.rows[row], chains[row].astype(np.int32)) for row in rows]
    try:
        for pieces, output in prefill(engine, fed, asked=[sorted(places[row]) for row in rows], logits=True):
            for piece in pieces:
                row = rows[piece.chain]
                for place, answer in zip(piece.asked, piece.answers, strict=True):
                    assert output.logits is not None
                    logits[row, places[row][place]] = torch.from_numpy(output.logits[answer])
    except BaseException:
        for cache, length in zip(past.rows, lengths, strict=True):
            cache.crop(length)
        raise
    past.mask = mask
    return logits


def past_of(engine: Engine, past: Any, rows: int) -> LookaheadCache:
    """The caller's cache, checked, or an empty one."""
    if past is None:
        return LookaheadCache(engine, rows)
    if not isinstance(past, LookaheadCache):
        raise InputError(
            f"past_key_values is a {type(past).__name__}; leave it out of the first call, and pass on the"
            " past_key_values of its output"
        )
    if past.engine is not engine:
        raise InputError("past_key_values come from another model; pass on those of this model's output")
    if past.batch_size != rows:
        raise InputError(
            f"past_key_values hold {past.batch_size} rows and input_ids {rows}; they must be equal"
            " (batch_select_indices and batch_repeat_interleave change the cache's)"
        )
    return past


def _whole_mask(past: LookaheadCache, input_ids: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """bool [rows, columns before and new]."""
    rows, length = input_ids.shape
    before = past.get_seq_length()
    if attention_mask is None:
        mask = torch.cat([past.mask, torch.ones((rows, length), dtype=torch.bool)], 1)
    else:
        if attention_mask.shape != (rows, before + length):
            shapes = f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {(rows, length)}"
            beside = f" after {before} columns in past_key_values" if before else ""
            raise InputError(f"{shapes}{beside}; attention_mask must be {(rows, before + length)}")
        mask = attention_mask.cpu() != 0
        if not torch.equal(mask[:, :before], past.mask):
            raise InputError(
                "attention_mask is another one at the columns that past_key_values hold; pass the same, and its"
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


def _check_positions(mask: torch.Tensor, before: int, position_ids: Any, cache_position: Any) -> None:
    """Raise InputError for positions that do not follow from the mask: the engine counts them itself."""
    new = mask[:, before:]
    if position_ids is not None:
        given = position_ids.cpu()
        expected = (mask.cumsum(1) - 1)[:, before:]
        if given.dim() != 2 or given.shape[1] != new.shape[1] or given.shape[0] not in (1, len(new)):
            raise InputError(f"position_ids has shape {tuple(given.shape)}; it must be {tuple(new.shape)}")
        given = given.expand_as(expected)
        if not torch.equal(given[new], expected[new]):
            row = int((given != expected).logical_and(new).any(1).to(torch.int8).argmax())
            raise InputError(
                f"position_ids of row {row} are {given[row].tolist()}; a token's position is the number of tokens"
                f" before it, here {expected[row].tolist()}: leave position_ids out, and give attention_mask where"
                " there is padding"
            )
    if cache_position is not None and cache_position.tolist() != list(range(before, mask.shape[1])):
        raise InputError(
            f"cache_position is {cache_position.tolist()}; columns follow those in past_key_values, {before} to"
            f" {mask.shape[1] - 1}: leave it out"
        )
