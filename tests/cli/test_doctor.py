"""``doctor`` from the command line: the report as text and as JSON, and exit codes."""

from __future__ import annotations

import json
import re

import pytest
import torch

from ipex_lookahead.bench import examine
from ipex_lookahead.bench.doctor import write_report
from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import SaveError


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(examine, "KERNEL_SHAPE", (64, 64))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TINY = ["doctor", "--tiny", "--threads", "1", "--answers", "1", "-n", "8"]


def test_a_report_to_paste(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert run(TINY) == 0
    said = capsys.readouterr().out
    assert said.startswith("### ipex-lookahead doctor")
    assert re.search(r"\| native +\| sym_int4 +\| passed +\|", said)
    assert "| torch, deterministic |" in said
    assert re.search(r"Kernels of \w+ compared with scalar ones: the same bytes in \d\d formats\.", said)
    assert "Everything works." in said


def test_a_narrow_terminal_gets_lists_and_no_value_is_lost(capsys, monkeypatch):
    said = {}
    for columns in ("200", "50"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run(TINY) == 0
        said[columns] = capsys.readouterr().out
    assert "|" not in said["50"]
    assert "- native; format: sym_int4; self-test: passed;" in " ".join(said["50"].split())
    assert "equal: 1/1" in " ".join(said["50"].split())
    wide = said["200"].split("\n\n")
    assert len(wide) == len(said["50"].split("\n\n"))


def test_json_is_the_last_line_and_the_report_goes_to_standard_error(capsys):
    assert run([*TINY, "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out)["healthy"] is True
    assert "### ipex-lookahead doctor" in streams.err


def test_something_wrong_is_exit_code_one_and_a_sentence(capsys, monkeypatch):
    monkeypatch.setattr(examine, "run_engine", lambda *_: (_ for _ in ()).throw(RuntimeError("it broke")))
    assert run(TINY) == 1
    said = capsys.readouterr().out
    assert "**Problem**: native: it broke" in said
    assert "Everything works." not in said


def test_the_report_is_a_file_of_its_own(tmp_path):
    report = {"healthy": True}
    file = write_report(tmp_path, ["### a report", "a line"], report)
    assert file.parent == tmp_path
    assert file.read_text("utf-8").startswith("### a report\na line\n\n<details>")
    assert '"healthy": true' in file.read_text("utf-8")
    with pytest.raises(SaveError, match="could not be written") as caught:
        write_report(tmp_path / "not there", [], report)
    assert "--report" in caught.value.hint
