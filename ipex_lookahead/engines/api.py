"""Where a model runs: the two protocols every engine fulfils, and what some report besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

FINAL_NORM = -1
"""In ``OutputRequest.hidden``: after all layers and the final norm."""
MOST_TOP = 64
"""Most likely ids of a row that may be wanted."""


class Cache(Protocol):
    """Keys and values of one sequence. ``length`` counts the committed positions."""

    @property
    def length(self) -> int:
        """Committed positions."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Commit rows of the last forward, a path root first, at positions length, length + 1, ...; drop the others.

        ``rows`` are indices among this sequence's own rows in that forward. Raises InputError where they are no path.
        """
        ...

    def crop(self, length: int) -> int:
        """Go back to the first ``length`` positions (absolute), or to fewer where a layer's state cannot.

        Layers with a sliding window give back keys more than 1,024 positions behind it: further back there is only 0.
        Recurrent layers go back over the last step's rows that were not ``settled``, over those of steps that were
        ``HELD``, and to where ``checkpoint`` was called (:class:`Checkpointed`).

        Returns:
            the length now; whoever wanted more runs the tokens from there on again.

        Raises InputError beyond the present length.
        """
        ...

    def fork(self) -> Cache:
        """A second sequence that shares this one's committed prefix and goes on independently."""
        ...


@runtime_checkable
class Checkpointed(Protocol):
    """A cache that may hold memory that does not grow with the positions: recurrent states, and features for a head.

    Recurrent states cannot be cropped. Features are hidden states of up to 64 rows that a head has yet to read.
    """

    @property
    def state_bytes(self) -> int:
        """Bytes of both now, states shared with forks included, and of what the last rows left; 0 = there are none."""
        ...

    def checkpoint(self) -> None:
        """Make the present length one that ``crop`` can go back to; only the last four are, and each keeps its states.

        Nothing is copied, but the next step writes elsewhere.
        """
        ...


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """What a forward is to return.

    Attributes:
        rows: int32 [n], rows of the batch, ascending, that get an argmax and what ``logits`` and ``top`` say; None =
            all of them.
        logits: whether the logits of these rows are returned.
        top: how many of the most likely ids of each of these rows, 0 to ``MOST_TOP``.
        hidden: whose hidden states are returned: i = those after i layers, which layer i reads (0 = the embeddings);
            ``FINAL_NORM`` = those after all layers and the final norm, which the lm_head reads. Those after all layers
            alone the native engine has, others refuse them.
        hidden_rows: int32 [n], rows of the batch, ascending, whose hidden states are returned; None = all of them.
        timings: whether the times of the forward's phases are returned, on an engine that ``TimesPhases``.
    """

    rows: npt.NDArray[np.int32] | None = None
    logits: bool = False
    top: int = 0
    hidden: tuple[int, ...] = ()
    hidden_rows: npt.NDArray[np.int32] | None = None
    timings: bool = False

    def __or__(self, other: OutputRequest) -> OutputRequest:
        """What serves both, of all rows."""
        hidden = self.hidden if self.hidden == other.hidden else tuple(sorted({*self.hidden, *other.hidden}))
        logits, timings = self.logits or other.logits, self.timings or other.timings
        return OutputRequest(None, logits, max(self.top, other.top), hidden, None, timings)


ARGMAX = OutputRequest()
"""The argmax of every row, and nothing else."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One kind of phases of a forward, those of all layers together, as the first thread sees them.

    Attributes:
        name: embedding, qkv, heads (norms and ropes that are not done with q, k and v), attention, output, router,
            gate_up, down or head. Norms and quantising belong to the matrices that read their rows.
        count: phases.
        seconds: until all threads were through.
        busy: seconds of them in which this thread worked; in the others it waited.
        weight_bytes: of weights that a step of one row reads in them.
    """

    name: str
    count: int
    seconds: float
    busy: float
    weight_bytes: int


HELD = -1
"""In ``Batch.settled``: ``crop`` is to go back over this step's rows and those before it, as a draft model's."""

Hidden = Mapping[int, npt.NDArray[np.float32]]
"""Hidden states, float32 [rows, hidden size], by what of ``OutputRequest.hidden`` they are."""


