"""Bars and sentences for people: on a terminal only, and no more than they asked for."""

from __future__ import annotations

import io
import sys

import pytest

from ipex_lookahead.system.terminal import bar, counted, is_terminal, may_draw, print_status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def at(monkeypatch):
    """``at(stream)`` puts it in the place of standard error."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def place(stream):
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return place


@pytest.mark.parametrize("of", ["", "bytes", "tokens"])
def test_a_bar_moves_on_a_terminal_and_goes_away(of, at):
    seen = at(Terminal())
    with bar("fetching", of=of) as draw:
        draw(1, 4)
        draw(2, title="packing")
    shown = seen.getvalue()
    assert "fetching" in shown
    assert "packing" in shown
    assert ("2/4" in shown) == (of != "")
    assert shown.endswith("\x1b[2K"), "the last that is written takes the line away"


@pytest.mark.parametrize(
    ("stream", "shown", "colour"), [(io.StringIO, True, ""), (Terminal, False, ""), (Terminal, True, "1")]
)
def test_nothing_is_drawn_elsewhere(stream, shown, colour, at, monkeypatch):
    seen = at(stream())
    monkeypatch.setenv("NO_COLOR", colour)
    with bar("fetching", 4, shown=shown) as draw:
        draw(1)
    assert seen.getvalue() == ""


def test_sentences_are_for_people(at):
    pipe = at(io.StringIO())
    print_status("measuring")
    assert pipe.getvalue() == ""
    person = at(Terminal())
    print_status("measuring")
    assert person.getvalue() == "measuring\n"


def test_streams_that_are_closed(at):
    at(None)
    print_status("nobody listens")
    assert not may_draw()
    closed = Terminal()
    closed.close()
    assert not is_terminal(closed)


def test_counted():
    assert [counted(n, "prompt") for n in (0, 1, 2, 1000)] == ["0 prompts", "1 prompt", "2 prompts", "1,000 prompts"]
