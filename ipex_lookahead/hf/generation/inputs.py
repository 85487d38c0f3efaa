"""Prompts as callers pass them -> token ids of each sequence, without padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.errors import InputError


def prompts_of(
    inputs: Any,
    attention_mask: Any = None,
    *,
    vocab_size: int,
    bos: Any = None,
    pad: Any = None,
    eos_ids: Sequence[int] = (),
) -> tuple[torch.Tensor, list[npt.NDArray[np.int32]]]:
    """Check token ids and strip their left padding.

    Args:
        inputs: integers [batch, length] or [length]: a tensor, an array or lists. None or no tokens at all is the
            beginning-of-sequence token alone, where there is one. Or the output of a tokenizer (a ``BatchEncoding``),
            with its attention mask.
        attention_mask: [batch, length] of 0 and 1, zeros on the left only. Without one, leading ``pad`` tokens are
            padding, unless the pad token is also an end token (as transformers decides it).
        vocab_size: ids must be below it.
        bos: id of the beginning-of-sequence token, or None.
        pad: id of the padding token, or None.
        eos_ids: ids of the end tokens.

    Returns:
        The ids as given, int64 [batch, length], and for each row its tokens, int32 [n], n >= 1.

    Raises:
        InputError: no tokens, ids outside the vocabulary, shapes that do not fit, padding elsewhere than on the left.
    """
    if isinstance(inputs, Mapping):
        inputs, attention_mask = _unpacked(inputs, attention_mask)
    ids = _ids(inputs)
    if ids is None or ids.shape[1] == 0:
        if bos is None or (ids is not None and ids.shape[0] != 1):
            raise InputError("the prompt is empty; give at least one token")
        ids, attention_mask = torch.tensor([[int(bos)]]), None
    if ids.shape[0] == 0:
        raise InputError("the batch is empty; give at least one prompt")
    starts = _starts(ids, attention_mask, pad, eos_ids)
    prompts = [row[start:].numpy().astype(np.int64) for row, start in zip(ids, starts, strict=True)]
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError(f"prompt {number} is empty (all of it is padding); give at least one token")
        if prompt.min() < 0 or prompt.max() >= vocab_size:
            wrong = int(prompt[(prompt < 0) | (prompt >= vocab_size)][0])
            raise InputError(
                f"prompt {number} has token id {wrong}; ids range from 0 to {vocab_size - 1} for this model"
            )
    return ids, [prompt.astype(np.int32) for prompt in prompts]


def _unpacked(encoding: Mapping[str, Any], attention_mask: Any) -> tuple[Any, Any]:
    """Return ids and mask of a tokenizer's output; a mask that the caller gives takes precedence."""
    if "input_ids" not in encoding:
        raise InputError(f"the prompt is a mapping of {', '.join(map(str, encoding)) or 'nothing'}; it needs input_ids")
    return encoding["input_ids"], encoding.get("attention_mask") if attention_mask is None else attention_mask


def _ids(inputs: Any) -> torch.Tensor | None:
    if inputs is None:
        return None
    if isinstance(inputs, str) or (isinstance(inputs, Sequence) and any(isinstance(one, str) for one in inputs)):
        raise InputError(
            "the prompt is a text, and this model takes token ids; ipex_lookahead.LLM takes text",
            hint='LLM(path).generate("text"), or model.generate(model.tokenizer("text", return_tensors="pt"))',
        )
    try:
        ids = torch.as_tensor(inputs).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"input_ids cannot be read as token ids ({error});"
            " pass integers [batch, length], shorter rows padded on the left"
        ) from error
    if ids.numel() and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise InputError(f"input_ids has dtype {ids.dtype}; token ids are integers")
    ids = ids.to(torch.int64)
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() != 2:
        raise InputError(f"input_ids has shape {tuple(ids.shape)}; it must be [batch, length]")
    return ids


def _starts(ids: torch.Tensor, attention_mask: Any, pad: Any, eos_ids: Sequence[int]) -> list[int]:
    """For each row the index of its first token that is not padding."""
    if attention_mask is None:
        if pad is None or int(pad) in eos_ids:
            return [0] * len(ids)
        real = ids != int(pad)
        return [int(row.to(torch.int8).argmax()) if row.any() else ids.shape[1] for row in real]
    mask = torch.as_tensor(attention_mask).detach().cpu()
    if mask.dim() == 1:
        mask = mask[None]
    if mask.shape != ids.shape:
        raise InputError(
            f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(ids.shape)}; they must be equal"
        )
    if not ((mask == 0) | (mask == 1)).all():
        raise InputError("attention_mask contains values other than 0 and 1")
    starts = (ids.shape[1] - mask.sum(1)).to(torch.int64).tolist()
    for number, (row, start) in enumerate(zip(mask, starts, strict=True)):
        if row[:start].any():
            raise InputError(
                f"row {number} of attention_mask is 0 after a 1; pad on the left (tokenizer.padding_side = 'left')"
            )
    return [int(start) for start in starts]
