"""A function that runs only while its caller waits, and ends where it is closed."""

from __future__ import annotations

import threading

import pytest

from ipex_lookahead.system.sliced_call import SlicedCall


def test_slices_alternate_with_the_callers_work():
    log = []

    def work(pause):
        for i in range(3):
            log.append(i)
            pause()
        return "done"

    call = SlicedCall(work, "sliced")
    while not call.advance():
        log.append("caller")
    assert log == [0, "caller", 1, "caller", 2, "caller"]
    assert call.result() == "done"
    assert call.advance()


def test_an_exception_is_the_callers():
    call = SlicedCall(lambda pause: 1 // 0, "sliced")
    assert call.advance()
    with pytest.raises(ZeroDivisionError):
        call.result()


def test_a_closed_call_ends_at_its_pause_and_cleans_up():
    log = []

    def work(pause):
        try:
            pause()
            log.append("not reached")
        except Exception:
            log.append("not an error")
        finally:
            log.append("cleaned up")

    call = SlicedCall(work, "sliced to be closed")
    assert not call.advance()
    call.close()
    call.close()
    assert log == ["cleaned up"]
    assert all(thread.name != "sliced to be closed" for thread in threading.enumerate())
    SlicedCall(work, "never begun").close()
    assert log == ["cleaned up"]
