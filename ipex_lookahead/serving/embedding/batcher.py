"""Batches of texts from several requests: one thread runs the model, and every key and request gets an equal share.

A batch has no padding and no minimum size: it takes what waits, up to a number of tokens that the model handles in
about ``BATCH_SECONDS``. An embedding has the same bits in every batch, so the composition has no effect on results.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.errors import LookaheadError, NonFiniteError, ServiceError
from ipex_lookahead.runtime.places import Places

if TYPE_CHECKING:
    from ipex_lookahead.embedding.model import EmbeddingModel

log = logging.getLogger(__name__)
Values = npt.NDArray[np.float32]
BATCH_SECONDS = 0.25
"""Target duration of a batch: the longest time that a new request waits for the one before it."""
MIN_BATCH_TOKENS, MAX_BATCH_TOKENS = 256, 16384
"""Bounds of a batch; a single text may have more tokens."""
_FOLLOW = 0.3
"""Weight of a new batch in the running mean of tokens per second."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is computed of each input; inputs of one batch agree in it.

    Attributes:
        scores: logits of a reranking model instead of vectors.
        dimensions: length of the vectors; None: the model's.
        normalize: whether vectors have length 1; None: as the model's files say.
    """

    scores: bool = False
    dimensions: int | None = None
    normalize: bool | None = None


class Job:
    """The inputs of one request.

    Args:
        number: number of the job, in order of arrival.
        inputs: what the model takes.
        wanted: what is computed.
        key: owner of the request.
        on_end: called once, in the batcher's thread, with the values (float32 [n, dimensions] or [n]) or an error.
        turn: tokens that other jobs of the key have had.
    """

    __slots__ = ("inputs", "key", "next", "number", "on_end", "turn", "values", "wanted")

    def __init__(
        self,
        number: int,
        inputs: Sequence[Any],
        wanted: Wanted,
        key: str,
        on_end: Callable[[Values | Exception], None],
        turn: int,
    ) -> None:
        self.number, self.inputs, self.wanted, self.key, self.on_end = number, inputs, wanted, key, on_end
        self.turn = turn
        self.next = 0
        self.values: list[Values] = []


class Batcher:
    """Runs a model in a thread of its own for the requests of a server.

    Args:
        model: an embedding or reranking model; no other thread may call its ``vectors`` and ``scores``.
        slots, queue, running_per_key, queued_per_key: limits as for ``Service``: more requests are refused.
        batch_seconds: see ``BATCH_SECONDS``.

    Attributes:
        batches, texts, tokens: numbers since the start.
        most: largest number of requests, running and waiting.

    Raises InputError for limits that let nothing run.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        *,
        slots: int = 8,
        queue: int = 64,
        running_per_key: int | None = None,
        queued_per_key: int | None = None,
        batch_seconds: float = BATCH_SECONDS,
    ) -> None:
        self._model = model
        self._places = Places(slots, queue, running_per_key, queued_per_key)
        self.most = slots + queue
        self._seconds = batch_seconds
        self._rate = 0.0
        self._jobs: dict[int, Job] = {}
        self._turns: dict[str, int] = {}
        self._count = 0
        self._state = "ready"
        self._changed = threading.Condition()
        self.batches = self.texts = self.tokens = 0
        self._thread = threading.Thread(target=self._run, name="ipex-lookahead embedding", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """One of "ready", "draining" and "closed"."""
        return self._state

    @property
    def running(self) -> int:
        """Number of requests with at least one text in a batch."""
        with self._changed:
            return sum(job.next > 0 for job in self._jobs.values())

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a batch."""
        with self._changed:
            return sum(job.next == 0 for job in self._jobs.values())

    def check_room(self, key: str) -> None:
        """Raise QueueFullError or ServiceError if a request of a key cannot be taken now."""
        with self._changed:
            self._check(key)

    def _check(self, key: str) -> None:
        if self._state != "ready":
            raise ServiceError(f"the model is {self._state} and takes no requests")
        self._places.check(key)

    def submit(
        self, inputs: Sequence[Any], wanted: Wanted, key: str, on_end: Callable[[Values | Exception], None]
    ) -> Job:
        """Queue the inputs of a request, at least one. Raises as :meth:`check_room`."""
        with self._changed:
            self._check(key)
            self._count += 1
            others = [job.turn for job in self._jobs.values() if job.key == key]
            if not others:  # a key that comes back has no advantage from its pause
                active = [self._turns[job.key] for job in self._jobs.values()]
                self._turns[key] = min(active, default=0)
            job = Job(self._count, inputs, wanted, key, on_end, min(others, default=0))
            self._jobs[job.number] = job
            self._places.take(job.number, key)
            self._changed.notify_all()
            return job

    def cancel(self, job: Job) -> None:
        """Drop a job; its waiting inputs are never computed. Safe for a job that has ended."""
        with self._changed:
            self._remove(job)

    def close(self, drain: float) -> None:
        """Refuse new requests, let the others end for ``drain`` seconds, and end the thread. Waits."""
        with self._changed:
            if self._state == "ready":
                self._state = "draining"
            ends = time.monotonic() + drain
            while self._jobs and (left := ends - time.monotonic()) > 0:
                self._changed.wait(left)
            self._state = "closed"
            left_over = list(self._jobs.values())
            for job in left_over:
                self._remove(job)
            self._changed.notify_all()
        for job in left_over:
            job.on_end(ServiceError("the server is shutting down; this request was cut off"))
        self._thread.join()

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (batch := self._next_batch()):
                    if self._state == "closed":
                        return
                    self._changed.wait()
            began = time.perf_counter()
            self._compute(batch)
            self._measure(sum(len(one.ids) for _, one in batch), time.perf_counter() - began)

    def _next_batch(self) -> list[tuple[Job, Any]]:
        """Take the next inputs: each from the job with the fewest tokens so far of the key with the fewest tokens."""
        waiting = [job for job in self._jobs.values() if job.next < len(job.inputs)]
        budget = max(MIN_BATCH_TOKENS, min(MAX_BATCH_TOKENS, int(self._rate * self._seconds)))
        batch: list[tuple[Job, Any]] = []
        while waiting:
            job = min(waiting, key=lambda one: (self._turns[one.key], one.turn, one.number))
            given = job.inputs[job.next]
            if batch and len(given.ids) > budget:
                break
            if not batch:
                waiting = [one for one in waiting if one.wanted == job.wanted]
            batch.append((job, given))
            self._places.begin(job.number)
            budget -= len(given.ids)
            job.next += 1
            job.turn += len(given.ids)
            self._turns[job.key] += len(given.ids)
            if job.next == len(job.inputs):
                waiting.remove(job)
        return batch

    def _compute(self, batch: Sequence[tuple[Job, Any]]) -> None:
        jobs = list({job.number: job for job, _ in batch}.values())
        try:
            values = self._values([one for _, one in batch], jobs[0].wanted)
        except Exception as error:
            if len(jobs) > 1:  # one request's failure is not another's
                for job in jobs:
                    self._compute([pair for pair in batch if pair[0] is job])
                return
            if not isinstance(error, LookaheadError):
                log.exception("a batch failed")
            self._end(jobs[0], error)
            return
        for (job, _), value in zip(batch, values, strict=True):
            job.values.append(value)
        self.batches += 1
        self.texts += len(batch)
        self.tokens += sum(len(one.ids) for _, one in batch)
        for job in jobs:
            if len(job.values) == len(job.inputs):
                self._end(job, np.stack(job.values))

    def _values(self, inputs: list[Any], wanted: Wanted) -> Values:
        model = self._model
        found: Values
        if wanted.scores:
            found = model.scores(inputs)
        else:
            found = model.vectors(inputs, dimensions=wanted.dimensions, normalize=wanted.normalize)
        if not np.isfinite(found).all():
            raise NonFiniteError("the model's output has values that are not finite; its weights may be damaged")
        return found

    def _measure(self, tokens: int, seconds: float) -> None:
        rate = tokens / max(seconds, 1e-6)
        self._rate = rate if self._rate == 0 else self._rate + _FOLLOW * (rate - self._rate)

    def _end(self, job: Job, result: Values | Exception) -> None:
        with self._changed:
            known = job.number in self._jobs
            self._remove(job)
        if known:
            job.on_end(result)

    def _remove(self, job: Job) -> None:
        if self._jobs.pop(job.number, None) is None:
            return
        self._places.leave(job.number)
        if not any(one.key == job.key for one in self._jobs.values()):
            self._turns.pop(job.key, None)
        self._changed.notify_all()
