"""Teaching a head: its chains are unrolled on its own outputs, and each token's distribution is the target's.

Source: EAGLE-3's training-time test (Li et al., 2025, section 3), with the settings that SpecForge and speculators
publish for small models: the target's rows as lm_head, frozen; AdamW; gradients clipped at 0.5.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from ipex_lookahead.files.temporary import temporary_file
from ipex_lookahead.training.data import Answer, Store
from ipex_lookahead.training.eagle3 import FEATURES, Eagle3, Past

CLIP = 0.5
"""Norm of the gradients, at most."""
BETAS = (0.9, 0.95)
WARMUP = 0.05
"""Share of the training in which the learning rate rises."""
SAVE_SECONDS = 60.0
"""A killed run loses no more than this."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head is taught.

    Attributes:
        steps: of the optimiser, at most.
        minutes: of training, at most; None: as long as the steps take.
        learning_rate: the highest; None: ``usual_rate``.
        batch: answers a step.
        unroll: tokens of the chains.
        seed: of the head's first weights and the order of answers.
    """

    steps: int
    minutes: float | None
    learning_rate: float | None
    batch: int
    unroll: int
    seed: int


@dataclass(slots=True)
class Rows:
    """Answers side by side, those that are shorter filled up.

    Attributes:
        tokens: int64 [batch, rows].
        features: float32 [batch, rows, 3 * hidden].
        states: float32 [batch, rows, hidden], after the target's final norm.
        drafts: bool [batch, rows], whether a row drafts: it knows a token of the answer behind it.
        there: bool [batch, rows], whether there is a row, and not what fills up.
    """

    tokens: torch.Tensor
    features: torch.Tensor
    states: torch.Tensor
    drafts: torch.Tensor
    there: torch.Tensor


class Training:
    """A head on its way. Holds the head, the optimiser's two numbers a weight, and one batch.

    Args:
        head: the head, which is changed.
        store: the answers.
        recipe: how.
        soft: (multiplier, cap) of the target's logits; cap None: there is none.
        state: the file from which it goes on, where that is there, and into which it is saved.
    """

    def __init__(
        self, head: Eagle3, store: Store, recipe: Recipe, soft: tuple[float, float | None], state: Path
    ) -> None:
        self.head, self.store, self.recipe, self.soft, self._state = head, store, recipe, soft, state
        self.taught = {name: one for name, one in head.named_parameters() if one.requires_grad}
        self._optimiser = torch.optim.AdamW(
            [{"params": [one], "weight_decay": 0.01 if one.dim() > 1 else 0.0} for one in self.taught.values()],
            betas=BETAS,
        )
        self._answers, _ = store.split()
        given = recipe.learning_rate
        self._rate = usual_rate(head.shape.hidden) if given is None else given
        self.step, self._seconds = 0, 0.0
        self.loss = math.nan
        if state.exists():
            self._load()

    @property
    def progress(self) -> float:
        """How much of the training is behind it, 0 to 1."""
        minutes = self.recipe.minutes
        by_time = 0.0 if minutes is None else self._seconds / (60 * minutes)
        return min(1.0, max(self.step / self.recipe.steps, by_time))

    def run(self, stopped: Callable[[], bool], progress: Callable[[Training], None]) -> bool:
        """Go on to the end, or until ``stopped``; saves its state in between and then. Whether it came to the end."""
        begun, saved = time.monotonic() - self._seconds, time.monotonic()
        self.head.train()
        while self.progress < 1 and not stopped():
            self._teach(self._batch())
            self.step += 1
            self._seconds = time.monotonic() - begun
            progress(self)
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        self.head.eval()
        return self.progress >= 1

    def _teach(self, rows: Rows) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * share(self.progress)
        self._optimiser.zero_grad()
        loss = unrolled_loss(self.head, rows, self.recipe.unroll, self.soft)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(list(self.taught.values()), CLIP)
        self._optimiser.step()
        self.loss = loss.item() if math.isnan(self.loss) else 0.95 * self.loss + 0.05 * loss.item()

    def _batch(self) -> Rows:
        """The answers of this step: a new order in each epoch, so that a step's follow from its number alone."""
        count, batch = len(self._answers), min(self.recipe.batch, len(self._answers))
        epoch, at = divmod(self.step, count // batch)
        order = np.random.default_rng((self.recipe.seed, epoch)).permutation(count)
        return side_by_side(self.store, [self._answers[i] for i in order[at * batch : (at + 1) * batch]])

    def save(self) -> None:
        """Write weights, the optimiser's numbers and how far it is. May raise OSError."""
        tensors = dict(self.taught)
        for name, one in self.taught.items():
            for key, value in self._optimiser.state[one].items():
                tensors[f"{name}/{key}"] = value
        at = {"step": str(self.step), "seconds": repr(self._seconds), "loss": repr(self.loss)}
        with temporary_file(self._state) as made:
            try:
                save_file({name: one.detach().contiguous() for name, one in tensors.items()}, made, at)
            except SafetensorError as error:  # its name for a full disk
                raise OSError(str(error)) from error
            made.replace(self._state)

    def _load(self) -> None:
        with safe_open(self._state, "pt") as file:
            at = file.metadata()
        self.step, self._seconds, self.loss = int(at["step"]), float(at["seconds"]), float(at["loss"])
        tensors = load_file(self._state)
        with torch.no_grad():
            for name, one in self.taught.items():
                one.copy_(tensors[name])
                keys = (full.rpartition("/")[2] for full in tensors if full.startswith(f"{name}/"))
                self._optimiser.state[one] = {key: tensors[f"{name}/{key}"] for key in keys}


def usual_rate(hidden: int) -> float:
    """A learning rate that falls with the width (Yang et al., 2022, arXiv 2203.03466): the published 1e-4 at 4,096."""
    return min(2e-3, 0.5 / hidden)


def share(progress: float) -> float:
    """Of the highest learning rate, how much: a linear rise, then half a cosine down to a tenth."""
    if progress < WARMUP:
        return max(0.01, progress / WARMUP)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP)))


