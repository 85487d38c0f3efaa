"""mkdocs.yml, of which ``make docs`` makes the site, names every page, and links lead somewhere there too."""

from __future__ import annotations

import importlib.util
import posixpath
import re
from typing import Any

import pytest
import yaml

from tests.docs.pages import LINK, PAGES, ROOT, anchors, prose

MADE = {"index.md", "presets.md", "examples.md", "results.md", "LICENSE.md"}
"""Pages that scripts/site_pages.py makes of files outside docs; README is the first of them."""


@pytest.fixture(scope="module")
def site() -> Any:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_stands_in_the_navigation():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = re.findall(r"[\w./]+\.md", str(settings["nav"]))
    pages = {page.removeprefix("docs/") for page in PAGES if not page.endswith("README.md")}
    pages = {page for page in pages if not page.startswith("dev/")}  # for contributors: no part of the site
    assert sorted(named) == sorted(pages | MADE)


def test_links_lead_to_pages_and_headings_of_the_site(site: Any) -> None:
    texts = {site.site_address(page, ""): text for page, text in PAGES.items() if page.split("/")[0] == "docs"}
    texts |= {other or name: (ROOT / name).read_text(encoding="utf-8") for name, other in site.ROOT_PAGES.items()}
    texts |= {"presets.md": site.presets(), "examples.md": site.examples(), "results.md": site.results()}
    links = [
        (page, posixpath.normpath(posixpath.join(posixpath.dirname(page), file)), anchor)
        for page, text in PAGES.items()
        for file, _, anchor in (link.partition("#") for link in LINK.findall(prose(text)))
        if file and not re.match(r"\w+:", file)
    ]
    assert len(links) > 100
    for page, path, anchor in links:
        to, _, heading = site.site_address(path, anchor and f"#{anchor}").partition("#")
        if to in texts:
            assert not heading or heading in anchors(texts[to]), f"{page}: {path} is {to}#{heading} on the site"
        else:
            assert (ROOT / "docs" / to).is_file(), f"{page}: {path} is {to} on the site"


def test_the_build_fails_where_a_link_leads_nowhere():
    """``strict`` counts warnings as they are logged, so that --quiet would let all of them pass."""
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["strict"] is True
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command == "mkdocs build"
