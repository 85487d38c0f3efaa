"""Decoding speed with and without lookahead on real prompts, and whether the tokens are the same.

The modes alternate prompt by prompt (and their order turns round from prompt to prompt), so that what else the machine
does falls on all of them alike and their ratio is fair. Lookahead 0 always runs: it is the baseline. What remembers its
answers runs twice: cold, every prompt with an empty memory, and warm, one prompt after the other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, quantiles
from typing import Any

from ipex_lookahead.config import MEMORY_STORE, NO_STORE, LookaheadConfig, is_memory
from ipex_lookahead.decoding.stats import GenerationStats, by_position, by_source


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer: its new token ids, and what it took."""

    tokens: list[int]
    stats: GenerationStats


TELLING_TOKENS, TELLING_ANSWERS = 256, 4
"""A ratio of fewer timed tokens or answers than these is called noise, whatever it is."""

Setting = int | str | LookaheadConfig
"""What ``generate(lookahead=...)`` takes."""

Generate = Callable[[Sequence[int], Any], Generation]
"""``generate(prompt_ids, lookahead) -> Generation``, the same sampling settings every time."""


@dataclass(slots=True)
class Mode:
    """All that was measured with one setting of lookahead.

    ``memory`` is "cold" or "warm" where the setting remembers answers in memory, else None.
    """

    lookahead: Setting
    answers: list[list[Generation]] = field(default_factory=list)
    """By prompt, then by repetition."""
    memory: str | None = None


def generator(model: Any, max_new_tokens: int, **sampling: Any) -> Generate:
    """``measure``'s view of a model: greedy, or sampled with the same settings and seed every time."""
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

    All prompts are gone through before any is repeated, and what a model remembers of its answers is forgotten between;
    modes that remember do so apart. So no mode ever finds an answer that has already been given to the same prompt. A
    setting that remembers in memory is two modes: one that does not, and one that does.

    Args:
        generate: one answer for prompt ids and a setting of lookahead.
        prompts: token ids of each prompt.
        lookaheads: settings to compare, each once; 0 is added if missing and comes first.
        repeat: runs of each prompt in each mode.
        answered: called after each answer with its mode, whose last it is for that prompt, and the prompt's number.
        forget: makes the model forget earlier answers.
    """
    modes = modes_of(lookaheads)
    settings = [
        without_memory(mode.lookahead) if mode.memory == "cold" else with_own_memory(mode.lookahead, number)
        for number, mode in enumerate(modes)
    ]
    for setting in settings:  # warm-up: pages, threads, and what calibrates itself
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
    """The baseline, then each setting once, cold and warm where it remembers in memory."""
    found = []
    for setting in dict.fromkeys([0, *lookaheads]):
        found += [Mode(setting, memory=memory) for memory in (("cold", "warm") if _remembers(setting) else (None,))]
    return found


def _remembers(setting: Setting) -> bool:
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    config = resolve_lookahead(setting)
    return config is not None and config.remembering is not None and is_memory(config.remembering)


def without_memory(setting: Setting) -> LookaheadConfig:
    """The setting, remembering nothing beyond an answer."""
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    config = resolve_lookahead(setting)
    assert config is not None
    return replace(config, store=NO_STORE)


def with_own_memory(setting: Setting, number: int) -> Setting:
    """The setting, remembering under a name of its own where it remembers in memory: no mode sees another's answers."""
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    config = resolve_lookahead(setting)
    if config is None or not _remembers(setting):
        return setting
    return replace(config, store=f"{MEMORY_STORE}:{number}")


