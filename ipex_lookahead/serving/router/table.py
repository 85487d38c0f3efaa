"""The models of a server with several: their states, and which of them are loaded.

A model is loaded when a request needs it. If the memory budget has no room for it, the least recently used models are
drained (their running requests finish, new ones wait) and unloaded. Requests for models that are not loaded are served
in the order of their arrival, so that no model waits forever for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.serving.failures import ApiError, from_ours
from ipex_lookahead.serving.router.entries import ModelEntry, Run, Ticket, Worker

log = logging.getLogger("ipex_lookahead")
ALIASES = ("claude-",)
"""Beginnings of model names that mean the first model: coding agents have names that cannot be changed."""
_LATEST = ":latest"
"""Tag that Ollama's clients add to names."""
MAX_RESIDENCE_SECONDS = 60.0
"""Longest time for which a loaded model is not drained for another one."""
_PROVEN_SECONDS = 60.0
"""Seconds after which a worker that ends is restarted at once, whatever happened before."""
_MAX_DELAY_SECONDS = 60.0


class Lease:
    """A loaded model for one request: it stays loaded until :meth:`close`."""

    def __init__(self, table: ModelTable, entry: ModelEntry, run: Run) -> None:
        assert run.worker is not None
        self.entry, self.worker = entry, run.worker
        self._table, self._run = table, run

    def close(self) -> None:
        """End the request. Safe to call twice."""
        table, self._table = self._table, None  # type: ignore[assignment]
        if table is not None:
            table._release(self.entry, self._run)


