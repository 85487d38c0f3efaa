"""Every picture that these tests draw holds all that is written in it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

HAIR = 0.03
"""Inches by which the letters of two renderers may differ."""


@pytest.fixture(autouse=True)
def nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that leaves the picture is an error where the picture is saved."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    save = Figure.savefig

    def saved(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        (left, low), (right, high) = figure.get_tightbbox().get_points()
        width, height = figure.get_size_inches()
        inside = min(left, low) > -HAIR and right < width + HAIR and high < height + HAIR
        assert inside, f"of {width} x {height} inches the picture fills ({left}, {low}) to ({right}, {high})"

    monkeypatch.setattr(Figure, "savefig", saved)
