"""docs/commands.md is what the commands say, and the variables in it work."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from ipex_lookahead.cli.options import Option
from tests.cli.test_main import every_option

ROOT = Path(__file__).resolve().parents[2]


def test_the_document_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "commands_doc.py"))["text"]()
    there = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert made == there, "the options have changed: run python scripts/commands_doc.py"


def test_variables_are_named_after_options():
    """As the document's head says, which does not repeat it for each."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"`IPEX_LOOKAHEAD_BENCH_DECODE_([A-Z_]+)=64` sets\n  `--max-new-tokens`", text)
    options = [option for option in every_option() if isinstance(option, Option)]
    assert len(options) > 100
    variables = {max(one.opts, key=len): one.variable("IPEX_LOOKAHEAD_BENCH_DECODE") for one in options}
    assert variables["--max-new-tokens"] == f"IPEX_LOOKAHEAD_BENCH_DECODE_{example}"
    for option, variable in variables.items():
        assert variable == "IPEX_LOOKAHEAD_BENCH_DECODE_" + option.lstrip("-").replace("-", "_").upper()


def test_variables_set_options(scripted, monkeypatch, capsys):
    import json

    from ipex_lookahead.cli.main import run

    scripted("yes")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_JSON", "1")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_LOOKAHEAD", "7")
    monkeypatch.setenv("IPEX_LOOKAHEAD_GENERATE_STRATEGY", "")
    assert run(["generate", "hi"]) == 0
    assert json.loads(capsys.readouterr().out)["lookahead"] == 7
