"""``ipex-lookahead drafter train``: a head from a command line, what is refused early, and interrupts."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.training.train import Training
from tests.support.chat_tokenizer import SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama

QUICK = ("--tokens", "300", "--answer-tokens", "12", "--steps", "4", "--batch", "2", "--threads", "1")


def test_a_head(tiny, prose, tmp_path, capsys):
    out = tmp_path / "head"
    assert run(["drafter", "train", str(tiny), "--text", str(prose), "--output", str(out), *QUICK]) == 0
    said = capsys.readouterr().out
    assert f"saved {out}: " in said
    assert "taught in 4 steps" in said
    assert "tokens a step: " in said
    assert {file.name for file in out.iterdir()} == {"config.json", "model.safetensors", "training.json"}
    assert not (tmp_path / "head.training").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts its commands in the background lets them ignore the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_gone_on_from(tiny, prose, tmp_path, capsys, monkeypatch):
    taught, steps = Training._teach, []

    def interrupted(self, rows):
        taught(self, rows)
        steps.append(self.step)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Training, "_teach", interrupted)
    words = ["drafter", "train", str(tiny), "--text", str(prose), "--output", str(tmp_path / "head"), *QUICK]
    assert run(words) == 130
    assert "head.training; the same command goes on from there" in capsys.readouterr().err
    assert run(words) == 0
    assert steps == [0, 1, 2, 3]


def test_what_is_refused_before_a_model_is_loaded(tiny, prose, tmp_path, capsys):
    def error(*words: str) -> str:
        assert run(["drafter", "train", "no/such/model", *words]) in (1, 2)
        return capsys.readouterr().err

    out = ("--output", str(tmp_path / "head"))
    assert "--text" in error(*out)
    assert "does not exist" in error("--text", str(tmp_path / "none.txt"), *out)
    assert "--output" in error("--text", str(prose))
    assert "is there already" in error("--text", str(prose), "--output", str(tmp_path))
    assert "no such folder" in error("--text", str(prose), "--output", str(tmp_path / "a" / "b"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xff")
    assert "UTF-8" in error("--text", str(tmp_path / "bytes.txt"), *out)


def test_a_model_of_few_layers(prose, tmp_path, capsys):
    small = write_tiny_llama(tmp_path / "two", vocab=SIZE, layers=2)
    chat_tokenizer().save_pretrained(small)
    assert run(["drafter", "train", str(small), "--text", str(prose), "--output", str(tmp_path / "head"), *QUICK]) == 1
    assert "the model has 2 layers" in capsys.readouterr().err
    assert not (tmp_path / "head.training").exists()


def test_the_group_lists_its_commands(capsys):
    assert run(["drafter"]) in (0, 2)
    assert "train" in capsys.readouterr().out
