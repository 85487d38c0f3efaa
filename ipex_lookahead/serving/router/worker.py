"""The process of a loaded model: ``ipex-lookahead serve --worker`` on a Unix socket that only its parent can use.

The two ends are :class:`WorkerProcess` in the parent and :class:`Parent` in the worker. The worker inherits the
listening socket. It reads a line of JSON with the socket's number and a secret from standard input, which stays open as
long as the parent lives: at its end the worker ends too, also after ``kill -9`` of the parent. It reports on standard
output, one JSON object per line: ``{"progress": [done, total]}``, ``{"ready": true}`` or ``{"failed": reason}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.serving.connection import MOST_CONNECTIONS
from ipex_lookahead.serving.router.client import WorkerLostError, fetch
from ipex_lookahead.serving.router.entries import WorkerError

STOP_SECONDS = 60.0
"""Seconds that a worker may take to end after SIGTERM; it writes its prefix cache to disk then."""
_LONGEST_PATH = 100
"""Longest path of a Unix socket in bytes; Linux allows 107."""
_ORPHAN_SECONDS = 10.0
"""Seconds after which a worker without parent ends, whatever it does."""


class SocketFolder:
    """A private folder (mode 0700) for the sockets of workers, removed by :meth:`close`."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="ipex-lookahead-"))
        if len(os.fsencode(self.path)) > _LONGEST_PATH - 24:
            self.path.rmdir()
            self.path = Path(tempfile.mkdtemp(prefix="ipex-lookahead-", dir="/tmp"))

    def close(self) -> None:
        """Remove the folder and the sockets that are left in it."""
        for file in list(self.path.iterdir()) if self.path.is_dir() else []:
            file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


class WorkerProcess:
    """A worker, in its parent; see ``Worker`` in ``table.py``.

    Args:
        process: the process, with pipes.
        address: path of its socket.
        secret: see there.
    """

    def __init__(self, process: asyncio.subprocess.Process, address: str, secret: str) -> None:
        self.address, self.secret = address, secret
        self.facts: dict[str, Any] = {}
        self.progress = (0, 0)
        self._process = process

    @classmethod
    async def start(cls, options: Sequence[str], folder: Path, name: str) -> WorkerProcess:
        """Start a worker.

        Args:
            options: command line of ``serve``.
            folder: where its socket is created.
            name: name of the model in messages.

        Raises WorkerError if the process cannot be started.
        """
        address, secret = str(folder / f"{secrets.token_hex(8)}.sock"), secrets.token_hex(32)
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(address)
            os.chmod(address, 0o600)
            listening.listen(MOST_CONNECTIONS)
            # In a session of its own: Ctrl-C in the terminal reaches the parent alone, which drains first.
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ipex_lookahead", "serve", "--worker", *options,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                pass_fds=[listening.fileno()], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise WorkerError(f"the process for {name} cannot be started: {error.strerror or error}") from None
        finally:
            number = listening.fileno()
            listening.close()  # the worker has it; when the worker ends, connections are refused
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(json.dumps({"socket": number, "secret": secret}).encode() + b"\n")
            await process.stdin.drain()
        return cls(process, address, secret)

    async def ready(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                report = json.loads(line)
                if "failed" in report:
                    raise WorkerError(str(report["failed"]))
                if "progress" in report:
                    done, total = report["progress"]
                    self.progress = int(done), int(total)
                if "ready" in report:
                    break
        else:
            raise WorkerError(f"its process ended ({await self.ended()})")
        with contextlib.suppress(WorkerLostError):  # it has just ended, which ``ended`` reports
            self.facts = (await fetch(self, "/v1/models"))["data"][0]

    async def ended(self) -> str:
        status = await self._process.wait()
        Path(self.address).unlink(missing_ok=True)
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except (asyncio.TimeoutError, TimeoutError):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        Path(self.address).unlink(missing_ok=True)


class Parent:
    """The parent of this process, which is a worker.

    Args:
        read: file number of the pipe from the parent.
        write: file number of the pipe to the parent.

    Attributes:
        bound: the listening socket.
        secret: value of the header ``SECRET`` of each request.

    Raises InputError if there is no such parent.
    """

    def __init__(self, read: int = 0, write: int = 1) -> None:
        self._read = read
        self._percent = 0
        try:
            line = b""
            while not line.endswith(b"\n"):
                part = os.read(read, 1)
                if not part:
                    raise ValueError("the pipe is closed")
                line += part
            hello = json.loads(line)
            self.secret = str(hello["secret"])
            self.bound = socket.socket(fileno=int(hello["socket"]))
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError("--worker is for processes that a server starts", hint="leave it out") from None
        self.bound.setblocking(False)
        self._write = os.dup(write)
        if write == 1:
            os.dup2(2, 1)  # a library may print, which is not a report

    def report(self, **report: Any) -> None:
        """Send a report."""
        with contextlib.suppress(OSError):
            os.write(self._write, json.dumps(report).encode() + b"\n")

    def progress(self, done: int, total: int, name: str) -> None:
        """Report the progress of loading, once per percent; see ``LoadRequest.progress``."""
        percent = 100 * done // total if total else 0
        if percent != self._percent:
            self._percent = percent
            self.report(progress=[done, total])

    def failed(self, error: BaseException) -> None:
        """Report why the model could not be loaded."""
        said = [str(error).strip() or type(error).__name__]
        if isinstance(error, LookaheadError):
            said = [part for part in error.spelled(lambda name, value: f"{name} {value}".strip()) if part]
        self.report(failed="; ".join(said))

    def watch(self, end: Callable[[], None]) -> None:
        """Call ``end`` in a thread when the parent has ended, and end this process soon after."""

        def watching() -> None:
            with contextlib.suppress(OSError):
                while os.read(self._read, 1):
                    pass
            with contextlib.suppress(OSError):
                address = self.bound.getsockname()
                os.unlink(address)
                os.rmdir(os.path.dirname(address))
            timer = threading.Timer(_ORPHAN_SECONDS, os._exit, (1,))
            timer.daemon = True
            timer.start()
            end()

        threading.Thread(target=watching, name="ipex-lookahead parent", daemon=True).start()
