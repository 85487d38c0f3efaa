"""A drafting head on an OpenCL device, next to its target: features and keys stay there, and a chain is read once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.spec import Attention, Linear, ModelSpec, Tensor
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.checkpoints.draft_vocab import first_ids
from ipex_lookahead.engines.load_weights import Read, reading, walk, weights_of
from ipex_lookahead.engines.native.head import NativeHead, elsewhere
from ipex_lookahead.engines.native.sampled import Draw, sampled
from ipex_lookahead.engines.opencl.cache import OpenClCache, Pages
from ipex_lookahead.engines.opencl.engine import OpenClEngine
from ipex_lookahead.engines.opencl.head_decoder import MOST_STEPS, HeadDecoder, Outputs
from ipex_lookahead.engines.opencl.head_state import HeadState
from ipex_lookahead.engines.opencl.layers import Weights
from ipex_lookahead.engines.opencl.linear import Matrix
from ipex_lookahead.engines.opencl.split import SplitEngine
from ipex_lookahead.engines.opencl.supported import check_head
from ipex_lookahead.engines.opencl.uploads import Held
from ipex_lookahead.engines.weights import WeightPlan, outputs_of, read_order
from ipex_lookahead.errors import EngineError, InputError, UnsupportedModelError, arg
from ipex_lookahead.formats.base import PackedWeight

Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
f32 = np.float32


class OpenClHead:
    """A head that drafts for one target on a device; created by :meth:`load`.

    Attributes and methods are those of :class:`ipex_lookahead.engines.native.head.NativeHead`, with equal results.
    """

    def __init__(self, decoder: HeadDecoder, weights: Weights, kv_bytes: int) -> None:
        self._decoder, self._weights = decoder, weights
        self._lock = threading.Lock()
        self.spec: ModelSpec = decoder.spec
        self.ids: Ids = decoder.outputs.ids
        self.vocab_size = self.spec.vocab
        self.width = decoder.width
        self.target_keys = self.spec.target_keys
        self.max_context = self.spec.max_context
        self.position_bytes = kv_bytes
        self.rates: Any = None
        self.source: Path | None = None
        self.facts: dict[str, Any] = {}
        self._stepping: tuple[Any, int] | None = None

    # ---- loading -----------------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: ModelSpec,
        plan: WeightPlan,
        target: OpenClEngine | SplitEngine,
        *,
        threads: int | None = None,
        ids: Ids | None = None,
    ) -> OpenClHead:
        """Read a head's own weights onto the target's device. See ``NativeHead.load``.

        Raises:
            ModelFormatError: a tensor has another shape than the config specifies, or NaN or infinity.
            UnsupportedModelError: kernels do not support the head, or it reads a layer on the CPU.
            EngineError: the device lacks the memory.
        """
        if spec.candidates is not None:
            ids = read_order(checkpoint, spec.candidates.ordering)
        tensors = (tensor for _, tensor in walk(spec, elsewhere(spec)))
        with reading(checkpoint, spec, replace(plan, embedding=""), tensors, threads) as read:
            return cls.build(spec, read, target, threads=threads, ids=ids)

    @classmethod
    def build(
        cls,
        spec: ModelSpec,
        read: Read,
        target: OpenClEngine | SplitEngine,
        *,
        threads: int | None = None,
        ids: Ids | None = None,
        selected: bool = False,
    ) -> OpenClHead:
        """Make a head with the weights that a function returns. Else as :meth:`load`.

        ``selected``: its lm_head has the outputs ``ids`` alone, in their order.
        """
        assert spec.head is not None
        assert spec.features is not None
        below, engine = (0, target) if isinstance(target, OpenClEngine) else (target.on_cpu, target.on_device)
        own = _on_device(spec, below)
        check_head(own)
        outputs, shares = spec.head.weight.shape[0], spec.features.shares
        if ids is None:  # merges come in the order of how often they are met
            ids = first_ids(spec.vocab) if outputs == spec.vocab else np.arange(outputs, dtype=np.int32)
        ids = np.ascontiguousarray(ids, np.int32)
        own = replace(own, head=Linear(replace(spec.head.weight, shape=(len(ids), spec.hidden))))
        selects = not selected and (spec.candidates is not None or len(ids) != outputs)
        whole_head: list[PackedWeight] = []

        def read_part(tensor: Tensor) -> PackedWeight:
            if spec.head is None or tensor.name != spec.head.weight.name:
                return read(tensor)
            whole = read(spec.head.weight)
            if not selects:
                return whole
            whole_head.append(whole)
            return outputs_of(whole, ids)

        theirs, device = engine.decoder.weights, engine.decoder.device
        held = Held()
        if spec.target_keys:
            held = Held(layouts=[*theirs.held.layouts], pages=dict(theirs.held.pages))
        weights = Weights(device, own, read_part, threads, elsewhere(spec), held)
        embedding = weights.embedding
        if "embedding" in shares:
            embedding = theirs.embedding
        if embedding is None:  # the target's is on the CPU
            embedding = _matrix(device, target.weight("embedding"), threads)
        whole: Sequence[Matrix] = ()
        if "head" in shares:
            whole = theirs.head
            every = np.array_equal(ids, np.arange(spec.vocab))
            weights.head = (
                [*theirs.head] if every else [_matrix(device, outputs_of(target.weight("head.weight"), ids), threads)]
            )
        elif whole_head and spec.candidates is None and outputs == spec.vocab:
            whole = [_matrix(device, whole_head[0], threads)]
        if len(ids) >= spec.vocab or spec.candidates is not None:
            whole = ()
        pages = engine.decoder.pages if spec.target_keys else Pages(device, held.layouts, engine.kv_cache)
        decoder = HeadDecoder(device, own, weights, embedding, pages, Outputs(ids, whole))
        return cls(decoder, weights, 0 if spec.target_keys else sum(pages.sizes) // 64 + 4)

    @classmethod
    def moved(cls, head: NativeHead, target: OpenClEngine) -> OpenClHead:
        """Copy a head of the native engine, bit for bit, to the device of its target, which has moved there.

        An lm_head of its own keeps the outputs that the head has, without those for other tokens of the text.
        """
        made = cls.build(head.spec, weights_of(head), target, ids=head.ids, selected=True)
        made.rates, made.source, made.facts = head.rates, head.source, head.facts
        return made

    @staticmethod
    def embedding_of(target: OpenClEngine | SplitEngine) -> PackedWeight:
        """Return the target's embedding in plain layout."""
        return target.weight("embedding")

    # ---- sequences ---------------------------------------------------------------------------------------------------

    def follow(self, cache: Any) -> None:
        """Let a cache of the target, and its forks, collect the features of all following rows for this head."""
        own = _on(cache)
        with own.claim("follow"):
            if own.head is None or own.head.head is not self._decoder:
                own.head = HeadState(self._decoder, own.length)
                own.set_step([])  # rows of the last step have no features for the head

    def allow_tokens(self, cache: Any, tokens: Ids) -> None:
        """Allow drafts of these tokens, int32 [n], for this sequence in addition to ``ids`` and the tokens fed."""
        own = _on(cache)
        with own.claim("allow_tokens"):
            if own.head is not None:
                own.head.allow_tokens(tokens.tolist())

    def draft(
        self,
        cache: Any,
        last: int,
        max_tokens: int,
        *,
        copied: Sequence[int] = (),
        rates: Sequence[float] = (),
        min_chance: float = 0.0,
        ends: Collection[int] = (),
        draw: Draw | None = None,
    ) -> tuple[list[int], list[float]]:
        """Draft a chain of tokens; see ``NativeHead.draft``.

        A greedy chain is enqueued at once and read once, all ``max_tokens`` of it, and cut where it ends. With ``draw``
        each token's logits are read, since the CPU samples.
        """
        self._check_tokens([last, *copied])
        with self._drafting(cache, "draft") as state:
            if max_tokens < 1 or not state.ready:
                return [], []
            if draw is not None:
                found, chances = self._sampled(cache, state, last, copied, max_tokens, draw, rates, min_chance, ends)
                return found, chances
            decoder, given = self._decoder, len(copied)
            steps = min(given + max_tokens, MOST_STEPS)
            decoder.start(copied)
            begun = state.begin(_on(cache), last, steps - 1)
            if begun is None:
                return [], []
            _, position = begun
            steps = min(steps, 1 + state.room(position))
            if steps <= given:
                return [], []
            tokens, probs = decoder.chain(given, steps, position + (1 if self.target_keys else steps))
            made = zip(tokens[given:].tolist(), probs[given:], strict=True)
            return _cut(made, rates, min_chance, ends)

    def _sampled(
        self,
        cache: Any,
        state: HeadState,
        last: int,
        copied: Sequence[int],
        max_tokens: int,
        draw: Draw,
        rates: Sequence[float],
        min_chance: float,
        ends: Collection[int],
    ) -> tuple[list[int], list[float]]:
        def made() -> Iterator[tuple[int, Any]]:
            position = draw[-1] + len(copied)
            logits = self._next(cache, state, last, first=True)
            for token in copied:
                logits = None if logits is None else self._next(cache, state, token, first=False)
            while logits is not None:
                token, lead = sampled(logits, (*draw[:-1], position))
                yield token, f32(lead)
                position += 1
                logits = self._next(cache, state, token, first=False)

        return _cut(made(), rates, min_chance, ends, max_tokens)

    def next_logits(self, cache: Any, token: int, *, first: bool) -> Floats | None:
        """Return the logits after ``token``, float32 [vocab_size]; see ``NativeHead.next_logits``."""
        self._check_tokens([token])
        with self._drafting(cache, "draft_step") as state:
            return self._next(cache, state, token, first=first)

    def _next(self, cache: Any, state: HeadState, token: int, *, first: bool) -> Floats | None:
        if first:
            state.chain = state.begin(_on(cache), token, 0) if state.ready else None
            if state.chain is None:
                return None
        else:
            if state.chain is None:
                raise InputError("a chain begins with the last token of the text: call next_logits(first=True)")
            own, position = state.chain
            if state.room(position) < 1:
                return None
            self._decoder.allow(state.tiles)
            self._decoder.follow(own, token, position)
            state.chain = own, position + (0 if self.target_keys else 1)
        _, position = state.chain
        logits, tokens = self._decoder.answer(position + 1)
        known = tokens >= 0
        if (tokens < -1).any() or not np.isfinite(logits[known]).all():
            return None
        full = np.full(self.vocab_size, -np.inf, np.float32)
        full[tokens[known]] = logits[known]
        return full

    def end_draft(self, cache: Any) -> None:
        """Drop the rows that :meth:`next_logits` added after the text."""
        with self._drafting(cache, "end_draft") as state:
            state.chain = None

    @contextmanager
    def _drafting(self, cache: Any, deed: str) -> Iterator[HeadState]:
        """Lock the cache and the head, and yield the sequence's state.

        Raises InputError if the cache does not follow this head.
        """
        own = _on(cache)
        with own.claim(deed), self._lock:
            if own.head is None or own.head.head is not self._decoder:
                raise InputError("the cache does not follow this drafting head")
            try:
                yield own.head
            except EngineError:
                self._decoder.failed()
                raise

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise InputError(f"token id {token} is outside the vocabulary of {self.vocab_size}")

    # ---- facts -------------------------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Its own tensors but ``ids``; see :func:`stored_weights`."""
        return self._weights.stored()

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info``: bytes of its weights, cache bytes per position, and the number of draft tokens."""
        return {
            **self.facts,
            "weight_bytes": self._weights.nbytes,
            "kv_bytes_per_token": self.position_bytes,
            "draft_vocab": len(self.ids),
        }


def _cut(
    made: Any, rates: Sequence[float], min_chance: float, ends: Collection[int], most: int = MOST_STEPS
) -> tuple[list[int], list[float]]:
    """Return the tokens and probabilities up to the one that ends the chain."""
    tokens: list[int] = []
    probs: list[float] = []
    own, chance, least = np.array(rates, np.float32), f32(1), f32(min_chance)
    for token, prob in made:
        if token < 0:
            break
        tokens.append(token)
        probs.append(float(prob))
        chance *= own[min(len(own) - 1, int(prob * f32(len(own))))] if len(own) else prob
        if token in ends or len(tokens) >= most or chance < least:
            break
    return tokens, probs


def _on(cache: Any) -> OpenClCache:
    """Return the part of a cache on the device."""
    own = cache if isinstance(cache, OpenClCache) else getattr(cache, "device", None)
    if not isinstance(own, OpenClCache):
        raise InputError(f"the OpenCL engine needs its own caches, got {type(cache).__name__}")
    return own


def _matrix(device: Any, weight: PackedWeight, threads: int | None) -> Matrix:
    return Matrix.upload(device, [weight], [None], threads)


def _on_device(spec: ModelSpec, below: int) -> ModelSpec:
    """Return a head for the part of its target on the device, which is all but the first ``below`` layers.

    Raises UnsupportedModelError if it reads a layer below.
    """
    assert spec.features is not None
    read = [layer for layer in spec.features.layers if layer >= 0]
    keys = [
        one.mixer.shared for one in spec.layers if isinstance(one.mixer, Attention) and one.mixer.shared is not None
    ]
    if any(layer < below for layer in (*read, *keys)):
        raise UnsupportedModelError(
            f"the drafting head reads layer {min([*read, *keys])} of the model, and the first {below} are on the CPU",
            hint=f"put more layers on the device ({arg('gpu_layers')}), or use {arg('engine', 'native')}",
        )
    if below == 0 and not spec.target_keys:
        return spec
    layers = tuple(layer - below if layer >= 0 else layer for layer in spec.features.layers)

    def block(one: Any) -> Any:
        mixer = one.mixer
        if not isinstance(mixer, Attention) or mixer.shared is None:
            return one
        window = mixer.window and mixer.window - 1  # the window counts a row's own position, which has no key
        return replace(one, mixer=replace(mixer, shared=mixer.shared - below, window=window))

    return replace(spec, features=replace(spec.features, layers=layers), layers=tuple(map(block, spec.layers)))
