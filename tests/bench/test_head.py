"""What a head would bring: tokens by given rates, costs on random weights of a tiny shape."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_lookahead.bench import head
from ipex_lookahead.bench.head import measure_head, tokens_a_step
from ipex_lookahead.bench.shapes import config_of
from ipex_lookahead.cli.main import run
from ipex_lookahead.errors import InputError

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 40000, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "layer_types": [*["linear_attention"] * 3, "full_attention"]}  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(name: str) -> dict[str, Any]:
        return {**config_of(name), **(TINY if name == "qwen3.5-4b" else {})}

    monkeypatch.setattr(head, "config_of", small)


def test_tokens_follow_from_the_rates() -> None:
    assert tokens_a_step([0.5, 0.5, 0.2]) == [1.5, 1.75, 1.8]
    assert tokens_a_step([1, 1]) == [2, 3]
    assert tokens_a_step([0, 1]) == [1, 1]


def test_each_number_of_tokens_is_a_row(tiny: None) -> None:
    found = measure_head("qwen3.5-4b", [0.8, 0.5], threads=1, repeat=2, context=8)
    assert [(row["drafted"], row["tokens"]) for row in found] == [(1, 1.8), (2, pytest.approx(2.2))]
    for row in found:
        for name in ("cut", "full"):
            speed = row["tokens"] * row["one_row_ms"] / (row["step_ms"] + row[f"{name}_ms"])
            assert row[f"{name}_speed"] == pytest.approx(speed)


@pytest.mark.parametrize("rates", [[], [1.2], [-0.1, 0.5]])
def test_rates_are_from_0_to_1(rates: list[float]) -> None:
    with pytest.raises(InputError, match="rates from 0 to 1"):
        measure_head("qwen3.5-4b", rates)


def test_a_shape_without_a_block_is_refused() -> None:
    with pytest.raises(InputError, match="llama2-7b has no block for drafting"):
        measure_head("llama2-7b", [0.5])


def test_the_command_prints_it(tiny: None, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipex_lookahead.bench.step.shape_of", lambda name: head.spec_for(head.config_of(name)))
    step = "bench step --shape qwen3.5-4b --rows 1 --repeat 1 --context 8 --threads 1".split()
    assert run([*step, "--acceptance", "0.8,0.5"]) == 0
    said = capsys.readouterr().out
    assert "replayed: a block for drafting that is right 0.8, 0.5" in said
    assert run([*step, "--acceptance", "0.8,2"]) == 2
    assert "is not a list of rates from 0 to 1" in capsys.readouterr().err
