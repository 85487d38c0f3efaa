"""What ``lookahead=`` means: the one place where numbers, "auto", strategies and second models become a config."""

from __future__ import annotations

import dataclasses
from typing import Any

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.controller import AdaptiveController, Controller
from ipex_lookahead.controller.acceptance import Acceptance, SourceRates
from ipex_lookahead.controller.cost import CostCurve, EngineCosts
from ipex_lookahead.drafting import HEADS, PROPOSERS, SECOND_MODEL
from ipex_lookahead.drafting.heads.joined import SOURCE
from ipex_lookahead.errors import InputError, arg
from ipex_lookahead.runtime.checks import flag, integer, number

AUTO_TOKENS = 32
"""Most drafted tokens a step with ``lookahead="auto"``; the controller mostly takes fewer."""

OWN = "proposer"
"""The strategy's name, in statistics, where the caller has a proposer of their own."""

DRAFT_TOKENS = 8
"""Tokens that a second model drafts a step where no number is given (ipex-llm's ``max_step_draft``)."""

_SELF_MIN_PROB = 0.8


def resolve_lookahead(
    lookahead: Any, max_matching_ngram_size: Any = None, adaptive: Any = None
) -> LookaheadConfig | None:
    """Return the config of ``generate(lookahead=...)``: None, False and 0 are off; an integer is the draft length.

    "auto" is the best strategy, with a draft length that the controller chooses; another name is that strategy, with a
    draft length that suits it. Arguments that are not None replace the config's fields.

    Raises:
        InputError: anything else, or a number outside 0 to 128.
    """
    given = {
        name: value
        for name, value in (("max_matching_ngram_size", max_matching_ngram_size), ("adaptive", adaptive))
        if value is not None
    }
    if lookahead is None or lookahead is False:
        LookaheadConfig(**given)  # checked all the same
        return None
    if isinstance(lookahead, LookaheadConfig):
        config = lookahead
    elif isinstance(lookahead, str):
        known = sorted([*PROPOSERS, *SECOND_MODEL, *HEADS])
        if lookahead not in known:
            raise InputError(
                f'lookahead is {lookahead!r}; it must be 0 to {MAX_DRAFT}, "auto", the name of a strategy'
                f" ({', '.join(known)}) or a LookaheadConfig"
            )
        config = strategy_config(lookahead)
    else:
        config = LookaheadConfig(num_draft_tokens=integer("lookahead", lookahead, 0, MAX_DRAFT))
    config = dataclasses.replace(config, **given)
    return config if config.num_draft_tokens else None


def make_controller(
    config: LookaheadConfig | None, costs: EngineCosts | None, head: SourceRates | None = None
) -> Controller:
    """Return what decides how much is drafted.

    Args:
        config: None drafts nothing.
        costs: what forwards cost on the engine; None learns it from this controller's steps alone.
        head: rates of the head that drafts for the controller's sequences.
    """
    if config is None:
        return Controller(0)
    known = () if head is None else ((SOURCE, head),)
    if not config.adaptive:
        return Controller(config.num_draft_tokens, Acceptance(config.strategy, known) if known else None)
    curve = CostCurve() if costs is None else costs.curve()
    return AdaptiveController(curve, config.num_draft_tokens, config.strategy, known)


