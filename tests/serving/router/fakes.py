"""Workers without a process, and a clock that tests turn."""

from __future__ import annotations

import asyncio
from typing import Any

from ipex_lookahead.serving.router.entries import ModelEntry, WorkerError
from ipex_lookahead.serving.router.table import ModelTable


class FakeWorker:
    """A worker that loads, fails and ends when the test says so."""

    def __init__(self, name: str, address: str = "") -> None:
        self.name, self.address, self.secret = name, address, "s" * 64
        self.facts: dict[str, Any] = {"max_model_len": 99}
        self.progress = (1, 4)
        self.stopped = 0
        self._loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def load(self) -> None:
        self._loaded.set_result(None)

    def fail(self, reason: str) -> None:
        self._loaded.set_exception(WorkerError(reason))

    def die(self, how: str = "signal 9") -> None:
        self._over.set_result(how)
        if not self._loaded.done():
            self._loaded.set_exception(WorkerError(f"its process ended ({how})"))

    async def ready(self) -> None:
        await self._loaded

    async def ended(self) -> str:
        return await self._over

    async def stop(self) -> None:
        self.stopped += 1
        await asyncio.sleep(0)
        if not self._over.done():
            self.die("exit status 0")


class Fakes:
    """A table with fake workers.

    Args:
        sizes: model -> bytes.
        loads: whether models load at once.
    """

    def __init__(self, sizes: dict[str, int | None], *, loads: bool = True, **options: Any) -> None:
        self.now = 0.0
        self.loads = loads
        self.started: list[FakeWorker] = []
        entries = [ModelEntry(name, f"{name}.gguf", size) for name, size in sizes.items()]
        self.table = ModelTable(entries, start=self._start, clock=lambda: self.now, **options)

    async def _start(self, entry: ModelEntry) -> FakeWorker:
        made = FakeWorker(entry.name)
        self.started.append(made)
        if self.loads:
            made.load()
        return made

    @property
    def names(self) -> list[str]:
        """Models in the order in which they were loaded."""
        return [one.name for one in self.started]

    def states(self) -> dict[str, str]:
        return {entry.name: entry.state for entry in self.table.entries()}

    async def pass_time(self, seconds: float) -> None:
        """Turn the clock, and let the table see it."""
        self.now += seconds
        self.table._plan()
        await settle()


async def settle() -> None:
    """Let all that can happen without a clock happen."""
    for _ in range(50):
        await asyncio.sleep(0)
