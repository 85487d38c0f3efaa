"""docs/coding_agents.md has the settings that the loops run, at the versions that are installed for them."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest

from tests.agents.page import ADDRESS, PAGE, TASK, settings
from tests.agents.test_loops import CASES, Case
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def agents() -> Any:
    """The module scripts/agents.py."""
    sys.path.insert(0, str(ROOT / "scripts"))
    yield importlib.import_module("agents")
    sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.agent}-{case.block}")
def test_each_loop_has_its_settings_on_the_page(case: Case) -> None:
    found = settings()[case.agent]
    everything = "".join([*found.files.values(), found.commands[case.block]])
    assert ADDRESS in everything
    assert TASK in everything


def test_the_page_names_the_versions_that_are_installed(agents: Any) -> None:
    rows = dict(re.findall(r"^\| \[([^\]]+)\]\(#[\w-]+\) \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    pins = {name: found[0].rpartition("@")[2] for name, found in agents.NPM.items()}
    pins |= {name: found[0].rpartition("==")[2] for name, found in agents.PYPI.items() if name in rows}
    assert rows == pins
    text = " ".join(PAGE.read_text("utf-8").split())
    for pin in agents.FRAMEWORKS + agents.PYPI["LiteLLM"]:
        name, _, version = pin.partition("==")
        assert f"{name.partition('[')[0]} {version}" in text


def test_each_agent_of_the_page_has_a_loop(agents: Any) -> None:
    assert {*settings()} == {*agents.NPM, *agents.PYPI} == {case.agent for case in CASES} | {"LiteLLM"}
