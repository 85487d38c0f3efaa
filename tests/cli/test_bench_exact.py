"""``bench exact`` as a command: the table, the JSON line, and that a difference is an error."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from ipex_lookahead.cli import loading
from ipex_lookahead.cli.main import run
from ipex_lookahead.config import LookaheadConfig


class Repeater:
    """Answers with the last tokens of the prompt; ``wrong`` says for which settings the second one is another."""

    def __init__(self, tokenizer, low_bit="sym_int8", wrong=lambda options: False):
        self.tokenizer, self.wrong = tokenizer, wrong
        self.asked = []
        self.forgotten = 0
        self.config = SimpleNamespace(to_dict=lambda: {"model_type": "llama", "vocab_size": len(tokenizer)})
        facts = {"engine": "native", "isa": "scalar", "threads": 1, "low_bit": low_bit}
        self.engine = SimpleNamespace(name="native", supports_tree=True, max_context=999, describe=lambda: facts)

    def forget(self):
        self.forgotten += 1

    def generate(self, ids, *, max_new_tokens, **options):
        self.asked.append((len(ids), options))
        new = ids[:, -max_new_tokens:].clone()
        if self.wrong(options):
            new[-1, 1] = (new[-1, 1] + 1) % 7
        return torch.cat([ids, new], 1)


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prompt": "hello"}\n{"id": "b", "prompt": "good day"}\n')
    return ["bench", "exact", "--prompts", str(tmp_path), "-n", "4", "--json"]


@pytest.fixture
def repeater(tokenizer, monkeypatch):
    def make(**options):
        model = Repeater(tokenizer, **options)
        monkeypatch.setattr(loading, "load", lambda name, **settings: (model, tokenizer))
        return model

    return make


def test_everything_that_applies_is_checked(repeater, prompts, capsys):
    model = repeater()
    assert run([*prompts, "--draft-tokens", "1,31", "--seeds", "2"]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    names = ["auto", "jacobi", "prompt_lookup", "recycling", "self_speculation", "suffix"]
    assert list(dict.fromkeys(row["strategy"] for row in report["rows"])) == names
    assert list(report["left_out"]) == ["draft_model", "head"]
    assert len(report["rows"]) == 6 * 2 * 2 * 2
    assert {(row["sampling"], row["equal"], row["total"]) for row in report["rows"]} == {
        ("greedy", 2, 2),
        ("sampled", 4, 4),
    }
    assert "left out: draft_model: no draft model is given" in err
    assert "auto fixed 1 greedy: 2/2" in err
    alone = [options for rows, options in model.asked if options["lookahead"] == 0]
    assert [rows for rows, _ in model.asked[:6]] == [1] * 6
    assert len(alone) == 6, "the plain answers are made once"
    assert {options.get("seed") for options in alone} == {None, 0, 1}
    assert alone[-1]["temperature"] == 0.8
    assert alone[-1]["repetition_penalty"] == 1.1
    assert model.asked[6][1]["lookahead"] == LookaheadConfig("auto", 1, adaptive=False)
    assert model.forgotten == 6 * 2 * 2 * 3, "no answer may be found that was given before"


def test_a_difference_is_an_error(repeater, prompts, capsys):
    repeater(wrong=lambda options: options["lookahead"] and options.get("seed") == 1)
    assert run([*prompts, "--strategy", "suffix", "--mode", "fixed", "--draft-tokens", "3"]) == 1
    out, err = capsys.readouterr()
    rows = json.loads(out.splitlines()[-1])["rows"]
    assert [(row["equal"], row["total"]) for row in rows] == [(2, 2), (5, 6)]
    (difference,) = rows[1]["differences"]
    assert (difference["prompt"], difference["position"], difference["seed"]) == ("b", 1, 1)
    assert "error: suffix fixed 3 sampled: 5/6 equal; sampled with seed 1, prompt b has" in err


def test_what_was_checked_is_drawn(repeater, prompts, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    repeater()
    arguments = ["--strategy", "suffix", "--strategy", "auto", "--draft-tokens", "3", "--plot", str(tmp_path / "a.svg")]
    assert run([*prompts, *arguments]) == 0
    assert "all 32 answers have" in (tmp_path / "a.svg").read_text()


def test_spread_drafts(repeater, tmp_path, capsys):
    """Each batch has another number of drafted tokens, and another one with each seed; adaptive answers come alone."""
    lines = [json.dumps({"id": str(i), "prompt": "hello " * (1 + i)}) for i in range(7)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    model = repeater()
    arguments = ["--strategy", "suffix", "--draft-tokens", "5", "--seeds", "2", "--spread", "--batch", "2", "-n", "4"]
    assert run(["bench", "exact", "--prompts", str(tmp_path), *arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["mode"], row["draft_tokens"]) for row in rows] == 2 * [("fixed", "1-5")] + 2 * [("adaptive", 5)]
    assert [(row["equal"], row["total"]) for row in rows] == 2 * [(7, 7), (14, 14)]
    assert [count for count, o in model.asked if o["lookahead"] == LookaheadConfig("suffix", 5)] == [1] * 3 * 7
    drafted = {}
    for count, options in model.asked:
        if options["lookahead"] and not options["lookahead"].adaptive:
            drafted.setdefault(options.get("seed"), []).append((count, options["lookahead"].num_draft_tokens))
    # Greedy and the first seed have the same numbers, the second seed others.
    assert drafted == {
        None: [(2, 1), (2, 2), (2, 3), (1, 4)],
        0: [(2, 1), (2, 2), (2, 3), (1, 4)],
        1: [(2, 2), (2, 3), (2, 4), (1, 5)],
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--strategy", "no_such"], "unknown strategy 'no_such': choose one of auto"),
        (["--strategy", "self_speculation"], "cannot be checked: self-speculation"),
        (["--draft-tokens", "129"], "at most 128"),
        (["--draft-tokens", "a"], "must be positive integers"),
        (["--no-greedy", "--seeds", "0"], "nothing to check"),
        (["--draft-low-bit", "sym_int4"], "without --draft-model"),
        (["--plot", "picture.jpg"], "must end with .svg or .png"),
    ],
)
def test_refusals(repeater, prompts, capsys, arguments, says):
    repeater(low_bit="sym_int4")
    assert run([*prompts, *arguments]) != 0
    assert says in capsys.readouterr().err
