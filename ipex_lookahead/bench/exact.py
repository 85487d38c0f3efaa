"""Whether lookahead changes a token: every strategy, budget and way of sampling against plain decoding.

The plain answers are decoded one by one, once for each way of sampling. Those with a fixed draft are decoded in
batches, which is quicker, and a neighbour must not matter either; the adaptive ones are not, since the rows of a batch
leave the controller little to draft, and then little would be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest
from typing import Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.drafting import HEADS, PROPOSERS, SECOND_MODEL
from ipex_lookahead.engines.low_bit_copy import check_gains
from ipex_lookahead.errors import InputError

_NO_TOKEN = -1
SEED_STEP = 11
"""By how many tokens the draft of a batch differs from one seed to the next, where drafts are spread."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """One way of choosing tokens: its name in reports, and ``generate``'s arguments for each of its seeds."""

    name: str
    runs: tuple[dict[str, Any], ...]


GREEDY = Sampling("greedy", ({"do_sample": False},))


def sampled(seeds: int, **settings: Any) -> Sampling:
    """Sampling with the seeds 0, 1, ..., and ``generate``'s arguments such as ``temperature``."""
    return Sampling("sampled", tuple({"do_sample": True, **settings, "seed": seed} for seed in range(seeds)))


@dataclass(frozen=True, slots=True)
class Difference:
    """The first new token of an answer that is not plain decoding's; None stands for no token at all."""

    prompt: int
    position: int
    got: int | None
    expected: int | None
    seed: int | None


@dataclass(slots=True)
class Row:
    """What came of one configuration and way of sampling: ``equal`` of ``total`` answers, and the others."""

    config: LookaheadConfig
    sampling: str
    total: int = 0
    differences: list[Difference] = field(default_factory=list)

    @property
    def equal(self) -> int:
        """Answers that are plain decoding's."""
        return self.total - len(self.differences)


Answer = Callable[[Sequence[Sequence[int]], LookaheadConfig | int, dict[str, Any]], list[list[int]]]
"""``answer(prompts, lookahead, sampling)`` -> the new tokens of each prompt, decoded together in one batch."""


def strategies(model: Any, draft_model: Any = None) -> tuple[list[str], dict[str, str]]:
    """The strategies that this model can use, and for each other one the sentence why not."""
    usable, absent = [], {}
    for name in sorted([*PROPOSERS, *SECOND_MODEL, *HEADS]):
        why = _hindrance(name, model, draft_model)
        if why is None:
            usable.append(name)
        else:
            absent[name] = why
    return usable, absent


def _hindrance(strategy: str, model: Any, draft_model: Any) -> str | None:
    if strategy == "draft_model" and draft_model is None:
        return "no draft model is given"
    if strategy in HEADS and getattr(model.engine, "head", None) is None:
        return "the model brings no block for drafting, or this engine runs none"
    if strategy == "jacobi" and not getattr(model.engine, "supports_tree", True):
        return f"the {model.engine.name} engine cannot verify trees of this model"
    if strategy == "self_speculation":
        try:
            check_gains(model.engine.describe()["low_bit"])
        except InputError as error:
            return str(error)
    return None


def configurations(
    names: Iterable[str], budgets: Iterable[int], modes: Iterable[str] = ("fixed", "adaptive")
) -> list[LookaheadConfig]:
    """Every strategy with every budget, in every mode."""
    return [
        LookaheadConfig(name, budget, adaptive=mode == "adaptive")
        for name, mode, budget in product(names, modes, budgets)
    ]


def answerer(model: Any, max_new_tokens: int, draft_model: Any = None) -> Answer:
    """``check``'s view of a model. Every prompt gets the noise that it would get alone."""
    import torch

    def answer(
        prompts: Sequence[Sequence[int]], lookahead: LookaheadConfig | int, sampling: dict[str, Any]
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
            mask[row, width - len(prompt) :] = 1
        drafting = isinstance(lookahead, LookaheadConfig) and lookahead.strategy == "draft_model"
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_new_tokens,
            lookahead=lookahead,
            sequence_ids=[0] * len(prompts),
            pad_token_id=_NO_TOKEN,  # so that padding differs from an end token
            **({"draft_model": draft_model} if drafting else {}),
            **sampling,
        )
        return [[token for token in row if token != _NO_TOKEN] for row in out[:, width:].tolist()]

    return answer


def check(
    answer: Answer,
    prompts: Sequence[Sequence[int]],
    configs: Iterable[LookaheadConfig],
    samplings: Sequence[Sampling],
    *,
    batch: int = 8,
    spread: bool = False,
    advance: Callable[[], None] = lambda: None,
    forget: Callable[[], None] = lambda: None,
) -> Iterator[Row]:
    """Compare every configuration with plain decoding; a row comes as soon as it is known.

    Args:
        answer: as :func:`answerer` makes it.
        prompts: token ids of each prompt.
        configs: what to check.
        samplings: ways of choosing tokens, each with every configuration.
        batch: prompts that are decoded together with a fixed draft.
        spread: a fixed draft has 1, 2, ... tokens, up to the configuration's, one number for each batch in turn and
            another one with each seed, instead of the configuration's for all prompts.
        advance: called after each answer, for a progress bar.
        forget: called before each seed of each configuration: drops what the model remembers, which may be the answer.
    """
    expected = []
    for sampling in samplings:
        plain = []
        for run in sampling.runs:
            plain.append([_advancing(answer([prompt], 0, run), advance)[0] for prompt in prompts])
        expected.append(plain)
    for config in configs:
        for sampling, plain in zip(samplings, expected, strict=True):
            row = Row(config, sampling.name)
            together = 1 if config.adaptive else batch
            for seed, (run, right) in enumerate(zip(sampling.runs, plain, strict=True)):
                forget()
                for first in range(0, len(prompts), together):
                    given = config
                    if spread and not config.adaptive:
                        number = (first // together + SEED_STEP * seed) % config.num_draft_tokens
                        given = replace(config, num_draft_tokens=1 + number)
                    found = _advancing(answer(prompts[first : first + together], given, run), advance)
                    for prompt, tokens in enumerate(found, first):
                        row.total += 1
                        row.differences += _compare(prompt, tokens, right[prompt], run.get("seed"))
            yield row


def _advancing(answers: list[list[int]], advance: Callable[[], None]) -> list[list[int]]:
    for _ in answers:
        advance()
    return answers


def _compare(prompt: int, got: Sequence[int], expected: Sequence[int], seed: int | None) -> list[Difference]:
    """The first difference, or none."""
    for position, (mine, theirs) in enumerate(zip_longest(got, expected)):
        if mine != theirs:
            return [Difference(prompt, position, mine, theirs, seed)]
    return []
