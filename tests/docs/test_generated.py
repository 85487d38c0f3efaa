"""What scripts write into docs is what they would write now."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

import ipex_lookahead
from ipex_lookahead.architectures import encoder_families, model_types
from tests.docs.pages import PAGES, ROOT


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))


@pytest.mark.parametrize("name", ["families", "python", "which_model"])
def test_pages_are_up_to_date(name):
    made = script(f"{name}_doc")["text"]()
    assert made == PAGES[f"docs/{name}.md"], f"the code has changed: run python scripts/{name}_doc.py"


def test_families_with_real_weights_exist():
    real = script("families_doc")["REAL_WEIGHTS"]
    assert {"llama", "gemma3_text"} <= set(real) <= {*model_types(), *encoder_families()}
    for name, model in real.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGES["docs/families.md"], re.MULTILINE)
        assert row.endswith(f"| {model} |")


def test_figures_are_up_to_date():
    figures = script("figures")["FIGURES"]
    for name, draw in figures.items():
        there = (ROOT / "docs" / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert draw().svg() == there, "run python scripts/figures.py"


def test_every_figure_is_shown_and_loads_nothing():
    shown = set(re.findall(r"figures/(\w+)\.svg", "".join(PAGES.values())))
    assert {path.stem for path in (ROOT / "docs" / "figures").iterdir()} == shown
    for path in (ROOT / "docs" / "figures").glob("*.svg"):
        assert not re.search(r"url\((?!#)|https?://(?!www\.w3\.org/)|<script", path.read_text(encoding="utf-8")), (
            path.name
        )


def test_every_public_name_is_described():
    described = {path.rsplit(".", 1)[1] for names in script("python_doc")["CHAPTERS"].values() for path in names}
    assert set(ipex_lookahead.__all__) - {"__version__"} <= described


def test_every_generated_page_says_so():
    for name in ("commands", "families", "python", "which_model"):
        assert re.search(rf"made by `scripts/{name}_doc\.py`", PAGES[f"docs/{name}.md"])
