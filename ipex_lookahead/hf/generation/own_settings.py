"""A model whose own generation config asks for what only Hugging Face's processors do, behind a command or a server.

This imports torch and transformers, as :mod:`.text_model` by itself does not; so it is imported for such models only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.decoding.sampling import Processor, WarperParams
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.options import resolve
from ipex_lookahead.hf.generation.processors import Chain, build_processors, build_warpers, sampling_params
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.system.compat import generation_config


@dataclass(frozen=True, slots=True)
class OwnRules:
    """What a generation config makes of a prompt's rules.

    Attributes:
        processors: what comes before the caller's own.
        warpers: what comes after them.
        sampling: how to draw from what is left then; None takes the likeliest token.
    """

    processors: list[Processor]
    warpers: list[Processor]
    sampling: WarperParams | None


def rules_of(
    defaults: Mapping[str, Any],
    params: SamplingParams,
    prompt: npt.NDArray[np.int32],
    *,
    limit: int,
    eos_ids: Collection[int],
    vocab_size: int,
) -> OwnRules:
    """The processors that ``model.generate`` would use for one prompt.

    Args:
        defaults: the model's generation config.
        params: how tokens are chosen, resolved; what is None in them the generation config says.
        prompt: int32 [n].
        limit: the length at which the answer ends, prompt included.
        eos_ids: tokens that end it.
        vocab_size: the model's.

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
            f"the model's generation config: {error}", hint="change it in generation_config.json, or take it out there"
        ) from error
    warping = (sampling or WarperParams()) if sampled else None
    return OwnRules([Chain(made)] if made else [], [Chain(warpers)] if warpers else [], warping)
