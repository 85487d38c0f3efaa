"""``benchmarks.comparison`` with scripted programs: who runs, what is counted, and how failures are reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import comparison as module
from benchmarks.comparison import Comparison, Peer, PeerError, compare, named, report
from benchmarks.peers import OURS, PEERS, READS
from ipex_lookahead.errors import InputError

FAKE = Path(__file__).parents[1] / "support" / "fake_peer.py"
REQUEST = {"model": "fake", "threads": 1, "lookahead": 3, "low_bit": None, "llama_server": None}


def run(*peers: str, texts: tuple[str, ...] = ("abc", "defg"), repeat: int = 1, **models: str) -> Comparison:
    def start(name: str, python: str | None) -> Peer:
        return Peer(name, python, FAKE)

    named_models = {name.replace("_", "-"): model for name, model in models.items()}
    return compare(peers, REQUEST, texts, models=named_models, max_new_tokens=6, repeat=repeat, start=start)


def test_every_program_answers_every_prompt_in_every_mode() -> None:
    found = run("llama-cpp-python", "transformers", repeat=2, llama_cpp_python="fake:differs")
    assert found.absent == {}
    assert [(row.peer, row.mode, len(row.answers)) for row in found.rows] == [
        (OURS, "plain", 4), (OURS, "lookahead", 4), (OURS, "auto", 4),
        ("llama-cpp-python", "plain", 4), ("llama-cpp-python", "lookahead", 4),
        ("transformers", "plain", 4), ("transformers", "lookahead", 4),
    ]  # fmt: skip
    entries = {(entry["peer"], entry["mode"]): entry for entry in report(found)}
    plain, ahead = entries["llama-cpp-python", "plain"], entries["llama-cpp-python", "lookahead"]
    assert (plain["decode_tok_s"], ahead["decode_tok_s"], ahead["ratio"]) == (2.5, 5.0, 2.0)
    assert plain["prefill_tok_s"] == pytest.approx((3 + 4) / (0.5 + 0.5))
    assert (plain["identical_to_plain"], ahead["identical_to_plain"]) == ("4/4", "2/4")
    assert ahead["identical_to_ours"] == "2/4"
    assert entries[OURS, "auto"]["ratio"] == pytest.approx(4.0)
    assert (ahead["version"], ahead["weights"], ahead["lookup"]) == ("1.2.3", "none", "made up")


def test_what_cannot_run_is_named_and_the_others_go_on() -> None:
    told = {"llama_cpp_python": "fake:unreadable", "openvino_genai": "fake:uninstalled", "transformers": "fake:dies"}
    found = run("llama-cpp-python", "openvino-genai", "transformers", **told)
    assert [row.peer for row in found.rows] == [OURS] * 3
    assert found.absent["llama-cpp-python"] == "ValueError: it reads something else"
    assert "has no module 'no_such_package'" in found.absent["openvino-genai"]
    assert "--python openvino-genai=PATH" in found.absent["openvino-genai"]
    assert found.absent["transformers"] == "lookahead: its process ended by signal SIGABRT: Illegal thing"


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = module.Peer.ask

    def impatient(self: Peer, request: Any, seconds: float) -> dict[str, Any]:
        patience = 0.1 if self.name != OURS and request.get("call") == "answer" else seconds
        return asked(self, request, patience)

    monkeypatch.setattr(module.Peer, "ask", impatient)
    monkeypatch.setattr(module, "END_SECONDS", 0.1)
    found = run("transformers", transformers="fake:hangs")
    assert found.absent == {"transformers": "plain: it did not answer in time"}


def test_without_ours_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(PeerError, match="it reads something else"):
        run(**{OURS: "fake:unreadable"})


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="cannot be run: No such file"):
        Peer("transformers", str(tmp_path / "python"), FAKE)
    with pytest.raises(InputError, match="'x=y' is not NAME=PATH"):
        named(["x=y"], "--python")
    with pytest.raises(InputError, match="there is no /no/such"):
        named(["ipex-llm=/no/such"], "--python")
    assert named([f"ipex-llm={sys.executable}"], "--python") == {"ipex-llm": sys.executable}


def test_a_foreign_interpreter_is_not_given_our_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    def popen(command: list[str], *, env: dict[str, str], **pipes: Any) -> Any:
        started.append(env)
        raise OSError(2, "No such file")

    monkeypatch.setattr(module.subprocess, "Popen", popen)
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    for python in (None, "/other/python"):
        with pytest.raises(PeerError):
            Peer("transformers", python, FAKE)
    assert [env.get("PYTHONPATH") for env in started] == ["/somewhere", None]


def test_names_are_the_same_everywhere() -> None:
    assert list(PEERS) == [OURS, *READS]
    for file in PEERS.values():
        assert (module.FOLDER / f"{file}.py").is_file()
