"""Proposers without a model: answers are recorded once, then any proposer and budget is replayed in seconds.

A recording holds for each prompt the model's greedy answer and its likeliest ids at each position, and the cost curve
of the machine it was made on. Replaying runs the decoding loop itself on an engine that reads the answer from the
recording, so acceptance is exact; the speed is predicted from the cost curve. What the model would have thought after a
wrong draft token is not in a recording: proposers that learn from rejected rows do slightly worse here than they will,
and those that need scratch rows cannot be replayed. A head is replayed by how often it is said to be right
(:mod:`ipex_lookahead.bench.replay_head`), and with the costs of another model's shape the recorded text stands for its.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ipex_lookahead.bench.replay_head import SimulatedHead
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller import AdaptiveBudget, FixedBudget
from ipex_lookahead.controller.calibration import Calibration, from_json, to_json
from ipex_lookahead.controller.cost import CostCurve
from ipex_lookahead.decoding.loop import decode
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.sequence_group import SequenceGroup
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import Proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.drafting.heads.choosing import Choosing, should_attach_head
from ipex_lookahead.engines.api import Batch, Engine, OutputRequest, StepOutput
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import parse, read_file

VERSION = 1
FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Answer:
    """One recorded answer: token ids, and for each output token the likeliest ids at its position."""

    prompt: list[int]
    output: list[int]
    top: list[list[int]]


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded of one model on one machine."""

    model: str
    calibration: Calibration
    answers: list[Answer]


def record_answer(engine: Engine, prompt: Sequence[int], output: Sequence[int], top: int) -> Answer:
    """The likeliest ``top`` ids at each position of an answer, by one more pass over prompt and answer."""
    ids = np.array([*prompt, *output][:-1], np.int32)
    rows: list[list[int]] = []
    for _, found in prefill(
        engine, [(engine.new_cache(), ids)], wanted=[range(len(prompt) - 1, len(ids))], wants=OutputRequest(top=top)
    ):
        if found.top is not None:
            rows += found.top.tolist()
    return Answer(list(prompt), list(output), rows)


def save(file: Path, recording: Recording) -> None:
    """Write a recording: JSON lines, the first one says what it is."""
    head = {"recording": VERSION, "model": recording.model, "costs": to_json(recording.calibration)}
    lines = [head, *({"prompt": a.prompt, "output": a.output, "top": a.top} for a in recording.answers)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def load(file: Path) -> Recording:
    """Read a recording.

    Raises:
        ModelFormatError: the file cannot be read, or is not JSON.
        InputError: it is something else than a recording.
    """
    lines = read_file(file, FILE_BYTES).splitlines()
    head = parse(lines[0], file) if lines else None
    calibration = from_json(head.get("costs")) if isinstance(head, dict) else None
    if not isinstance(head, dict) or head.get("recording") != VERSION or calibration is None:
        raise InputError(f"{file} is no recording of bench replay", hint=f"make one: bench replay --record {file}")
    answers = []
    for number, line in enumerate(lines[1:], 2):
        found = parse(line, file)
        if not isinstance(found, dict) or not _is_answer(found):
            raise InputError(f"{file}, line {number}: prompt, output and top of an answer are expected")
        answers.append(Answer(found["prompt"], found["output"], found["top"]))
    if not answers:
        raise InputError(f"{file} holds no answer")
    return Recording(str(head.get("model")), calibration, answers)


def _is_answer(found: dict[str, Any]) -> bool:
    prompt, output, top = found.get("prompt"), found.get("output"), found.get("top")
    if not (_are_ids(prompt) and _are_ids(output) and isinstance(output, list) and isinstance(top, list)):
        return False
    if len(top) != len(output):
        return False
    return all(_are_ids(row) and len(row) == len(top[0]) for row in top)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int and -1 <= i < 2**31 for i in value)


