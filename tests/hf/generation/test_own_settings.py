"""Each key of a model's own generation config does what it does in transformers: in Python, commands and server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5", reason="the oracle is transformers 5, whose keys these are")
import torch

from ipex_lookahead.checkpoints.generation_config import NEUTRAL, OBEYED, REFUSED
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.auto import AutoModelForCausalLM
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.runtime.text_model import TextModel
from tests.support.chat_tokenizer import chat_tokenizer, write_chat_llama

PROMPT = [1, *(4 + byte for byte in b"one two one two three")]
NEW = 24
WATERMARK = {"greenlist_ratio": 0.3, "bias": 4.0, "seeding_scheme": "lefthash", "context_width": 1}

GREEDY: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"encoder_repetition_penalty": 1.8},
    {"encoder_no_repeat_ngram_size": 1},
    {"bad_words_ids": "first"},
    {"suppress_tokens": "all"},
    {"begin_suppress_tokens": "first"},
    {"sequence_bias": "first"},
    {"forced_bos_token_id": 9},
    {"forced_eos_token_id": 7},
    {"exponential_decay_length_penalty": [3, 1.5], "eos_token_id": 8},
    {"remove_invalid_values": True},
    {"renormalize_logits": True},
    {"watermarking_config": WATERMARK},
    {"min_new_tokens": 12, "eos_token_id": "all"},
    {"min_length": 30, "eos_token_id": "all"},
    {"eos_token_id": "all"},
    {"stop_strings": "text"},
    {"max_time": 1e6},
    {"do_sample": False},
    {"use_cache": False},
    {"bos_token_id": 1, "pad_token_id": 0},
    {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2},
    {"repetition_penalty": 1.3, "suppress_tokens": "all", "no_repeat_ngram_size": 3, "bad_words_ids": "first"},
]
"""Settings, with what depends on the plain answer by name: see ``spelled``."""
SAMPLED: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_p": 0.5},
    {"min_p": 0.2},
    {"top_h": 0.5},
    {"typical_p": 0.6},
    {"epsilon_cutoff": 0.02},
    {"eta_cutoff": 0.05},
    {"watermarking_config": WATERMARK},
    {"temperature": 0.7, "typical_p": 0.8, "suppress_tokens": [80, 90], "repetition_penalty": 1.2},
]
OUTPUT = {"num_return_sequences", "return_dict_in_generate", "output_scores", "output_logits"}
"""What is returned; the tests of options have them."""
SILENT = {"remove_invalid_values", "renormalize_logits", "max_time", "do_sample", "use_cache", "bos_token_id",
          "prompt_lookup_num_tokens"}  # fmt: skip
"""What a greedy answer of a sound model does not show."""
LENGTH = {"max_new_tokens", "max_length"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_chat_llama(tmp_path_factory.mktemp("own") / "tiny", context=512, tie=False)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    return made


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def make(settings: dict[str, Any]) -> Path:
        made = Path(shutil.copytree(folder, tmp_path / "own"))
        (made / "generation_config.json").write_text(json.dumps(settings))
        return made

    return make


def of_transformers(folder: Path, prompt: list[int] = PROMPT, **options: Any) -> Any:
    from transformers import AutoTokenizer, LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = torch.tensor([prompt])
    more = {"tokenizer": AutoTokenizer.from_pretrained(folder)} if model.generation_config.stop_strings else {}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **more, **options)


def text_model_of(folder: Path, **options: Any) -> TextModel:
    return load_text_model(str(folder), low_bit="fp32", progress=False, **options)


def spelled(settings: dict[str, Any], plain: list[int]) -> dict[str, Any]:
    """The settings in numbers: ``plain`` is the answer without any."""
    said = sorted(set(plain))
    words = {
        "suppress_tokens": said[::2],
        "begin_suppress_tokens": [plain[0]],
        "bad_words_ids": [[plain[0]], plain[3:5]],
        "sequence_bias": [[[plain[0]], -50.0], [plain[4:6], -9.0]],
        "eos_token_id": [said[0], plain[5]],
        "stop_strings": ["\u20ac", *(text for i in said if (text := chat_tokenizer().decode(i)).isascii())],
    }
    return {key: words[key] if isinstance(value, str) else value for key, value in settings.items()}


def test_every_key_is_tried_here() -> None:
    tried = {key for settings in [*GREEDY, *SAMPLED] for key in settings}
    assert set(OBEYED) <= tried | OUTPUT | LENGTH


def answer_of_transformers(folder: Path, prompt: list[int] = PROMPT) -> list[int]:
    found: list[int] = of_transformers(folder, prompt, max_new_tokens=NEW)[0, len(prompt) :].tolist()
    return found


@lru_cache
def plain_answer(folder: Path, length: int = len(PROMPT)) -> list[int]:
    """Return transformers' answer without any setting, to the first ``length`` tokens of the prompt."""
    return answer_of_transformers(folder, PROMPT[:length])


