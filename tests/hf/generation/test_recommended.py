"""What is recommended for a model, where it comes from, and who follows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ipex_lookahead.architectures import model_types
from ipex_lookahead.checkpoints.recommended_sampling import FAMILIES, SETTINGS, temperature_of, with_recommended
from ipex_lookahead.hf.auto import AutoModelForCausalLM
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.recommended import SEED, resolved
from ipex_lookahead.runtime.sampling_params import SamplingParams
from tests.support.chat_tokenizer import CHAT_TEMPLATE, SIZE, chat_tokenizer
from tests.support.tiny import write_tiny_llama

SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
OWN = "the model's own generation config"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_table_holds_what_can_be_run_and_drawn(family):
    assert set(family.model_types) <= set(model_types())
    assert set(family.settings) <= set(SETTINGS)
    assert family.source
    assert 0 < family.settings["temperature"] <= 1
    assert 0 < family.settings.get("top_p", 1) <= 1
    assert 0 <= family.settings.get("min_p", 0) < 1
    config = {"model_type": family.model_types[0]}
    found, source = with_recommended({"eos_token_id": 2}, config, f"begin {family.marker} end")
    assert (found, source) == ({"eos_token_id": 2, "do_sample": True, **family.settings}, family.source)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_documentation_has_the_table(family):
    said = ", ".join(f"{name} {value:g}" for name, value in family.settings.items())
    page = (Path(__file__).parents[3] / "docs" / "usage.md").read_text(encoding="utf-8")
    assert f"| {family.name} | {said} |\n" in page


@pytest.mark.parametrize(
    ("own", "temperature"),
    [
        ({"do_sample": False}, 0),
        ({"do_sample": False, "temperature": 0.5}, 0),
        ({"do_sample": True}, 1),
        ({"do_sample": True, "temperature": 0.3}, 0.3),
        ({"temperature": 0.3}, 0.3),
        ({"top_k": 64, "top_p": 0.95}, 1),
    ],
)
def test_the_models_own_word_goes_before_the_table(own, temperature):
    found, source = with_recommended(own, {"model_type": "llama"}, SMOLLM2)
    assert (found, source) == (own, OWN)
    assert temperature_of(found) == temperature


@pytest.mark.parametrize(
    ("model_type", "template"),
    [("llama", None), ("llama", "another"), ("qwen2", SMOLLM2), (None, SMOLLM2), ("gemma3_text", ""), ("granite", "x")],
)
def test_others_are_greedy(model_type, template):
    found, source = with_recommended({"repetition_penalty": 1.1}, {"model_type": model_type}, template)
    assert (found, source) == ({"repetition_penalty": 1.1}, "")
    assert resolved(SamplingParams(4, temperature=None), found).temperature == 0


@pytest.mark.parametrize(
    ("model_type", "template", "name"),
    [
        ("qwen3_5", "{% if enable_thinking is defined and enable_thinking is false %}", "Qwen3.5, thinking"),
        ("qwen3_5_moe", "{% if enable_thinking is defined and enable_thinking is true %}", "Qwen3.5, instruct"),
        ("lfm2_moe", "List of tools: <|tool_list_start|>[", "LFM2"),
        ("lfm2", "List of tools: [", ""),
        ("nemotron_h", "<tool_call>\n<function=", "Nemotron 3 Nano"),
        ("nemotron_h", "<TOOLCALL>[", ""),
    ],
)
def test_families_are_told_apart_by_their_templates(model_type, template, name):
    _, source = with_recommended({}, {"model_type": model_type}, template)
    assert source == next((family.source for family in FAMILIES if family.name == name), "")


def test_of_several_templates_one_may_hold_the_mark():
    found, _ = with_recommended({}, {"model_type": "llama"}, {"default": SMOLLM2, "tool_use": "x"})
    assert (found["temperature"], found["top_p"]) == (0.2, 0.9)


def test_each_setting_is_looked_up_by_itself():
    own, _ = with_recommended({}, {"model_type": "llama"}, SMOLLM2)

    def drawn(**given: Any) -> tuple[Any, ...]:
        params = resolved(SamplingParams(4, **{"temperature": None, **given}), own)
        return params.temperature, params.top_k, params.top_p, params.min_p, params.seed

    assert drawn() == (0.2, 50, 0.9, 0.0, SEED)
    assert drawn(seed=7) == (0.2, 50, 0.9, 0.0, 7)
    assert drawn(top_k=0, min_p=0.1) == (0.2, 0, 0.9, 0.1, SEED)
    assert drawn(temperature=0.7) == (0.7, 50, 0.9, 0.0, None), "a seed is drawn"
    assert drawn(temperature=0)[0] == 0
    again = resolved(SamplingParams(4, temperature=None), own)
    assert resolved(again, {"temperature": 9.0}) == again, "there is nothing left to look up"


@pytest.fixture(scope="module")
def recommended_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights that say to be SmolLM2's, without sampling in their generation config."""
    made = write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", vocab=SIZE, context=512)
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = f"{{# {SMOLLM2} #}}{CHAT_TEMPLATE}"
    tokenizer.save_pretrained(made)
    return made


def test_the_commands_follow_it_and_model_generate_does_not(recommended_folder):
    ours = load_text_model(str(recommended_folder), threads=1, progress=False)
    assert ours.recommended_by == "the model card of HuggingFaceTB/SmolLM2-135M-Instruct"
    ids = ours.tokenizer.encode("hello hello")
    found = ours.generate(ids, SamplingParams(40, temperature=None), lookahead=3)
    assert (ours.stats.temperature, ours.stats.seed) == (0.2, SEED)
    assert found == ours.generate(ids, SamplingParams(40, temperature=0.2, top_p=0.9, seed=SEED))
    greedy = ours.generate(ids, SamplingParams(40))
    assert ours.stats.temperature is None
    theirs = AutoModelForCausalLM.from_pretrained(recommended_folder, threads=1, progress=False)
    assert theirs.generate(torch.tensor([ids]), max_new_tokens=40)[0, len(ids) :].tolist() == greedy


def test_model_generate_follows_the_file(recommended_folder, tmp_path):
    """As transformers does: it samples where generation_config.json says so."""
    for file in recommended_folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    said = {"do_sample": True, "temperature": 1.5, "top_k": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(said), encoding="utf-8")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, threads=1, progress=False)
    ours = load_text_model(str(tmp_path), threads=1, progress=False)
    assert ours.recommended_by == OWN
    ids = ours.tokenizer.encode("hello hello")
    found = ours.generate(ids, SamplingParams(40, temperature=None))
    assert found == theirs.generate(torch.tensor([ids]), max_new_tokens=40, seed=SEED)[0, len(ids) :].tolist()
    assert (theirs.stats.temperature, ours.stats.temperature) == (1.5, 1.5)
