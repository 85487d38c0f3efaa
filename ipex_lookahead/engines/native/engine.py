"""The native engine: our own C++ core on any x86-64 CPU. Row-invariant, hence exact under lookahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ipex_lookahead.architectures.base import SLOTS, DecoderSpec
from ipex_lookahead.checkpoints.base import Checkpoint
from ipex_lookahead.engines.base import Batch, Cache, StepOutput
from ipex_lookahead.engines.machine import check_threads, default_threads
from ipex_lookahead.engines.native.core import chosen_isa, native_core
from ipex_lookahead.engines.native.linear import plain, streams
from ipex_lookahead.engines.weights import WeightPlan, check_shape, random_matrix, read_matrix, read_vector
from ipex_lookahead.errors import ContextLengthError, EngineError, InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.formats.base import PackedWeight

Progress = Callable[[int, int, str], None]
"""Called as progress(tensors done, tensors in all, name of the tensor in hand)."""


class NativeCache:
    """Keys and values of one sequence, float16, in pages that forks share. See ``engines.base.Cache``."""

    __slots__ = ("raw",)

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def length(self) -> int:
        """Committed positions."""
        return int(self.raw.length)

    def keep(self, rows: Sequence[int]) -> None:
        """Commit a path of the last step's rows. Raises InputError if it is none, EngineError as all that follow do."""
        try:
            self.raw.keep(rows if isinstance(rows, list) else list(rows))
        except (ValueError, TypeError) as error:
            raise InputError(str(error)) from None
        except RuntimeError as error:
            raise _in_use(error) from None

    def crop(self, length: int) -> None:
        """Keep the first ``length`` positions. Raises InputError if there are fewer."""
        try:
            self.raw.crop(length)
        except (ValueError, TypeError) as error:
            raise InputError(str(error)) from None
        except RuntimeError as error:
            raise _in_use(error) from None

    def fork(self) -> NativeCache:
        """A second sequence with the same committed prefix. Raises EngineError while another thread is at this one."""
        try:
            return NativeCache(self.raw.fork())
        except RuntimeError as error:
            raise _in_use(error) from None


