"""``benchmarks.scoreboard`` with scripted programs and servers: what counts as the same, and what is reported."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import scoreboard as module
from benchmarks.comparison import Peer, Programs
from benchmarks.peers import OURS
from ipex_lookahead.errors import InputError

FAKE = Path(__file__).parents[1] / "support" / "fake_peer.py"
REQUEST = {"model": "fake", "threads": 1, "lookahead": 3, "low_bit": None, "llama_server": None}
TEXTS = ("abc", "defg", "hi")


def start(name: str, python: str | None) -> Peer:
    return Peer(name, python, FAKE)


def boards(*peers: str, new: int = 6, sampled: int = 2, **models: str) -> tuple[dict[str, Any], dict[str, str]]:
    named = {name.replace("_", "-"): model for name, model in models.items()}
    with Programs(REQUEST, TEXTS, models=named, max_new_tokens=new, start=start) as programs:
        found = [*module.boards(programs, (OURS, *peers), module.cases(programs.prompts, sampled), new)]
        return {entry["program"]: {row["mode"]: row for row in entry["rows"]} for entry in found}, programs.absent


def test_answers_with_and_without_speculation_are_counted() -> None:
    found, absent = boards("transformers", transformers="fake:differs")
    assert absent == {}
    ours, theirs = found[OURS], found["transformers"]
    assert [(row["greedy"], row["sampled"]) for row in ours.values()] == [("3/3", "2/2"), ("3/3", "2/2")]
    assert list(theirs) == ["plain", "lookahead"]
    assert (theirs["plain"]["greedy"], theirs["plain"]["differs_at"]) == ("3/3", [])
    assert (theirs["lookahead"]["greedy"], theirs["lookahead"]["sampled"]) == ("2/3", "1/2")
    assert theirs["lookahead"]["differs_at"] == [5, 5], "of abc, greedy and sampled, the last of six tokens"
    assert theirs["lookahead"]["drafts"] == "made up"


def test_a_program_that_does_not_repeat_itself_is_shown_as_such() -> None:
    found, _ = boards("transformers", transformers="fake:unsteady")
    assert (found["transformers"]["plain"]["greedy"], found["transformers"]["plain"]["sampled"]) == ("0/3", "0/2")


def test_what_was_counted_before_a_failure_stays() -> None:
    found, absent = boards("transformers", "openvino-genai", transformers="fake:dies", openvino_genai="fake:unreadable")
    assert list(found["transformers"]) == ["plain"]
    assert list(found) == [OURS, "transformers"]
    assert absent["transformers"].startswith("lookahead: its process ended")
    assert absent["openvino-genai"] == "ValueError: it reads something else"


def test_sampled_prompts_are_evenly_spaced_and_have_seeds() -> None:
    found = module.cases([[number] for number in range(30)], 10)
    assert [prompt for prompt, sampling in found if sampling is None] == [[number] for number in range(30)]
    assert [prompt[0] for prompt, sampling in found if sampling is not None] == list(range(0, 30, 3))
    assert len({sampling["seed"] for _, sampling in found if sampling is not None}) == 10
    assert module.cases([[1]], 0) == [([1], None)]


def test_where_answers_part() -> None:
    assert module.first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert module.first_difference([1, 2], [1, 2, 3]) == 2


def test_servers_are_new_for_each_load_and_have_a_slot_for_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    texts: list[str] = []

    class Server:
        url = "http://127.0.0.1:1"

        def __init__(self, command: list[str], environment: dict[str, str]) -> None:
            started.append(command)

        def __enter__(self) -> Server:
            return self

        def __exit__(self, *exception: object) -> None:
            pass

    def bench_serve(command: list[str], **pipes: Any) -> Any:
        texts.append(Path(command[command.index("--prompts") + 1]).read_text(encoding="utf-8"))
        assert command[command.index("--url") + 1] == Server.url
        streams = command[command.index("--streams") + 1]
        report = {"identical_to_alone": f"{streams}/9", "tok_s": 5.0, "requests": 9, "answered": 9, "date": "d"}
        return SimpleNamespace(stdout=f"a table\n{json.dumps({**report, 'ttft_ms': {}})}\n", returncode=0)

    monkeypatch.setattr(module.llama_server, "Server", Server)
    monkeypatch.setattr(module.llama_server, "version_of", lambda program: "7")
    monkeypatch.setattr(module.subprocess, "run", bench_serve)
    request = {**REQUEST, "llama_server": "llama-server"}
    found = [*module.loads(request, TEXTS, [8], 16, lambda step: None)]
    assert [(one["program"], one["streams"], one["same"]) for one in found] == [
        (OURS, 1, "1/9"), ("llama-server", 1, "1/9"), (OURS, 8, "8/9"), ("llama-server", 8, "8/9")
    ]  # fmt: skip
    assert started[2][-2:] == ["--slots", "8"]
    assert started[3][started[3].index("-np") + 1] == "8"
    assert "--no-cache-prompt" in started[3]
    assert [json.loads(line)["prompt"] for line in texts[0].splitlines()] == list(TEXTS)
    monkeypatch.setattr(module.subprocess, "run", lambda *a, **more: SimpleNamespace(stdout="", returncode=1))
    with pytest.raises(InputError, match="status 1 and without a report"):
        next(module.loads(REQUEST, TEXTS, [8], 16, lambda step: None))


def test_the_command_reports_the_parts_that_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    monkeypatch.setattr(module, "Programs", partial(Programs, start=start))
    arguments = ["--model", str(model), "--limit", "2", "-n", "4", "--threads", "1", "--json"]
    assert module.run([*arguments, "--part", "texts", "--peer", "transformers"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [entry["program"] for entry in report["programs"]] == ["transformers"]
    assert (report["prompts"], report["sampled"], report["load"], report["max_new_tokens"]) == (2, 2, [], 4)
    assert {"version", "date", "machine"} <= set(report)
    assert module.run([*arguments, "--peer", "ollama"]) == 2
    assert "'ollama' is none of ipex-lookahead, llama-cpp-python" in capsys.readouterr().err
