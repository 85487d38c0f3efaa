"""A program that forks, again and again, while the core's threads are awake, asleep or in the middle of a step.

``python -m tests.support.forks decoder|linear FOLDER THREADS TIMES``: what a child does then (compute, drop the model,
exit, be a process of multiprocessing) must give the parent's bytes before that has looked ``LOOKS`` times. Prints the
number of children, or what went wrong, and ends with status 1. A program of its own, since ``sys.exit`` in a child of
pytest would be a failed test there, not the end.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ipex_lookahead.engines.native.linear import LinearPool
from ipex_lookahead.engines.weights import random_matrix
from tests.support.native import ids_of, load, run

LOOKS = 30_000
"""How often, a millisecond apart, a parent looks for the end of a child. What a child does takes milliseconds, and a
busy machine may let it wait for seconds; a clock would count the time that both of them stand still, too."""
STATES = ("awake", "asleep", "mid-step")
DEEDS = ("compute", "delete", "exit", "multiprocessing")
ASLEEP_AFTER_SECONDS = 0.01
"""Ten times as long as the core's threads wait awake."""


def decoder(folder: Path, threads: int) -> Callable[[], bytes]:
    """Steps of a decoder."""
    engine = load(folder, "sym_int4", threads)
    tokens = ids_of(engine, 200)
    return lambda: run(engine, engine.new_cache(), tokens).tobytes()


def linear(folder: Path, threads: int) -> Callable[[], bytes]:
    """A linear layer as the torch engine has it."""
    rng = np.random.default_rng(0)
    layer = LinearPool(threads).layer(random_matrix((512, 512), "sym_int4", 32, rng))
    x = rng.standard_normal((100, 512), dtype=np.float32)

    def product() -> bytes:
        out = np.empty((100, 512), np.float32)
        layer.into(x, out)
        return out.tobytes()

    return product


class Forks:
    """Children of one process, and what they did.

    Attributes:
        wrong: a sentence for each child that hung or was wrong.
    """

    def __init__(self, compute: Callable[[], bytes]) -> None:
        self._compute: Callable[[], bytes] | None = compute
        self._expected = compute()
        self.wrong: list[str] = []
        self.children = 0

    def child(self, state: str, deed: str) -> None:
        """Fork in that state; the child does that deed."""
        self.children += 1
        if state == "asleep":
            time.sleep(ASLEEP_AFTER_SECONDS)
        elif state == "awake":
            self._is_right()
        if deed == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=self._compute_or_fail)
            process.start()
            for _ in range(LOOKS):
                process.join(0.001)
                if process.exitcode is not None:
                    break
            status = process.exitcode
            if status is None:
                process.kill()
                process.join()
        else:
            pid = os.fork()
            if pid == 0:
                self._do(deed)
            status = _wait(pid)
        if status != 0:
            said = "hung" if status is None else f"ended with status {status}"
            self.wrong.append(f"{state}, {deed}: the child {said}")

    def _is_right(self) -> bool:
        assert self._compute is not None
        return self._compute() == self._expected

    def _compute_or_fail(self) -> None:
        if not self._is_right():
            os._exit(7)

    def _do(self, deed: str) -> None:
        if deed == "exit":
            sys.exit(0)
        if deed == "delete":
            self._compute = None
            gc.collect()
        else:
            self._compute_or_fail()
        os._exit(0)


def _wait(pid: int) -> int | None:
    """The child's status; None where it had to be killed."""
    for _ in range(LOOKS):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def main(subject: str, folder: str, threads: str, times: str) -> int:
    """Every state and deed, ``times`` times."""
    forks = Forks({"decoder": decoder, "linear": linear}[subject](Path(folder), int(threads)))
    for state in STATES:
        stop = threading.Event()
        beside = threading.Thread(target=_compute_until, args=(stop, forks), daemon=True)
        if state == "mid-step":
            beside.start()
        for deed in DEEDS:
            for _ in range(int(times)):
                forks.child(state, deed)
        stop.set()
        if state == "mid-step":
            beside.join()
    print("\n".join(forks.wrong) or f"{forks.children} children")
    return 1 if forks.wrong else 0


def _compute_until(stop: threading.Event, forks: Forks) -> None:
    while not stop.is_set():
        forks._is_right()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