class NativeEngine:
    """A decoder in the native core. Make one with ``NativeEngine.load``."""

    name = "native"
    row_invariant = True
    supports_tree = True

    def __init__(self, decoder: Any, spec: DecoderSpec, low_bit: str, kv_cache: str = "fp16") -> None:
        self._decoder = decoder
        self._forward = decoder.forward
        self.spec = spec
        self.low_bit = low_bit
        self.kv_cache = kv_cache
        self.vocab_size = spec.vocab
        self.max_context = spec.max_context
        self.facts: dict[str, Any] = {}

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        spec: DecoderSpec,
        plan: WeightPlan,
        *,
        threads: int | None = None,
        kv_cache: str = "fp16",
        progress: Progress | None = None,
    ) -> NativeEngine:
        """Read, quantise and pack the weights tensor by tensor, in the order a step reads them.

        At no time more than the packed model and two tensors are in memory.

        Raises:
            ModelFormatError: a tensor is missing, has another shape than the config says, or holds NaN or infinity.
            EngineError: no compiled core, or a forced instruction set that this processor lacks.
        """
        for name, expected in spec.tensors():
            check_shape(checkpoint, name, expected)
        decoder = _decoder(spec, threads, kv_cache)
        threads = decoder.threads
        total, done = spec.layers * len(SLOTS) + 1, 0

        def matrix(name: str, shape: tuple[int, int], *, keep: bool = False) -> tuple[Any, ...]:
            nonlocal done
            if progress is not None:
                progress(done, total, name)
            done += 1
            return streams(read_matrix(checkpoint, name, shape, plan, keep=keep, threads=threads))

        if not spec.tied:
            decoder.set_embedding(*matrix(spec.embedding, (spec.vocab, spec.hidden), keep=True))
            total += 1
        for layer in range(spec.layers):
            decoder.set_norms(
                layer,
                read_vector(checkpoint, spec.attention_norm.format(layer=layer), spec.hidden),
                read_vector(checkpoint, spec.mlp_norm.format(layer=layer), spec.hidden),
            )
            for slot in SLOTS:
                name, shape = spec.matrices[slot].format(layer=layer), spec.shape(slot)
                bias = read_vector(checkpoint, name + ".bias", shape[0]) if slot in spec.biased else None
                decoder.set_matrix(layer, getattr(native_core().Slot, slot), *matrix(name + ".weight", shape), bias)
        decoder.set_final_norm(read_vector(checkpoint, spec.final_norm, spec.hidden))
        head = spec.embedding if spec.tied else spec.lm_head
        decoder.set_lm_head(*matrix(head, (spec.vocab, spec.hidden)))
        if spec.tied:
            decoder.tie_embedding()
        if absent := decoder.missing():
            raise ModelFormatError(checkpoint.path, absent, None, "is missing")
        if progress is not None:
            progress(total, total, "")
        return cls(decoder, spec, plan.label, kv_cache)

    @classmethod
    def random(
        cls,
        spec: DecoderSpec,
        low_bit: str,
        *,
        group_size: int = 32,
        head_low_bit: str | None = None,
        threads: int | None = None,
        kv_cache: str = "fp16",
        seed: int = 0,
    ) -> NativeEngine:
        """A decoder of that shape with random weights, for measuring: its speed is real, its text is not.

        Layers repeat the same random matrices, each in memory of its own. ``head_low_bit`` is the lm_head's format.
        """
        decoder = _decoder(spec, threads, kv_cache)
        rng = np.random.default_rng(seed)
        made: dict[tuple[tuple[int, int], str], tuple[Any, ...]] = {}

        def matrix(shape: tuple[int, int], name: str) -> tuple[Any, ...]:
            if (shape, name) not in made:
                made[shape, name] = streams(random_matrix(shape, name, group_size, rng))
            return made[shape, name]

        ones = np.ones(spec.hidden, dtype=np.float32)
        for layer in range(spec.layers):
            decoder.set_norms(layer, ones, ones)
            for slot in SLOTS:
                decoder.set_matrix(layer, getattr(native_core().Slot, slot), *matrix(spec.shape(slot), low_bit), None)
        decoder.set_final_norm(ones)
        decoder.set_lm_head(*matrix((spec.vocab, spec.hidden), head_low_bit or low_bit))
        decoder.tie_embedding()
        return cls(decoder, spec, low_bit, kv_cache)

    def new_cache(self, blank: int = 0) -> NativeCache:
        """An empty sequence; or one of ``blank`` positions of zeros, for measuring steps at that length.

        Raises InputError where ``blank`` is negative or beyond the context.
        """
        cache = NativeCache(self._decoder.new_cache())
        try:
            if blank:
                cache.raw.fill_blank(blank)
        except (ValueError, TypeError) as error:
            raise InputError(f"blank does not fit: {error}") from None
        return cache

    def forward(self, batch: Batch) -> StepOutput:
        """One native call for the whole decoder, GIL released. See ``engines.base.Engine.forward``."""
        try:
            top, logits = self._forward(
                [_raw(c) for c in batch.caches],
                batch.counts,
                batch.tokens,
                batch.parents,
                batch.want,
                batch.logits,
                max(batch.top, 1),
            )
        except IndexError as error:
            raise ContextLengthError(str(error), hint="shorten the prompt or max_new_tokens") from None
        except MemoryError:
            raise EngineError(
                f"there is no memory for {len(batch.tokens)} more tokens", hint="shorten the prompt or max_new_tokens"
            ) from None
        except OverflowError as error:
            raise EngineError(str(error), hint="the checkpoint's weights are damaged") from None
        except (ValueError, TypeError) as error:
            raise InputError(f"the step's arguments do not fit: {error}") from None
        except RuntimeError as error:
            raise _in_use(error) from None
        return StepOutput(top[:, 0], logits, top if batch.top else None)

    def describe(self) -> dict[str, Any]:
        """Facts for ``info`` and for reports."""
        return {
            "engine": self.name,
            "isa": self._decoder.isa,
            "threads": self._decoder.threads,
            "low_bit": self.low_bit,
            "weight_bytes": int(self._decoder.weight_bytes),
            "kv_cache": self.kv_cache,
            "kv_bytes_per_token": kv_bytes_per_token(self.spec, self.kv_cache),
            "max_context": self.max_context,
            "row_invariant": self.row_invariant,
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """All tensors in plain order under the checkpoint's names, one at a time: what ``save_low_bit`` writes."""
        spec, core = self.spec, self._decoder
        yield spec.embedding, plain(core.export_embedding())
        for layer in range(spec.layers):
            attention, mlp = core.export_norms(layer)
            yield spec.attention_norm.format(layer=layer), _vector(attention)
            yield spec.mlp_norm.format(layer=layer), _vector(mlp)
            for slot in SLOTS:
                name, which = spec.matrices[slot].format(layer=layer), getattr(native_core().Slot, slot)
                yield name + ".weight", plain(core.export_matrix(layer, which))
                if (bias := core.export_bias(layer, which)) is not None:
                    yield name + ".bias", _vector(bias)
        yield spec.final_norm, _vector(core.export_final_norm())
        if not spec.tied:
            yield spec.lm_head, plain(core.export_lm_head())


KV_CACHES = ("fp16", "int8")


def kv_bytes_per_token(spec: DecoderSpec, kv_cache: str) -> int:
    """Bytes of a position's keys and values, and with ``int8`` of their scales."""
    padded = (spec.head_dim + 15) // 16 * 16
    head = 2 * (spec.head_dim + padded) if kv_cache == "fp16" else spec.head_dim + padded + 8
    return spec.layers * spec.kv_heads * head


def _decoder(spec: DecoderSpec, threads: int | None, kv_cache: str) -> Any:
    """An empty native decoder of that shape. Raises UnsupportedModelError for sizes that the core does not take."""
    if kv_cache not in KV_CACHES:
        raise InputError(f"kv_cache is {kv_cache!r}; it must be one of {', '.join(KV_CACHES)}")
    count, isa = default_threads() if threads is None else check_threads(threads), chosen_isa()
    try:
        return native_core().Decoder(
            layers=spec.layers,
            hidden=spec.hidden,
            intermediate=spec.intermediate,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            vocab=spec.vocab,
            rms_epsilon=spec.rms_epsilon,
            max_context=spec.max_context,
            rope_frequencies=np.ascontiguousarray(spec.rope_frequencies, dtype=np.float32),
            rope_attention_factor=spec.rope_attention_factor,
            threads=count,
            isa=isa,
            kv_format=kv_cache,
        )
    except (ValueError, TypeError) as error:
        raise UnsupportedModelError(f"the native engine cannot hold a model of this shape: {error}") from None


def _raw(cache: Cache) -> Any:
    if not isinstance(cache, NativeCache):
        raise InputError(f"the native engine needs its own caches, got {type(cache).__name__}")
    return cache.raw


def _in_use(error: RuntimeError) -> EngineError:
    """A step or a change of a cache that another thread is at; or a step of a decoder that was not loaded."""
    return EngineError(str(error), hint="give each thread caches of its own (new_cache, fork)")


def _vector(values: Any) -> PackedWeight:
    return PackedWeight("fp32", values.shape, values)
