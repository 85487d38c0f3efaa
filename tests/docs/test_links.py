"""Every link to a file or a heading of the project's pages leads there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import LINK, PAGES, ROOT, anchors, prose

PLACES = re.compile(r"`((?:tests|scripts|examples|docs|configs|csrc)/[\w./]+)`")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(PAGES[page])):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        assert place.exists(), f"{page}: {target}"
        followed = Path(os.path.normpath((ROOT / page).parent / file)) if file else place
        assert place == followed, f"{page}: {target} leads through a symbolic link, which GitHub does not follow"
        assert place.is_relative_to(ROOT), f"{page}: {target}"
        if anchor:
            there = PAGES[str(place.relative_to(ROOT))]
            assert anchor in anchors(there), f"{page}: {target}; there are {sorted(anchors(there))}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/dev/LOG.md"])
def test_files_named_are_there(page):
    """The log names what there was; ``x`` and ``NAME`` stand for names."""
    for target in PLACES.findall(PAGES[page]):
        assert (ROOT / target).exists() or re.search(r"x\.|NAME", target), f"{page}: {target}"


def test_every_page_can_be_reached_from_the_readme():
    found, new = set(), {"README.md"}
    while new:
        page = new.pop()
        found.add(page)
        for target in LINK.findall(PAGES[page]):
            place = ((ROOT / page).parent / target.partition("#")[0]).resolve()
            place = place / "README.md" if place.is_dir() else place  # which a folder's page shows
            if place.is_file() and place.is_relative_to(ROOT) and str(place.relative_to(ROOT)) in PAGES:
                new |= {str(place.relative_to(ROOT))} - found
    assert found == set(PAGES)
