"""The two ends of the pipes between a server and its worker, without a process between them."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from ipex_lookahead.errors import InputError
from ipex_lookahead.serving.router import worker
from ipex_lookahead.serving.router.worker import Parent, SocketFolder

PATIENCE = 60.0


@pytest.fixture
def pipes() -> Iterator[tuple[int, BinaryIO, BinaryIO, int]]:
    """(read, to the worker, from the worker, write): the worker's ends are file numbers, the parent's are files."""
    read, to_worker = os.pipe()
    from_worker, write = os.pipe()
    with os.fdopen(to_worker, "wb", 0) as sending, os.fdopen(from_worker, "rb", 0) as receiving:
        yield read, sending, receiving, write


class FakeTimer:
    def __init__(self, given: tuple[Any, ...]) -> None:
        self.given, self.started, self.daemon = given, False, False

    def start(self) -> None:
        self.started = True


def test_a_worker_reports_and_ends_with_its_parent(pipes, tmp_path, monkeypatch):
    read, to_worker, from_worker, write = pipes
    timers: list[FakeTimer] = []
    monkeypatch.setattr(threading, "Timer", lambda *given: timers.append(FakeTimer(given)) or timers[-1])
    folder = SocketFolder()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder.path / "w"))
    hello = {"socket": listening.detach(), "secret": "of this worker"}
    to_worker.write(json.dumps(hello).encode() + b"\n")
    parent = Parent(read, write)
    assert parent.secret == "of this worker"
    for done in (0, 1, 2, 50, 100):
        parent.progress(done, 100, "a tensor")
        parent.progress(done, 100, "the same percent")
    parent.failed(InputError("it is cut", hint="fetch it again"))
    parent.report(ready=True)
    reports = [json.loads(line) for line in from_worker.read(65536).splitlines()]
    assert reports == [{"progress": [n, 100]} for n in (1, 2, 50, 100)] + [
        {"failed": "it is cut; fetch it again"}, {"ready": True},
    ]  # fmt: skip
    ended = threading.Event()
    parent.watch(ended.set)
    assert not ended.is_set()
    to_worker.close()
    assert ended.wait(PATIENCE)
    assert not folder.path.exists()
    assert timers[0].given[1:] == (os._exit, (1,)), "it ends in any case"
    assert timers[0].started
    parent.bound.close()


@pytest.mark.parametrize("line", [b"", b"{}\n", b"no json\n", b'{"socket": -1, "secret": "x"}\n', b'{"secret": "x"'])
def test_a_worker_without_parent_is_refused(pipes, line):
    read, to_worker, _, write = pipes
    to_worker.write(line)
    to_worker.close()
    with pytest.raises(InputError, match="--worker is for processes that a server starts"):
        Parent(read, write)


def test_the_folder_is_private_and_its_path_is_short(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(worker.tempfile, "tempdir", str(long))
    made = SocketFolder()
    assert made.path.parent == Path("/tmp")
    assert made.path.stat().st_mode & 0o777 == 0o700
    (made.path / "left.sock").touch()
    made.close()
    made.close()
    assert not made.path.exists()
    assert list(long.iterdir()) == []
