"""Requests for the scheduler's tests, and what each is alone: token by token, on a cache of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.controller import Controller
from ipex_lookahead.decoding.sampling import Sampler, WarperParams
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.engines.api import Batch, Engine, OutputRequest


@dataclass(frozen=True)
class Submission:
    """A prompt and its rules; ``seed`` None is greedy."""

    prompt: tuple[int, ...]
    new: int
    seed: int | None = None
    stop: int | None = None
    key: str = ""

    def choose(self) -> Callable[[npt.NDArray[np.float32], int], int]:
        """(logits, position) -> token."""
        if self.seed is None:
            return lambda logits, _: int(logits.argmax())
        return Sampler(WarperParams(temperature=0.7), self.seed, 0)


@dataclass
class Answer:
    """What was emitted, and the logits that it was chosen from, as bytes."""

    tokens: list[int] = field(default_factory=list)
    logits: list[bytes] = field(default_factory=list)


def alone(engine: Engine, submission: Submission) -> Answer:
    """The plainest decoding there is: no loop of ours, one row at a time."""
    answer, choose, cache = Answer(), submission.choose(), engine.new_cache()
    text = list(submission.prompt)
    for at in range(len(text) + submission.new - 1):
        row = Batch([cache], [1], np.array([text[at]], np.int32), np.array([-1], np.int32), OutputRequest(logits=True))
        logits = engine.forward(row).logits
        assert logits is not None
        cache.keep([0])
        if at + 1 < len(submission.prompt):
            continue
        answer.logits.append(logits[0].tobytes())
        answer.tokens.append(choose(logits[0], len(text)))
        text.append(answer.tokens[-1])
        if answer.tokens[-1] == submission.stop:
            break
    return answer


def group_of(
    engine: Engine,
    submission: Submission,
    number: int = 0,
    proposer: Proposer | None = None,
    controller: Controller | None = None,
    **options: Any,
) -> tuple[SequenceGroup, Answer]:
    """A group that decodes the request, and where its answer goes."""
    answer = Answer()

    def record(_: Any, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        answer.logits.append(logits.tobytes())
        return logits

    def stop(ids: npt.NDArray[np.int64]) -> bool:
        answer.tokens.append(int(ids[-1]))
        return answer.tokens[-1] == submission.stop

    sequence = TokenSequence(
        np.array(submission.prompt, np.int32),
        len(submission.prompt) + submission.new,
        sampler=None if submission.seed is None else Sampler(WarperParams(temperature=0.7), submission.seed, 0),
        processors=[record],
        stop=stop,
        index=number,
    )

    def begin(_: SequenceGroup) -> Controller:
        sequence.proposer = proposer
        return controller or Controller(4)

    return SequenceGroup([sequence], GenerationStats(strategy="test"), begin, key=submission.key, **options), answer