@pytest.mark.parametrize("settings", GREEDY, ids=lambda s: "+".join(s))
@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.rotating(9)
def test_a_greedy_answer_is_that_of_transformers(engine, settings, folder, saved) -> None:
    prompt = PROMPT
    if "forced_bos_token_id" in settings:  # which transformers asks for behind one token only
        prompt = PROMPT[:1]
    elif "encoder_no_repeat_ngram_size" in settings:
        prompt = PROMPT + plain_answer(folder)
    plain = answer_of_transformers(folder, prompt) if len(prompt) > len(PROMPT) else plain_answer(folder, len(prompt))
    made = saved(settings := spelled(settings, plain))
    wanted = answer_of_transformers(made, prompt)
    assert (wanted == plain) == bool(SILENT & set(settings)), "the setting must show"

    options: dict[str, Any] = {"engine": engine, "threads": 1}
    model = AutoModelForCausalLM.from_pretrained(made, load_in_low_bit="fp32", **options)
    text_model = text_model_of(made, **options)
    service = Service(text_model, slots=2)
    try:
        for lookahead in (0, 3):
            found = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, lookahead=lookahead)
            assert found[0, len(prompt) :].tolist() == wanted
            told: list[int] = []
            found = text_model.generate(prompt, SamplingParams(NEW), lookahead=lookahead, on_token=told.append)
            assert found == wanted == told
            events = list(service.stream(prompt, SamplingParams(NEW), lookahead=lookahead))
            assert [token for event in events for token in event.tokens] == wanted
    finally:
        service.close()


@pytest.mark.parametrize("settings", SAMPLED, ids=lambda s: "+".join(s))
@pytest.mark.rotating(4)
def test_what_is_drawn_from_is_that_of_transformers(settings, saved) -> None:
    made = saved({"do_sample": True, "top_k": 0, **settings})
    options: dict[str, Any] = {"engine": "native", "threads": 1}
    output = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    torch.manual_seed(0)
    (wanted,) = of_transformers(made, **output).scores
    same = AutoModelForCausalLM.from_pretrained(made, load_in_low_bit="fp32", engine="torch")
    (found,) = same.generate(torch.tensor([PROMPT]), **output).scores
    assert torch.equal(found.isinf(), wanted.isinf())
    assert torch.allclose(found, wanted, atol=1e-4)
    assert bool(wanted.isinf().any()) or not settings.keys() & {"top_k", "top_p", "min_p", "typical_p", "top_h"}

    model = AutoModelForCausalLM.from_pretrained(made, load_in_low_bit="fp32", **options)
    text_model = text_model_of(made, **options)
    params = SamplingParams(NEW, temperature=settings.get("temperature", 1.0), seed=5)
    drawn = [text_model.generate(PROMPT, params, lookahead=lookahead) for lookahead in (0, 3)]
    whole = model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW, seed=5)[0, len(PROMPT) :].tolist()
    assert drawn == [whole, whole]
    service = Service(text_model, slots=2)
    try:
        events = list(service.stream(PROMPT, params))
        assert [token for event in events for token in event.tokens] == whole
    finally:
        service.close()


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_what_is_refused_is_refused_everywhere_and_may_be_mended_by_an_argument(key, saved) -> None:
    made = saved({key: 5, "max_new_tokens": 3})
    model = AutoModelForCausalLM.from_pretrained(made, threads=1)
    with pytest.raises(InputError, match=f"{key}=5 is not supported") as told:
        model.generate(torch.tensor([PROMPT]))
    assert "generation_config.json" in told.value.hint
    assert model.generate(torch.tensor([PROMPT]), **{key: None}).shape[1] == len(PROMPT) + 3
    text_model = load_text_model(str(made), threads=1, progress=False)
    for ask in (lambda: text_model.generate(PROMPT, SamplingParams(3)), lambda: Service(text_model)):
        with pytest.raises(InputError, match=f"{key}=5 is not supported"):
            ask()


def test_what_is_without_effect_says_nothing(folder, saved) -> None:
    plain = plain_answer(folder)
    made = saved(dict.fromkeys(NEUTRAL, 5) | {"cache_implementation": "hybrid", "compile_config": {"mode": "default"}})
    options: dict[str, Any] = {"threads": 1}
    model = AutoModelForCausalLM.from_pretrained(made, load_in_low_bit="fp32", **options)
    assert model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW)[0, len(PROMPT) :].tolist() == plain
    assert text_model_of(made, **options).generate(PROMPT, SamplingParams(NEW)) == plain
