"""The torch engine: any causal language model of transformers, on any device of torch.

Each sequence of a batch has its own forward, so results do not depend on batch neighbors. Torch's products may differ
in the last bit with the number of rows, so ``row_invariant`` is False. With ``deterministic=True``, all forwards have
one shape and a row's place depends on its position only, so plain and lookahead decoding compute the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ipex_lookahead.architectures.spec import ModelSpec
from ipex_lookahead.engines.api import FINAL_NORM, MOST_TOP, Adapter, Batch, OutputRequest, StepOutput, refuse_images
from ipex_lookahead.engines.machine import check_threads
from ipex_lookahead.engines.native.core import core_build
from ipex_lookahead.engines.torch.adapters import ModelAdapters, spec_of
from ipex_lookahead.engines.torch.cache import BufferSequence, SequenceCache, sequence_kinds
from ipex_lookahead.engines.torch.device import device_facts, forward_errors, torch_threads
from ipex_lookahead.engines.torch.fitness import Trial, fitness_of, refuse_unfit
from ipex_lookahead.engines.torch.linear_backends import has_native_layers, torch_threads_with_native
from ipex_lookahead.engines.torch.low_bit_linear import (
    LowBitLinear,
    format_of,
    module_weights,
    packed_bytes,
    packed_from_torch,
)
from ipex_lookahead.engines.torch.masks import depths_of, seen_by, spelled
from ipex_lookahead.errors import ContextLengthError, InputError, NonFiniteError, UnsupportedModelError, arg
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.system.compat import cache_argument, text_config

BLOCK = 16
CPU_BLOCK = 8
"""``deterministic``: rows of a forward; position p is row p % block. Smaller on a CPU, where unused rows cost time."""
PREFILL_BLOCK = 256
"""``deterministic``: rows of a forward for whole blocks of a prompt."""
VISIBLE = 128
"""``deterministic``: the number of visible keys is a multiple of this."""
UNBOUNDED_CONTEXT = 1 << 17
"""Context length for configs without a limit (relative positions)."""

States = list[list[torch.Tensor]]
"""For each forward: hidden states [rows, hidden size] after 0, 1, ... layers; the last are after the final norm."""


class TorchEngine:
    """A transformers model behind the ``Engine`` protocol.

    Args:
        model: a loaded causal language model of transformers, which any library may have quantized.
        device: the device of its inputs; None = that of its input embedding.
        deterministic: use forwards of one shape, so that lookahead gives the same text as plain decoding; slower on a
            CPU. None = on PyTorch's xpu, where each shape compiles new kernels, if the model supports it.
        low_bit: name of the weights' format, for reports.
        threads: number of threads of torch's own operators on the CPU while this engine runs; None = torch's setting.
        max_context: most positions of a sequence; None = the limit of the model's config.
        new_sequence: makes an empty cache; None = a kind that the model takes.
        facts: further entries for ``describe()``.

    Raises:
        UnsupportedModelError: the model has a state that cannot be rolled back, has no cache, or cannot run
            deterministically.
    """

    name = "torch"
    row_invariant = False

    def __init__(
        self,
        model: Any,
        *,
        device: torch.device | str | None = None,
        deterministic: bool | None = False,
        low_bit: str = "",
        threads: int | None = None,
        max_context: int | None = None,
        new_sequence: Callable[[], SequenceCache] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        refuse_unfit(model)
        self.model = model.eval()
        self.device = torch.device(device) if device is not None else _device_of(model)
        self.dtype: torch.dtype = _dtype_of(model)
        self.threads = None if threads is None else check_threads(threads)
        self.low_bit = low_bit or format_of(model) or str(self.dtype).removeprefix("torch.")
        self.facts = dict(facts or {})
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        self._cache_argument = cache_argument(model.forward)
        self._keep_logits = next((n for n in ("logits_to_keep", "num_logits_to_keep") if n in takes), None)
        self._pad = getattr(model.config, "pad_token_id", None)
        self.max_context = max_context or _max_context(model.config)
        self._has_native = has_native_layers(model)
        self._adapters = ModelAdapters(model, self.device)
        kinds = [new_sequence] if new_sequence is not None else sequence_kinds(model)
        with torch.no_grad(), torch_threads(self.threads):
            for self._new in kinds:
                trial = Trial(
                    model, self.device, self.dtype, self.max_context, self._takes_positions, self._new, self._run
                )
                try:
                    found = fitness_of(trial)
                    break
                except UnsupportedModelError:
                    if self._new is kinds[-1]:
                        raise
        self.vocab_size, self._masks, self.why_chains = found.vocab_size, found.masks, found.why_chains
        self._position_bytes = found.position_bytes
        reason = self._why_not_deterministic()
        if deterministic and reason:
            raise UnsupportedModelError(
                f"this model cannot be run deterministically: {reason}", hint=f"leave {arg('deterministic', True)} out"
            )
        self.deterministic = not reason and (self.device.type == "xpu" if deterministic is None else deterministic)
        self._block = CPU_BLOCK if self.device.type == "cpu" else BLOCK
        self.supports_tree = self._masks != "none" and not self.deterministic

    def new_cache(self) -> SequenceCache:
        """Return an empty sequence."""
        return self._new()

    def forward(self, batch: Batch) -> StepOutput:
        """Run one model forward for each sequence. See ``engines.api.Engine.forward``.

        Raises:
            InputError: also for a tree if ``supports_tree`` is False.
            OutOfMemoryError: the device is out of memory.
            NonFiniteError: the logits have NaN or infinity.
        """
        refuse_images(self.name, batch)
        caches = self._checked(batch)
        wanted = range(len(batch.tokens)) if batch.wants.rows is None else batch.wants.rows.tolist()
        answers: list[torch.Tensor] = []
        states: States | None = [] if batch.wants.hidden else None
        first = 0
        with torch.no_grad(), torch_threads(self._torch_threads(len(batch.tokens))), forward_errors(self.device):
            adapters = batch.adapters or [None] * len(caches)
            for cache, count, adapter in zip(caches, batch.counts, adapters, strict=True):
                tokens = batch.tokens[first : first + count]
                parents = batch.parents[first : first + count].tolist()
                want = [row - first for row in wanted if first <= row < first + count]
                with self._adapters.applied(adapter):
                    logits = self._sequence(cache, tokens, parents, want, states)
                if logits is not None:
                    answers.append(logits)
                first += count
            output = self._output(answers, batch.wants)
            if states is not None:
                output.hidden = _hidden(states, batch.wants)
            return output

    @cached_property
    def adapter_spec(self) -> ModelSpec:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        return spec_of(self.model)

    def load_adapter(self, adapter: Adapter) -> None:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        self._adapters.load(adapter, self.adapter_spec)

    def unload_adapter(self, adapter: Adapter) -> None:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        self._adapters.unload(adapter)

    @property
    def adapter_bytes(self) -> int:
        """See :class:`ipex_lookahead.engines.api.TakesAdapters`."""
        return self._adapters.nbytes

    @property
    def kernels(self) -> str:
        """See :class:`ipex_lookahead.engines.api.NamesKernels`: torch's version, and our core's."""
        return f"torch {torch.__version__} {core_build()}"

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info`` and reports."""
        return {
            "engine": self.name,
            "family": getattr(self.model.config, "model_type", type(self.model).__name__),
            **device_facts(self.device),
            "threads": self.threads or torch.get_num_threads(),
            "dtype": str(self.dtype).removeprefix("torch."),
            "low_bit": self.low_bit,
            "weight_bytes": _weight_bytes(self.model),
            "kv_bytes_per_token": self._position_bytes,
            "max_context": self.max_context,
            "row_invariant": self.row_invariant,
            "supports_tree": self.supports_tree,
            "why_chains": "deterministic" if self.deterministic else self.why_chains,
            "deterministic": self.deterministic,
            **({"adapters": len(self._adapters), "adapter_bytes": self.adapter_bytes} if len(self._adapters) else {}),
            **self.facts,
        }

    def weights(self) -> Iterator[tuple[str, PackedWeight]]:
        """Yield all tensors in plain layout under the model's names, one at a time, for ``save_low_bit``."""
        for name, weight in module_weights(self.model):
            yield name, narrowed(weight, self.low_bit)

    def _torch_threads(self, rows: int) -> int | None:
        return (torch_threads_with_native(rows) if self._has_native else None) or self.threads

    # ---- one sequence ------------------------------------------------------------------------------------------------

    def _sequence(
        self,
        cache: SequenceCache,
        tokens: npt.NDArray[np.int32],
        parents: list[int],
        want: list[int],
        states: States | None,
    ) -> torch.Tensor | None:
        """Return logits [wanted, vocab_size] of a sequence, or None without wanted rows; fill ``states``."""
        chain = parents == list(range(-1, len(parents) - 1))
        if not chain and not self.supports_tree:
            raise InputError(f"this model takes drafts as chains only: {self.describe()['why_chains']}")
        if self.deterministic:
            return self._blocks(cache, tokens, parents, want, states)
        past = cache.begin(parents)
        ids = torch.from_numpy(tokens.astype(np.int64))[None].to(self.device)
        mask = None if chain else self._mask(seen_by(cache.length, parents))
        positions = torch.tensor([depths_of(parents)], device=self.device) + cache.length
        return self._run(cache, past, ids, positions, mask, want, states)

    def _run(
        self,
        cache: SequenceCache,
        past: Any,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        want: list[int],
        states: States | None = None,
    ) -> torch.Tensor | None:
        """Run the model over ids [1, rows]; return the wanted rows' logits. ``states`` receives those of all rows."""
        inputs: dict[str, Any] = {"input_ids": ids, self._cache_argument: past, "use_cache": True}
        if self._takes_positions:
            inputs["position_ids"] = positions
        rows = ids.shape[1]
        if mask is None and self._pad is not None and bool((ids == self._pad).any()):
            # No token is padding here, but without a mask some models warn about pad tokens.
            mask = torch.ones((1, cache.length + rows), dtype=torch.long, device=self.device)
        if mask is not None:
            inputs["attention_mask"] = mask
        few = len(want) < rows and self._keep_logits is not None
        if few:  # the lm_head is expensive, and prefill needs logits of the last row or of none
            start = min(want, default=rows - 1)
            inputs[str(self._keep_logits)] = rows - start
        if states is not None:
            inputs["output_hidden_states"] = True
        output = self.model(**inputs)
        cache.took(getattr(output, self._cache_argument, None))
        if states is not None:
            states.append([one[0] for one in getattr(output, "hidden_states", None) or ()])
        if not want:
            return None
        logits: torch.Tensor = output.logits[0]
        at = [row - (rows - logits.shape[0]) for row in want]
        return logits if at == list(range(logits.shape[0])) else logits[at]

    def _mask(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a mask, bool [rows, keys], in the convention that the model takes."""
        return spelled(seen, self._masks, self.dtype, self.device)

    # ---- deterministic -----------------------------------------------------------------------------------------------

    def _blocks(
        self,
        cache: SequenceCache,
        tokens: npt.NDArray[np.int32],
        parents: list[int],
        want: list[int],
        states: States | None,
    ) -> torch.Tensor | None:
        """Run the rows of a chain in forwards of one aligned block of positions each.

        Position p is row p % size of its block and sees keys up to the next multiple of ``VISIBLE``. So the shapes and
        a row's place depend on its position only.
        """
        assert isinstance(cache, BufferSequence)
        start, found = cache.length, []
        at, end = start, start + len(tokens)
        while at < end:
            size = PREFILL_BLOCK if at % PREFILL_BLOCK == 0 and at + PREFILL_BLOCK <= end else self._block
            first = at - at % size
            stop = min(first + size, end)
            here = [position - first for position in (start + row for row in want) if at <= position < stop]
            ids = np.zeros(size, np.int64)
            ids[at - first : stop - first] = tokens[at - start : stop - start]
            visible = (stop - 1) // VISIBLE * VISIBLE + VISIBLE
            places = torch.arange(first, first + size)
            seen = torch.arange(visible)[None] <= places[:, None]
            seen[: at - first, 1:] = False  # padding rows see the first key only
            seen[stop - first :, 1:] = False
            past = cache.begin_block(parents, slice(at - first, stop - first), at, size, visible)
            logits = self._run(
                cache,
                past,
                torch.from_numpy(ids)[None].to(self.device),
                places.clamp_(max=self.max_context - 1)[None].to(self.device),
                self._mask(seen),
                list(range(size)) if here else [],
                states,
            )
            if states is not None:
                states[-1] = [one[at - first : stop - first] for one in states[-1]]
            if logits is not None:
                found.append(logits[here])
            at = stop
        return torch.cat(found) if found else None

    def _why_not_deterministic(self) -> str:
        """Return the reason why forwards of one shape are not possible; empty if they are."""
        if self._masks == "none":
            return self.why_chains
        if self._new is not BufferSequence:
            return "its cache is its own"
        if any(getattr(self.model.config, name, None) for name in EXPERTS):
            return "a mixture of experts sends rows to products of different sizes"
        return ""

    # ---- inputs and outputs ------------------------------------------------------------------------------------------

    def _checked(self, batch: Batch) -> list[SequenceCache]:
        """Return the batch's caches. Raises InputError or ContextLengthError for an invalid batch."""
        counts, caches = list(batch.counts), [cache for cache in batch.caches if isinstance(cache, SequenceCache)]
        if len(caches) != len(batch.caches):
            raise InputError(f"the {self.name} engine needs its own caches, not another engine's")
        if len(caches) != len(counts) or sum(counts) != len(batch.tokens) or min(counts, default=0) < 1:
            raise InputError(f"{len(caches)} caches and counts {counts} do not fit {len(batch.tokens)} rows")
        if len({id(cache) for cache in caches}) != len(caches):
            raise InputError("the batch has a cache twice")
        if not 0 <= batch.wants.top <= MOST_TOP:
            raise InputError(f"top is {batch.wants.top}; it must be 0 to {MOST_TOP}")
        if batch.wants.timings:
            raise InputError(f"the {self.name} engine returns no timings", hint=f"use {arg('engine', 'native')}")
        tokens = batch.tokens
        if len(batch.parents) != len(tokens):
            raise InputError(f"{len(batch.parents)} parents do not fit {len(tokens)} rows")
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            wrong = low if low < 0 else high
            raise InputError(f"token id {wrong} is outside the vocabulary of {self.vocab_size}")
        first = 0
        for cache, count in zip(caches, counts, strict=True):
            parents = batch.parents[first : first + count].tolist()
            for row, parent in enumerate(parents):
                if not -1 <= parent < row:
                    raise InputError(f"row {row} of a sequence has the parent {parent}; it must be -1 or a row before")
            if (last := cache.length + max(depths_of(parents))) >= self.max_context:
                raise ContextLengthError(
                    f"position {last} is beyond the model's {self.max_context}",
                    hint=f"shorten the prompt or {arg('max_new_tokens')}",
                )
            first += count
        return caches

    def _output(self, answers: list[torch.Tensor], wants: OutputRequest) -> StepOutput:
        """Return argmax and the other requested outputs of logits [wanted, vocab_size]."""
        if not answers:
            empty = np.zeros((0, self.vocab_size), np.float32) if wants.logits else None
            return StepOutput(np.zeros(0, np.int32), empty, np.zeros((0, wants.top), np.int32) if wants.top else None)
        logits = (answers[0] if len(answers) == 1 else torch.cat(answers)).float()
        best, argmax = logits.max(-1)  # the first of equals, as torch promises
        if not bool(torch.isfinite(best).all() and torch.isfinite(logits.amin(-1)).all()):  # NaN is both
            raise NonFiniteError("the model's logits are not finite", hint="the checkpoint's weights are damaged")
        top = most_likely(logits, wants.top) if wants.top else None
        plain = logits.cpu().numpy().copy() if wants.logits else None
        return StepOutput(argmax.cpu().numpy().astype(np.int32), plain, top)


def _hidden(states: States, wants: OutputRequest) -> dict[int, npt.NDArray[np.float32]]:
    """Return the requested hidden states. Raises as ``Engine.forward``; NonFiniteError for NaN or infinity."""
    layers = len(states[0]) - 1
    if layers < 0:
        raise UnsupportedModelError("this model returns no hidden states", hint=f"use {arg('engine', 'native')}")
    found = {}
    for wanted in wants.hidden:
        if wanted != FINAL_NORM and not 0 <= wanted < layers:
            raise InputError(
                f"hidden states after {wanted} layers are not available: the model returns those after 0 to"
                f" {layers - 1}, and those after the final norm ({FINAL_NORM})"
            )
        values = torch.cat([one[wanted] for one in states]).float()
        rows = range(len(values)) if wants.hidden_rows is None else wants.hidden_rows.tolist()
        if not all(0 <= row < len(values) for row in rows):
            raise InputError(f"hidden_rows must be rows of the step, from 0 to {len(values) - 1}; got {rows}")
        values = values if wants.hidden_rows is None else values[rows]
        if not bool(torch.isfinite(values).all()):
            raise NonFiniteError(
                "the model's hidden states are not finite", hint="the checkpoint's weights are damaged"
            )
        found[wanted] = values.cpu().numpy().copy()
    return found


def narrowed(weight: PackedWeight, low_bit: str) -> PackedWeight:
    """Convert a float32 weight to ``low_bit`` if that is a shorter float format that represents all values exactly."""
    if weight.format != "fp32" or low_bit not in ("fp16", "bf16"):
        return weight
    values = torch.from_numpy(weight.codes)
    short = values.to(torch.float16 if low_bit == "fp16" else torch.bfloat16)
    return packed_from_torch(short) if torch.equal(short.float(), values) else weight


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def most_likely(logits: torch.Tensor, count: int) -> npt.NDArray[np.int32]:
    """Return the ``count`` most likely ids of each row, the lowest first among equals; -1 beyond the vocabulary."""
    most = min(count, logits.shape[-1])
    least = logits.topk(most, dim=-1).values[:, -1:]
    found = np.full((len(logits), count), -1, np.int32)
    for row, (values, bound) in enumerate(zip(logits, least, strict=True)):
        ids = (values >= bound).nonzero()[:, 0]
        order = torch.sort(values[ids], descending=True, stable=True).indices[:most]
        found[row, :most] = ids[order].cpu().numpy()
    return found


def _max_context(config: Any) -> int:
    text = text_config(config)
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return UNBOUNDED_CONTEXT


def _device_of(model: Any) -> torch.device:
    try:
        return torch.device(model.get_input_embeddings().weight.device)
    except (AttributeError, NotImplementedError):
        return next((p.device for p in model.parameters()), torch.device("cpu"))


def _dtype_of(model: Any) -> torch.dtype:
    """Return the dtype that the model computes in: its embedding's, or its first floating point parameter's."""
    try:
        dtype = model.get_input_embeddings().weight.dtype
    except (AttributeError, NotImplementedError):
        dtype = torch.int8
    if dtype.is_floating_point and dtype.itemsize >= 2:
        return dtype  # type: ignore[no-any-return]
    floats = (p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype.itemsize >= 2)
    return next(floats, torch.float32)


def _weight_bytes(model: Any) -> int:
    """Return the bytes of all parameters, buffers and packed weights; shared ones count once."""
    seen: dict[int, int] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        seen[tensor.data_ptr() or id(tensor)] = tensor.numel() * tensor.element_size()
    layers = {id(module): module for module in model.modules() if isinstance(module, LowBitLinear)}
    kernels = [tensor for layer in layers.values() for tensor in _buffers(layer.kernel)]
    packed = sum(packed_bytes(layer) for layer in layers.values())
    return sum(seen.values()) - sum(t.numel() * t.element_size() for t in kernels) + packed


def _buffers(kernel: Any) -> list[torch.Tensor]:
    """Return the tensors of a kernel that is a module; they count as packed weights."""
    return [*kernel.parameters(), *kernel.buffers()] if isinstance(kernel, torch.nn.Module) else []
