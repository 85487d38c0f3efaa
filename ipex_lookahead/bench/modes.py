"""Measurement of lookahead settings on prompts. The modes alternate from prompt to prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ipex_lookahead.config import MEMORY_STORE, NO_STORE, LookaheadConfig, is_memory

if TYPE_CHECKING:
    from ipex_lookahead.decoding.stats import GenerationStats
    from ipex_lookahead.runtime.sampling_params import SamplingParams
    from ipex_lookahead.runtime.text_model import TextModel


@dataclass(frozen=True, slots=True)
class Generation:
    """The new token ids of one answer, and its statistics."""

    tokens: list[int]
    stats: GenerationStats


Setting = int | str | LookaheadConfig

Generate = Callable[[Sequence[int], Any], Generation]
"""``generate(prompt_ids, lookahead) -> Generation``; the sampling settings are fixed."""


@dataclass(slots=True)
class Mode:
    """The measured answers of one lookahead setting.

    Attributes:
        answers: By prompt, then by repetition.
        memory: "cold" or "warm" if the setting stores answers in memory, else None.
    """

    lookahead: Setting
    answers: list[list[Generation]] = field(default_factory=list)
    memory: str | None = None


def text_generator(model: TextModel, params: SamplingParams, **options: Any) -> Generate:
    """Return the function ``generate`` for :func:`measure`; ``options`` are those of ``TextModel.generate``."""

    def generate(prompt: Sequence[int], lookahead: Setting) -> Generation:
        tokens = model.generate(list(prompt), params, lookahead=lookahead, **options)
        return Generation(tokens, replace(model.stats))

    return generate


def generator(model: Any, max_new_tokens: int, **sampling: Any) -> Generate:
    """Return the function ``generate`` for :func:`measure`, of a model with transformers' ``generate``."""
    import torch

    def generate(prompt: Sequence[int], lookahead: Setting) -> Generation:
        ids = torch.tensor([list(prompt)], dtype=torch.long)
        out = model.generate(ids, max_new_tokens=max_new_tokens, lookahead=lookahead, **sampling)
        return Generation(out[0, len(prompt) :].tolist(), replace(model.stats))

    return generate


def measure(
    generate: Generate,
    prompts: Sequence[Sequence[int]],
    lookaheads: Iterable[Setting],
    *,
    repeat: int = 1,
    answered: Callable[[Mode, int], None] = lambda mode, prompt: None,
    forget: Callable[[], None] = lambda: None,
) -> list[Mode]:
    """Run every prompt in every mode, alternating.

    Each repetition runs all prompts and starts with empty stores. Modes do not share stores, so no mode finds an
    earlier answer to the same prompt. A setting with a store in memory makes two modes: cold (no store) and warm.

    Args:
        generate: Returns one answer for prompt ids and a lookahead setting.
        prompts: Token ids of each prompt.
        lookaheads: Settings to compare; 0 is added if missing and comes first.
        repeat: Runs of each prompt in each mode.
        answered: Called after each answer with its mode and the number of the prompt.
        forget: Clears the model's stores.
    """
    modes = modes_of(lookaheads)
    settings = [
        with_store(mode.lookahead, NO_STORE if mode.memory == "cold" else f"{MEMORY_STORE}:{number}")
        for number, mode in enumerate(modes)
    ]
    for setting in settings:  # warm-up: pages, threads, calibration
        generate(prompts[0], setting)
    for mode in modes:
        mode.answers = [[] for _ in prompts]
    for turn in range(repeat):
        forget()
        for index, prompt in enumerate(prompts):
            order = list(zip(modes, settings, strict=True))
            for mode, setting in order if (index + turn) % 2 == 0 else order[::-1]:
                mode.answers[index].append(generate(prompt, setting))
                answered(mode, index)
    return modes


def modes_of(lookaheads: Iterable[Setting]) -> list[Mode]:
    """Return the baseline, then a mode for each setting, or two (cold, warm) if it has a store in memory."""
    found = []
    for setting in dict.fromkeys([0, *lookaheads]):
        memories = ("cold", "warm") if _has_memory(lookahead_config(setting)) else (None,)
        found += [Mode(setting, memory=memory) for memory in memories]
    return found


def lookahead_config(setting: Setting, **given: Any) -> LookaheadConfig | None:
    """Return the configuration of a setting; None is off."""
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    return resolve_lookahead(setting, **given)


def _has_memory(config: LookaheadConfig | None) -> bool:
    return config is not None and config.remembering is not None and is_memory(config.remembering)


def with_store(setting: Setting, store: str) -> Setting:
    """Return the setting with another store, if it has one in memory."""
    config = lookahead_config(setting)
    return replace(config, store=store) if config is not None and _has_memory(config) else setting


def meaning(setting: Setting) -> dict[str, Any]:
    """Return the setting as in reports; ``strategy`` is None if lookahead is off."""
    config = lookahead_config(setting)
    if config is None:
        return {"lookahead": 0, "strategy": None, "adaptive": None}
    number = setting if isinstance(setting, (int, str)) else config.num_draft_tokens
    return {"lookahead": number, "strategy": config.strategy, "adaptive": config.adaptive}
