"""A model's own answers and what it thought at each of their tokens, on disk: nothing of them stays in memory.

``answers.jsonl`` has a line for each answer, ``features.f16`` its rows, one a token. A line is written when its rows
are; what an interrupt left half-way is cut off by the next run, which goes on behind it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ipex_lookahead.engines.base import FINAL_NORM, OutputRequest
from ipex_lookahead.engines.prefill import prefill
from ipex_lookahead.generation.run import RunOptions, length_limit, run
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.generation.text_model import TextModel

AT_ONCE = 16
"""Answers that are made together: rows share what a step reads."""
HELD_OUT = 20
"""Every 20th answer is not trained on, but measured on."""

Halves = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in a store.

    Attributes:
        tokens: int64 [n], prompt and answer.
        prompt: how many of them are the prompt.
        first: its first row.
    """

    tokens: npt.NDArray[np.int64]
    prompt: int
    first: int


class Store:
    """The folder of answers and their features.

    Args:
        folder: is there.
        layers: whose hidden states are kept, i = those after i layers; those after the final norm come behind them.
        hidden: the target's hidden size.

    Attributes:
        answers: what is there.
        row_bytes: what a token takes on disk.
    """

    def __init__(self, folder: Path, layers: Sequence[int], hidden: int) -> None:
        self._lines, self._rows = folder / "answers.jsonl", folder / "features.f16"
        self.layers, self._width = tuple(layers), (len(layers) + 1) * hidden
        self.row_bytes = 2 * self._width
        self.answers: list[Answer] = []
        whole = 0
        for file in (self._lines, self._rows):
            file.touch()
        held = self._rows.stat().st_size // self.row_bytes
        for line in self._lines.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                found = json.loads(line)
                tokens, prompt = found["tokens"], found["prompt"]
            except (ValueError, TypeError, KeyError):  # a machine that lost its power may leave anything
                break
            if self.tokens + len(tokens) > held:
                break
            self._note(tokens, prompt)
            whole += len(line)
        os.truncate(self._lines, whole)
        os.truncate(self._rows, self.tokens * self.row_bytes)

    @property
    def tokens(self) -> int:
        """Tokens of all answers, their prompts included."""
        return self.answers[-1].first + len(self.answers[-1].tokens) if self.answers else 0

    @property
    def answered(self) -> int:
        """Tokens of all answers, without their prompts."""
        return sum(len(answer.tokens) - answer.prompt for answer in self.answers)

    def add(self, tokens: Sequence[int], prompt: int, rows: Halves) -> None:
        """Keep an answer, float16 [n, width] with it. May raise OSError."""
        with self._rows.open("ab") as file:
            file.write(np.ascontiguousarray(rows).data)
        with self._lines.open("a", encoding="ascii") as file:
            file.write(json.dumps({"prompt": prompt, "tokens": list(tokens)}) + "\n")
        self._note(tokens, prompt)

    def _note(self, tokens: Sequence[int], prompt: int) -> None:
        self.answers.append(Answer(np.array(tokens, np.int64), prompt, self.tokens))

    def rows(self, answer: Answer) -> Halves:
        """Its rows, float16 [n, width], read from the disk: the layers' hidden states, then those after the norm."""
        count = len(answer.tokens)
        found: Halves = np.fromfile(
            self._rows, np.float16, count * self._width, offset=answer.first * self.row_bytes
        ).reshape(count, self._width)
        return found

    def split(self) -> tuple[list[Answer], list[Answer]]:
        """Those to train on, and those to measure on."""
        kept = [answer for number, answer in enumerate(self.answers) if (number + 1) % HELD_OUT]
        return kept, self.answers[HELD_OUT - 1 :: HELD_OUT]


def collect(
    model: TextModel,
    prompts: Iterable[Sequence[int]],
    store: Store,
    params: SamplingParams,
    *,
    tokens: int,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> None:
    """Let the model answer prompts until there are ``tokens`` tokens of answers.

    Args:
        model: on the native engine.
        prompts: token ids of each that is not answered yet.
        store: where answers go.
        params: how tokens are chosen; each answer draws with noise of its own, by its number in the store.
        tokens: of answers, at least, where the prompts bring as many.
        stopped: asked between two steps; True leaves out the answers that are under way.
        progress: called with the tokens of answers so far.
    """
    progress(store.answered)
    waiting = iter(prompts)
    while store.answered < tokens and not stopped():
        sequences = []
        for number, prompt in enumerate(islice(waiting, AT_ONCE), len(store.answers)):
            limit, reason = length_limit(len(prompt), model.engine.max_context, max_new_tokens=params.max_new_tokens)
            sequences.append(model.sequence(prompt, params, limit, reason, number=number))
        if not sequences:
            return
        for sequence in sequences:
            sequence.cache = model.engine.new_cache()
        run(model.engine, sequences, RunOptions(cancelled=stopped))
        if stopped():
            return
        for sequence in sequences:
            ids = [*sequence.prompt.tolist(), *sequence.new]
            store.add(ids, len(sequence.prompt), features(model, ids, store.layers))
        progress(store.answered)


def features(model: TextModel, ids: Sequence[int], layers: Sequence[int]) -> Halves:
    """What the model thought at each token, float16 [n, (layers + 1) * hidden]: after these layers and the norm.

    What float16 cannot hold becomes the largest number that it can.
    """
    wants = OutputRequest(hidden=tuple(sorted({FINAL_NORM, *layers})))
    parts = []
    for _, output in prefill(model.engine, [(model.engine.new_cache(), np.array(ids, np.int32))], wants=wants):
        assert output.hidden is not None
        parts.append(np.concatenate([output.hidden[layer] for layer in (*layers, FINAL_NORM)], -1))
    most = np.finfo(np.float16).max
    return np.concatenate(parts).clip(-most, most).astype(np.float16)
