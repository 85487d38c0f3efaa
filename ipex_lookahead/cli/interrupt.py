"""Ctrl-C while a model works: an end at once, or one after the step that runs."""

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
"""So long Python has to raise KeyboardInterrupt itself, where it is not waiting for the core."""


@contextmanager
def ends_at_once(tidy: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Let an interrupt end the process at once, with status 130, until the function that is given back is called.

    Python itself hears of a signal between two pieces of the prompt only, which on a large model are seconds apart. So
    a thread listens where Python's signal handler writes as soon as the signal comes. Nothing may be under way that an
    end in the middle would spoil.

    Args:
        tidy: called before the end, to leave the terminal as it was.
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
def asks_to_stop() -> Iterator[threading.Event]:
    """Let the first interrupt set the event that is given, and only a second one raise KeyboardInterrupt.

    An exception may come between any two lines, and would leave a sequence's keys in a state that nobody vouches for;
    a caller that looks at the event between two steps keeps them.
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
