"""The caller's objects with a whole batch: padded as transformers shows it, one call per emitted position."""

from __future__ import annotations

from collections import abc
from collections.abc import Collection
from typing import Any

import torch

from ipex_lookahead.decoding.sampling import Logits
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.processors import Processor, as_logits, call


class CallersBatch:
    """Processors, stop criteria and a streamer for all sequences at once: the ``callbacks`` of a run.

    Rows are in the caller's order, with the padding on the left as given. A row that has ended goes on with the padding
    token, and its scores are zeros: transformers shows what its model thinks after the padding, which means nothing.

    Args:
        ids: int64 [batch, n], the prompts as given.
        sequences: those of the rows.
        processors: for each row the processors in order; of one length, and ``whole`` at the same places.
        whole: those of them that are called once, with the whole batch.
        criteria: called once for each position; a verdict of one value is for all rows.
        streamer: gets int64 [batch] for each position, or None.
        pad: the padding token.
        vocab_size: the model's.
        keep_scores: show the criteria the scores, as transformers does where the output has them.

    Attributes:
        processes: whether there are processors.
    """

    def __init__(
        self,
        ids: torch.Tensor,
        sequences: abc.Sequence[Sequence],
        processors: abc.Sequence[abc.Sequence[Processor]],
        whole: Collection[Any],
        criteria: abc.Sequence[Any],
        streamer: Any,
        *,
        pad: int,
        vocab_size: int,
        keep_scores: bool,
    ) -> None:
        rows, self._length = ids.shape
        most = max(sequence.limit - len(sequence.prompt) for sequence in sequences)
        self._ids = torch.full((rows, self._length + most), pad, dtype=torch.int64)
        self._ids[:, : self._length] = ids
        self._starts = [self._length - len(sequence.prompt) for sequence in sequences]
        self._sequences = sequences
        self._stages = list(zip(*processors, strict=True))
        self._whole = {id(processor) for processor in whole}
        self._criteria = criteria
        self._streamer = streamer
        self._vocab_size = vocab_size
        self._scores: list[torch.Tensor] | None = [] if keep_scores and criteria else None
        self.processes = bool(self._stages)

    def process(self, rows: abc.Sequence[int], logits: abc.Sequence[Logits]) -> list[Logits]:
        """Processors in order, those of the settings on each row without its padding."""
        scores = torch.zeros((len(self._ids), self._vocab_size))
        for row, found in zip(rows, logits, strict=True):
            scores[row] = torch.from_numpy(found)
        for stage in self._stages:
            if id(stage[0]) in self._whole:
                scores = call(stage[0], self._shown(), scores)
            else:
                for row in rows:
                    ids = self._ids[row : row + 1, self._starts[row] : self._length]
                    scores[row] = call(stage[row], ids, scores[row : row + 1])[0]
        return [as_logits(scores[row]) for row in rows]

    def accept(self, rows: abc.Sequence[int], tokens: abc.Sequence[int]) -> list[bool]:
        """Add the column of tokens, stream it, then call the criteria."""
        for row, token in zip(rows, tokens, strict=True):
            self._ids[row, self._length] = token
        self._length += 1
        if self._streamer is not None:
            self._streamer.put(self._ids[:, self._length - 1].clone())
        ended = torch.zeros(len(self._ids), dtype=torch.bool)
        if self._criteria:
            ids, scores = self._shown(), self._scores_so_far(rows)
            for criterion in self._criteria:
                ended |= verdict(criterion, criterion(ids, scores), len(ended))
        return [bool(ended[row]) for row in rows]

    def _shown(self) -> torch.Tensor:
        """All rows so far, int64 [batch, n], which later tokens do not change."""
        return self._ids[:, : self._length].contiguous()

    def _scores_so_far(self, rows: abc.Sequence[int]) -> tuple[torch.Tensor, ...] | None:
        if self._scores is None:
            return None
        scores = torch.zeros((len(self._ids), self._vocab_size))
        for row in rows:
            kept = self._sequences[row].scores
            assert kept is not None
            scores[row] = torch.from_numpy(kept[-1])
        self._scores.append(scores)
        return tuple(self._scores)


def verdict(criterion: Any, answer: Any, rows: int) -> torch.Tensor:
    """What a stop criterion answered, as bool [rows]; one value is for all rows. InputError for anything else."""
    found = torch.as_tensor(answer).detach().cpu() != 0
    if found.numel() != 1 and found.shape != (rows,):
        raise InputError(
            f"stopping_criteria {type(criterion).__name__} returned {tuple(found.shape)};"
            f" it must return a bool, or a tensor of {rows}, one for each row"
        )
    return found.reshape(-1).expand(rows)