def summarise(modes: Sequence[Mode], files: Sequence[str] = (), categories: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row for each mode; the first is the baseline. Speeds in tokens a second, ``ttft_ms`` a median.

    A prompt's speed is the median of its repetitions; ``decode_tok_s`` weighs prompts by their tokens. A ratio is a
    speed over that of the same prompt at lookahead 0: ``prompt_ratios`` in the order of the prompts, their mean in
    ``mean_prompt_ratio``, the worst in ``slowest_prompt_ratio``; 1 where nothing could be timed. Where
    ``ratio_is_noise`` they do not differ from 1 beyond noise. ``cpu_ms_per_token`` is what all threads of the process
    compute for a token after the first, which other processes disturb less than they do the clock on the wall;
    ``cpu_ratio`` is the median over prompts of that time beside lookahead 0, above 1 where lookahead costs. ``files``
    and ``categories`` name each prompt's file and category, for ``by_file`` and ``by_category``. A warm row's
    ``memory_gain`` is its speed over that of the cold row before it.
    """
    plain = modes[0]
    rows = [_row(mode, plain, {"by_file": files, "by_category": categories}) for mode in modes]
    for cold, warm in zip(rows, rows[1:], strict=False):
        if warm["memory"] == "warm":
            warm["memory_gain"] = _over(warm["decode_tok_s"], cold["decode_tok_s"])
    return rows


def _row(mode: Mode, plain: Mode, groups: dict[str, Sequence[str]]) -> dict[str, Any]:
    everything = [g.stats for answers in mode.answers for g in answers]
    firsts = [answers[0].stats for answers in mode.answers]
    speeds = [(_speed(answers), _speed(base)) for answers, base in zip(mode.answers, plain.answers, strict=True)]
    ratios = [mine / base if mine > 0 and base > 0 else 1.0 for mine, base in speeds]
    same = sum(
        all(g.tokens == base[0].tokens for g in answers)
        for base, answers in zip(plain.answers, mode.answers, strict=True)
    )
    drafted, accepted = (sum(getattr(s, name) for s in everything) for name in ("drafted", "accepted"))
    steps = sum(s.steps for s in everything)
    return {
        **meaning(mode.lookahead),
        "memory": mode.memory,
        "memory_gain": None,
        "prompts": len(mode.answers),
        "tokens": sum(s.tokens for s in firsts),
        "decode_tok_s": _over(sum(s.decode_tokens for s in firsts), sum(map(_decode_seconds, mode.answers))),
        "cpu_ms_per_token": 1e3 * _over(sum(map(_cpu_seconds, mode.answers)), sum(s.decode_tokens for s in firsts)),
        "cpu_ratio": median(_cpu_ratio(*pair) for pair in zip(mode.answers, plain.answers, strict=True)),
        "prefill_tok_s": _over(sum(s.prompt_tokens for s in everything), sum(s.prefill_seconds for s in everything)),
        "ttft_ms": 1000 * median(s.first_token_seconds for s in everything),
        "mean_acceptance_length": _acceptance_length(everything),
        "acceptance_rate": _over(accepted, drafted),
        **_acceptance(everything),
        "identical_to_plain": f"{same}/{len(mode.answers)}",
        "slowest_prompt_ratio": min(ratios),
        "mean_prompt_ratio": fmean(ratios),
        "prompt_ratios": ratios,
        "prompt_acceptance_lengths": [_acceptance_length([g.stats for g in answers]) for answers in mode.answers],
        **_certainty(mode, plain),
        **{
            group: {
                name: _of_some([n for n, its in enumerate(names) if its == name], mode, ratios)
                for name in dict.fromkeys(names)
            }
            for group, names in groups.items()
        },
        "python_us_per_step": 1e6 * _over(sum(s.python_seconds for s in everything), steps),
        "proposer_ms_per_step": 1e3 * _over(sum(s.proposer_seconds for s in everything), steps),
        "engine_ms_per_step": 1e3 * _over(sum(s.engine_seconds for s in everything), steps),
        "sampler_ms_per_step": 1e3 * _over(sum(s.sampler_seconds for s in everything), steps),
    }


def _certainty(mode: Mode, plain: Mode) -> dict[str, Any]:
    """Whether the ratios say anything: the quartiles of every answer's ratio to plain decoding's at the same turn.

    They do not where a few tokens were timed, or where a quarter of the answers was slower and a quarter quicker.
    """
    pairs = [
        _over(_speed([mine]), _speed([base]))
        for answers, bases in zip(mode.answers, plain.answers, strict=True)
        for mine, base in zip(answers, bases, strict=True)
        if _speed([mine]) > 0 and _speed([base]) > 0
    ]
    tokens = sum(g.stats.decode_tokens for answers in mode.answers for g in answers)
    said = certainty(pairs, tokens)
    return {**said, "ratio_is_noise": mode is not plain and said["ratio_is_noise"]}


def certainty(ratios: Sequence[float], tokens: int) -> dict[str, Any]:
    """Whether ratios to plain decoding, an answer's each, of so many timed tokens in all differ from 1 beyond noise.

    Returns ``ratio_quartiles``, None for a single one, and ``ratio_is_noise``: few tokens or answers, or 1 lies between
    the quartiles.
    """
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (0.0, 1.0, math.inf)
    few = tokens < TELLING_TOKENS or len(ratios) < TELLING_ANSWERS
    return {"ratio_quartiles": [low, high] if len(ratios) > 1 else None, "ratio_is_noise": few or low <= 1.0 <= high}


def meaning(setting: Setting) -> dict[str, Any]:
    """The setting as a report names it; ``strategy`` is None where lookahead is off."""
    from ipex_lookahead.runtime.lookahead import resolve_lookahead

    config = resolve_lookahead(setting)
    if config is None:
        return {"lookahead": 0, "strategy": None, "adaptive": None}
    number = setting if isinstance(setting, (int, str)) else config.num_draft_tokens
    return {"lookahead": number, "strategy": config.strategy, "adaptive": config.adaptive}


def _of_some(places: Sequence[int], mode: Mode, ratios: Sequence[float]) -> dict[str, Any]:
    answers = [mode.answers[n] for n in places]
    tokens = sum(a[0].stats.decode_tokens for a in answers)
    return {
        "prompts": len(places),
        "decode_tok_s": _over(tokens, sum(map(_decode_seconds, answers))),
        "mean_acceptance_length": _acceptance_length([g.stats for a in answers for g in a]),
        "mean_prompt_ratio": fmean(ratios[n] for n in places),
        "slowest_prompt_ratio": min(ratios[n] for n in places),
    }


def _acceptance_length(stats: Sequence[GenerationStats]) -> float:
    return _over(sum(s.decode_tokens for s in stats), sum(s.sequence_steps for s in stats))


def _acceptance(stats: Sequence[GenerationStats]) -> dict[str, Any]:
    """Draft tokens by source, those of each by position too, and by position."""
    drafted = sum((one.drafted_at for one in stats), Counter())
    accepted = sum((one.accepted_at for one in stats), Counter())
    right = by_source(accepted)

    def positions(source: str | None = None) -> dict[str, list[int]]:
        counts = by_position(drafted, accepted, source)
        return dict(zip(("drafted_by_position", "accepted_by_position"), counts, strict=True))

    sources = {
        name: {
            "drafted": count,
            "accepted": right[name],
            "acceptance_rate": _over(right[name], count),
            **positions(name),
        }
        for name, count in by_source(drafted).most_common()
    }
    return {"acceptance_by_source": sources, **positions()}


def _decode_seconds(answers: Sequence[Generation]) -> float:
    return median(g.stats.decode_seconds for g in answers)


def _cpu_seconds(answers: Sequence[Generation]) -> float:
    return median(g.stats.decode_cpu_seconds for g in answers)


def _cpu_ratio(answers: Sequence[Generation], plain: Sequence[Generation]) -> float:
    """Of answers to one prompt; those of a few tokens may be too short for the clock."""
    return _over(_cpu_seconds(answers), _cpu_seconds(plain)) or 1.0


def _speed(answers: Sequence[Generation]) -> float:
    return _over(answers[0].stats.decode_tokens, _decode_seconds(answers))


def _over(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
