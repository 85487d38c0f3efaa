"""Rows and logits of causal language models: the native decoder with caches that last for one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.embedding.inputs import TextInput, groups
from ipex_lookahead.engines.api import FINAL_NORM, OutputRequest
from ipex_lookahead.engines.loading import LoadRequest
from ipex_lookahead.engines.native.engine import NativeEngine
from ipex_lookahead.engines.prefill import PREFILL_ROWS, prefill

Floats = npt.NDArray[np.float32]
MAX_ANSWERS = 32
"""Largest number of texts with logits in a batch: each has a value for each token of the vocabulary."""


class CausalRows:
    """A causal language model that is read once, without an answer.

    A row's bits depend on the tokens up to it alone, so texts of a batch need no padding and do not change each other.

    Attributes:
        engine: the decoder.
        config: the checkpoint's config.
        low_bit: name of the weights' format.
    """

    def __init__(self, engine: NativeEngine, config: dict[str, Any], low_bit: str) -> None:
        self.engine, self.config, self.low_bit = engine, config, low_bit

    @classmethod
    def load(cls, checkpoint: Checkpoint, request: LoadRequest) -> CausalRows:
        """Load a checkpoint onto the native engine. Raises as ``NativeEngine.load``."""
        spec = replace(spec_for(checkpoint.config, request.max_context, file=request.path), mtp=None)
        label, plan, _ = request.planned(checkpoint, spec)
        engine = NativeEngine.load(checkpoint, spec, plan, threads=request.threads, progress=request.progress)
        return cls(engine, dict(checkpoint.config), label)

    @property
    def hidden(self) -> int:
        """Width of a row."""
        return int(self.engine.spec.hidden)

    @property
    def max_length(self) -> int:
        """Largest number of tokens of a text."""
        return int(self.engine.max_context)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return int(self.engine.vocab_size)

    def rows(self, inputs: Sequence[TextInput], *, last: bool) -> list[Floats]:
        """Return the hidden states of texts after the final norm.

        Args:
            inputs: the texts.
            last: only the last row of each.

        Returns:
            float32 [rows, hidden] of each text.
        """
        found: list[Floats] = []
        wants = OutputRequest(hidden=(FINAL_NORM,))
        for group in groups(inputs, PREFILL_ROWS):
            parts: list[list[Floats]] = [[] for _ in group]
            none: list[list[int]] = [[] for _ in group]
            for chunks, output in prefill(self.engine, self._chains(group), wanted=none, wants=wants):
                assert output.hidden is not None  # it is requested
                rows = output.hidden[FINAL_NORM]
                for chunk in chunks:
                    own = rows[chunk.rows.start : chunk.rows.stop]
                    if not last:
                        parts[chunk.chain].append(own)
                    elif chunk.done:
                        parts[chunk.chain].append(own[-1:])
            found += [np.array(part[0] if len(part) == 1 else np.concatenate(part), np.float32) for part in parts]
        return found

    def logits(self, inputs: Sequence[TextInput], ids: Sequence[int]) -> Floats:
        """Return the logits of some tokens after each text, float32 [texts, ids]."""
        found = np.empty((len(inputs), len(ids)), np.float32)
        at = 0
        for group in groups(inputs, PREFILL_ROWS, MAX_ANSWERS):
            for chunks, output in prefill(self.engine, self._chains(group), wants=OutputRequest(logits=True)):
                assert output.logits is not None  # they are requested
                for chunk in chunks:
                    if chunk.done:
                        found[at + chunk.chain] = output.logits[chunk.answers[-1]][list(ids)]
            at += len(group)
        return found

    def describe(self) -> dict[str, Any]:
        """Return facts for reports."""
        return self.engine.describe()

    def _chains(self, group: Sequence[TextInput]) -> list[tuple[Any, npt.NDArray[np.int32]]]:
        return [(self.engine.new_cache(), one.ids.astype(np.int32)) for one in group]
