"""Coding agents with the page's settings do a task in a loop of tool calls (make test-clients installs them)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from ipex_lookahead.decoding.prefix_cache import PAGE
from tests.agents import stories
from tests.agents.page import ADDRESS, settings
from tests.agents.playing import Playing, playing
from tests.agents.stories import DONE, Story
from tests.support.scripted_model import Prompt, ScriptedModel

INSTALLED: dict[str, str] = json.loads(os.environ.get("IPEX_LOOKAHEAD_AGENTS", "{}"))
"""The value of PATH for each agent's commands, by the agent's heading on the page."""
KEPT = ("LANG", "TERM", "TMPDIR")
FAILED = re.compile(r"not found|no such|n't exist|not exist|fail|error|cannot|is missing", re.IGNORECASE)
"""How agents report a file that is missing."""
IGNORED = re.compile(r"client_metadata|tools\.\d+ \(web_search\)")
"""What has no effect in their requests."""


@dataclass
class Ran:
    """An agent's run: its exit status and what it printed."""

    status: int
    output: str


def run(agent: str, server: Playing, root: Path, block: int) -> Ran:
    """Run a block of the page's commands in an empty home folder and a working folder with one file."""
    if not INSTALLED:
        pytest.skip("no agent is installed; make test-clients installs them")
    home, work = root / "home", root / "work"
    home.mkdir()
    work.mkdir()
    (work / "notes.txt").write_text("alpha\nbeta\n")
    found = settings()[agent]
    for path, text in found.files.items():
        file = home / path[2:] if path.startswith("~/") else work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace(ADDRESS, server.url))
    command = found.commands[block].replace(ADDRESS, server.url)
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": str(home), "PATH": INSTALLED[agent], "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", timeout=300,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout)


def check(story: Story, server: Playing, ran: Ran, work: Path, least: float = 1.0) -> None:
    """Check what the loop left: files, output, requests without errors, and cached prompts.

    ``least``: the part of the previous prompt, but for its last page, that is cached in each turn after the first.
    """
    report = f"{ran.output[-4000:]}\n{[(one.path, one.status, one.error) for one in server.recorder.exchanges]}"
    assert ran.status == 0, report
    assert DONE in ran.output, report
    assert (work / "notes.txt").read_text() == "alpha\ngamma\n", report
    assert (work / "copy.txt").read_text() == "alpha\ngamma\n", report
    assert not server.refused, report
    for exchange in server.recorder.exchanges:
        assert all(map(IGNORED.fullmatch, filter(None, exchange.ignored.split(", ")))), exchange.ignored
    assert sorted(story.prompts) == [*range(len(story.steps) + story.ends)], report
    failing = next(i for i, step in enumerate(story.steps) if "missing" in str(step))
    result = story.prompts[failing + 1].turns[-1].text
    assert FAILED.search(result), result
    known = dict(server.service.finished)
    prompts = [story.prompts[step].tokens for step in sorted(story.prompts)]
    for before, prompt in pairwise(prompts):
        found = known[prompt].cached_tokens
        assert found > least * len(before) - PAGE, (found, len(before), len(prompt))


@dataclass(frozen=True)
class Case:
    """An agent with what the model answers.

    Attributes:
        agent: its heading on the page.
        steps: see :mod:`.stories`.
        block: the index of its block of commands.
        aside, ends: as in ``Story``.
        least: as in ``check``.
    """

    agent: str
    steps: stories.Write
    block: int = 0
    aside: Callable[[Prompt], bool] = stories.unrelated
    ends: bool = True
    least: float = 1.0


CASES = [
    Case("Codex", stories.codex),
    Case("Claude Code", stories.with_search),
    Case("Claude Code", stories.claude_code, 1),
    Case("opencode", stories.opencode),
    Case("Qwen Code", stories.qwen_code),
    Case("Copilot CLI", stories.copilot),
    Case("Copilot CLI", stories.copilot, 1),
    Case("Copilot CLI", stories.copilot, 2),
    Case("Cline", stories.cline),
    Case("Continue", stories.continue_dev),
    Case("pi", stories.pi),
    Case("aider", stories.aider, aside=stories.never, ends=False, least=0.5),
    Case("mini-swe-agent", stories.mini_swe_agent, ends=False),
    Case("llm", stories.framework),
    Case("Open Interpreter", stories.open_interpreter, aside=stories.never),
    Case("OpenAI Agents SDK", stories.framework),
    Case("LangGraph", stories.framework),
    Case("pydantic-ai", stories.framework),
    Case("smolagents", stories.smolagents, aside=stories.never, ends=False),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.agent}-{case.block}".replace(" ", "-"))
def test_agents_work_in_a_loop_of_calls(case: Case, tmp_path: Path) -> None:
    work = tmp_path / "work"
    story = Story(case.steps(work), case.aside, case.ends)
    with playing(ScriptedModel(story)) as server:
        check(story, server, run(case.agent, server, tmp_path, case.block), work, case.least)