def strategy_config(strategy: str | None, lookahead: int | str = "auto", **fields: Any) -> LookaheadConfig:
    """A configuration for a strategy by name, with a budget that suits it where ``lookahead`` is "auto".

    Args:
        strategy: as in LookaheadConfig; None is the one that ``lookahead`` means alone.
        lookahead: most drafted tokens a step, or "auto".
        **fields: the other fields of LookaheadConfig; those that are None keep their default.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    if lookahead != "auto":
        fields["num_draft_tokens"] = integer("lookahead", lookahead, 0, MAX_DRAFT)
    if strategy is None:
        strategy = "auto" if lookahead == "auto" else "prompt_lookup"
    if strategy in HEADS:  # what a token costs decides
        fields.setdefault("draft_min_prob", 0.0)
    config = LookaheadConfig(strategy=strategy, **fields)
    if lookahead != "auto":
        return config
    tokens = AUTO_TOKENS
    if strategy == "jacobi":  # the window and the n-grams that are verified at a time
        tokens = min(MAX_DRAFT, (config.ngram - 1) * (config.window + config.guesses))
    elif strategy in SECOND_MODEL or strategy in HEADS:
        tokens = DRAFT_TOKENS
        if strategy == "self_speculation" and "draft_min_prob" not in fields:
            config = dataclasses.replace(config, draft_min_prob=_SELF_MIN_PROB)
    return dataclasses.replace(config, num_draft_tokens=tokens)


def proposer_lookahead(lookahead: Any) -> LookaheadConfig | None:
    """Return the config that ``generate(lookahead=...)`` means with a proposer of the caller's own.

    None and "auto" leave the draft length to the controller, up to 32 tokens per step; 0 and False are off. Raises
    InputError for the name of another strategy, also in a LookaheadConfig.
    """
    if lookahead is None or lookahead == "auto":
        lookahead = AUTO_TOKENS
    config = resolve_lookahead(lookahead)
    named = isinstance(lookahead, str) or (config is not None and config.strategy != LookaheadConfig().strategy)
    if config is not None and named:
        raise InputError(
            f"proposer and a lookahead with strategy {config.strategy!r} are both given; leave one of them out"
        )
    return None if config is None else dataclasses.replace(config, strategy=OWN)


def second_model_lookahead(
    lookahead: Any,
    *,
    strategy: str | None,
    max_step_draft: Any = None,
    min_step_draft: Any = None,
    th_stop_draft: Any = None,
    auto_th_stop_draft: Any = None,
) -> Any:
    """Return the lookahead settings of ``generate`` for a model with a draft model or self-speculation.

    Args:
        lookahead: ``generate``'s argument. With None and "auto", ``max_step_draft`` sets the number of tokens; 0 and
            False turn lookahead off. With a draft model, a LookaheadConfig or a strategy's name must match
            ``strategy``.
        strategy: "draft_model" if ``generate`` has a draft model, "self_speculation" for a model loaded with
            ``speculative=True``, else None. Self-speculation applies only with ``lookahead=None``.
        max_step_draft: ipex-llm's name for the maximum number of tokens to draft per step, 1 to 128.
        min_step_draft: ipex-llm's name for the draft length from which ``th_stop_draft`` applies, 0 to 128.
        th_stop_draft: ipex-llm's name for the probability below which a token ends the draft, 0 to 1.
        auto_th_stop_draft: ipex-llm's name for adapting this threshold to the acceptance rate.

    Returns:
        A LookaheadConfig, or ``lookahead`` unchanged if there is no second model.

    Raises:
        InputError: an option for a second model without one, or an invalid value.
    """
    if isinstance(lookahead, str) and lookahead != "auto":
        lookahead = resolve_lookahead(lookahead)
    own = lookahead.strategy if isinstance(lookahead, LookaheadConfig) else None
    if strategy == "self_speculation" and lookahead is not None:
        strategy = None
    if strategy is not None and own not in (None, strategy):
        raise InputError(f"a draft model is given, but strategy {own!r} does not use one; leave one of them out")
    options = {
        "num_draft_tokens": None if max_step_draft is None else integer("max_step_draft", max_step_draft, 1, MAX_DRAFT),
        "draft_min_tokens": (
            None if min_step_draft is None else max(1, integer("min_step_draft", min_step_draft, 0, MAX_DRAFT))
        ),
        "draft_min_prob": None if th_stop_draft is None else number("th_stop_draft", th_stop_draft, 0, 1),
        "draft_min_prob_auto": None if auto_th_stop_draft is None else flag("auto_th_stop_draft", auto_th_stop_draft),
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if lookahead is False or (lookahead == 0 and own is None):
        return lookahead
    if own in SECOND_MODEL:
        return dataclasses.replace(lookahead, **given)
    if strategy is None:
        if given:
            raise InputError(
                "max_step_draft, min_step_draft, th_stop_draft and auto_th_stop_draft need a draft model: load with"
                " speculative=True, pass draft_model=, or leave them out"
            )
        return lookahead
    config = strategy_config(strategy)
    if lookahead is not None and lookahead != "auto":
        given["num_draft_tokens"] = integer("lookahead", lookahead, 0, MAX_DRAFT)
    return dataclasses.replace(config, **given)


def lookup_of(settings: Any, kwargs: dict[str, Any], lookahead: Any) -> tuple[Any, int | None]:
    """``lookahead`` and the longest n-gram to match, where transformers' own words for them may be in use.

    ``prompt_lookup_num_tokens=N`` is ``lookahead=N``. Raises InputError where both are given and differ.
    """
    tokens = settings.prompt_lookup_num_tokens
    if tokens and lookahead is None:
        lookahead = tokens
    elif tokens and kwargs.get("prompt_lookup_num_tokens") and lookahead != tokens:
        raise InputError(
            f"{arg('lookahead', lookahead)} and prompt_lookup_num_tokens={tokens} mean the same; give one of them"
        )
    return lookahead, settings.max_matching_ngram_size
