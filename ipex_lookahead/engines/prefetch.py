"""Reading ahead: one thread reads and checks the next items while another packs those before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


@contextmanager
def prefetched(
    make: Callable[[S], T], wanted: Iterable[S], size: Callable[[S], int], *, run: int, most: int
) -> Iterator[Iterator[T]]:
    """Call ``make`` for each of ``wanted``, in order, in a thread that works ahead of the caller.

    Items are made and handed over in runs, since a handover costs more than a small item. The next run starts while
    all runs that are in progress or wait have at most ``most`` bytes; one is always in progress. An exception of
    ``make`` is raised where the caller takes the item's run. Leaving the context waits for the run in progress.

    Args:
        make: called in that thread only.
        wanted: the arguments of the calls.
        size: returns the bytes of an item.
        run: bytes at which a run ends.
        most: bytes of items that may be in progress or wait.
    """
    runs = deque(_runs(wanted, size, run))
    going: deque[tuple[Future[deque[T]], int]] = deque()
    with ThreadPoolExecutor(1, "reading-ahead") as pool:

        def begin() -> None:
            while runs and (not going or sum(held for _, held in going) + runs[0][1] <= most):
                items, held = runs.popleft()
                going.append((pool.submit(_made, make, items), held))

        def taken() -> Iterator[T]:
            while going:
                made = going.popleft()[0].result()
                begin()
                while made:
                    yield made.popleft()

        begin()
        try:
            yield taken()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _runs(wanted: Iterable[S], size: Callable[[S], int], least: int) -> Iterator[tuple[list[S], int]]:
    """Yield runs of items with at least ``least`` bytes (the last one may have fewer), and their bytes."""
    items: list[S] = []
    held = 0
    for item in wanted:
        items.append(item)
        held += size(item)
        if held >= least:
            yield items, held
            items, held = [], 0
    if items:
        yield items, held


def _made(make: Callable[[S], T], items: list[S]) -> deque[T]:
    return deque(map(make, items))
