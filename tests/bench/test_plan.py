"""``bench run``'s plans: ipex-llm's words, ours, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ipex_lookahead.bench.plan import APIS, NO_EFFECT, Plan, read_plan
from ipex_lookahead.errors import InputError

OF_IPEX_LLM = {
    "repo_id": ["meta-llama/Llama-2-7b-chat-hf"], "local_model_hub": "path to your local model hub", "warm_up": 1,
    "num_trials": 3, "num_beams": 1, "low_bit": "sym_int4", "batch_size": 1,
    "in_out_pairs": ["32-32", "960-64", "1024-128"], "test_api": ["transformer_int4"], "cpu_embedding": False,
    "streaming": False, "optimize_model": False, "use_fp16_torch_dtype": True, "task": "continuation",
}  # fmt: skip
"""The form of its config.yaml."""


def read(folder: Path, **values: Any) -> Plan:
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return read_plan(file)


def test_a_file_of_ipex_llm_is_read_as_it_is(tmp_path: Path) -> None:
    plan = read(tmp_path, **OF_IPEX_LLM)
    assert [(case.tokens_in, case.tokens_out) for case in plan.cases] == [(32, 32), (960, 64), (1024, 128)]
    assert {(case.low_bit, case.engine, case.device, case.batch) for case in plan.cases} == {
        ("sym_int4", "auto", None, 1)
    }
    assert [name for name, _ in plan.cases[0].modes] == ["0"]
    assert (plan.warm_up, plan.trials, plan.answers) == (1, 3, 12)


def test_every_api_has_a_case(tmp_path: Path) -> None:
    for name, sets in APIS.items():
        (case,) = read(tmp_path, test_api=[name], in_out_pairs="8-8", low_bit="sym_int8").cases
        assert case.low_bit == sets.get("low_bit", "sym_int8")
        assert case.device == sets.get("device")
        assert len(case.modes) == (2 if "strategy" in sets else 1)


def test_lookaheads_and_strategies_multiply_and_plain_decoding_comes_first(tmp_path: Path) -> None:
    (case,) = read(tmp_path, lookahead=[3, "auto"], strategy=["suffix", "jacobi"], in_out_pairs="4-4").cases
    assert [name for name, _ in case.modes] == ["0", "3 suffix", "3 jacobi", "auto suffix", "auto jacobi"]
    assert [config and config.num_draft_tokens for _, config in case.modes] == [None, 3, 3, 32, 120]
    (case,) = read(tmp_path, lookahead=[0, 3, "auto", 3], in_out_pairs="4-4").cases
    assert [name for name, _ in case.modes] == ["0", "3", "auto"]


def test_models_are_found_in_the_hub_of_folders(tmp_path: Path) -> None:
    (tmp_path / "Llama-2-7b-chat-hf").mkdir()
    (tmp_path / "org" / "b").mkdir(parents=True)
    names = ["meta-llama/Llama-2-7b-chat-hf", "org/b", "org/c"]
    plan = read(tmp_path, repo_id=names, local_model_hub=str(tmp_path), in_out_pairs="4-4")
    assert [case.path for case in plan.cases] == [
        str(tmp_path / "Llama-2-7b-chat-hf"), str(tmp_path / "org" / "b"), "org/c"
    ]  # fmt: skip
    assert [case.model for case in plan.cases] == names


def test_cases_of_one_model_stand_together_and_none_twice(tmp_path: Path) -> None:
    plan = read(tmp_path, low_bit=["q4_k", "sym_int4"], in_out_pairs=["4-4", "8-4"], batch_size=[1, 2], threads=[1, 2])
    loads = [case.loading for case in plan.cases]
    assert len(loads) == 16
    assert len([a for a, b in zip(loads, loads[1:]) if a != b]) == 3  # noqa: RUF007, B905
    assert len({case.key for case in plan.cases}) == 16
    doubled = read(tmp_path, low_bit="sym_int4", test_api=["bigdl_ipex_int4", "bigdl_ipex_int4"], in_out_pairs="4-4")
    assert len(doubled.cases) == 1


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("num_beams", 4, "beam search"),
        ("num_beams", True, "whole number"),
        ("num_trials", 0, "from 1 to 1000"),
        ("warm_up", "1", "whole number from 0"),
        ("in_out_pairs", ["1024"], "tokens in and tokens out"),
        ("in_out_pairs", ["0-12"], "tokens in and tokens out"),
        ("in_out_pairs", ["12-1"], "tokens in and tokens out"),
        ("in_out_pairs", [1024], "tokens in and tokens out"),
        ("in_out_pairs", [], "1 to 256"),
        ("low_bit", "sym_int44", "unknown format 'sym_int44'"),
        ("batch_size", [0], "from 1 to 1024"),
        ("test_api", "deepspeed_transformer_int4_cpu", "several processes"),
        ("test_api", "transformer_int4_gpu_win", "leave the _win out"),
        ("test_api", "transformers_int4_npu_win", "NPUs|_win"),
        ("test_api", "pipeline_parallel_gpu", "several devices"),
        ("test_api", "something", "must be one of native"),
        ("task", "translate", "must be one of continuation"),
        ("strategy", "guess", "must be one of"),
        ("strategy", "draft_model", "needs a second model"),
        ("lookahead", 129, "from 0 to 128"),
        ("lookahead", True, "whole number"),
        ("streaming", 1, "True or False"),
        ("repo_id", "a\0b", "must be text"),
        ("repo_id", {"a": 1}, "must be text"),
        ("kv_cache", "fp8", "must be one of fp16"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tmp_path: Path, key: str, value: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(tmp_path, **{key: value})
    assert key in str(caught.value)
    assert "plan.yaml" in str(caught.value)


def test_unknown_keys_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown key 'num_trails'") as caught:
        read(tmp_path, num_trails=3)
    assert caught.value.hint == "did you mean num_trials?"
    assert read(tmp_path, **dict.fromkeys(NO_EFFECT, True)).cases == read(tmp_path).cases


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "just text", "\xff", "&a [*a", "- " * 1000])
def test_no_plan_at_all(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=r"plan\.yaml"):
        read_plan(file)
    with pytest.raises(InputError, match=r"none\.yaml"):
        read_plan(tmp_path / "none.yaml")
