"""A drafting head in the native core: a decoder of one block that also reads the target's features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Linear, ModelSpec, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.draft_vocab import first_ids
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.load_weights import (
    Order,
    Read,
    load_weights,
    random_weights,
    reading,
    stored_weights,
    walk,
)
from ipex_lookahead.engines.native.core import CORE_RAISES, core_error
from ipex_lookahead.engines.native.decoder import empty_decoder, set_weight
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.native.linear import plain, streams
from ipex_lookahead.engines.native.sampled import Draw
from ipex_lookahead.engines.weights import WeightPlan, outputs_of, read_order
from ipex_lookahead.errors import ContextLengthError
from ipex_lookahead.formats.base import PackedWeight

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class NativeHead:
    """A head that drafts for one target; created by :meth:`load`.

    Attributes:
        ids: int32 [outputs], the token of each output.
        target_keys: the head reads its target's KV cache, so :meth:`run` takes caches of the target and does not change
            them.
        vocab_size: size of the target's vocabulary.
        width: values of a row's features, which are the target's hidden states named in ``spec.features``.
        rates: acceptance rates, set by :func:`~ipex_lookahead.controller.kept.rates_of`.
        source: the folder or file that it was read from, or None.
        facts: entries that :meth:`describe` includes.
    """

    def __init__(self, decoder: Any, spec: ModelSpec, ids: Ids) -> None:
        self._decoder = decoder
        self.spec = spec
        self.ids = ids
        self.vocab_size = spec.vocab
        assert spec.features is not None
        self.width = spec.features.width
        self.target_keys = spec.target_keys
        self._fed_back = spec.features.feeds_back
        self.max_context = spec.max_context
        self.rates: Any = None
        self.source: Path | None = None
        self.facts: dict[str, Any] = {}
        self._orders: dict[str, Order] = {}

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        target: NativeEngine,
        *,
        threads: int | None = None,
        ids: Ids | None = None,
    ) -> NativeHead:
        """Read a head's own weights; shared weights are the target's, with the rows ``ids`` of its lm_head.

        ``ids``: for an own lm_head, the token of each output, or a selection of its outputs. None: all outputs in
        order, or the first ``DRAFT_VOCAB`` of an lm_head for the whole vocabulary. A head with candidates has them in
        its file.

        Raises ModelFormatError for a tensor of another shape than the config specifies, or with NaN or infinity.
        """
        if spec.candidates is not None:
            ids = read_order(checkpoint, spec.candidates.ordering)
        tensors = (tensor for _, tensor in walk(spec, elsewhere(spec)))
        with reading(checkpoint, spec, replace(plan, embedding=""), tensors, threads) as read:
            return cls.build(spec, read, target, threads=threads, ids=ids)

    @classmethod
    def random(
        cls,
        spec: ModelSpec,
        low_bit: str,
        target: NativeEngine,
        *,
        threads: int | None = None,
        draft_vocab: int = DRAFT_VOCAB,
        seed: int = 0,
    ) -> NativeHead:
        """A head of that shape with random weights, for measuring: its speed is real, its drafts are not."""
        ids = first_ids(spec.vocab, 0 if spec.candidates is not None else draft_vocab)
        return cls.build(spec, random_weights(spec, low_bit, seed=seed), target, threads=threads, ids=ids)

    @classmethod
    def build(
        cls, spec: ModelSpec, read: Read, target: NativeEngine, *, threads: int | None = None, ids: Ids | None = None
    ) -> NativeHead:
        """A head with the weights that a function returns, as for :meth:`NativeEngine.build`; else as :meth:`load`."""
        assert spec.head is not None
        assert spec.features is not None
        shares, outputs = spec.features.shares, spec.head.weight.shape[0]
        if ids is None:  # merges come in the order of how often they are met
            ids = first_ids(spec.vocab) if outputs == spec.vocab else np.arange(outputs, dtype=np.int32)
        ids = np.ascontiguousarray(ids, np.int32)
        own = replace(spec, head=Linear(replace(spec.head.weight, shape=(len(ids), spec.hidden))))
        decoder = empty_decoder(own, threads, target.kv_cache, target.decoder if spec.target_keys else None)
        head = cls(decoder, own, ids)
        if "embedding" in shares:
            decoder.share_matrix("embedding", target.decoder, "embedding")
        whole_head: PackedWeight | None = None
        for name, _, weight in load_weights(spec, read, head._orders, elsewhere(spec)):
            if name == "head.weight" and (spec.candidates is not None or len(ids) != outputs):
                whole_head, weight = weight, outputs_of(weight, ids)
            set_weight(decoder, name, weight, head._orders.get(name))
        if whole_head is not None and spec.candidates is None and outputs == spec.vocab:
            decoder.set_whole_head(*streams(whole_head))
        if "head" in shares:
            theirs = "embedding" if target.spec.tied else "head.weight"
            set_weight(decoder, "head.weight", outputs_of(plain(target.decoder.export_matrix(theirs)), ids))
        decoder.set_outputs(ids)
        if "head" in shares and len(ids) < spec.vocab:
            decoder.share_whole_head(target.decoder, theirs)
        return head

    @staticmethod
    def embedding_of(target: NativeEngine) -> PackedWeight:
        """Return the target's embedding in plain layout."""
        return plain(target.decoder.export_matrix("embedding"))

    def follow(self, cache: NativeCache) -> None:
        """Let a cache of the target, and its forks, collect the features of all following rows for this head.

        Raises EngineError while another thread uses the cache.
        """
        self._of_target(cache.raw.follow, self._decoder)

    def allow_tokens(self, cache: NativeCache, tokens: Ids) -> None:
        """Allow drafts of these tokens, int32 [n], for this sequence in addition to ``ids`` and the tokens fed."""
        self._of_target(cache.raw.allow_tokens, tokens)

    def draft(
        self,
        cache: NativeCache,
        last: int,
        max_tokens: int,
        *,
        copied: Sequence[int] = (),
        rates: Sequence[float] = (),
        min_chance: float = 0.0,
        ends: Collection[int] = (),
        draw: Draw | None = None,
    ) -> tuple[list[int], list[float]]:
        """Draft a chain of tokens in one call. The target's cache must be followed (:meth:`follow`) and is not changed.

        Args:
            cache: the target's cache of the sequence.
            last: the last token of the text, the first that the cache does not hold.
            max_tokens: maximum number of tokens.
            copied: draft tokens of another proposer after ``last``; the chain continues after them.
            rates: measured acceptance rate of tokens with a probability in the i-th of n equal intervals of [0, 1];
                empty: the probability.
            min_chance: the chain ends after the token at which the product of its rates falls below this value.
            ends: tokens after which nothing is drafted.
            draw: the target's sampling parameters and noise at the first drafted token; None: greedy.

        Returns:
            Token ids, and the head's probability of each, or for sampled tokens the margin by which each won, 0 to 1.
            Empty if there are no features, or at the end of the head's context.

        Raises ContextLengthError, InputError, EngineError as a step does.
        """
        found: tuple[list[int], list[float]] = self._of_target(
            self._decoder.draft, cache.raw, last, list(copied), max_tokens, list(rates), min_chance, list(ends), draw
        )
        return found

    def next_logits(self, cache: NativeCache, token: int, *, first: bool) -> Floats | None:
        """Return the logits after ``token``, float32 [vocab_size], for callers that choose the tokens themselves.

        ``first``: ``token`` is the last one of the text; else it was chosen from the previous logits. Tokens without an
        output have -inf. None if nothing can be drafted. Call :meth:`end_draft` after the last token.
        """
        found: Floats | None = self._of_target(self._decoder.draft_step, cache.raw, token, first)
        return found

    def end_draft(self, cache: NativeCache) -> None:
        """Drop the rows that :meth:`next_logits` added after the text."""
        self._of_target(cache.raw.end_draft)

    def _of_target(self, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except IndexError as error:
            raise ContextLengthError(str(error)) from None
        except CORE_RAISES as error:
            raise core_error(error, "the head's arguments do not fit: ") from None

    def new_cache(self) -> NativeCache:
        """Return the cache of an empty sequence, for :meth:`run`."""
        return NativeCache(self._decoder.new_cache())

    def run(self, cache: NativeCache, tokens: Ids, features: Floats, *, own: bool = False) -> tuple[Floats, Floats]:
        """Run rows with given features on a cache of the head itself; for tests and benchmarks.

        Args:
            cache: of :meth:`new_cache`; the rows are committed. For a head with ``target_keys`` a cache of the target,
                which is not changed; all rows have its next position.
            tokens: int32 [n], n >= 1.
            features: float32 [n, width], the target's features of the position before each token.
            own: the features are the head's own, [n, hidden].

        Returns:
            The last row's logits, float32 [vocab_size], -inf for tokens without an output and for tokens outside the
            candidates, and its own features [1, hidden].

        Raises ContextLengthError, InputError, NonFiniteError.
        """
        count = len(tokens)
        parents, last = np.arange(-1, count - 1, dtype=np.int32), np.array([count - 1], np.int32)
        if self.target_keys:
            parents[:] = -1

        def forward() -> tuple[Any, ...]:
            found: tuple[Any, ...] = self._decoder.forward(
                [cache.raw], [count], [-1], tokens, parents, last, True, 1, [self._fed_back], last, False, features, own
            )
            return found

        _, logits, states, _, centroids = self._of_target(forward)
        if not self.target_keys:
            cache.keep(list(range(count)))
        ids = self.ids
        if self.spec.candidates is not None:
            ids = ids.reshape(self.spec.candidates.centroids.weight.shape[0], -1)[centroids[0]].reshape(-1)
        full = np.full(self.vocab_size, -np.inf, np.float32)
        full[ids] = logits[0]
        return full, states[0]

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Its own tensors but ``ids``; see :func:`stored_weights`."""
        return stored_weights(
            self.spec,
            lambda name, _: plain(self._decoder.export_matrix(name)),
            lambda name, _: self._decoder.export_vector(name),
            self._orders,
            elsewhere(self.spec),
        )

    @property
    def position_bytes(self) -> int:
        """Bytes per position that a followed cache needs in addition to the target's: keys, values and the token."""
        return 0 if self.target_keys else int(self._decoder.cache_bytes_per_position) + 4

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info``: bytes of its weights, cache bytes per position, and the number of draft tokens."""
        return {
            **self.facts,
            "weight_bytes": int(self._decoder.weight_bytes),
            "kv_bytes_per_token": self.position_bytes,
            "draft_vocab": len(self.ids),
        }


def elsewhere(spec: ModelSpec) -> set[str]:
    """Return the names of the tensors that a head takes from its target, and of the numbers of its candidates."""
    shares = () if spec.features is None else spec.features.shares
    shared = {name for name, _ in named_tensors(spec) if name.partition(".")[0] in shares}
    return {*shared, "candidates.ordering"}
