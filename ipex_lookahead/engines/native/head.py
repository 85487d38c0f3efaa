"""A drafting head in the native core: a decoder of one block whose rows are made of the target's features too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Linear, ModelSpec, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.draft_vocab import first_ids
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.input_order import reordered
from ipex_lookahead.engines.native.core import CORE_RAISES, core_error
from ipex_lookahead.engines.native.decoder import empty_decoder, in_order
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.native.linear import plain, streams
from ipex_lookahead.engines.weights import (
    PlannedWeights,
    WeightPlan,
    check_shape,
    outputs_of,
    random_matrix,
    read_order,
    read_vector,
)
from ipex_lookahead.errors import ContextLengthError
from ipex_lookahead.formats.base import PackedWeight

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Draw = tuple[float, int, float, float, int, int, int]
"""Temperature, top_k, top_p, min_p, seed, sequence, position: see ``Sampler.draw``."""


class NativeHead:
    """Drafts for one target; made by :meth:`load`.

    Attributes:
        ids: int32 [outputs], the token that each output stands for.
        target_keys: it has its target's keys, so that :meth:`run` takes caches of the target's, and leaves them.
        vocab_size: the target's.
        width: values of a row's features, the target's hidden states that ``spec.features`` names.
        price: what its tokens cost, once :func:`~ipex_lookahead.drafting.heads.price.price_of` has measured it.
        keeper: of how often it was right, once :func:`~ipex_lookahead.controller.kept_records.record_of` has asked.
        source: the folder or file that it was read from; None: it was not.
        facts: entries of :meth:`describe` that whoever loads it may add to.
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
        self.price: Any = None
        self.keeper: Any = None
        self.source: Path | None = None
        self.facts: dict[str, Any] = {}

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
        """Read a head's own weights; what it shares is the target's, of the lm_head the rows ``ids``.

        ``ids``: of an lm_head of its own, the token that each output stands for, or some of all. None: all of these, in
        order; of one for the whole vocabulary the first ``DRAFT_VOCAB``. Of a head with candidates its file says it.

        Raises ModelFormatError for a tensor of another shape than the config says, or with NaN or infinity.
        """
        planned = PlannedWeights(checkpoint, spec, replace(plan, embedding=""), threads)

        def vector(tensor: Tensor) -> Floats:
            check_shape(checkpoint, tensor)
            return read_vector(checkpoint, tensor)

        if spec.candidates is not None:
            ids = read_order(checkpoint, spec.candidates.ordering)
        return cls.build(spec, planned.read, vector, target, threads=threads, ids=ids)

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
        rng, routers = np.random.default_rng(seed), {*spec.routers()}

        def matrix(tensor: Tensor) -> PackedWeight:
            shape = (tensor.shape[0], tensor.shape[1])
            return random_matrix(shape, "fp32" if tensor.name in routers else low_bit, 32, rng)

        def vector(tensor: Tensor) -> Floats:
            values: Floats = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.1)
            values += np.float32(1)
            return values

        ids = first_ids(spec.vocab, 0 if spec.candidates is not None else draft_vocab)
        return cls.build(spec, matrix, vector, target, threads=threads, ids=ids)

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        matrix: Callable[[Tensor], PackedWeight],
        vector: Callable[[Tensor], Floats],
        target: NativeEngine,
        *,
        threads: int | None = None,
        ids: Ids | None = None,
    ) -> NativeHead:
        """A head whose own weights two functions give, as for :meth:`NativeEngine.build`; else as :meth:`load`."""
        assert spec.head is not None
        assert spec.features is not None
        shares, whole = spec.features.shares, spec.head.weight
        if ids is None:  # merges come in the order of how often they are met
            ids = first_ids(spec.vocab) if whole.shape[0] == spec.vocab else np.arange(whole.shape[0], dtype=np.int32)
        spec = replace(spec, head=Linear(replace(whole, shape=(len(ids), spec.hidden))))
        decoder = empty_decoder(spec, threads, target.kv_cache, target.decoder if spec.target_keys else None)
        for name, tensor in in_order(spec):
            if name == "embedding" and name in shares:
                decoder.share_matrix(name, target.decoder, name)
            elif name == "head.weight" and "head" in shares:
                weight = plain(target.decoder.export_matrix("embedding" if target.spec.tied else name))
                decoder.set_matrix(name, *streams(outputs_of(weight, ids)))
            elif name == "head.weight" and (spec.candidates is not None or len(ids) != whole.shape[0]):
                weight = reordered(matrix(whole), None)
                decoder.set_matrix(name, *streams(outputs_of(weight, ids)))
                if spec.candidates is None and whole.shape[0] == spec.vocab:
                    decoder.set_whole_head(*streams(weight))
            elif name == "candidates.ordering":  # which ``ids`` are
                continue
            elif tensor.is_matrix:
                decoder.set_matrix(name, *streams(reordered(matrix(tensor), None)))
            else:
                decoder.set_vector(name, vector(tensor))
        ids = np.ascontiguousarray(ids, np.int32)
        decoder.set_outputs(ids)
        if "head" in shares and len(ids) < spec.vocab:
            decoder.share_whole_head(target.decoder, "embedding" if target.spec.tied else "head.weight")
        return cls(decoder, spec, ids)

    def follow(self, cache: NativeCache) -> None:
        """From now on a cache of the target's keeps what this head needs of the rows to come, and so do its forks.

        Raises EngineError while another thread is at it.
        """
        self._of_target(cache.raw.follow, self._decoder)

    def allow_tokens(self, cache: NativeCache, tokens: Ids) -> None:
        """Tokens, int32 [n], that may be drafted for this sequence beside ``ids``; what it is fed may be anyway."""
        self._of_target(cache.raw.allow_tokens, tokens)

    def draft(
        self,
        cache: NativeCache,
        last: int,
        most: int,
        *,
        copied: Sequence[int] = (),
        rates: Sequence[float] = (),
        least: float = 0.0,
        ends: Collection[int] = (),
        draw: Draw | None = None,
    ) -> tuple[list[int], list[float]]:
        """A chain of what may follow, in one call; the target's cache, which :meth:`follow` was told, is as before.

        Args:
            cache: the target's, of the sequence.
            last: the text's last token, the first that the cache does not hold.
            most: tokens to draft.
            copied: tokens that are taken to follow ``last``; the chain goes on behind them.
            rates: how often a token is right whose probability is in the i-th of n equal parts of 0 to 1; none: as
                often as it says.
            least: the chain ends with the token with which all of it is right less often.
            ends: tokens after which nothing is drafted.
            draw: how the target draws, with the position of the first drafted token; None takes the most likely.

        Returns:
            Token ids, and how likely the head takes each to be, or by how much a drawn one leads, 0 to 1. Nothing where
            no features are known, or the head's context ends.

        Raises ContextLengthError, InputError, EngineError as a step does.
        """
        found: tuple[list[int], list[float]] = self._of_target(
            self._decoder.draft, cache.raw, last, list(copied), most, list(rates), least, list(ends), draw
        )
        return found

    def next_logits(self, cache: NativeCache, token: int, *, first: bool) -> Floats | None:
        """The same step by step, for who chooses from the logits: float32 [vocab_size] of what follows ``token``.

        ``first``: it is the text's last; else one that was chosen from the logits before. Tokens that the head has no
        output for have -inf. None where nothing can be drafted. :meth:`end_draft` comes last.
        """
        found: Floats | None = self._of_target(self._decoder.draft_step, cache.raw, token, first)
        return found

    def end_draft(self, cache: NativeCache) -> None:
        """Forget what :meth:`next_logits` was fed beyond the text."""
        self._of_target(cache.raw.end_draft)

    def _of_target(self, call: Callable[..., Any], *given: Any) -> Any:
        try:
            return call(*given)
        except IndexError as error:
            raise ContextLengthError(str(error)) from None
        except CORE_RAISES as error:
            raise core_error(error, "the head's arguments do not fit: ") from None

    def new_cache(self) -> NativeCache:
        """An empty sequence's keys and values, for :meth:`run`."""
        return NativeCache(self._decoder.new_cache())

    def run(self, cache: NativeCache, tokens: Ids, features: Floats, *, own: bool = False) -> tuple[Floats, Floats]:
        """Rows of given features, on a cache of the head's own: to look at what it computes.

        Args:
            cache: of :meth:`new_cache`; commits the rows. Of a head with ``target_keys`` one of the target's, which
                stays as it is, and whose next position is that of all rows.
            tokens: int32 [n], n >= 1.
            features: float32 [n, width], the target's of the position before each.
            own: they are the head's own, [n, hidden].

        Returns:
            The last row's logits, float32 [vocab_size], -inf for tokens that the head has no output for, or that are
            none of its candidates, and its own features [1, hidden].

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
        """Its own tensors but ``ids``, in plain order, as :meth:`NativeEngine.weights` gives a model's."""
        assert self.spec.features is not None
        for name, tensor in named_tensors(self.spec):
            if name.removesuffix(".weight") in self.spec.features.shares or name == "candidates.ordering":
                continue
            if tensor.is_matrix:
                yield tensor.name, plain(self._decoder.export_matrix(name))
            else:
                values = self._decoder.export_vector(name).reshape(tensor.shape)
                yield tensor.name, with_offset(PackedWeight("fp32", tensor.shape, values), -tensor.hf.offset)

    @property
    def position_bytes(self) -> int:
        """Bytes that a followed cache takes a position beside the target's own: keys, values and the token."""
        return 0 if self.target_keys else int(self._decoder.cache_bytes_per_position) + 4

    def describe(self) -> dict[str, Any]:
        """Facts for ``info``: bytes of its weights and of what it keeps a position, and how many tokens it drafts."""
        return {
            **self.facts,
            "weight_bytes": int(self._decoder.weight_bytes),
            "kv_bytes_per_token": self.position_bytes,
            "draft_vocab": len(self.ids),
        }
