"""Pictures: every format that belongs there has its name in it, and what cannot be drawn is refused first."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.bench.plots import quality
from ipex_lookahead.bench.plots.drawing import check_plot
from ipex_lookahead.bench.plots.quality import plot_quality
from ipex_lookahead.errors import InputError

NAMES = {"sym_int4": 4.5, "q4_k": 4.5, "nf4": 4.5, "sym_int8": 8.5, "bf16": 16.0}


def report(names: dict[str, float]) -> dict[str, Any]:
    rows = [{"name": name, "bits": bits, "kl": 2**-bits, "other_file": name == "nf4"} for name, bits in names.items()]
    facts = {"text": "t.txt", "tokens": 100, "window": 50, "version": "0", "date": "2026-01-01"}
    return {"model": "m<&>", "reference": {"low_bit": "fp32", "perplexity": 12.3}, "formats": rows, **facts}


def test_names_and_facts_are_in_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    plot_quality(report(NAMES), tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for said in (*NAMES, "other files", "12.30", "100 tokens", "2026-01-01", "m&lt;&amp;&gt;"):
        assert (said in drawn) == (said != "bf16"), said
    plot_quality(report(NAMES), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "a.svg").read_bytes()
    plot_quality(report({"bf16": 16.0, "fp32": 32.0}), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_saved(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(InputError, match=r"a\.svg cannot be saved"):
        plot_quality(report(NAMES), tmp_path / "a.svg")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        check_plot(tmp_path / "a.jpeg")
    with pytest.raises(InputError, match="the folder does not exist"):
        check_plot(tmp_path / "none" / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="matplotlib") as caught:
        check_plot(tmp_path / "a.svg")
    assert "[bench]" in caught.value.hint


def test_names_of_a_crowd_overlap_neither_each_other_nor_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture of docs/formats.md, which has thirteen formats of 4.5 to 5 bits."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.text import Text

    write, seen = quality._name, []

    def measured(figure: Any, axes: Any, points: list[quality.Point]) -> None:
        write(figure, axes, points)
        renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
        seen.extend((text.get_text(), Text.get_window_extent(text, renderer)) for text in axes.texts)
        for name, box in seen:
            for x, y, other, _ in points:
                left, low = axes.transData.transform((x, y))
                inside = box.x0 < left + 2 * scale and left - 2 * scale < box.x1
                assert not (inside and box.y0 < low + 2 * scale and low - 2 * scale < box.y1), (name, other)

    monkeypatch.setattr(quality, "_name", measured)
    results = json.loads((Path(__file__).parents[3] / "docs" / "results" / "formats.json").read_text(encoding="utf-8"))
    plot_quality(results, tmp_path / "a.svg")
    names = [one for name, _ in seen for one in name.split(", ")]
    assert sorted(names) == sorted(row["name"] for row in results["formats"] if row["bits"] < quality.MOST_BITS)
    assert len(names) > 40
    assert "Q2_K, Q3_K_S" in dict(seen), "one label for one place"
    for (name, box), (other, there) in itertools.combinations(seen, 2):
        assert not box.overlaps(there), (name, other)
