"""The protocols of engines: cache and engine, which all implement, and optional ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ipex_lookahead.architectures.adapter import Adapter as Adapter
from ipex_lookahead.architectures.adapter import AppliedAdapter as AppliedAdapter
from ipex_lookahead.architectures.spec import ImageInputs, ModelSpec
from ipex_lookahead.engines.images import GivenRows, ImageRows, PromptImage, check_images
from ipex_lookahead.errors import InputError

FINAL_NORM = -1
"""In ``OutputRequest.hidden``: after all layers and the final norm."""
MOST_TOP = 64
"""Maximum of ``OutputRequest.top``."""


class Cache(Protocol):
    """The KV cache of one sequence."""

    @property
    def length(self) -> int:
        """The number of committed positions."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Commit rows of the last forward, a path root first, at positions length, length + 1, ...; drop the others.

        ``rows`` are indices among this sequence's own rows in that forward. Raises InputError if they are not a path.
        """
        ...

    def crop(self, length: int) -> int:
        """Roll back to the first ``length`` positions (absolute), or to fewer if a layer cannot restore its state.

        Layers with a sliding window release keys more than 1,024 positions behind the window; they can only restore
        lengths after those, or 0. Recurrent layers can roll back the last step's rows that were not ``settled``, the
        rows of steps that were ``HELD``, and to the lengths of :meth:`Checkpointed.checkpoint`.

        Returns:
            The new length. The caller runs the tokens after it again.

        Raises InputError for a length beyond the current one.
        """
        ...

    def fork(self) -> Cache:
        """Return a second, independent sequence that shares this one's committed prefix."""
        ...


@runtime_checkable
class Checkpointed(Protocol):
    """A cache with memory that does not grow with the positions: recurrent states, and features for a head.

    Recurrent states cannot be cropped. Features are hidden states of up to 64 rows that a head has not read yet.
    """

    @property
    def state_bytes(self) -> int:
        """Current bytes of states (shared ones included), of features, and of the last step's data for rollback."""
        ...

    def checkpoint(self) -> None:
        """Make the current length one that ``crop`` can restore. The last four checkpoints are retained.

        The states are not copied: the next step writes to new memory.
        """
        ...


