"""A function that runs in slices, between which its caller does other work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class _ClosedError(BaseException):
    """Ends the function of a closed call; a BaseException, so that the function does not handle it as an error."""


class SlicedCall(Generic[Result]):
    """A call of a function with ``pause``, which it calls between slices of its work.

    The function has a thread of its own, but runs only while :meth:`advance` waits for its next slice. So slices and
    the caller's work alternate, and never compete for the cores.

    Args:
        function: called with ``pause``.
        name: of the thread.
    """

    def __init__(self, function: Callable[[Callable[[], None]], Result], name: str) -> None:
        self._function = function
        self._begins, self._ends = threading.Semaphore(0), threading.Semaphore(0)
        self._closed = self._ended = False
        self._found: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def advance(self) -> bool:
        """Run the next slice; return True if the function has ended, also by an exception."""
        if not self._ended:
            if self._thread.ident is None:
                self._thread.start()
            self._begins.release()
            self._ends.acquire()
        return self._ended

    def result(self) -> Result:
        """Return what the function returned, or raise its exception, after it has ended."""
        if self._error is not None:
            raise self._error
        return self._found[0]

    def close(self) -> None:
        """End the function at its present pause. Later calls do nothing."""
        if not self._closed:
            self._closed = True
            if self._thread.ident is not None:
                self.advance()
                self._thread.join()
            self._ended = True

    def _work(self) -> None:
        self._begins.acquire()
        try:
            self._found.append(self._function(self._pause))
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
        self._ended = True
        self._ends.release()

    def _pause(self) -> None:
        self._ends.release()
        self._begins.acquire()
        if self._closed:
            raise _ClosedError
