"""What drafting has brought lately."""

from __future__ import annotations

import pytest

from ipex_lookahead.controller.gain import ALLOWED_LOSS, Gain


def test_at_first_half_a_forward_may_be_lost() -> None:
    gain = Gain()
    assert gain.room == pytest.approx(0.5)
    gain.net.add(-0.6)
    assert gain.room < 0.0


def test_a_loss_is_forgiven_at_the_pace_that_is_allowed() -> None:
    """Where all the room is lost whenever there is some, the loss is the allowed share and the first room."""
    gain, lost = Gain(), 0.0
    for _ in range(2000):
        loss = max(gain.room, 0.0)
        gain.net.add(-loss)
        lost += loss
    assert lost <= 2000 * ALLOWED_LOSS + 0.5


def test_what_was_gained_may_be_lost_for_a_while() -> None:
    gain = Gain()
    for _ in range(50):
        gain.net.add(1.0)
    room = gain.room
    assert room > 10
    for _ in range(500):
        gain.net.add(0.0)
    assert gain.room < room / 10