@runtime_checkable
class ExportsCache(Protocol):
    """A cache with an image: bytes from which :meth:`ImportsCache.import_cache` makes an equal cache.

    The image has two parts, which do not change the cache. Copies are made without the GIL, so one thread may export a
    fork while another thread runs steps on its siblings.
    """

    def export_pages(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Return the keys and values of positions [first, last), uint8 [bytes].

        These are the keys and values of the layers that keep every position. A drafting head's rows for the same
        tokens follow if the cache has them: row p depends on token p + 1, so they are the rows [first - 1, last - 1).
        The bytes are a function of the tokens before ``last``, except for the number of the head's rows.

        Args:
            first: a multiple of 64.
            last: above ``first``, at most ``length``.

        Raises InputError for another range, EngineError if another thread uses the cache.
        """
        ...

    def export_state(self) -> npt.NDArray[np.uint8]:
        """Return the rest of the image at the current length, uint8 [bytes].

        This is the keys and values that sliding windows still need, recurrent states with accepted rows that the next
        step adds, and a head's features and the rows that no page covers. Rows of a step that were not kept and
        checkpoints are not part of it.

        Raises EngineError if another thread uses the cache.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """The requested outputs of a forward.

    Attributes:
        rows: int32 [n], ascending rows of the batch with an argmax, ``logits`` and ``top``; None = all rows.
        logits: whether to return the logits of these rows.
        top: number of most likely ids to return for each of these rows, 0 to ``MOST_TOP``.
        hidden: the hidden states to return: i = those after i layers, which layer i reads (0 = the embeddings);
            ``FINAL_NORM`` = those after the final norm, which the lm_head reads. The torch engine does not return
            those after all layers, before the final norm.
        hidden_rows: int32 [n], ascending rows of the batch with hidden states; None = all rows.
        timings: whether to return the times of the forward's phases, on an engine that ``TimesPhases``.
    """

    rows: npt.NDArray[np.int32] | None = None
    logits: bool = False
    top: int = 0
    hidden: tuple[int, ...] = ()
    hidden_rows: npt.NDArray[np.int32] | None = None
    timings: bool = False

    def __or__(self, other: OutputRequest) -> OutputRequest:
        """Return a request for the outputs of both, of all rows."""
        hidden = self.hidden if self.hidden == other.hidden else tuple(sorted({*self.hidden, *other.hidden}))
        logits, timings = self.logits or other.logits, self.timings or other.timings
        return OutputRequest(None, logits, max(self.top, other.top), hidden, None, timings)


ARGMAX = OutputRequest()
"""The argmax of every row only."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The time of one kind of phase in a forward, summed over all layers, measured by the first thread.

    Attributes:
        name: embedding, qkv, heads (norms and ropes that are not done with q, k and v), attention, output, router,
            gate_up, down or head. Norms and quantization count for the matrices that read their rows.
        count: number of phases.
        seconds: time until all threads had finished.
        busy: seconds in which the first thread worked; the rest of ``seconds`` it waited.
        weight_bytes: bytes of weights that a step of one row reads in these phases.
    """

    name: str
    count: int
    seconds: float
    busy: float
    weight_bytes: int


HELD = -1
"""In ``Batch.settled``: ``crop`` must be able to roll back this step's rows and earlier ones (draft models)."""

Hidden = Mapping[int, npt.NDArray[np.float32]]
"""Hidden states, float32 [rows, hidden size], by their entry in ``OutputRequest.hidden``."""


@dataclass(slots=True)
class Batch:
    """Rows of one or several sequences for one forward.

    Attributes:
        caches: one distinct cache per sequence.
        counts: rows of each sequence, each >= 1; the rows of a sequence are contiguous.
        tokens: int32 [rows], token ids.
        parents: int32 [rows]; index of the parent among the same sequence's rows (smaller than the row's own), or -1:
            the row follows the committed prefix. A row's position is ``cache.length`` + its depth, and it attends to
            the committed prefix, its ancestors and itself.
        wants: the requested outputs.
        settled: for each sequence, the number of leading rows (a chain that the other rows follow) that cannot be
            rejected, unless the whole forward is dropped. Recurrent states advance in this forward over these rows
            and over the committed rows of the previous step. ``HELD``: over neither. () = none.
        adapters: the adapter of each sequence or None, loaded into an engine that ``TakesAdapters``; () = none.
        offsets: for each sequence, RoPE position minus slot of its rows; () = 0. A row's slot is the position above.
        given: rows of images, with their embeddings, and the changed visibility of rows around them; see
            :class:`TakesImages`.
    """

    caches: Sequence[Cache]
    counts: Sequence[int]
    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    wants: OutputRequest = ARGMAX
    settled: Sequence[int] = ()
    adapters: Sequence[AppliedAdapter | None] = ()
    offsets: Sequence[int] = ()
    given: Sequence[GivenRows] = ()


@dataclass(slots=True)
class StepOutput:
    """The outputs that ``Batch.wants`` requests, in the order of its ``rows``.

    Attributes:
        argmax: int32 [wanted]; the lowest id wins a tie.
        logits: float32 [wanted, vocab_size], owned by the caller, or None.
        top: int32 [wanted, top], most likely first, the lowest id first among equals (-1 beyond the vocabulary's
            size); None unless requested.
        experts: number of experts of a mixture that the forward read, summed over layers; 0 in other models.
        hidden: hidden states of ``hidden_rows``; None unless requested.
        timings: times of the phases in the order of the forward; None unless requested.
    """

    argmax: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32] | None
    top: npt.NDArray[np.int32] | None = None
    experts: int = 0
    hidden: Hidden | None = None
    timings: Sequence[PhaseTime] | None = None


class Engine(Protocol):
    """A loaded model. One forward at a time; caches of different sequences do not interact."""

    name: str
    row_invariant: bool
    supports_tree: bool
    """Whether drafts may branch. If not, the loop cuts them to one path."""
    vocab_size: int
    max_context: int
    """Maximum number of positions of a sequence."""

    def new_cache(self) -> Cache:
        """Return an empty sequence."""
        ...

    def forward(self, batch: Batch) -> StepOutput:
        """Run the batch's rows. No row is committed: call ``keep`` on each cache; the next forward drops the rest.

        Raises:
            ContextLengthError: a row's position would not be below ``max_context``.
            InputError: a token id outside the vocabulary, parents that are not a forest, or a request for an output
                that the engine or the model does not have.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return facts for ``info`` and reports: engine, isa, threads, low_bit, weight_bytes, kv_bytes_per_token.

        Optional: ``state_bytes``, as :class:`KeepsStates`; ``step_bytes``, the bytes of weights that a step of one row
        reads, without idle experts; ``experts``, the number of a mixture's experts in all layers.
        """
        ...


@runtime_checkable
class KeepsStates(Protocol):
    """An engine with ``Checkpointed`` caches."""

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state of a sequence, over all layers; 0 = the model has none."""
        ...


def state_bytes(engine: Engine) -> int:
    """Return the bytes of a sequence's recurrent states; 0 if the model has none."""
    return engine.state_bytes if isinstance(engine, KeepsStates) else 0


