"""mkdocs.yml, of which ``make docs`` makes the site, names every page."""

from __future__ import annotations

import re

import yaml

from tests.docs.pages import PAGES, ROOT

MADE = {"index.md", "presets.md", "examples.md", "LICENSE.md"}
"""Pages that scripts/site_pages.py makes of files outside docs; README is the first of them."""


def test_every_page_stands_in_the_navigation():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = re.findall(r"[\w./]+\.md", str(settings["nav"]))
    pages = {page.removeprefix("docs/") for page in PAGES if not page.endswith("README.md")}
    assert sorted(named) == sorted(pages | MADE)
