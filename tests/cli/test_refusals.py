"""What is refused before anything is loaded, with exit status 2 and a hint; and what is only warned about."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ipex_lookahead.cli import loading
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.names import ISAS, NEEDS_A_COPY, NEEDS_A_HEAD, NEEDS_DRAFT_MODEL, STRATEGIES
from ipex_lookahead.low_bits import LOW_BITS


@pytest.fixture
def refused(monkeypatch, capsys):
    """``refused("generate", ...)`` -> what was said; loading is an error."""

    def load(*arguments, **options):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(loading, "load_text", load)

    def said(*arguments: str) -> list[str]:
        assert run(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        lines = err.splitlines()
        assert lines[0].startswith("error: ")
        assert lines[-1].startswith("hint: ")
        return lines

    return said


def test_names_are_those_of_the_rooms():
    from ipex_lookahead.drafting import HEADS, PROPOSERS, SECOND_MODEL
    from ipex_lookahead.engines.native import core
    from ipex_lookahead.formats import FORMATS

    assert list(LOW_BITS) == list(FORMATS)
    assert set(STRATEGIES) == {*PROPOSERS, *SECOND_MODEL, *HEADS}
    assert set(core.available_isas()) <= set(ISAS)
    assert {NEEDS_A_COPY, NEEDS_DRAFT_MODEL} == set(SECOND_MODEL)
    assert {NEEDS_A_HEAD} == set(HEADS)


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["bench", "decode"], ["bench", "exact"]])
def test_strategies(command, refused):
    assert refused(*command, "--strategy", "sufix")[-1] == "hint: did you mean --strategy suffix?"
    assert "choose one of auto, jacobi" in refused(*command, "--strategy", "xyz")[0]
    assert refused(*command, "--strategy", "draft_model")[-1] == "hint: add --draft-model MODEL"


@pytest.mark.parametrize("command", [["generate", "hi"], ["chat"], ["run", "a"], ["serve"], ["bench", "decode"]])
def test_two_that_draft(command, refused):
    both = ["--drafter", "a", "--draft-model", "b"]
    assert refused(*command, *both)[0] == "error: --drafter and --draft-model exclude each other"
    assert "--draft-vocab" in refused(*command, "--draft-vocab", "-1")[0]


def test_strategies_that_a_command_cannot_use(refused):
    assert "speculative=True" in refused("bench", "decode", "--strategy", "self_speculation")[0]
    assert refused("generate", "hi", "--draft-min-prob", "0.5")[0].endswith("needs a draft model")
    assert "--draft-min-prob is for" in refused("chat", "--draft-min-prob", "0.5", "--strategy", "auto")[0]
    assert "no second model" in refused("bench", "replay", "--replay", __file__, "--strategy", "draft_model")[0]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["generate", "hi"], "--low-bit"),
        (["chat"], "--low-bit"),
        (["quantize", "a", "b"], "--low-bit"),
        (["doctor"], "--low-bit"),
        (["compare-engines"], "--low-bit"),
        (["bench", "decode"], "--low-bit"),
        (["bench", "exact", "--draft-model", "x"], "--draft-low-bit"),
        (["quantize", "a", "b"], "--drafter-low-bit"),
        (["bench", "step"], "--head-low-bit"),
        (["bench", "kernels"], "--low-bit"),
    ],
)
def test_formats(command, option, refused):
    assert refused(*command, option, "sym-int44")[-1] == f"hint: did you mean {option} sym_int4?"
    assert "asym_int4" in refused(*command, option, "int4")[0]


def test_a_name_of_our_own_is_nearer_than_another_one_for_it(refused):
    assert refused("generate", "hi", "--low-bit", "int4")[-1] == "hint: did you mean --low-bit sym_int4?"
    assert refused("generate", "hi", "--low-bit", "woq")[-1] == "hint: did you mean --low-bit woq_int4?"


def test_rules_are_read_before_the_model(refused, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("default: sym_int4\nruls: []\n")
    said = refused("generate", "hi", "--low-bit", str(file))
    assert f"--low-bit: {file}: the file: unknown key 'ruls'" in said[0]
    assert said[-1] == "hint: did you mean rules?"
    assert "cannot be opened" in refused("chat", "--low-bit", str(tmp_path / "absent.yaml"))[0]
    assert refused("generate", "hi", "--low-bit", "gguf_q4_k_m")[-1] == "hint: did you mean --low-bit gguf_q4k_m?"
    assert refused("generate", "hi", "--low-bit", "gguf_iq2_xxs")[-1] == "hint: --low-bit q2_k"


def test_a_mixture_is_no_format_of_random_weights(refused):
    assert "unknown format 'gguf_q4k_m'" in refused("bench", "step", "--low-bit", "gguf_q4k_m")[0]
    assert "unknown format" in refused("bench", "kernels", "--low-bit", "mine.yaml")[0]


def test_ipex_llm_has_formats_of_its_own(scripted):
    scripted()
    assert run(["generate", "hi", "--engine", "ipex-llm", "--low-bit", "nf3"]) == 0


def test_stores(refused, tmp_path):
    file = tmp_path / "file"
    file.touch()
    lookahead = ["generate", "hi", "--lookahead", "auto", "--store"]
    assert refused(*lookahead, str(tmp_path))[0] == f"error: --store: {tmp_path} is not a file"
    assert refused(*lookahead, str(tmp_path / "absent" / "s"))[-1] == f"hint: mkdir -p {tmp_path / 'absent'}"
    assert "no folder" in refused(*lookahead, str(file / "s"))[0]
    assert refused("bench", "decode", "--strategy", "suffix", "--store", str(tmp_path))


def test_a_folder_that_may_not_be_written(refused, tmp_path, monkeypatch):
    def denied(**settings):  # tests may run as root, who may write everywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    assert "permission denied" in refused("generate", "hi", "--lookahead", "auto", "--store", str(tmp_path / "s"))[0]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc here, which takes no files")
def test_a_folder_that_takes_no_files_whatever_its_rights_say(refused):
    assert "cannot be written" in refused("generate", "hi", "--lookahead", "auto", "--store", "/proc/s")[0]


def test_a_file_of_the_users_own_is_no_store(refused, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("my own words")
    said = refused("generate", "hi", "--lookahead", "auto", "--store", str(notes))
    assert "is not a lookahead store" in said[0]
    assert said[1:] == ["hint: choose another file; a new one is created"]
    assert notes.read_text() == "my own words"


def test_texts(refused):
    assert "PROMPT is not valid UTF-8" in refused("generate", "\udcff")[0]
    assert "--system is not valid UTF-8" in refused("chat", "--system", "\udcff")[0]
    assert "--stop is not valid UTF-8" in refused("generate", "hi", "--stop", "\udcff")[0]
    assert (
        "--stop must have at least one character, got an empty text"
        in refused("generate", "hi", "--stop", "a", "--stop", "")[0]
    )


def test_instruction_sets(refused):
    said = refused("bench", "kernels", "--isa", "avx9")
    assert "'avx9' is not available on this machine" in said[0]
    assert "leave --isa out" in said[-1]


def test_stores_that_can_be_written_and_those_without_a_file(scripted, tmp_path):
    scripted()
    for store in (str(tmp_path / "s"), "memory", "memory:x", "none"):
        assert run(["generate", "hi", "--lookahead", "auto", "--store", store]) == 0


@pytest.mark.parametrize("command", ["decode", "exact", "replay"])
def test_prompts_that_are_missing(command, refused, tmp_path):
    more = {"replay": ["--record", "x"]}.get(command, [])
    assert "/no/such.jsonl does not exist" in refused("bench", command, *more, "--prompts", "/no/such.jsonl")[0]
    assert "has no .jsonl file" in refused("bench", command, *more, "--prompts", str(tmp_path))[0]
    assert "does not exist" in refused("compare-engines", "--prompts", "/no/such.jsonl")[0]


def test_files_that_are_missing(refused):
    assert "/no/such" in refused("bench", "quality", "--text", "/no/such")[0]
    assert "/no/such" in refused("bench", "replay", "--replay", "/no/such")[0]
    assert "/no/such" in refused("bench", "replay", "--record", "/no/such/file")[0]


def test_more_threads_than_processors_are_warned_about(scripted, capsys, monkeypatch):
    scripted()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert run(["generate", "hi", "--threads", "1000"]) == 0
    out, err = capsys.readouterr()
    assert out == "a fine day\n"
    assert err.splitlines()[0] == "warning: --threads 1000 is slower than fewer threads: this process may use 2 CPUs"
    monkeypatch.setattr("ipex_lookahead.cli.refusals.cpu_quota", lambda: 2.0)
    assert run(["generate", "hi", "--threads", "2"]) == 0
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setattr("ipex_lookahead.cli.refusals.cpu_quota", lambda: 1.5)
    assert run(["generate", "hi", "--threads", "2"]) == 0
    assert "the container's quota is 1.5 CPUs" in capsys.readouterr().err