def position_bytes(engine: Engine) -> int:
    """Return the bytes of a position in the KV cache, a drafting head's included; 0 if the engine reports none."""
    own = int(engine.describe().get("kv_bytes_per_token") or 0)
    head = engine.head if isinstance(engine, HasHead) else None
    return own + head.position_bytes if own and head is not None else own


@runtime_checkable
class HasHead(Protocol):
    """An engine that may have a drafting head."""

    @property
    def head(self) -> Any:
        """The head, see :class:`ipex_lookahead.engines.native.head.NativeHead`, or None."""
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """An engine that applies low-rank adapters, a different one to each sequence of a batch.

    A row's bits depend on its own sequence's adapter and scale only; rows without an adapter have the bits of a batch
    without adapters. A cache holds what its sequence's adapter computed: never continue it with another one.
    """

    @property
    def adapter_spec(self) -> ModelSpec:
        """The description of the model. Raises UnsupportedModelError for a family without one."""
        ...

    def load_adapter(self, adapter: Adapter) -> None:
        """Load an adapter for use in ``Batch.adapters``. An adapter with the same digest is loaded once.

        Raises:
            UnsupportedModelError: it changes a matrix that takes no adapter, such as an expert's or the lm_head.
            InputError: it does not fit the model.
        """
        ...

    def unload_adapter(self, adapter: Adapter) -> None:
        """Release an adapter's memory; no sequence may use it afterwards. One that is not loaded is ignored."""
        ...

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the loaded adapters."""
        ...


@runtime_checkable
class NamesKernels(Protocol):
    """An engine with a name for its kernels: times that other kernels took do not apply to it."""

    @property
    def kernels(self) -> str:
        """An identifier of the kernels that changes with each build of them."""
        ...


@runtime_checkable
class TimesPhases(Protocol):
    """An engine that serves ``OutputRequest.timings``, at any length of context."""

    @property
    def times_phases(self) -> Literal[True]:
        """Always True."""
        ...

    def new_cache(self, blank: int = 0) -> Cache:
        """Return a sequence of ``blank`` positions of zeros."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """An engine that builds and binds kernels at the first step of each number of rows, which takes longer."""

    @property
    def warms_up(self) -> Literal[True]:
        """Always True."""
        ...


@runtime_checkable
class TakesImages(Protocol):
    """An engine that may serve ``Batch.given`` and ``Batch.offsets``."""

    @property
    def images(self) -> ImageInputs | None:
        """How the loaded model takes images; None: not at all."""
        ...

    @property
    def spans(self) -> bool:
        """Whether rows of an image see each other in some layers, so that a step must have all of them."""
        ...


def refuse_images(name: str, batch: Batch) -> None:
    """Raise InputError if a batch has rows of images; for an engine ``name`` without :class:`TakesImages`."""
    if batch.given or any(batch.offsets):
        raise InputError(f"the {name} engine takes no images", hint='use the engine "native"')


def image_rows(engine: Engine, prompt: npt.NDArray[np.int32], images: Sequence[PromptImage]) -> ImageRows:
    """Return the checked images of a prompt.

    Raises InputError: The engine or the model takes no images, or the images do not fit the prompt's placeholders.
    """
    takes = engine.images if isinstance(engine, TakesImages) else None
    if takes is None or not isinstance(engine, TakesImages):
        what = "this model takes" if isinstance(engine, TakesImages) else f"the {engine.name} engine takes"
        raise InputError(f"{what} no images")
    check_images(images, prompt, takes.token, takes.hidden, takes.deepstack)
    return ImageRows(images, grid_positions=takes.grid_positions, spans=engine.spans)


@runtime_checkable
class ImportsCache(Protocol):
    """An engine with caches that ``ExportsCache``."""

    @property
    def cache_layout(self) -> str:
        """A description of the images' format: the engine, the model's shapes and settings, and its head's.

        Images of engines with another description cannot be imported. Weights are not part of it.
        """
        ...

    def import_cache(
        self, length: int, pages: Iterable[tuple[int, int, npt.NDArray[np.uint8]]], state: npt.NDArray[np.uint8]
    ) -> Cache:
        """Return a new cache of ``length`` positions from the image of one.

        Any thread may call this method while another thread runs steps. Damaged bytes of the right size may give a
        cache with other contents, but never an access outside its memory.

        Args:
            length: the length of the cache when ``state`` was exported, at most ``max_context``.
            pages: (first, last, ``export_pages(first, last)``) in ascending order, without gaps, from 0 to ``length``.
                Its exceptions pass through unchanged.
            state: ``export_state()``.

        Raises:
            InputError: the ranges or sizes do not fit ``length`` and this engine, or a value in ``state`` is invalid.
            OutOfMemoryError: there is no memory for the cache.
        """
        ...
