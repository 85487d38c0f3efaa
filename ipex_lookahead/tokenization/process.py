"""A process of its own for what comes from outside (``worker.py``): started, sent requests, and seen to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError
from ipex_lookahead.system.cgroups import address_space

_ENVIRONMENT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
"""All that the worker gets to see of the environment: what starting Python takes, and the time zone."""
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

_PATIENCE = 20.0
"""Seconds, beside ten times its own limit, until a worker is given up that neither answers nor reaches that limit (a
machine near standstill)."""


def spoken_memory(most: int) -> str:
    """What a worker that is given ``most`` bytes may have, in words: a hard limit that stands already may be lower."""
    _, hard = address_space()
    return f"{most >> 20} MiB" if hard is None or hard >= most else f"the {hard >> 20} MiB that ulimit -v leaves"


class Stopped(Exception):
    """The process is gone, or was given up; says what it was stopped by."""


class Link:
    """A connection to a process that answers messages of JSON, each behind eight bytes of length."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError where the other end is gone."""
        self._socket.sendall(len(message).to_bytes(8, "little") + message)

    def request(self, question: bytes, patience: float) -> dict[str, Any]:
        """The answer to a message.

        Raises:
            TimeoutError: none came within ``patience`` seconds.
            OSError: the other end is gone, or this one was closed.
        """
        deadline = time.monotonic() + patience
        self._socket.settimeout(patience)
        self.send(question)
        size = int.from_bytes(self._read(8, deadline), "little")
        answer: dict[str, Any] = json.loads(self._read(size, deadline))
        return answer

    def _read(self, size: int, deadline: float) -> bytearray:
        found = bytearray()
        while len(found) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(min(1 << 20, size - len(found)))
            if not part:
                raise ConnectionError
            found += part
        return found

    def hand_over(self, other: socket.socket) -> None:
        """Give the process at the other end a socket of ours. Raises OSError where it is gone."""
        socket.send_fds(self._socket, [b"+"], [other.fileno()])

    def hang_up(self) -> None:
        """End the connection, also for a thread that waits for an answer: it gets an OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Worker:
    """A running ``worker.py``. For one thread at a time; ends with this object, and with the process that made it.

    Args:
        purpose: what it is for, for messages.
        instead: what to do where no process can be started.
    """

    def __init__(self, purpose: str, instead: str) -> None:
        """Raises InputError where no process can be started."""
        script = Path(__file__).with_name("worker.py")
        ours, theirs = socket.socketpair()
        self._link = Link(ours)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(script)],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.PIPE,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _ONE_THREAD,
                    start_new_session=True,  # Ctrl-C in a terminal is for the caller alone
                )
        except OSError as error:
            self._link.close()
            raise InputError(f"no Python process for {purpose} could be started: {error}", hint=instead) from None
        self.close = weakref.finalize(self, _end, self._link, self._process, os.getpid())
        """Ends the process; also done when this object goes, and at the interpreter's end."""

    def request(self, question: bytes, seconds: float, limits: str) -> dict[str, Any]:
        """The answer to a message of JSON.

        Args:
            question: the message.
            seconds: processor time that the worker takes for it at most.
            limits: in words, what it is stopped by.

        Raises:
            Stopped: the process ended without an answer, or did not give one in time; it is gone then.
        """
        patience = patience_for(seconds)
        try:
            return self._link.request(question, patience)
        except TimeoutError:
            self.close()
            raise Stopped(f"did not finish within {patience:g} s") from None
        except OSError:  # a broken connection: the process is dead or about to be
            raise Stopped(self._last_words(limits)) from None
        except BaseException:  # a Ctrl-C here would leave half an answer behind
            self.close()
            raise

    def send(self, message: bytes) -> None:
        """Send a message to which there is no answer."""
        with contextlib.suppress(OSError):  # that a worker is dead shows at the next question
            self._link.send(message)

    def branch(self) -> Link:
        """A connection to a process that is forked from this one. Raises OSError where this one is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._link.hand_over(theirs)
        except BaseException:
            ours.close()
            raise
        return Link(ours)

    @property
    def runs(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def _last_words(self, limits: str) -> str:
        """Why the process ended."""
        try:
            _, said = self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            said = b""
        status = self._process.returncode
        self.close()
        if status is not None and status < 0:
            return stopped_by(-status, limits)
        reason = said.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit status {status}"]
        return f"could not be run: {reason[0]}"

    def disown(self) -> None:
        """After a fork, in the child: the process is the parent's, and must not live on through us."""
        self.close()
        self._process.returncode = 0  # else Popen says that it still runs


class KeptWorker(ABC):
    """A worker that is kept, and started anew where it has ended. For any number of threads; they wait for each other.

    A fork starts its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        reference = weakref.ref(self)  # Python keeps what it calls for ever

        def after_fork() -> None:
            if (kept := reference()) is not None:
                kept._forked()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=after_fork)

    @abstractmethod
    def _running(self) -> Worker:
        """The worker, started if there is none. The lock is held."""

    def _request(self, worker: Worker, question: bytes, seconds: float, limits: str) -> dict[str, Any]:
        """See ``Worker.request``. The lock is held."""
        try:
            return worker.request(question, seconds, limits)
        finally:
            if not worker.close.alive:
                self._worker = None

    def _forked(self) -> None:
        """In the child: another thread may have held the lock, and the worker is the parent's."""
        self._lock = threading.Lock()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.disown()


def patience_for(seconds: float) -> float:
    """Seconds until a process is given up that may take so much processor time."""
    return _PATIENCE + 10 * seconds


def stopped_by(number: int, limits: str) -> str:
    """What is said of a process that a signal of that number has ended, which has these limits."""
    stopped = "" if number in (signal.SIGPROF, signal.SIGABRT) else f" (signal {number})"
    return f"was stopped{stopped}: it takes more than {limits}"


def importable() -> list[str]:
    """Where a worker finds its packages: not in the current folder."""
    return [folder for folder in sys.path if os.path.isabs(folder)]


def _end(link: Link, process: subprocess.Popen[bytes], owner: int) -> None:
    link.close()
    if process.stderr is not None:
        process.stderr.close()
    if os.getpid() == owner:
        if hasattr(os, "killpg") and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # and those that it has forked
        process.kill()
        process.wait()
