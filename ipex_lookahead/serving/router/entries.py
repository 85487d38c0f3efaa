"""A model of the table, and the process that runs it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.runtime.places import Places

State = Literal["unloaded", "downloading", "loading", "ready", "draining", "failed"]
_IDLE_SECONDS = 2.0
"""Seconds without a request after which a model may be unloaded for another one within its residence time."""


class WorkerError(LookaheadError):
    """A worker that could not load its model, or that ended."""


class Worker(Protocol):
    """The process of a loaded model; see ``worker.py``.

    Attributes:
        address: path of its Unix socket.
        secret: value of the header that its requests carry.
        facts: its object in ``/v1/models``, once it is ready.
        progress: (done, total) of loading; (0, 0) if unknown.
    """

    address: str
    secret: str
    facts: dict[str, Any]
    progress: tuple[int, int]

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises WorkerError with the reason if it cannot be loaded."""

    async def ended(self) -> str:
        """Wait for the end of the process and return how it ended, such as ``signal 9``."""

    async def stop(self) -> None:
        """End the process, and wait for its end. Running requests are cut."""


@dataclass(eq=False)
class Run:
    """One process of a model, from its start to its end.

    Attributes:
        phase: of the process.
        leases: number of requests that it serves.
        began, idle_since: when it became ready, and when its last request ended.
        protected_until: end of its residence time.
        over: set when the process has ended.
    """

    phase: Literal["starting", "ready", "stopping"] = "starting"
    worker: Worker | None = None
    leases: int = 0
    began: float = 0.0
    idle_since: float = 0.0
    protected_until: float = 0.0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spared(self) -> float:
        """Time until which it is not drained for another model."""
        return self.protected_until if self.leases else min(self.protected_until, self.idle_since + _IDLE_SECONDS)


@dataclass(eq=False)
class ModelEntry:
    """A model of the table.

    Attributes:
        name: name in the API.
        source: path, short name or hub id.
        memory_bytes: memory of the loaded model; None until the model is downloaded.
        options: options of ``serve`` for its worker.
        aliases: further names in the API.
        places: limits on waiting requests.
        idle_unload: seconds without a request after which it is unloaded; infinite: never.
        keep_alive: the same as a request sets it; None: ``idle_unload``.
        error: why it could not be loaded, or how its worker ended; "" if it is loaded, or was unloaded.
        facts: its object in ``/v1/models`` when it was last loaded.
        adapters: names of its adapters, which requests use as models.
        purpose: what it is for: "text", "embedding" or "reranking"; "" until the model is downloaded.
    """

    name: str
    source: str
    memory_bytes: int | None = None
    options: Sequence[str] = ()
    aliases: Sequence[str] = ()
    places: Places = field(default_factory=lambda: Places(8, 64))
    idle_unload: float = math.inf
    keep_alive: float | None = None
    error: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    adapters: Sequence[str] = ()
    purpose: str = "text"
    run: Run | None = field(default=None, repr=False)
    waiting: deque[Ticket] = field(default_factory=deque, repr=False)
    resolving: asyncio.Task[None] | None = field(default=None, repr=False)
    last_used: float = field(default=0.0, repr=False)
    retry_at: float = field(default=0.0, repr=False)
    failures: int = field(default=0, repr=False)
    draining: bool = field(default=False, repr=False)
    unloading: bool = field(default=False, repr=False)
    removed: bool = field(default=False, repr=False)

    @property
    def state(self) -> State:
        """State of the model: "loading" also while it waits for memory."""
        if self.run is not None:
            if self.run.phase == "starting":
                return "loading"
            return "draining" if self.draining or self.run.phase == "stopping" else "ready"
        if self.resolving is not None:
            return "downloading"
        return "loading" if self.waiting else "failed" if self.error else "unloaded"

    @property
    def requests(self) -> int:
        """Number of requests that its worker serves."""
        return 0 if self.run is None else self.run.leases

    @property
    def progress(self) -> tuple[int, int]:
        """(Completed, total) of loading; (0, 0) if unknown."""
        worker = None if self.run is None else self.run.worker
        return (0, 0) if worker is None else worker.progress

    @property
    def lifetime(self) -> float:
        """Seconds without a request after which it is unloaded."""
        return self.idle_unload if self.keep_alive is None else self.keep_alive

    @property
    def expires_at(self) -> float | None:
        """Time in seconds since 1970 at which it is unloaded if no request comes; None: never, or it is not loaded."""
        if self.run is None or self.run.phase != "ready" or self.lifetime == math.inf:
            return None
        since = time.monotonic() if self.run.leases else self.run.idle_since
        return time.time() + since - time.monotonic() + self.lifetime


@dataclass(eq=False)
class Ticket:
    """A request that waits for its model; ``hold``: whether it needs a lease then."""

    since: float
    granted: asyncio.Future[Run]
    hold: bool
