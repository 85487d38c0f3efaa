"""Ctrl-C during generation: end at once, or after the current step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PYTHON_SECONDS = 0.1
"""Time for Python to raise KeyboardInterrupt itself; it does not while it waits for the core."""


@contextmanager
def ends_at_once(tidy: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """End the process with status 130 on an interrupt, until the returned function is called.

    Python handles a signal between two chunks of the prompt only, which may be seconds apart. Therefore a thread reads
    the pipe that Python's signal handler writes to at once. The code in this context must not have side effects that an
    abrupt end would leave incomplete.

    Args:
        tidy: Called before the end to restore the terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    open_ends = [writer]

    def listen() -> None:
        while number := os.read(reader, 1):
            if number[0] != signal.SIGINT:
                continue
            time.sleep(PYTHON_SECONDS)
            if open_ends:
                tidy()
                sys.stderr.write("interrupted\n")
                sys.stderr.flush()
                os._exit(130)
        os.close(reader)

    def over() -> None:
        if open_ends:
            open_ends.clear()
            signal.set_wakeup_fd(before)
            os.close(writer)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield over
    finally:
        over()


@contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """Set the returned event on the first interrupt; only a second one raises KeyboardInterrupt.

    An exception between two arbitrary lines would leave the KV cache in an undefined state. A caller that tests the
    event between two steps keeps a valid cache.
    """
    stop = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield stop
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    signal.signal(signal.SIGINT, first)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
