"""Answers and features on disk: what the model said and thought, whole lines only, and nothing of them in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from ipex_lookahead.engines.base import FINAL_NORM, OutputRequest
from ipex_lookahead.engines.prefill import chain
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.generation.text_model import TextModel
from ipex_lookahead.training.data import AT_ONCE, Store, collect
from ipex_lookahead.training.train import side_by_side

GREEDY = SamplingParams(12, temperature=0.0)
LAYERS = (1, 2, 4)


def filled(folder: Path, model: TextModel, prompts: list[list[int]], tokens: int = 10**6) -> Store:
    store = Store(folder, LAYERS, 64)
    collect(
        model,
        prompts[len(store.answers) :],
        store,
        GREEDY,
        tokens=tokens,
        stopped=lambda: False,
        progress=lambda done: None,
    )
    return store


def test_answers_and_features_are_the_models(tmp_path: Path, model: TextModel) -> None:
    prompts = [[1], [1, 403, 407], [1, 403, 407, 261, 378]]
    store = filled(tmp_path, model, prompts)
    for prompt, answer in zip(prompts, store.answers, strict=True):
        assert answer.tokens.tolist() == [*prompt, *model.generate(prompt, GREEDY)]
        assert answer.prompt == len(prompt)
        wants = OutputRequest(hidden=(FINAL_NORM, *LAYERS))
        tokens = answer.tokens.astype(np.int32)
        found = model.engine.forward(chain(model.engine.new_cache(), tokens, wants)).hidden
        assert found is not None
        rows = np.concatenate([found[layer] for layer in (*LAYERS, FINAL_NORM)], -1).astype(np.float16)
        assert store.rows(answer).tobytes() == rows.tobytes()
    assert store.answered == sum(len(one.tokens) - one.prompt for one in store.answers)


def test_sampled_answers_do_not_depend_on_their_company(tmp_path: Path, model: TextModel) -> None:
    """So that an interrupted run has the answers of one that was not."""
    rules, prompts = SamplingParams(12, 1.0, top_k=0, seed=3), [[1]] * (AT_ONCE + 5)

    def answers(name: str, parts: list[int]) -> list[list[int]]:
        (tmp_path / name).mkdir()
        for part in parts:
            store = Store(tmp_path / name, LAYERS, 64)
            left = prompts[len(store.answers) : part]
            collect(model, left, store, rules, tokens=10**6, stopped=lambda: False, progress=lambda _: None)
        return [one.tokens.tolist() for one in store.answers]

    whole = answers("whole", [len(prompts)])
    assert whole == answers("parts", [3, 9, len(prompts)])
    assert len({tuple(one) for one in whole}) > AT_ONCE  # each has noise of its own


def test_what_was_left_half_way_is_cut_off_and_made_again(tmp_path: Path, model: TextModel) -> None:
    prompts = [[1, number] for number in range(400, 405)]
    filled(tmp_path, model, prompts)
    lines, rows = tmp_path / "answers.jsonl", tmp_path / "features.f16"
    whole = lines.read_bytes(), rows.read_bytes()
    for left_lines, left_rows in (
        (whole[0][:-7], whole[1]),  # a line was being written
        (whole[0], whole[1][:-100]),  # its rows did not reach the disk
        (whole[0] + b"\0" * 40 + b"\n", whole[1]),
        (whole[0] + b"[]\n", whole[1]),
        (b"", b""),
    ):
        lines.write_bytes(left_lines)
        rows.write_bytes(left_rows)
        filled(tmp_path, model, prompts)
        assert (lines.read_bytes(), rows.read_bytes()) == whole


def test_a_batch_is_read_and_nothing_else(tmp_path: Path) -> None:
    store = Store(tmp_path, LAYERS, 256)
    rng = np.random.default_rng(0)
    for _ in range(200):
        store.add(range(100), 10, rng.standard_normal((100, 1024)).astype(np.float16))
    assert (tmp_path / "features.f16").stat().st_size == 200 * 100 * store.row_bytes == 40_960_000
    again = Store(tmp_path, LAYERS, 256)
    tracemalloc.start()
    rows = side_by_side(again, again.answers[50:54])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * (4 * 100 * 1024 * 4)  # four answers in float32, and what they are read through
    assert rows.features.shape == (4, 100, 768)
    assert rows.drafts.sum() == 4 * 90
    assert not rows.drafts[:, -1].any()


def test_a_twentieth_is_held_out(tmp_path: Path) -> None:
    store = Store(tmp_path, LAYERS, 8)
    for number in range(45):
        store.add([number, number], 1, np.zeros((2, 32), np.float16))
    kept, held = store.split()
    assert [one.tokens[0] for one in held] == [19, 39]
    assert len(kept) == 43
