"""Admission: limits on running and waiting requests, of all keys and of one, and when the next place will be free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import perf_counter

from ipex_lookahead.errors import InputError, QueueFullError

FOLLOW = 0.2
"""Weight of a new request in the running mean of a request's seconds."""
_FIRST_GUESS = 1.0
"""Seconds of a request, before any has ended."""
_MOST_KEYS = 1024
"""Largest number of keys with a running mean of their own."""


class Places:
    """Counts requests from their submission to their end. The caller locks.

    Args:
        slots: largest number of running requests.
        queue: largest number of waiting requests.
        running_per_key, queued_per_key: the same for one key; None = no limit of its own.
        clock: returns seconds.

    Attributes:
        of_key: largest number of requests of one key, running and waiting.

    Raises InputError for limits that let nothing run.
    """

    def __init__(
        self,
        slots: int,
        queue: int,
        running_per_key: int | None = None,
        queued_per_key: int | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if slots < 1 or queue < 0:
            raise InputError(f"slots is {slots} and queue {queue}; slots must be 1 or more, queue 0 or more")
        self.running_per_key = slots if running_per_key is None else min(slots, running_per_key)
        self.queued_per_key = queue if queued_per_key is None else min(queue, queued_per_key)
        if self.running_per_key < 1 or self.queued_per_key < 0:
            raise InputError(
                f"running_per_key is {running_per_key} and queued_per_key {queued_per_key}; they must be"
                " 1 or more and 0 or more"
            )
        self.of_key = self.running_per_key + self.queued_per_key
        self._slots, self._queue = slots, queue
        self._clock = clock
        self._keys: dict[int, str] = {}  # request -> its key
        self._began: dict[int, float] = {}  # started request -> its start
        self._seconds: dict[str, float] = {}  # key -> mean seconds of its requests
        self._mean: float | None = None  # of all keys

    def check(self, key: str, count: int = 1) -> None:
        """Check that ``count`` more requests of a key, which belong together, have places.

        Where other keys have filled the queue, a key may still have its equal part of the places, so that no key is
        locked out: then there are more requests than ``slots`` and ``queue``.

        Raises:
            InputError: a key can never have this number of places.
            QueueFullError: there are not enough places now, of this key or of all.
        """
        limits = f"max-running-per-key is {self.running_per_key}, max-queued-per-key {self.queued_per_key}"
        if count > self.of_key:
            raise InputError(
                f"{count} answers in one request exceed the limit of {self.of_key} running and queued requests per key"
                f" ({limits})",
                hint="request fewer answers at a time",
            )
        owners = Counter(self._keys.values())
        taken, own = len(self._keys), owners[key]
        if own + count > self.of_key:
            raise QueueFullError(
                f"this key has {own} running and queued requests, the limit is {self.of_key} ({limits})",
                retry_after=self._wait(key, own + count - self.of_key, len({*owners, key})),
                hint="try again later",
            )
        places = self._slots + self._queue
        if taken + count > places and own + count > places // len({*owners, key}):
            raise QueueFullError(
                f"the queue is full: {taken} requests are running or queued (slots {self._slots}, queue {self._queue})",
                retry_after=self._wait(None, taken + count - places, 1),
                hint="try again later",
            )

    def take(self, number: int, key: str) -> None:
        """Note a submitted request."""
        self._keys[number] = key

    def begin(self, number: int) -> None:
        """Note that a request runs; any number of times."""
        if number not in self._began:
            self._began[number] = self._clock()

    def leave(self, number: int) -> None:
        """Note that a request has ended."""
        key, began = self._keys.pop(number), self._began.pop(number, None)
        if began is None:
            return
        took = self._clock() - began
        if key not in self._seconds and len(self._seconds) >= _MOST_KEYS:
            self._seconds.clear()
        self._seconds[key] = _followed(self._seconds.get(key), took)
        self._mean = _followed(self._mean, took)

    def _wait(self, key: str | None, ends: int, keys: int) -> float:
        """Return the seconds until ``ends`` requests of a key, or of all keys, have ended; at least one.

        A running request is assumed to take the mean time from now on, whatever its age: nothing more is known of the
        length of its answer. So requests end at the rate of the slots divided by that time.
        """
        now = self._clock()
        ages = [now - began for number, began in self._began.items() if key in (None, self._keys[number])]
        usual = _FIRST_GUESS if self._mean is None else self._mean
        seconds = max(usual if key is None else self._seconds.get(key, usual), sum(ages) / max(1, len(ages)))
        slots = self._slots if key is None else min(self.running_per_key, max(1.0, self._slots / keys))
        return max(1.0, ends * seconds / slots)


def _followed(mean: float | None, new: float) -> float:
    return new if mean is None else mean + FOLLOW * (new - mean)
