"""Replaying recorded answers: the same acceptance as with the model, from a file that anybody may have touched."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ipex_lookahead.bench.recording import Recording, load, record, save
from ipex_lookahead.bench.replay import replay_answers
from ipex_lookahead.bench.replay_head import Price, SimulatedHead
from ipex_lookahead.cli.main import run
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.calibration import Calibration
from ipex_lookahead.controller.cost import CostCurve, EngineCosts
from ipex_lookahead.controller.kept import HeadRates
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import make_proposer
from ipex_lookahead.drafting.draft import Draft, Outcome
from ipex_lookahead.errors import InputError, LookaheadError
from tests.support.generate import generate
from tests.support.numpy_engine import tiny_numpy_engine
from tests.support.proposers import OracleProposer, RandomProposer

PROMPTS = [[1, 5, 3, 5, 3, 7], [4, 8]]
CURVE = Calibration((1, 4, 8), (0.01, 0.012, 0.02))


@pytest.fixture(scope="module")
def model():
    engine = tiny_numpy_engine(
        vocab=24, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=32, tie=False, context=64
    )
    costs = EngineCosts(engine)
    costs._curve = CostCurve(CURVE)
    return SimpleNamespace(
        engine=engine, costs=costs, generate=lambda ids, **options: generate(engine, ids, eos_token_id=None, **options)
    )


@pytest.fixture(scope="module")
def recording(model):
    return record(model, "tiny", PROMPTS, max_new_tokens=40, top=4)


def test_what_is_recorded(model, recording):
    for prompt, answer in zip(PROMPTS, recording.answers, strict=True):
        assert answer.prompt == prompt
        assert answer.output == model.generate(torch.tensor([prompt]), max_new_tokens=40)[0, len(prompt) :].tolist()
        assert [row[0] for row in answer.top] == answer.output, "the likeliest id is the greedy choice"
        assert all(len(set(row)) == 4 for row in answer.top)
    assert recording.calibration == CURVE


def test_replaying_is_what_the_model_would_do(model, recording):
    config = LookaheadConfig("prompt_lookup", 4, adaptive=False)
    found = replay_answers(recording, config, make_proposer)
    real = [GenerationStats() for _ in PROMPTS]
    for prompt, stats in zip(PROMPTS, real, strict=True):
        model.generate(torch.tensor([prompt]), max_new_tokens=40, lookahead=config, stats=stats)
    assert found["steps"] == sum(s.steps for s in real)
    assert found["drafted_by_source"] == {"prompt_lookup": sum(s.drafted for s in real)}
    assert found["accepted_by_source"] == {"prompt_lookup": sum(s.accepted for s in real)}
    assert found["accepted_by_position"][0] == sum(s.accepted_by_position[0] for s in real)
    assert found["tokens"] == 80


def test_predictions_come_from_the_curve(recording):
    texts = iter([[*a.prompt, *a.output] for a in recording.answers])
    config = LookaheadConfig("oracle", 3, adaptive=False)
    found = replay_answers(recording, config, lambda _: OracleProposer(next(texts)))
    assert found["acceptance_rate"] == 1.0
    assert found["mean_acceptance_length"] == pytest.approx(78 / 20)
    assert found["predicted_plain_tok_s"] == pytest.approx(100)
    assert 2.5 < found["predicted_ratio"] <= 78 * 0.01 / (20 * 0.0115)
    wrong = replay_answers(recording, LookaheadConfig("wrong", 7, adaptive=False), lambda _: RandomProposer(24, seed=1))
    assert wrong["predicted_ratio"] < 0.8
    adaptive = replay_answers(recording, LookaheadConfig("wrong", 7), lambda _: RandomProposer(24, seed=1))
    assert adaptive["predicted_ratio"] > wrong["predicted_ratio"]


def test_a_recording_knows_nothing_of_scratch_rows(recording):
    class Window(RandomProposer):
        def propose(self, budget):
            return Draft([1, 2], [-1, -1], scratch=1)

    with pytest.raises(InputError, match="Window needs scratch rows"):
        replay_answers(recording, LookaheadConfig("x", 3), lambda _: Window(24))


def test_round_trip(tmp_path, recording):
    save(tmp_path / "r", recording)
    assert load(tmp_path / "r") == recording


def test_damaged_recordings_are_refused(tmp_path, recording):
    file = tmp_path / "r"
    save(file, recording)
    head, first, _ = (json.loads(line) for line in file.read_text().splitlines())

    def lines(*values):
        return "".join(json.dumps(value) + "\n" for value in values)

    for content in (
        "",
        "{",
        "[]\n",
        lines(head),
        lines(first),
        lines({**head, "recording": 2}, first),
        lines({**head, "costs": None}, first),
        lines(head, []),
        lines(head, {**first, "output": first["output"][:-1]}),
        lines(head, {**first, "prompt": []}),
        lines(head, {**first, "prompt": [1.5]}),
        lines(head, {**first, "output": [2**40] * 40}),
        lines(head, {**first, "top": [[1]] * 39 + [[1, 2]]}),
        lines(head, {**first, "top": 3}),
    ):
        file.write_text(content)
        with pytest.raises(LookaheadError) as caught:
            load(file)
        assert str(file) in str(caught.value)
    with pytest.raises(LookaheadError):
        load(tmp_path / "absent")


def test_the_command(tmp_path, recording, capsys):
    file = tmp_path / "r"
    save(file, Recording("tiny", CURVE, recording.answers))
    arguments = ["bench", "replay", "--replay", str(file), "--strategy", "prompt_lookup", "--budget", "2", "--json"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    (only,) = json.loads(out.splitlines()[-1])["runs"]
    assert (only["strategy"], only["budget"], only["adaptive"], only["tokens"]) == ("prompt_lookup", 2, False, 80)
    assert "prompt_lookup" in err
    assert run([*arguments, "--adaptive"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["runs"][0]["adaptive"] is True
    assert run(["bench", "replay"]) == 2
    assert "either --record FILE or --replay FILE" in capsys.readouterr().err
    assert run([*arguments[:-5], "--strategy", "nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_a_head_is_right_as_often_as_said():
    text = list(np.random.default_rng(1).integers(0, 1000, 4000))
    head = SimulatedHead(text, [0.8, 0.5], Price(0.2, 0.1, 0.05), HeadRates(), seed=3)
    head.begin(text[:10])
    right = [0, 0]
    for at in range(10, 3000):
        draft = head.propose(4)
        assert (len(draft), list(draft.parents), draft.probs) == (2, [-1, 0], [0.8, 0.5])
        first = draft.tokens[0] == text[at]
        right[0] += first
        right[1] += first and draft.tokens[1] == text[at + 1]
        head.observe(Outcome(draft, [], [text[at]]))
    assert right[0] / 2990 == pytest.approx(0.8, abs=0.03)
    assert right[1] / right[0] == pytest.approx(0.5, abs=0.03)
    assert head.seconds == pytest.approx(2990 * 0.3)
    other = SimulatedHead(text, [0.8, 0.5], Price(0.2, 0.1, 0.05), HeadRates(), seed=3)
    other.begin(text[:10])
    assert other.propose_after(text[10:11], 4).probs == [0.5], "behind a copy it is as deep"
    assert other.seconds == pytest.approx(0.2 + 0.05)
    assert other.propose_after([text[10] + 1], 1).tokens[0] != text[11], "behind a wrong copy nothing is right"
    assert len(other.propose_after((), 2, 0.9)) == 1


def test_a_head_pays_by_its_costs(recording):
    def ratio(rate, price, make=None):
        rates = HeadRates()
        found = replay_answers(
            recording,
            LookaheadConfig("auto" if make else "head", 3, adaptive=True),
            make,
            curve=CURVE,
            head=lambda answer: SimulatedHead([*answer.prompt, *answer.output], [rate] * 3, price, rates),
        )
        return found["predicted_ratio"]

    free, dear = Price(0.0, 0.0, 0.0), Price(0.005, 0.005, 0.0)
    assert 2.5 < ratio(1.0, free) <= 78 * 0.01 / (20 * 0.0115)
    steps, forward = 20, 1.15
    assert ratio(1.0, dear) == pytest.approx(78 / (steps * (forward + 1.5)), rel=0.15)
    alone = ratio(0.8, Price(0.001, 0.001, 0.0))
    beside = ratio(0.8, Price(0.001, 0.001, 0.0), lambda _: RandomProposer(24, seed=1))
    assert beside == pytest.approx(alone, rel=0.25), "useless sources beside it cost little"


def test_the_command_replays_a_head_beside_free_sources(tmp_path, recording, capsys):
    save(tmp_path / "r", recording)
    price = {"first": 0.001, "each": 0.0005, "copied": 0.0}
    costs = {
        "rows": CURVE.rows,
        "seconds": CURVE.seconds,
        "heads": {"full": {"words": 24, **price}, "cut": {"words": 8, **price}},
    }
    (tmp_path / "c").write_text(json.dumps({"shape": "tiny", "drafting": {"costs": costs}}))
    replaying = ["bench", "replay", "--replay", str(tmp_path / "r"), "--adaptive", "--budget", "3", "--json"]
    assert run([*replaying, "--acceptance", "0.9,0.8"]) == 2
    assert "--acceptance needs --costs" in capsys.readouterr().err
    assert run([*replaying, "--costs", str(tmp_path / "r"), "--acceptance", "0.9,0.8"]) == 1
    assert "is not a report of bench step with a head" in capsys.readouterr().err
    assert run([*replaying, "--costs", str(tmp_path / "c"), "--acceptance", "0.9,0.8"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    ways = ["auto", "head of 24", "head of 8", "auto + head of 24", "auto + head of 8"]
    assert [one["strategy"] for one in found["runs"]] == ways
    assert found["model"].endswith(" as tiny")
    assert (found["acceptance"], found["seed"]) == ([0.9, 0.8], 0)
    assert "head" not in found["runs"][0]["drafted_by_source"]
    assert found["runs"][3]["drafted_by_source"]["head"] > 0