@dataclass(slots=True)
class Batch:
    """Rows of one or several sequences for one forward.

    Attributes:
        caches: one cache a sequence, no cache twice.
        counts: rows of each sequence, each >= 1; the rows of a sequence are contiguous.
        tokens: int32 [rows], token ids.
        parents: int32 [rows]; index of the parent among the same sequence's rows (smaller than the row's own), or -1:
            the row follows the committed prefix. A row's position is ``cache.length`` + its depth, and it attends to
            the committed prefix, its ancestors and itself.
        wants: what is to be returned of which rows.
        settled: of each sequence's rows the first so many, a chain that the others follow, are certain to be kept, if
            the forward is not dropped as a whole: layers with states take them in at once, and the rows that the last
            step left and that were kept. ``HELD``: neither of them. () = none.
    """

    caches: Sequence[Cache]
    counts: Sequence[int]
    tokens: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    wants: OutputRequest = ARGMAX
    settled: Sequence[int] = ()


@dataclass(slots=True)
class StepOutput:
    """What the batch's ``wants`` says, in the order of its ``rows``.

    Attributes:
        argmax: int32 [wanted]; the lowest id wins a tie.
        logits: float32 [wanted, vocab_size], owned by the caller, or None.
        top: int32 [wanted, top], most likely first, the lowest id first among equals (-1 where the vocabulary has no
            more); None unless wanted.
        experts: how many experts of a mixture the forward read, the distinct ones of each layer; 0 in other models.
        hidden: hidden states of ``hidden_rows``; None unless wanted.
        timings: where the forward's time went, in its order; None unless wanted.
    """

    argmax: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32] | None
    top: npt.NDArray[np.int32] | None = None
    experts: int = 0
    hidden: Hidden | None = None
    timings: Sequence[PhaseTime] | None = None


class Engine(Protocol):
    """A loaded model. Thread-compatible: one forward at a time; caches of different generations do not interact."""

    name: str
    row_invariant: bool
    supports_tree: bool
    """Whether drafts may branch; where not, the loop cuts them to one path."""
    vocab_size: int
    max_context: int
    """Positions a sequence may have at most."""

    def new_cache(self) -> Cache:
        """An empty sequence."""
        ...

    def forward(self, batch: Batch) -> StepOutput:
        """One pass over the batch's rows. Nothing is committed: call ``keep`` on each cache, or forward again to drop.

        Raises:
            ContextLengthError: a row's position would not be below ``max_context``.
            InputError: a token id outside the vocabulary, parents that are no forest, or a request for what the engine
                or the model does not have.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for ``info`` and for reports: engine, isa, threads, low_bit, weight_bytes, kv_bytes_per_token.

        ``state_bytes``, where it is there: as :class:`KeepsStates`.
        ``step_bytes``, where it is there: what of the weights a step of one row reads, all but idle experts;
        ``experts``, in a mixture: how many there are, in all layers.
        """
        ...


@runtime_checkable
class KeepsStates(Protocol):
    """An engine whose caches are ``Checkpointed``."""

    @property
    def state_bytes(self) -> int:
        """Bytes of one state of a sequence, in all its recurrent layers; 0 = the model has none."""
        ...


def state_bytes(engine: Engine) -> int:
    """Bytes of a sequence's states beside its keys and values; 0 where all of it grows with the positions."""
    return engine.state_bytes if isinstance(engine, KeepsStates) else 0


def position_bytes(engine: Engine) -> int:
    """Bytes of keys and values of a position, and of what a head that drafts keeps of it beside these.

    0 where there are none, or the engine does not say.
    """
    own = int(engine.describe().get("kv_bytes_per_token") or 0)
    head = engine.head if isinstance(engine, HasHead) else None
    return own + head.position_bytes if own and head is not None else own


@runtime_checkable
class HasHead(Protocol):
    """An engine whose model may bring a head for drafting."""

    @property
    def head(self) -> Any:
        """An :class:`ipex_lookahead.engines.native.head.NativeHead`, or None."""
        ...


@runtime_checkable
class NamesKernels(Protocol):
    """An engine that names its kernels: what was timed on those of another version is not true of it."""

    @property
    def kernels(self) -> str:
        """Which kernels it runs, in a word that another build of them does not have."""
        ...


@runtime_checkable
class TimesPhases(Protocol):
    """An engine that serves ``OutputRequest.timings``, at any length of context."""

    @property
    def times_phases(self) -> Literal[True]:
        """It does."""
        ...

    def new_cache(self, blank: int = 0) -> Cache:
        """A sequence of ``blank`` positions that nothing has been computed for."""
        ...
