"""Reading ahead: one thread reads and checks what is next while another packs what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


class _End:
    """There are no more items, or making the next one raised ``error``."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


@contextmanager
def ahead(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[Iterator[T]]:
    """``items`` in their order, made by a thread of their own while those before are in use.

    That thread makes one more as long as less than ``most`` bytes wait; so it may have ``most`` and one item in hand.
    What making one raises is raised where it would be next. Leaving the context stops the thread after its item.

    Args:
        items: made by iterating, in one thread.
        size: bytes of an item.
        most: bytes that may wait before a further item is begun.
    """
    ready: SimpleQueue[T | _End] = SimpleQueue()
    used: SimpleQueue[int | None] = SimpleQueue()  # bytes that wait no longer; None: the thread is to stop

    def work() -> None:
        waiting = 0
        try:
            for item in items:
                waiting += size(item)
                ready.put(item)
                del item
                while waiting >= most or not used.empty():
                    if (taken := used.get()) is None:
                        return
                    waiting -= taken
        except BaseException as error:  # it belongs to the thread that waits for the item
            ready.put(_End(error))
        else:
            ready.put(_End())

    def taken() -> Iterator[T]:
        while not isinstance(item := ready.get(), _End):
            used.put(size(item))
            yield item
            del item
        if item.error is not None:
            raise item.error

    thread = Thread(target=work, name="reading-ahead")
    thread.start()
    try:
        yield taken()
    finally:
        used.put(None)
        thread.join()
