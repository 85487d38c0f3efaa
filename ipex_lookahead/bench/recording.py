"""Recorded answers for ``bench replay``: their file, and an engine that replays them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipex_lookahead.controller.calibration import Calibration, from_json, to_json
from ipex_lookahead.engines.api import Batch, Engine, OutputRequest, StepOutput
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.errors import InputError
from ipex_lookahead.files.safe_json import parse, read_file

VERSION = 1
FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Answer:
    """A recorded answer: token ids, and for each output token the most likely ids at its position."""

    prompt: list[int]
    output: list[int]
    top: list[list[int]]


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded answers of one model, and the step costs of the machine."""

    model: str
    calibration: Calibration
    answers: list[Answer]


def record_answer(engine: Engine, prompt: Sequence[int], output: Sequence[int], top: int) -> Answer:
    """Return an answer with the ``top`` most likely ids at each position, from one prefill of prompt and answer."""
    ids = np.array([*prompt, *output][:-1], np.int32)
    rows: list[list[int]] = []
    for _, found in prefill(
        engine, [(engine.new_cache(), ids)], wanted=[range(len(prompt) - 1, len(ids))], wants=OutputRequest(top=top)
    ):
        if found.top is not None:
            rows += found.top.tolist()
    return Answer(list(prompt), list(output), rows)


def save(file: Path, recording: Recording) -> None:
    """Write a recording as JSON lines; the first line is a header."""
    head = {"recording": VERSION, "model": recording.model, "costs": to_json(recording.calibration)}
    lines = [head, *({"prompt": a.prompt, "output": a.output, "top": a.top} for a in recording.answers)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def load(file: Path) -> Recording:
    """Read a recording.

    Raises:
        ModelFormatError: The file cannot be read, or is not JSON.
        InputError: The file is not a recording.
    """
    lines = read_file(file, FILE_BYTES).splitlines()
    head = parse(lines[0], file) if lines else None
    calibration = from_json(head.get("costs")) if isinstance(head, dict) else None
    if not isinstance(head, dict) or head.get("recording") != VERSION or calibration is None:
        raise InputError(f"{file} is not a recording of bench replay", hint=f"make one: bench replay --record {file}")
    answers = []
    for number, line in enumerate(lines[1:], 2):
        found = parse(line, file)
        if not isinstance(found, dict) or not _is_answer(found):
            raise InputError(f"{file}, line {number}: prompt, output and top of an answer are expected")
        answers.append(Answer(found["prompt"], found["output"], found["top"]))
    if not answers:
        raise InputError(f"{file} has no answers")
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
    """An engine that replays a recording. Rows that are not on the recorded path return the id -1."""

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
        """Return a cache that has only a length."""
        return _RecordedCache()

    def describe(self) -> dict[str, Any]:
        """Return the name."""
        return {"engine": self.name}

    def forward(self, batch: Batch) -> StepOutput:
        """Run a batch of one sequence."""
        base = batch.caches[0].length
        tokens, parents = batch.tokens.tolist(), batch.parents.tolist()
        at: list[int] = []  # position of each row that is on the path, else -1
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


def record(
    model: Any,
    name: str,
    prompts: Iterable[Sequence[int]],
    *,
    max_new_tokens: int,
    top: int,
    advance: Callable[[], None] = lambda: None,
) -> Recording:
    """Generate greedy answers and record them."""
    import torch

    answers = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], dtype=torch.long)
        out = model.generate(ids, max_new_tokens=max_new_tokens, lookahead="auto", do_sample=False)
        answers.append(record_answer(model.engine, prompt, out[0, len(prompt) :].tolist(), top))
        advance()
    return Recording(name, model.costs.curve().calibration, answers)