def side_by_side(store: Store, answers: Sequence[Answer]) -> Rows:
    """Read answers from the disk."""
    longest = max(len(answer.tokens) for answer in answers)
    width = store.row_bytes // 2
    rows = np.zeros((len(answers), longest, width), np.float32)
    tokens = np.zeros((len(answers), longest), np.int64)
    drafts, there = np.zeros((2, len(answers), longest), np.bool_)
    for number, answer in enumerate(answers):
        count = len(answer.tokens)
        rows[number, :count] = store.rows(answer)
        tokens[number, :count] = answer.tokens
        drafts[number, answer.prompt - 1 : count - 1] = True
        there[number, :count] = True
    made = torch.from_numpy(rows)
    hidden = width // (FEATURES + 1)
    return Rows(
        torch.from_numpy(tokens),
        made[..., : FEATURES * hidden],
        made[..., FEATURES * hidden :],
        torch.from_numpy(drafts),
        torch.from_numpy(there),
    )


def unrolled_loss(head: Eagle3, rows: Rows, unroll: int, soft: tuple[float, float | None]) -> torch.Tensor:
    """The mean cross entropy of the tokens of all chains against the target's distribution among the head's words.

    Where the token that the target chose is none of these, nothing is learned: there the head cannot be right.
    """
    g, past = head.fc(rows.features[:, :-1]), Past()
    chosen, sayable = rows.drafts[:, :-1], rows.there & head.t2d[rows.tokens]
    needed = rows.drafts.roll(1, 1)  # the rows whose choice chains stand for
    number = needed.flatten().cumsum(0).view(needed.shape) - 1
    wanted = targets(head, rows.states[needed], soft)
    losses = [0.0 * g.sum()]
    for depth in range(unroll):
        # Row P stands for the token P + 2 + depth, which the target chose by its state at P + 1 + depth.
        shift = depth + 1
        tokens = _moved(rows.tokens, shift)[:, :-1]
        out = head.step(tokens, g, past)
        counted = chosen & _moved(sayable, shift + 1)[:, :-1]
        if not counted.any():
            break  # all answers are shorter
        chances = wanted[_moved(number, shift)[:, :-1][counted]]
        losses.append(-(chances * head.logits(out[counted]).log_softmax(-1)).sum(-1).mean())
        g = out
    return torch.stack(losses).sum() / max(1, len(losses) - 1)


@torch.no_grad()
def targets(head: Eagle3, states: torch.Tensor, soft: tuple[float, float | None]) -> torch.Tensor:
    """The target's distribution among the head's words, float32 [n, draft_vocab], of its states [n, hidden]."""
    multiplier, cap = soft
    logits = multiplier * (states @ head.lm_head.weight.T)
    return (logits if cap is None else cap * torch.tanh(logits / cap)).softmax(-1)


def _moved(x: torch.Tensor, by: int) -> torch.Tensor:
    """Each row's ``by`` rows later [batch, rows, ...]; zeros behind the last."""
    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)
