"""Worker processes for untrusted input (``worker.py``): start, requests and end."""

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
"""Environment variables of the worker: those for starting Python, and the time zone."""
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

_PATIENCE = 20.0
"""Seconds to wait for a worker in addition to ten times its own limit, for an overloaded machine."""


def spoken_memory(most: int) -> str:
    """Return the memory limit of a worker as text; an existing hard limit may be lower than ``most`` bytes."""
    _, hard = address_space()
    return f"{most >> 20} MiB" if hard is None or hard >= most else f"the {hard >> 20} MiB that ulimit -v leaves"


class Stopped(Exception):
    """The process has ended, or did not answer in time; the message has the reason."""


class Link:
    """A connection to a process that answers JSON messages, each after eight bytes with its length."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError if the process has ended."""
        self._socket.sendall(len(message).to_bytes(8, "little") + message)

    def request(self, question: bytes, patience: float) -> dict[str, Any]:
        """Send a message and return the answer.

        Raises:
            TimeoutError: There was no answer within ``patience`` seconds.
            OSError: The process has ended, or the connection was closed.
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
        """Send a socket to the process. Raises OSError if it has ended."""
        socket.send_fds(self._socket, [b"+"], [other.fileno()])

    def hang_up(self) -> None:
        """Shut the connection down; a thread that waits for an answer raises OSError."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Worker:
    """A running ``worker.py``, for one thread at a time. It ends with this object and with the parent process.

    Args:
        purpose: Its purpose, for messages.
        instead: Hint for the error if no process can be started.
    """

    def __init__(self, purpose: str, instead: str) -> None:
        """Start the process. Raises InputError if that fails."""
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
                    start_new_session=True,  # Ctrl-C in a terminal must not reach it
                )
        except OSError as error:
            self._link.close()
            raise InputError(f"no Python process for {purpose} could be started: {error}", hint=instead) from None
        self.close = weakref.finalize(self, _end, self._link, self._process, os.getpid())
        """Ends the process; also called when this object is deleted, and at exit."""

    def request(self, question: bytes, seconds: float, limits: str) -> dict[str, Any]:
        """Send a JSON message and return the answer.

        Args:
            question: The message.
            seconds: Processor time limit of the request.
            limits: The limits of the worker, for messages.

        Raises:
            Stopped: The process ended without an answer, or did not answer in time and was ended.
        """
        patience = patience_for(seconds)
        try:
            return self._link.request(question, patience)
        except TimeoutError:
            self.close()
            raise Stopped(f"did not finish within {patience:g} s") from None
        except OSError:  # the process has ended or is ending
            raise Stopped(self._last_words(limits)) from None
        except BaseException:  # Ctrl-C here would leave half an answer in the socket
            self.close()
            raise

    def send(self, message: bytes) -> None:
        """Send a message without an answer."""
        with contextlib.suppress(OSError):  # the next request detects an ended worker
            self._link.send(message)

    def branch(self) -> Link:
        """Return a connection to a process forked from this one. Raises OSError if this one has ended."""
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
        """Whether the process is running."""
        return self._process.poll() is None

    def _last_words(self, limits: str) -> str:
        """Return the reason for the end of the process."""
        try:
            _, errors = self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            errors = b""
        status = self._process.returncode
        self.close()
        if status is not None and status < 0:
            return stopped_by(-status, limits)
        reason = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit status {status}"]
        return f"could not be run: {reason[0]}"

    def disown(self) -> None:
        """Close the connection after a fork, in the child: the process belongs to the parent."""
        self.close()
        self._process.returncode = 0  # otherwise Popen warns that it is running


class KeptWorker(ABC):
    """A worker that is reused, and restarted after it has ended. Threads take turns; a fork starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        reference = weakref.ref(self)  # register_at_fork keeps its functions forever

        def after_fork() -> None:
            if (kept := reference()) is not None:
                kept._forked()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=after_fork)

    @abstractmethod
    def _running(self) -> Worker:
        """Return the worker, started if necessary. The caller holds the lock."""

    def _request(self, worker: Worker, question: bytes, seconds: float, limits: str) -> dict[str, Any]:
        """Call ``Worker.request``. The caller holds the lock."""
        try:
            return worker.request(question, seconds, limits)
        finally:
            if not worker.close.alive:
                self._worker = None

    def _forked(self) -> None:
        """Reset the lock and the worker in the child of a fork."""
        self._lock = threading.Lock()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.disown()


def patience_for(seconds: float) -> float:
    """Return the seconds to wait for a process with this limit of processor time."""
    return _PATIENCE + 10 * seconds


def stopped_by(number: int, limits: str) -> str:
    """Return the message for a process with these limits that a signal ended."""
    stopped = "" if number in (signal.SIGPROF, signal.SIGABRT) else f" (signal {number})"
    return f"was stopped{stopped}: it takes more than {limits}"


def importable() -> list[str]:
    """Return the import path of a worker, without the current folder."""
    return [folder for folder in sys.path if os.path.isabs(folder)]


def _end(link: Link, process: subprocess.Popen[bytes], owner: int) -> None:
    link.close()
    if process.stderr is not None:
        process.stderr.close()
    if os.getpid() == owner:
        if hasattr(os, "killpg") and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # also its forks
        process.kill()
        process.wait()
