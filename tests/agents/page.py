"""The settings of docs/coding_agents.md: tests write its files and run its commands, with the server's own address."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coding_agents.md"
ADDRESS = "http://127.0.0.1:8080"
"""The server's address on the page."""
TASK = "In notes.txt, replace beta by gamma."
"""What the page's commands let an agent do."""
_BLOCK = re.compile(
    r"(?:^In `([^`]+)`[^:\n]*:\n\n)?(?:^<!-- [^\n]* -->\n)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Settings:
    """The part of the page about one agent.

    Attributes:
        files: text by path; one that does not begin with ``~/`` is in the agent's working folder.
        commands: its blocks of shell commands, in order.
        text: all of it.
    """

    files: dict[str, str]
    commands: list[str]
    text: str


def settings() -> dict[str, Settings]:
    """Return the settings of each agent by the heading of its part."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        part = part.partition("\n## ")[0]
        heading, _, text = part.partition("\n")
        blocks = _BLOCK.findall(text)
        files = {path: block for path, _, block in blocks if path}
        found[heading] = Settings(files, [block for _, kind, block in blocks if kind == "sh"], text)
    return found
