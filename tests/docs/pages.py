"""The pages that people read: README, the files beside it, and docs/*.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "dev").glob("*.md")),
        ROOT / "configs" / "README.md",
        ROOT / "examples" / "README.md",
    )
}
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The names of a page's headings, as they appear in addresses."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@dataclass(frozen=True)
class Command:
    """A command of a ```sh block: where it stands, itself, and what its block is marked as needing ("" for nothing)."""

    page: str
    line: str
    needs: str


def commands() -> Iterator[Command]:
    """Every command of every ```sh block, without its comment; lines that end in a backslash are joined."""
    for page, text in PAGES.items():
        for needs, block in re.findall(
            r"(?:<!-- needs: ([\w ]+) -->\n)?```(?:sh|bash|console|shell)\n(.*?)```", text, re.DOTALL
        ):
            for line in block.replace("\\\n", " ").splitlines():
                if line := re.split(r"(?:^|\s\s+)#", line)[0].strip():
                    yield Command(page, line, needs)
