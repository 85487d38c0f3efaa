"""Places: so many for all, so many for a key, and when one is likely to be free, by a clock of our own."""

from __future__ import annotations

import pytest

from ipex_lookahead.errors import InputError, QueueFullError
from ipex_lookahead.runtime.places import Places


class Desk:
    """Places, a clock, and numbers for those who come."""

    def __init__(self, *limits: int | None) -> None:
        self.now = 0.0
        self.places = Places(*limits, clock=lambda: self.now)  # type: ignore[misc, arg-type]
        self.numbers = 0

    def take(self, key: str, count: int = 1) -> list[int]:
        self.places.check(key, count)
        self.numbers += count
        found = list(range(self.numbers - count, self.numbers))
        for number in found:
            self.places.take(number, key)
        return found

    def run(self, number: int, seconds: float) -> None:
        self.places.begin(number)
        self.now += seconds
        self.places.begin(number)  # preempted meanwhile: it began when it began
        self.places.leave(number)

    def refused(self, key: str, count: int = 1) -> QueueFullError:
        with pytest.raises(QueueFullError) as caught:
            self.places.check(key, count)
        return caught.value


def test_one_key_has_what_all_have() -> None:
    desk = Desk(2, 3)
    desk.take("", 5)
    assert "5 running and queued requests" in str(desk.refused(""))
    desk.places.leave(0)
    desk.take("")
    desk.refused("")


def test_a_key_over_its_own_limit_is_told_so_while_others_are_taken() -> None:
    desk = Desk(8, 64, 2, 3)
    desk.take("greedy", 5)
    said = str(desk.refused("greedy"))
    assert "this key has 5 running and queued requests, the limit is 5" in said
    assert "max-running-per-key is 2, max-queued-per-key 3" in said
    desk.take("other", 5)
    desk.refused("other")


def test_a_queue_that_others_have_filled_leaves_a_key_its_even_part() -> None:
    desk = Desk(2, 10)
    desk.take("greedy", 12)
    assert "this key has 12" in str(desk.refused("greedy"))
    desk.take("second", 6)
    assert "18 requests are running or queued" in str(desk.refused("second"))
    desk.take("third", 4)
    desk.refused("third")
    for number in range(12):
        desk.places.leave(number)
    desk.take("third", 2)
    assert "slots 2, queue 10" in str(desk.refused("third"))


def test_what_never_fits_is_a_fault_of_the_request() -> None:
    desk = Desk(8, 64, 2, 3)
    with pytest.raises(InputError, match="6 answers in one request exceed the limit of 5 running and queued requests"):
        desk.places.check("any", 6)
    desk.places.check("any", 5)


@pytest.mark.parametrize("limits", [(0, 1), (1, -1), (4, 4, 0), (4, 4, 2, -1)])
def test_limits_that_let_nothing_run(limits: tuple[int, ...]) -> None:
    with pytest.raises(InputError):
        Places(*limits)


def test_when_to_come_again_is_measured_by_key() -> None:
    desk = Desk(4, 16, 4, 4)
    for _ in range(20):
        desk.run(*desk.take("long"), seconds=40.0)
        desk.run(*desk.take("short"), seconds=2.0)
    for key in ("long", "short"):
        desk.take(key, 8)
    assert desk.refused("long").retry_after == pytest.approx(40.0 / 2), "of two keys each has two slots"
    assert desk.refused("short").retry_after == pytest.approx(1.0)
    assert desk.refused("long", 4).retry_after == pytest.approx(4 * 40.0 / 2), "four must have ended"
    unknown = desk.refused("new", 8).retry_after
    assert 1.0 < unknown < 12 * 40.0 / 4, "of all: what a request of any key takes"


def test_answers_longer_than_any_before_are_taken_into_account() -> None:
    desk = Desk(1, 1)
    desk.run(*desk.take(""), seconds=2.0)
    first, _ = desk.take("", 2)
    desk.places.begin(first)
    assert desk.refused("").retry_after == pytest.approx(2.0)
    desk.now += 600.0
    assert desk.refused("").retry_after == pytest.approx(600.0)


def test_what_never_ran_tells_nothing_of_how_long_one_takes() -> None:
    desk = Desk(1, 1)
    desk.run(*desk.take(""), seconds=50.0)
    desk.places.leave(*desk.take(""))
    desk.take("", 2)
    assert desk.refused("").retry_after == pytest.approx(50.0)
