"""Perplexity and KL divergence against values worked out by hand; the engine against transformers on a tiny model."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_lookahead.bench import perplexity, quality
from ipex_lookahead.bench.perplexity import Distributions, score
from ipex_lookahead.bench.quality import Candidate
from ipex_lookahead.errors import InputError
from tests.support.tiny import write_tiny_llama


def bar(steps: int, title: str) -> Any:
    return nullcontext(lambda: None)


def test_uniform_logits_have_the_vocabularys_size_as_perplexity() -> None:
    got = score(lambda ids: iter([np.zeros((len(ids), 50), np.float32)]), range(40), window=16)
    assert got.perplexity == pytest.approx(50)
    assert (got.kl, got.top1) == (0, 1)


def test_the_likelihoods_are_those_of_the_next_tokens() -> None:
    """Window of 4: token t + 1 gets logit t + 1, the others 0; the first token of a window is not counted."""

    def logits(ids: np.ndarray) -> object:
        rows = np.zeros((len(ids), 10), np.float32)
        for at in range(len(ids) - 1):
            rows[at, ids[at + 1]] = at + 1
        yield rows[:2]
        yield rows[2:]

    losses = [math.log(math.exp(k) + 9) - k for k in (1, 2, 3)]
    got = score(logits, [3, 1, 4, 1, 5, 9, 2, 6], window=4)
    assert got.perplexity == pytest.approx(math.exp(sum(losses) / 3))


def test_too_few_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="2 tokens"):
        score(lambda ids: iter(()), [1], window=16)


@pytest.mark.parametrize(("tokens", "window"), [(2, 2), (7, 4), (8, 4), (9, 4), (9, 512)])
def test_so_many_tokens_are_predicted(tokens: int, window: int) -> None:
    rows = 0

    def logits(ids: np.ndarray) -> object:
        nonlocal rows
        rows += len(ids) - 1
        yield np.zeros((len(ids), 5), np.float32)

    score(logits, [0] * tokens, window)
    assert rows == perplexity.predicted(tokens, window)


@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.01, 0.3, 2.0]), shift=st.sampled_from([-300, 0]))
def test_divergence_is_that_of_the_definition(seed: int, spread: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    first = (8 * rng.standard_normal((24, 60))).astype(np.float32)
    second = (first + spread * rng.standard_normal(first.shape)).astype(np.float32)

    def of(rows: np.ndarray) -> Any:
        return lambda ids: iter([rows[:10] + np.float32(0), rows[10:]])

    kept = Distributions(23, 60)
    score(of(first), range(24), keep=kept)
    got = score(of(second + np.float32(shift)), range(24), reference=kept)

    logs = [rows[:23] - np.log(np.exp(rows[:23]).sum(1, keepdims=True)) for rows in map(np.float64, (first, second))]
    divergence = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(1).mean()
    assert got.kl == pytest.approx(divergence, rel=1e-2, abs=1e-5)
    assert got.top1 == (first[:23].argmax(1) == (second + np.float32(shift))[:23].argmax(1)).mean()


def test_what_is_compared_with_itself_is_alike() -> None:
    """Although log-probabilities are kept in 16 bits."""
    rows = (8 * np.random.default_rng(5).standard_normal((40, 300))).astype(np.float32)
    kept = Distributions(39, 300)
    score(lambda ids: iter([rows]), range(40), keep=kept)
    got = score(lambda ids: iter([rows]), range(40), reference=kept)
    assert got.kl < 1e-6
    assert got.top1 == 1


def test_a_full_disk_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perplexity.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**6))
    with pytest.raises(InputError, match=r"1 MB free.* 80 MB") as caught:
        Distributions(1000, 40_000)
    assert "TMPDIR" in caught.value.hint


def loader(folder: Path) -> Any:
    """The tiny model in a format, with a tokenizer of letters."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    from ipex_lookahead import AutoModelForCausalLM

    def load(candidate: Candidate) -> Any:
        model = AutoModelForCausalLM.from_pretrained(
            candidate.model, load_in_low_bit=candidate.low_bit, kv_cache=candidate.kv_cache, threads=1, progress=False
        )
        letters = SimpleNamespace(encode=lambda text, add_special_tokens: [ord(letter) % 96 for letter in text])
        return SimpleNamespace(engine=model.engine, tokenizer=letters, config=model.config.to_dict())

    return load


TEXT = "".join(map(chr, np.random.default_rng(0).integers(32, 127, 300)))


def test_a_report_has_a_row_for_each(tmp_path: Path) -> None:
    folder = str(write_tiny_llama(tmp_path / "one", seed=2, hidden=64))
    other = str(write_tiny_llama(tmp_path / "two", seed=3, hidden=64))
    told: list[dict[str, Any]] = []
    names = ["fp32", "sym_int8", "sym_int4", "sym_int2"]
    report = quality.measure(
        [*(Candidate(folder, name) for name in names), Candidate(other, name="another")],
        loader(tmp_path),
        TEXT,
        reference=Candidate(folder, "fp32"),
        tokens=260,
        window=100,
        progress=bar,
        found=told.append,
    )
    rows = report["formats"]
    assert told == rows
    assert [row["name"] for row in rows] == [*names, "another"]
    assert report["tokens"] == 260
    assert rows[0]["perplexity"] == report["reference"]["perplexity"], "the same weights, the same bits"
    assert rows[0]["kl"] < 1e-6
    assert rows[0]["top1"] == 1
    divergences = [row["kl"] for row in rows]
    assert divergences == sorted(divergences), "fewer bits, further away; another model furthest"
    assert [row["bits"] for row in rows[:4]] == [32, 8.5, 4.5, 2.5]
    vectors = 4 * 5 * 64  # five norms
    assert rows[1]["bytes"] - vectors == (rows[0]["bytes"] - vectors) * 8.5 / 32
    assert all(row["decode_tok_s"] > 0 for row in rows)
    assert [row["other_file"] for row in rows] == [False] * 4 + [True]


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    one = str(write_tiny_llama(tmp_path / "one"))
    other = str(write_tiny_llama(tmp_path / "two", vocab=128))
    with pytest.raises(InputError, match="another vocabulary"):
        quality.measure(
            [Candidate(other)], loader(tmp_path), TEXT, reference=Candidate(one), window=100, speed=False, progress=bar
        )


@pytest.mark.parametrize("low_bit", [None, "sym_int4", "q4_k"])
def test_the_engine_has_the_perplexity_of_transformers(tmp_path: Path, low_bit: str | None) -> None:
    folder = str(write_tiny_llama(tmp_path, seed=2, hidden=64))
    report = quality.measure(
        [Candidate(folder, low_bit)],
        loader(tmp_path),
        TEXT,
        reference=Candidate(folder, "fp32"),
        window=100,
        speed=False,
        same_weights=True,
        progress=bar,
    )
    (row,) = report["formats"]
    # Random weights have perplexities in the millions, so it is their logarithms that are compared.
    assert abs(math.log(row["perplexity"]) / math.log(row["same_weights_perplexity"]) - 1) < 0.005
    assert row["decode_tok_s"] is None