class ModelTable:
    """The models of a server. All methods run in the event loop.

    Args:
        entries: the models; the first is the default.
        start: starts the worker process of a model.
        make: makes the entry of a new model from its name and source.
        budget: bytes for the memory of all loaded models; None: no limit.
        locate: downloads a model if necessary and returns its ``memory_bytes``; runs in a thread.
        strict: whether names that begin as in ``ALIASES`` are unknown.
        wait_seconds: longest time that a request waits for its model.
        clock: returns seconds.

    Raises InputError for two models with one name, and for a model that needs more memory than the budget.
    """

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        *,
        start: Callable[[ModelEntry], Awaitable[Worker]],
        make: Callable[[str, str], ModelEntry] = ModelEntry,
        budget: int | None = None,
        locate: Callable[[ModelEntry], int] | None = None,
        strict: bool = False,
        wait_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.wait_seconds = wait_seconds
        self.closed = False
        self.loads = self.unloads = 0
        self._entries: dict[str, ModelEntry] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self._start_worker, self._make, self._locate = start, make, locate
        self._strict, self._clock = strict, clock
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for entry in entries:
            self._insert(entry)

    # ---- the list ----------------------------------------------------------------------------------------------------

    def entries(self) -> list[ModelEntry]:
        """Return the models in order; the first is the default."""
        return list(self._entries.values())

    def find(self, name: str | None) -> ModelEntry:
        """Return the model of a name; None, and Anthropic's names, mean the first. Raises ApiError for another name."""
        if not self._entries:
            raise ApiError(404, "this server has no models", param="model", code="model_not_found")
        if name is None or (name.startswith(ALIASES) and not self._strict and self._named(name) is None):
            return next(iter(self._entries.values()))
        found = self._named(name) or self._named(name.removesuffix(_LATEST))
        if found is None or found.removed:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str) -> ApiError:
        names = [own for entry in self.entries() for own in (entry.name, *entry.adapters)]
        said = f"there is no model {name[:200]!r}; this server has {', '.join(names)}"
        return ApiError(404, said, param="model", code="model_not_found")

    def _named(self, name: str) -> ModelEntry | None:
        others = (one for one in self.entries() if name in one.aliases or name in one.adapters)
        return self._entries.get(name) or next(others, None)

    def _insert(self, entry: ModelEntry) -> None:
        for name in (entry.name, *entry.aliases, *entry.adapters):
            if self._named(name) is not None:
                raise InputError(f"there are two models {name!r}", hint="give each model a name of its own")
        if problem := self._too_large(entry):
            raise InputError(problem, hint="increase --models-memory, or leave the model out")
        self._entries[entry.name] = entry

    def check_changeable(self) -> None:
        """Models can be added and removed."""

    async def add(self, name: str, source: str) -> ModelEntry:
        """Add a model, download it if necessary, and return its entry.

        If the caller is cancelled, the download goes on.

        Raises:
            InputError: there is such a name already, or the budget is too small.
            LookaheadError: it could not be downloaded or read.
        """
        entry = await asyncio.to_thread(self._make, name, source)
        self._insert(entry)
        if entry.memory_bytes is None and self._locate is not None:
            await asyncio.shield(self._download(entry))
        if problem := self._too_large(entry) or (entry.memory_bytes is None and entry.error):
            self._entries.pop(name, None)
            raise InputError(problem)
        return entry

    async def remove(self, name: str) -> None:
        """Unload a model and remove it; its files stay. Raises ApiError for an unknown name."""
        entry = self.find(name)
        entry.removed = True
        self._fail(entry, self._unknown(entry.name))
        await self.unload(entry)
        self._entries.pop(entry.name, None)

    def set_keep_alive(self, name: str, seconds: float | None) -> None:
        """Set the time without a request after which a model is unloaded; infinite: never, None: ``idle_unload``."""
        self.find(name).keep_alive = seconds
        self._plan()

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def use(self, name: str | None, key: str = "") -> Lease:
        """Wait for a model and return a lease of it, which the caller closes.

        Raises ApiError: an unknown name (404), a model that the budget can never hold (400), too many waiting requests
        (429), a model that is not loaded in time, or that could not be loaded (503).
        """
        entry = self.find(name)
        run = await self._granted(entry, key, hold=True)
        return Lease(self, entry, run)

    async def ready(self, name: str | None) -> Worker:
        """Load a model if necessary, and return its worker. It may be unloaded at any time. Raises as :meth:`use`."""
        run = await self._granted(self.find(name), "", hold=False)
        assert run.worker is not None
        return run.worker

    async def load(self, name: str) -> None:
        """Load a model. Raises as :meth:`use`."""
        await self.ready(name)

    async def unload(self, name: str | ModelEntry) -> None:
        """Let the running requests of a model finish, and unload it. Raises ApiError for an unknown name."""
        entry = name if isinstance(name, ModelEntry) else self.find(name)
        entry.error, entry.failures = "", 0
        if (run := entry.run) is None:
            return
        entry.unloading = True
        if run.phase == "starting":
            self._stop(entry)
        self._plan()
        await run.over.wait()

    async def _granted(self, entry: ModelEntry, key: str, *, hold: bool) -> Run:
        if self.closed:
            raise ApiError(503, "the server is shutting down", code="draining", headers={"retry-after": "5"})
        now = self._clock()
        if entry.run is None and entry.error and now < entry.retry_at:
            raise self._failure(entry)
        if problem := self._too_large(entry):
            raise ApiError(400, problem, param="model", code="model_too_large")
        number = next(self._numbers)
        try:
            entry.places.check(key)
        except LookaheadError as error:
            raise from_ours(error) from None
        loop = asyncio.get_running_loop()
        ticket = Ticket(now, loop.create_future(), hold)
        timer = loop.call_later(self.wait_seconds, self._expire, entry, ticket)
        entry.places.take(number, key)
        entry.waiting.append(ticket)
        try:
            self._plan()
            run = await ticket.granted
        except BaseException:
            if ticket in entry.waiting:
                entry.waiting.remove(ticket)
            done = ticket.granted.done() and not ticket.granted.cancelled()
            if done and ticket.granted.exception() is None and hold:  # granted and cancelled in the same moment
                self._release(entry, ticket.granted.result())
            self._plan()
            raise
        finally:
            timer.cancel()
            entry.places.leave(number)
        return run

    def _expire(self, entry: ModelEntry, ticket: Ticket) -> None:
        if not ticket.granted.done():
            said = f"the model {entry.name!r} is not loaded after {self.wait_seconds:g} s; send the request again"
            ticket.granted.set_exception(ApiError(503, said, code="loading", headers={"retry-after": "5"}))

    def _release(self, entry: ModelEntry, run: Run) -> None:
        run.leases -= 1
        run.idle_since = entry.last_used = self._clock()
        self._plan()

    # ---- loading and unloading ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Decide what is loaded, drained and unloaded now; called after every change."""
        if self.closed:
            return
        now, wakes = self._clock(), [math.inf]
        for entry in self.entries():
            entry.draining = entry.unloading
        waiting = sorted((one for one in self.entries() if one.waiting and one.run is None), key=_since)
        for entry in waiting:
            if entry.memory_bytes is None and self._locate is not None:
                self._download(entry)
            elif not self._makes_room(entry, now, wakes):
                break  # later ones wait too: they would take the memory that this one waits for
            else:
                self._launch(entry)
        for entry in self.entries():
            run = entry.run
            if run is None or run.phase != "ready":
                continue
            if not entry.draining:
                self._grant(entry, run)
            if run.leases == 0 and not entry.draining:
                wakes.append(run.idle_since + entry.lifetime)
                entry.draining = wakes[-1] <= now
            if run.leases == 0 and entry.draining:
                self._stop(entry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = min((one for one in wakes if one > now), default=math.inf)
        if wake < math.inf:
            self._timer = asyncio.get_running_loop().call_later(wake - now, self._plan)

    def _makes_room(self, entry: ModelEntry, now: float, wakes: list[float]) -> bool:
        """Return True if a model fits in the free memory; drain others for it if not."""
        if self.budget is None:
            return True
        loaded = [one for one in self.entries() if one.run is not None]
        missing = sum(map(_bytes, [*loaded, entry])) - self.budget
        if missing <= 0:
            return True
        for one in loaded:
            if one.unloading or (one.run is not None and one.run.phase == "stopping"):
                missing -= _bytes(one)
        ready = [(one, one.run) for one in loaded if one.run and one.run.phase == "ready" and not one.unloading]
        for one, run in sorted(ready, key=lambda pair: (pair[1].leases > 0, now < pair[1].spared, pair[0].last_used)):
            if missing <= 0:
                break
            missing -= _bytes(one)
            if now < run.spared:
                wakes.append(run.spared)
            else:
                one.draining = True
        return False

    def _download(self, entry: ModelEntry) -> asyncio.Task[None]:
        """Start to download a model and to compute its memory, unless that is under way."""
        if entry.resolving is None:
            entry.resolving = self._task(self._downloaded(entry))
        return entry.resolving

    async def _downloaded(self, entry: ModelEntry) -> None:
        assert self._locate is not None
        try:
            entry.memory_bytes = await asyncio.to_thread(self._locate, entry)
            entry.error = ""
        except Exception as error:
            self._failed(entry, _spelled(error))
        finally:
            entry.resolving = None
        if problem := self._too_large(entry):
            self._fail(entry, ApiError(400, problem, param="model", code="model_too_large"))
        self._plan()

    def _launch(self, entry: ModelEntry) -> None:
        entry.run = run = Run()
        entry.error = ""
        self.loads += 1
        self._task(self._live(entry, run))

    async def _live(self, entry: ModelEntry, run: Run) -> None:
        """One process of a model from its start to its end."""
        began = self._clock()
        try:
            run.worker = await self._start_worker(entry)
            if run.phase == "stopping":
                await run.worker.stop()
            await run.worker.ready()
        except Exception as error:
            if run.worker is not None:
                await run.worker.stop()
            entry.run = None
            if run.phase == "starting":
                log.warning("%s could not be loaded: %s", entry.name, _spelled(error))
                self._failed(entry, _spelled(error))
            self._ended(entry, run)
            return
        if run.phase == "starting":
            now = self._clock()
            run.phase, run.began, run.idle_since, entry.facts = "ready", now, now, run.worker.facts
            run.protected_until = now + min(now - began, MAX_RESIDENCE_SECONDS)
            entry.last_used = now
            self._grant(entry, run)  # before the plan, which may drain it for others
            self._plan()
        how = await run.worker.ended()
        entry.run = None
        if run.phase == "ready":
            log.error("the worker of %s ended (%s)", entry.name, how)
            if self._clock() - run.began >= _PROVEN_SECONDS:
                entry.failures = 0
            self._failed(entry, f"its worker ended ({how})", restart=entry.failures == 0)
        self._ended(entry, run)

    def _ended(self, entry: ModelEntry, run: Run) -> None:
        run.over.set()
        entry.unloading = entry.draining = False
        self._plan()

    def _grant(self, entry: ModelEntry, run: Run) -> None:
        while entry.waiting:
            ticket = entry.waiting.popleft()
            if not ticket.granted.done():
                run.leases += ticket.hold
                entry.last_used = self._clock()
                ticket.granted.set_result(run)

    def _failed(self, entry: ModelEntry, reason: str, *, restart: bool = False) -> None:
        """Note a failure. ``restart``: load again at once; else waiting requests get an error."""
        entry.failures += 1
        delay = 0.0 if restart else min(_MAX_DELAY_SECONDS, 2.0 ** (entry.failures - 1))
        entry.error, entry.retry_at = reason, self._clock() + delay
        if restart and not self.closed:
            self._task(self._again(entry))
        else:
            self._fail(entry, self._failure(entry))

    async def _again(self, entry: ModelEntry) -> None:
        with contextlib.suppress(ApiError):
            await self._granted(entry, "", hold=False)

    def _failure(self, entry: ModelEntry) -> ApiError:
        seconds = max(1, math.ceil(entry.retry_at - self._clock()))
        said = f"the model {entry.name!r} could not be loaded: {entry.error}; it is tried again in {seconds} s"
        return ApiError(503, said, code="model_failed", headers={"retry-after": str(seconds)})

    def _fail(self, entry: ModelEntry, error: ApiError) -> None:
        while entry.waiting:
            ticket = entry.waiting.popleft()
            if not ticket.granted.done():
                ticket.granted.set_exception(error)

    def _stop(self, entry: ModelEntry) -> None:
        run = entry.run
        assert run is not None
        if run.phase != "stopping":
            run.phase = "stopping"
            entry.failures = 0
            self.unloads += 1
            if run.worker is not None:
                self._task(run.worker.stop())

    async def close(self, drain: float) -> None:
        """Refuse new requests, let running ones finish for ``drain`` seconds, and end all workers."""
        self.closed = True
        for entry in self.entries():
            self._fail(entry, ApiError(503, "the server is shutting down", code="draining"))
        ends = self._clock() + drain
        while any(entry.requests for entry in self.entries()) and self._clock() < ends:
            await asyncio.sleep(0.02)
        running = [entry for entry in self.entries() if entry.run is not None]
        ends_of = [entry.run.over for entry in running if entry.run is not None]
        for entry in running:
            self._stop(entry)
        await asyncio.gather(*(one.wait() for one in ends_of))

    def _too_large(self, entry: ModelEntry) -> str:
        if self.budget is None or entry.memory_bytes is None or entry.memory_bytes <= self.budget:
            return ""
        needs, has = (f"{size / 2**30:.1f} GiB" for size in (entry.memory_bytes, self.budget))
        return f"the model {entry.name!r} needs {needs} of memory, and the budget of all models is {has}"

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.loop = asyncio.get_running_loop()
        made: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(made)
        made.add_done_callback(self._tasks.discard)
        return made


def _since(entry: ModelEntry) -> float:
    return entry.waiting[0].since


def _bytes(entry: ModelEntry) -> int:
    return entry.memory_bytes or 0


def _spelled(error: Exception) -> str:
    if isinstance(error, LookaheadError):
        return "; ".join(filter(None, error.spelled(lambda name, value: name)))
    return f"{type(error).__name__}: {error}"
