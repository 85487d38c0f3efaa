"""A drafting head in the native core: a decoder of one block whose rows are made of the target's features too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Linear, ModelSpec, Tensor, named_tensors
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.config import DRAFT_VOCAB
from ipex_lookahead.engines.base import FINAL_NORM
from ipex_lookahead.engines.input_order import reordered
from ipex_lookahead.engines.native.core import CORE_RAISES, core_error
from ipex_lookahead.engines.native.decoder import empty_decoder, in_order
from ipex_lookahead.engines.native.engine import NativeCache, NativeEngine
from ipex_lookahead.engines.native.linear import plain, streams
from ipex_lookahead.engines.weights import (
    WeightPlan,
    check_shape,
    outputs_of,
    random_matrix,
    read_matrix,
    read_vector,
)
from ipex_lookahead.errors import ContextLengthError
from ipex_lookahead.formats import FLOATS, dequantize
from ipex_lookahead.formats.base import PackedWeight

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class NativeHead:
    """Drafts for one target; made by :meth:`load`.

    Attributes:
        ids: int32 [outputs], the token that each output stands for, ascending.
        vocab_size: the target's.
        width: values of a row's features, the target's hidden states after its final norm.
        facts: entries of :meth:`describe` that whoever loads it may add to.
    """

    def __init__(self, decoder: Any, spec: ModelSpec, ids: Ids) -> None:
        self._decoder = decoder
        self.spec = spec
        self.ids = ids
        self.vocab_size = spec.vocab
        self.width = spec.hidden
        self.max_context = spec.max_context
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
        """Read a head's own weights; the embedding is the target's, and the lm_head the rows ``ids`` of the target's.

        Raises ModelFormatError for a tensor of another shape than the config says, or with NaN or infinity.
        """
        routers = {*spec.routers()}

        def matrix(tensor: Tensor) -> PackedWeight:
            keep = tensor.name in routers or plan.stays(checkpoint.info(tensor.name))
            weight = read_matrix(checkpoint, tensor, plan, keep=keep, threads=threads)
            if tensor.name in routers and weight.format not in FLOATS:
                return PackedWeight("fp32", weight.shape, dequantize(weight))
            return weight

        def vector(tensor: Tensor) -> Floats:
            check_shape(checkpoint, tensor)
            return read_vector(checkpoint, tensor)

        return cls.build(spec, matrix, vector, target, threads=threads, ids=ids)

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

        ids = drafted_ids(spec.vocab, draft_vocab)
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
        ids = drafted_ids(spec.vocab) if ids is None else ids
        assert spec.head is not None
        spec = replace(spec, head=Linear(replace(spec.head.weight, shape=(len(ids), spec.hidden))))
        decoder = empty_decoder(spec, threads, target.kv_cache)
        for name, tensor in in_order(spec):
            if name == "embedding":
                decoder.share_matrix(name, target.decoder, name)
            elif name == "head.weight":
                weight = plain(target.decoder.export_matrix("embedding" if target.spec.tied else name))
                decoder.set_matrix(name, *streams(outputs_of(weight, ids)))
            elif tensor.is_matrix:
                decoder.set_matrix(name, *streams(reordered(matrix(tensor), None)))
            else:
                decoder.set_vector(name, vector(tensor))
        return cls(decoder, spec, np.ascontiguousarray(ids, np.int32))

    def new_cache(self) -> NativeCache:
        """An empty sequence's keys and values."""
        return NativeCache(self._decoder.new_cache())

    def draft(
        self,
        cache: NativeCache,
        tokens: Ids,
        features: Floats,
        most: int,
        least_prob: float = 0.0,
        ends: Collection[int] = (),
    ) -> tuple[list[int], list[float]]:
        """Commit rows that follow the cache, and draft what may follow the last of them; greedy, in one call.

        Args:
            cache: one of this head's.
            tokens: int32 [n], n >= 1.
            features: float32 [n, width], the target's of the position before each.
            most: tokens to draft; 0: the rows are read only.
            least_prob: a token that is less likely is the last one.
            ends: tokens after which nothing is drafted.

        Returns:
            Token ids, and how likely the head takes each to be, 0 to 1.

        Raises ContextLengthError, InputError, NonFiniteError.
        """
        try:
            found: tuple[list[int], list[float]] = self._decoder.draft(
                cache.raw, tokens, features, most, least_prob, self.ids, list(ends)
            )
        except IndexError as error:
            raise ContextLengthError(str(error)) from None
        except CORE_RAISES as error:
            raise core_error(error, "the head's rows do not fit: ") from None
        return found

    def step(self, cache: NativeCache, tokens: Ids, features: Floats) -> tuple[Floats, Floats]:
        """Commit rows as :meth:`draft`; the last one's logits, float32 [vocab_size], and its features [1, width].

        Tokens that the head has no output for have -inf.
        """
        count = len(tokens)
        parents, last = np.arange(-1, count - 1, dtype=np.int32), np.array([count - 1], np.int32)
        try:
            _, logits, states, _ = self._decoder.forward(
                [cache.raw], [count], [-1], tokens, parents, last, True, 1, [FINAL_NORM], last, False, features
            )
            cache.keep(list(range(count)))
        except IndexError as error:
            raise ContextLengthError(str(error)) from None
        except CORE_RAISES as error:
            raise core_error(error, "the head's rows do not fit: ") from None
        full = np.full(self.vocab_size, -np.inf, np.float32)
        full[self.ids] = logits[0]
        return full, states[0]

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Its own tensors in plain order, as :meth:`NativeEngine.weights` gives a model's."""
        for name, tensor in named_tensors(self.spec):
            if name == "embedding" or name == "head.weight":
                continue
            if tensor.is_matrix:
                yield tensor.name, plain(self._decoder.export_matrix(name))
            else:
                values = self._decoder.export_vector(name).reshape(tensor.shape)
                yield tensor.name, with_offset(PackedWeight("fp32", tensor.shape, values), -tensor.hf.offset)

    def describe(self) -> dict[str, Any]:
        """Facts for ``info``: bytes of the head's own weights, and of how many tokens it can draft."""
        return {**self.facts, "weight_bytes": int(self._decoder.weight_bytes), "draft_vocab": len(self.ids)}


def drafted_ids(vocab: int, draft_vocab: int = DRAFT_VOCAB) -> Ids:
    """The first ``draft_vocab`` tokens, int32, since merges come in the order of how often they are met; 0: all."""
    return np.arange(min(vocab, draft_vocab or vocab), dtype=np.int32)
