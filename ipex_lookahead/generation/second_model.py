"""What ``generate`` and a second model have to do with each other: arguments, vocabularies, and the shared noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.config import MAX_DRAFT, LookaheadConfig
from ipex_lookahead.decoding.processors import Processor, apply
from ipex_lookahead.decoding.sampling import Sampler
from ipex_lookahead.drafting.draft_model import most_likely
from ipex_lookahead.errors import EngineError, InputError
from ipex_lookahead.generation.options import real, whole

DRAFT_TOKENS = 8
"""Tokens that a second model drafts a step where no number is given (ipex-llm's ``max_step_draft``)."""

_SELF_MIN_PROB = 0.8


def second_model_lookahead(
    lookahead: Any,
    *,
    strategy: str | None,
    max_step_draft: Any = None,
    th_stop_draft: Any = None,
    auto_th_stop_draft: Any = None,
) -> Any:
    """What ``generate(lookahead=...)`` means where a second model is at hand.

    Args:
        lookahead: as the caller gave it. None and "auto" leave the number of tokens to ``max_step_draft``; 0 and False
            are off; a LookaheadConfig must be of ``strategy`` where a draft model was passed.
        strategy: "draft_model" where a draft model was passed, "self_speculation" for a model loaded with
            ``speculative=True``, None for neither. Self-speculation only takes the place of ``lookahead=None``.
        max_step_draft: ipex-llm's: most tokens drafted a step, 1 to 64.
        th_stop_draft: ipex-llm's: a token of a lower probability ends the draft, 0 to 1.
        auto_th_stop_draft: ipex-llm's: let that threshold follow the acceptance.

    Returns:
        A LookaheadConfig, or ``lookahead`` as given where there is no second model to use.

    Raises:
        InputError: an option of second models without one, or a value outside what is allowed.
    """
    own = lookahead.strategy if isinstance(lookahead, LookaheadConfig) else None
    if strategy == "self_speculation" and lookahead is not None:
        strategy = None
    if strategy is not None and own not in (None, strategy):
        raise InputError(
            f"a draft model is given and lookahead has the strategy {own!r}, which does not use it;"
            " leave one of them out"
        )
    options = {
        "num_draft_tokens": None if max_step_draft is None else whole("max_step_draft", max_step_draft, 1, MAX_DRAFT),
        "draft_min_prob": None if th_stop_draft is None else real("th_stop_draft", th_stop_draft, 0, 1),
        "draft_min_prob_auto": auto_th_stop_draft,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if lookahead is False or (lookahead == 0 and own is None):
        return lookahead
    if own in ("draft_model", "self_speculation"):
        return dataclasses.replace(lookahead, **given)
    if strategy is None:
        if given:
            raise InputError(
                "max_step_draft, th_stop_draft and auto_th_stop_draft are for second models; load the model with"
                " speculative=True or pass draft_model=, or leave them out"
            )
        return lookahead
    config = LookaheadConfig(strategy=strategy, num_draft_tokens=DRAFT_TOKENS)
    if strategy == "self_speculation":
        config = dataclasses.replace(config, draft_min_prob=_SELF_MIN_PROB)
    if lookahead is not None and lookahead != "auto":
        given["num_draft_tokens"] = whole("lookahead", lookahead, 0, MAX_DRAFT)
    return dataclasses.replace(config, **given)


def check_vocabulary(target: Any, draft: Any) -> None:
    """Raise InputError where two models' token ids do not mean the same.

    Args:
        target: a LookaheadModelForCausalLM: ``engine`` and ``tokenizer`` are looked at.
        draft: as above; its sizes are compared, and its tokenizer's vocabulary where both have a tokenizer.
    """
    instead = "a draft model needs the target's vocabulary: take a smaller model of the same family"
    if not hasattr(draft, "engine"):
        raise InputError(
            f"draft_model is a {type(draft).__module__}.{type(draft).__qualname__};"
            " load it with ipex_lookahead.AutoModelForCausalLM.from_pretrained"
        )
    ours, theirs = target.engine.vocab_size, draft.engine.vocab_size
    if ours != theirs:
        raise InputError(f"the draft model has {theirs} token ids and the target {ours}; {instead}")
    if target.tokenizer is None or draft.tokenizer is None or target.tokenizer is draft.tokenizer:
        return
    known, other = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if known != other:
        token = min(t for t in known.keys() | other.keys() if known.get(t) != other.get(t))
        raise InputError(
            f"the draft model's tokenizer is another one: {token!r} is {other.get(token, 'unknown')} there and"
            f" {known.get(token, 'unknown')} in the target's; {instead}"
        )


class SharedChoice:
    """Chooses from the draft model's logits as the target would from its own: same processors, same noise.

    The noise of a position says most about what is chosen there, so the two agree far more often than two independent
    draws would, and the estimate of how often must count it in: it is the softmax of ``logit / temperature + gumbel``
    at the token chosen, which says by how much it leads. (Measured on a four-bit copy of SmolLM2 at temperature 0.8:
    72 % of the tokens agree; this estimate's mean is 0.71, that of the token's own probability 0.60.)

    Args:
        processors: called on each hypothetical prefix, so they may keep no state.
        sampler: the target's sampler of the same sequence; None is greedy.
    """

    def __init__(self, processors: Sequence[Processor], sampler: Sampler | None) -> None:
        self._processors = processors
        self._sampler = sampler

    def __call__(self, logits: npt.NDArray[np.float32], tokens: npt.NDArray[np.int64]) -> tuple[int, float] | None:
        """See :data:`~ipex_lookahead.drafting.draft_model.DraftChoice`. None where every token is forbidden."""
        if self._processors:
            logits = apply(self._processors, torch.from_numpy(tokens)[None], logits)
        if self._sampler is None:
            return most_likely(logits, tokens) if logits.max() > -np.inf else None
        try:
            token = self._sampler(np.ascontiguousarray(logits), len(tokens))
        except (InputError, EngineError):  # the target may never come here; if it does, it will say what is wrong
            return None
        return token, self._sampler.lead(logits, len(tokens), token)
