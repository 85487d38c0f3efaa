"""docs/commands.md is what the commands say, and the variables in it work."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "commands_doc.py"))["text"]()
    there = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert made == there, "the options have changed: run python scripts/commands_doc.py"


def test_variables_are_named_after_options():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert "`IPEX_LOOKAHEAD_GENERATE_JSON`" in text
    rows = re.findall(r"^\| `--([\w-]+)`.*`IPEX_LOOKAHEAD_([A-Z_]+)` \|$", text, re.MULTILINE)
    assert len(rows) > 100
    for option, variable in rows:
        assert variable.endswith("_" + option.replace("-", "_").upper())


def test_variables_set_options(scripted, monkeypatch, capsys):
    import json

    from ipex_lookahead.cli.main import run

    scripted("yes")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_JSON", "1")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_LOOKAHEAD", "7")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_STRATEGY", "")
    assert run(["generate", "hi"]) == 0
    assert json.loads(capsys.readouterr().out)["lookahead"] == 7
