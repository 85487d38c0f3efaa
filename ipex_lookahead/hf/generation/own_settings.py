"""Processors of a generation config that needs Hugging Face's, for commands and the server.

This imports torch and transformers, which ``TextModel`` by itself does not, so only such models import it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.sampling import Processor, WarperParams
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.options import resolve
from ipex_lookahead.hf.generation.processors import build_processors, build_warpers, chained, sampling_params
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.system.compat import generation_config


def rules_of(
    defaults: Mapping[str, Any],
    params: SamplingParams,
    prompt: npt.NDArray[np.int32],
    *,
    limit: int,
    eos_ids: Collection[int],
    vocab_size: int,
) -> tuple[Sequence[Processor], Sequence[Processor], WarperParams | None]:
    """Return the processors and the sampling that ``model.generate`` would use for one prompt.

    Args:
        defaults: the model's generation config.
        params: how tokens are chosen, resolved; where they are None, the generation config decides.
        prompt: int32 [n].
        limit: the length at which the answer ends, prompt included.
        eos_ids: tokens that end it.
        vocab_size: the model's.

    Returns:
        The processors before the caller's own, those after them, and the sampling (None: the most likely token).

    Raises:
        InputError: an option of the config is not usable.
    """
    sampled = bool(params.temperature)
    options: dict[str, Any] = {"do_sample": sampled, "num_return_sequences": 1}
    options |= {"temperature": params.temperature if sampled else None, "repetition_penalty": params.repetition_penalty}
    options |= {name: getattr(params, name) for name in ("top_k", "top_p", "min_p")} if sampled else {}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        settings, _ = resolve(generation_config(defaults), None, given)
        made = build_processors(settings, prompt=prompt, padding=0, limit=limit, eos_ids=sorted(eos_ids), own=())
        sampling = sampling_params(settings)
        warpers = build_warpers(settings, vocab_size) if sampling is None else []
    except (InputError, ValueError, TypeError) as error:
        raise InputError(
            f"the model's generation config: {error}", hint="change or remove it in generation_config.json"
        ) from error
    warping = (sampling or WarperParams()) if sampled else None
    return chained(made), chained(warpers), warping
