"""Downloads of a server: one per model, however many requests follow it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from ipex_lookahead.errors import InputError, LookaheadError, QueueFullError
from ipex_lookahead.hub import HubName, Progress, parse_name, resolve_model
from ipex_lookahead.hub.recommended import find_recommended
from ipex_lookahead.vision.fetching import fetch_vision_part_of

log = logging.getLogger("ipex_lookahead")

MOST_AT_ONCE, MOST = 2, 16
"""Maximum number of downloads that run, and that run or wait."""
_PAUSE_SECONDS = 0.1
"""Shortest time between two reports about one file."""


class _Ended(BaseException):
    """Ends a download that no request follows any more; not an error."""


@dataclass(eq=False)
class _Download:
    """A download.

    Attributes:
        followers: a queue for each request that follows it.
        ended: whether it is to end.
        last: (digest, stage, time) of the last report.
    """

    done: asyncio.Future[Path] = field(init=False)
    followers: set[asyncio.Queue[Progress | None]] = field(default_factory=set)
    ended: bool = False
    last: tuple[str, str, float] = ("", "", 0.0)


class Downloads:
    """The running downloads."""

    def __init__(self) -> None:
        self._running: dict[str, _Download] = {}
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)

    def has(self, source: str) -> bool:
        """Return True if a model is being downloaded."""
        return source in self._running

    async def follow(self, source: str) -> AsyncIterator[Progress]:
        """Download a model, or follow its running download, and yield the progress.

        When the last follower leaves, the download ends; a later one resumes it.

        Raises:
            LookaheadError: as ``resolve_model``.
            QueueFullError: too many downloads wait.
        """
        download = self._running.get(source) or self._begin(source)
        queue: asyncio.Queue[Progress | None] = asyncio.Queue()
        download.followers.add(queue)
        try:
            while (progress := await queue.get()) is not None:
                yield progress
            await asyncio.shield(download.done)
        finally:
            download.followers.discard(queue)
            if not download.followers and not download.done.done():
                download.ended = True
                self._running.pop(source, None)

    def _begin(self, source: str) -> _Download:
        if len(self._running) >= MOST:
            raise QueueFullError(f"{MOST} downloads run or wait", retry_after=10.0, hint="wait for one of them")
        download, loop = _Download(), asyncio.get_running_loop()

        def tell(progress: Progress | None) -> None:
            for queue in download.followers:
                queue.put_nowait(progress)

        def observe(progress: Progress) -> None:
            if download.ended:
                raise _Ended
            digest, stage, seconds = download.last
            now = time.monotonic()
            again = (digest, stage) == (progress.digest, progress.stage) and progress.done < progress.total
            if again and now - seconds < _PAUSE_SECONDS:
                return
            download.last = (progress.digest, progress.stage, now)
            loop.call_soon_threadsafe(tell, progress)

        def work() -> None:
            result: Path | None = None
            problem: BaseException | None = None
            try:
                with self._places:
                    if download.ended:
                        raise _Ended
                    result = resolve_model(source, progress=False, observe=observe)
                    try:
                        fetch_vision_part_of(source, result, observe=observe)
                    except LookaheadError as error:  # the model answers texts without it
                        log.warning("%s takes no images: %s", source, error)
            except BaseException as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(end, result, problem)

        def end(result: Path | None, problem: BaseException | None) -> None:
            if problem is None and result is not None:
                download.done.set_result(result)
            else:
                download.done.set_exception(problem or AssertionError("a download without a result"))

        def ended(done: asyncio.Future[Path]) -> None:
            if self._running.get(source) is download:
                del self._running[source]
            if not done.cancelled():
                done.exception()  # the followers raise it
            tell(None)

        download.done = loop.create_future()
        download.done.add_done_callback(ended)
        self._running[source] = download
        # A daemon thread: a download that waits for the network must not delay the end of the server.
        threading.Thread(target=work, name="ipex-lookahead download", daemon=True).start()
        return download


def downloadable(name: str) -> str:
    """Return the name under which a model of the hub is downloaded. Raises InputError for a path or an invalid name."""
    found = parse_name(name)
    if isinstance(found, Path):
        raise InputError(f"{name[:200]!r} is a path; only models of the hub can be downloaded")
    # Clients go on with the name that they wrote: a short one, or Ollama's qwen3.5:4b.
    return str(found) if isinstance(found, HubName) and find_recommended(name) is None else name