class _RecordedCache:
    def __init__(self) -> None:
        self.length = 0

    def keep(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def crop(self, length: int) -> int:
        self.length = length
        return length

    def fork(self) -> _RecordedCache:
        other = _RecordedCache()
        other.length = self.length
        return other


class RecordedEngine:
    """Answers from a recording. Of a row that is not on the recorded path nothing is known: its ids are -1."""

    name = "recorded"
    row_invariant = True
    supports_tree = True
    max_context = 1 << 30

    def __init__(self, answer: Answer) -> None:
        self._text = [*answer.prompt, *answer.output]
        self._first = len(answer.prompt) - 1
        self._top = answer.top
        self.vocab_size = 1 << 31

    def new_cache(self) -> Any:
        """A sequence, of which only the length matters."""
        return _RecordedCache()

    def describe(self) -> dict[str, Any]:
        """Nothing but the name."""
        return {"engine": self.name}

    def forward(self, batch: Batch) -> StepOutput:
        """One sequence at a time."""
        base = batch.caches[0].length
        tokens, parents = batch.tokens.tolist(), batch.parents.tolist()
        at: list[int] = []  # for each row its position where it is on the path, else -1
        for token, parent in zip(tokens, parents, strict=True):
            place = base if parent < 0 else at[parent] + 1
            known = (parent < 0 or at[parent] >= 0) and place < len(self._text) and self._text[place] == token
            at.append(place if known else -1)
        wanted = range(len(at)) if batch.wants.rows is None else batch.wants.rows.tolist()
        after = [at[row] + 1 if 0 <= at[row] < len(self._text) - 1 else -1 for row in wanted]
        argmax = np.array([self._text[p] if p >= 0 else -1 for p in after], np.int32)
        top = None
        if batch.wants.top:
            top = np.full((len(after), batch.wants.top), -1, np.int32)
            for row, place in enumerate(after):
                if place > self._first:
                    known_top = self._top[place - self._first - 1][: batch.wants.top]
                    top[row, : len(known_top)] = known_top
        return StepOutput(argmax, None, top)


class _Clocked:
    """A controller whose clock is the cost curve, also for what a simulated head spends."""

    def __init__(self, inner: Any, curve: CostCurve, head: SimulatedHead | None) -> None:
        self._inner = inner
        self._curve = curve
        self._head = head
        self._spent = 0.0
        self.budget, self.select, self.note, self.observe = inner.budget, inner.select, inner.note, inner.observe
        self.join, self.leave, self.idle = inner.join, inner.leave, inner.idle

    def timed(self, rows: int, length: int, seconds: float, proposing: float, experts: int = 0) -> None:
        """What the recorded machine would have taken."""
        if self._head is not None:
            proposing += (self._head.spent - self._spent) * self._curve(1)
            self._spent = self._head.spent
        self._inner.timed(rows, length, self._curve(rows, length, experts), proposing, experts)


class _Watched:
    """A proposer, and the time that it takes."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.wants = inner.wants
        self.begin = inner.begin
        self.propose_seconds = self.observe_seconds = 0.0

    def propose(self, budget: int) -> Draft:
        """Timed. Raises InputError for scratch rows."""
        began = perf_counter()
        draft = self._inner.propose(budget)
        self.propose_seconds += perf_counter() - began
        if draft.scratch:
            raise InputError(f"{type(self._inner).__name__} needs scratch rows, of which a recording knows nothing")
        return draft

    def observe(self, outcome: Outcome) -> None:
        """Timed."""
        began = perf_counter()
        self._inner.observe(outcome)
        self.observe_seconds += perf_counter() - began


def replay(
    recording: Recording,
    config: LookaheadConfig,
    make: Callable[[LookaheadConfig], Proposer] | None,
    *,
    curve: Calibration | None = None,
    head: Callable[[Answer], SimulatedHead] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Replay every answer with one proposer; ``config.adaptive`` puts the controller between.

    Args:
        recording: of :func:`record`.
        config: strategy and budget.
        make: the free sources; None: the head is alone.
        curve: costs in place of the recorded ones.
        head: makes one for an answer, which drafts beside the free sources as a loaded head would.
        advance: called after every answer.

    Returns:
        Acceptance in all, by source and by position, microseconds a step in ``propose`` and ``observe``, and the speed
        that the recorded cost curve predicts, tokens a second, beside that of plain decoding.
    """
    total, seconds, plain_seconds, propose, observe = GenerationStats(strategy=config.strategy), 0.0, 0.0, 0.0, 0.0
    decode_tokens, calibration = 0, curve or recording.calibration
    for answer in recording.answers:
        known, truth = CostCurve(calibration), CostCurve(calibration)
        drafter = None if head is None else head(answer)
        if drafter is not None and make is not None and config.adaptive:
            drafter = drafter if should_attach_head(drafter.record, drafter.price, known, drafter.most) else None
        proposer = _Watched(_proposer(config, None if make is None else make(config), drafter, known))
        budget = config.num_draft_tokens
        inner: Any = FixedBudget(budget)
        if config.adaptive:
            inner = AdaptiveBudget(known, budget, config.strategy)
        controller = _Clocked(inner, truth, drafter)
        engine = RecordedEngine(answer)
        prompt = np.array(answer.prompt, np.int32)
        limit = len(answer.prompt) + len(answer.output)
        sequence = TokenSequence(prompt, limit, proposer=proposer)
        before, steps = total.tokens, total.steps
        for _ in decode(engine, SequenceGroup([sequence], total, controller)):
            pass
        decode_tokens += total.tokens - before - 1
        length = len(answer.prompt) + 1
        for drafted, accepted, _, _ in total.per_step[steps:]:
            length += 1 + accepted
            seconds += truth(1 + drafted, length)
        if drafter is not None:
            seconds += drafter.spent * truth(1)
        plain_seconds += sum(truth(1, length) for length in range(len(answer.prompt) + 1, limit))
        propose += proposer.propose_seconds
        observe += proposer.observe_seconds
        advance()
    steps = max(total.steps, 1)
    spent = seconds + propose + observe
    return {
        "strategy": config.strategy,
        "budget": config.num_draft_tokens,
        "adaptive": config.adaptive,
        "answers": len(recording.answers),
        "tokens": total.tokens,
        "steps": total.steps,
        "mean_acceptance_length": decode_tokens / steps,
        "acceptance_rate": total.acceptance_rate,
        "drafted_by_source": dict(total.drafted_by_source),
        "accepted_by_source": dict(total.accepted_by_source),
        "drafted_by_position": total.drafted_by_position,
        "accepted_by_position": total.accepted_by_position,
        "propose_us": 1e6 * propose / steps,
        "observe_us": 1e6 * observe / steps,
        "predicted_tok_s": decode_tokens / spent if spent else 0.0,
        "predicted_plain_tok_s": decode_tokens / plain_seconds if plain_seconds else 0.0,
        "predicted_ratio": plain_seconds / spent if spent else 1.0,
    }


def _proposer(config: LookaheadConfig, free: Proposer | None, head: SimulatedHead | None, known: CostCurve) -> Any:
    if head is None or (free is None and not config.adaptive):
        return free or head
    return Choosing(free, head, head.price, known, max_tokens=head.most)


def record(
    model: Any,
    name: str,
    prompts: Iterable[Sequence[int]],
    *,
    max_new_tokens: int,
    top: int,
    advance: Callable[[], None] = lambda: None,
) -> Recording:
    """Greedy answers of a model, and what it thought likely."""
    import torch

    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], dtype=torch.long)
        out = model.generate(ids, max_new_tokens=max_new_tokens, lookahead="auto", do_sample=False)
        answers.append(record_answer(model.engine, prompt, out[0, len(prompt) :].tolist(), top))
        advance()
    return Recording(name, model.costs.curve().calibration, answers)
