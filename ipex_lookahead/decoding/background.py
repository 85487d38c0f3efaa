"""A thread for work that the decoding thread does not wait for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("ipex_lookahead")

IDLE_SECONDS = 5.0
"""Interval of the function that runs when there is nothing else to do."""


class Background:
    """A daemon thread that runs functions one after another. It starts with the first one.

    Args:
        name: of the thread.
        idle: called every ``IDLE_SECONDS`` while no function waits.
    """

    def __init__(self, name: str, idle: Callable[[], None] | None = None) -> None:
        self._name, self._idle = name, idle
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._running = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Number of functions that wait."""
        return len(self._jobs)

    def put(self, job: Callable[[], None]) -> None:
        """Append a function; an exception that it raises is logged."""
        with self._changed:
            self._jobs.append(job)
            if self._thread is None or not self._thread.is_alive():  # a forked process has no threads
                self._running = False
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """Run the functions that wait for at most this time, then end the thread; return whether all have run."""
        with self._changed:
            if self._thread is None or not self._thread.is_alive():
                return not self._jobs
            done = self._changed.wait_for(lambda: not self._jobs and not self._running, seconds)
            self._jobs.clear()
            self._thread = None
            self._changed.notify_all()
        return done

    def _work(self) -> None:
        own = threading.current_thread()
        while True:
            with self._changed:
                self._running = False
                self._changed.notify_all()
                pause = None if self._idle is None else IDLE_SECONDS
                self._changed.wait_for(lambda: self._jobs or self._thread is not own, pause)
                if self._thread is not own:
                    return
                job = self._jobs.popleft() if self._jobs else self._idle
                self._running = True
            try:
                if job is not None:
                    job()
            except Exception:
                log.warning("%s: a task has failed", self._name, exc_info=True)
            job = None  # it may refer to a KV cache
