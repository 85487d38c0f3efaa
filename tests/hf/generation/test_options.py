"""Each bad input has a sentence: what was got, what is allowed, what to do. And the layers of options."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import GenerationConfig, generation

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import PROPOSERS
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.lookahead import resolve_lookahead
from tests.support.generate import generate
from tests.support.scripted_engine import markov


def _names_of_transformers() -> set[str]:
    """What its ``generate``, its Llama's ``forward`` and its generation options take."""
    of_generate = set(inspect.signature(transformers.GenerationMixin.generate).parameters)
    of_forward = set(inspect.signature(transformers.LlamaForCausalLM.forward).parameters)
    options = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    extra = {"assistant_tokenizer", "synced_gpus", "tokenizer", "cache_position", "token_type_ids"}
    return (of_generate | of_forward | options | extra) - {"self", "kwargs", "transformers_version", "inputs"}


IDS = torch.tensor([[1, 2, 3, 1, 2]])


def run(ids: Any = IDS, **kwargs: Any) -> torch.Tensor:
    out = generate(markov(vocab_size=16, seed=2), ids, **{"eos_token_id": None, "max_new_tokens": 12, **kwargs})
    assert isinstance(out, torch.Tensor)
    return out


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lookahead": -1}, "lookahead is -1; it must be a whole number from 0 to 128"),
        ({"lookahead": 129}, "lookahead is 129; it must be a whole number from 0 to 128"),
        ({"lookahead": 2.5}, "lookahead is 2.5"),
        ({"lookahead": True}, "lookahead is True"),
        ({"lookahead": "fast"}, "lookahead is 'fast'; it must be 0 to 128"),
        ({"lookahead": [3]}, r"lookahead is \[3\]"),
        ({"lookahead": 3, "max_matching_ngram_size": 0}, "max_matching_ngram_size is 0; .* from 1 to 64"),
        ({"lookahead": LookaheadConfig(strategy="nonsense")}, "'nonsense' is not known; choose one of"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1; it must be a whole number of at least 0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens is 1.5"),
        ({"max_new_tokens": None, "max_length": 5}, "max_length is 5 and the prompt alone has 5 tokens; raise"),
        ({"min_new_tokens": -2}, "min_new_tokens is -2"),
        ({"min_length": -2}, "min_length is -2"),
        ({"max_time": -1}, "max_time is -1"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
        ({"num_return_sequences": 2}, "with greedy decoding would give the same text each time; add do_sample=True"),
        ({"do_sample": "yes"}, "do_sample is 'yes'; it must be True or False"),
        ({"return_dict_in_generate": 1}, "return_dict_in_generate is 1"),
        ({"do_sample": True, "temperature": 0}, "temperature is 0; .* for greedy decoding use do_sample=False"),
        ({"do_sample": True, "temperature": -0.5}, "temperature is -0.5; it must be a number above 0"),
        ({"do_sample": True, "temperature": float("nan")}, "temperature is nan"),
        ({"do_sample": True, "top_k": -1}, "top_k is -1; it must be a whole number of at least 0"),
        ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5; it must be a number of at least 0 and at most 1"),
        ({"do_sample": True, "min_p": 2}, "min_p is 2"),
        ({"do_sample": True, "seed": -1}, "seed is -1; it must be a whole number from 0 to 18446744073709551615"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"do_sample": True, "sequence_ids": [0, 1]}, "sequence_ids has 2 numbers for 1 sequences"),
        ({"do_sample": True, "sequence_ids": [-1]}, "sequence_ids is -1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a number of at least 1e-06"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"bad_words_ids": [3]}, "bad_words_ids"),
        ({"sequence_bias": "x"}, "sequence_bias"),
        ({"eos_token_id": 16}, "eos_token_id is 16; it must be a whole number from -1 to 15"),
        ({"stop_strings": "x"}, "stop_strings needs the model's tokenizer; pass tokenizer="),
        ({"stop_strings": ""}, "none of them empty"),
        ({"stop_strings": ["a", 3]}, "none of them empty"),
        ({"generation_config": {"top_k": 3}}, "generation_config is a dict"),
        ({"num_beams": 4}, "num_beams=4 is not supported; .*sampling for variety"),
        ({"num_beam_groups": 2}, "num_beam_groups=2 is not supported"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search is not supported"),
        ({"dola_layers": "low"}, "DoLa is not supported"),
        ({"constraints": [1]}, "constraints=.* is not supported"),
        ({"force_words_ids": [[1]]}, "force_words_ids=.* is not supported; .*sequence_bias"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5 is not supported"),
        ({"prompt_lookup_num_tokens": -3}, "prompt_lookup_num_tokens is -3; it must be a whole number from 0 to 128"),
        ({"prompt_lookup_num_tokens": 3, "lookahead": 5}, "lookahead=5 and prompt_lookup_num_tokens=3 mean the same"),
        ({"speculation_type": "mtp"}, "speculation_type='mtp' is not supported"),
        ({"synced_gpus": True}, "synced_gpus is not supported; it keeps the processes of a model that is split"),
        ({"logits_to_keep": 4}, "logits_to_keep is not supported; generate computes the last position's logits alone"),
        ({"hf_adjust": True}, "hf_adjust is not supported; the number of drafted tokens follows measured costs"),
        ({"auto_parameters": [1, 0.5, 0.8, 1e-2, 0.9]}, "auto_parameters is not supported; auto_th_stop_draft follows"),
        ({"th_batch_num": 0.8}, "th_batch_num is not supported; each sequence of a batch accepts its own draft"),
        ({"assistant_tokenizer": object()}, "assistant_tokenizer is not supported; a draft model needs the target's"),
        ({"trust_remote_code": True}, "trust_remote_code is not supported; code from a checkpoint is never executed"),
        ({"cache_position": IDS}, "cache_position is not supported; leave it out: positions follow"),
        ({"labels": IDS}, "labels is not supported; a loss needs the model's forward"),
        ({"pixel_values": IDS}, "takes no images, and pixel_values is given"),
        ({"cancel": 3}, "cancel is 3; pass a threading.Event, or a function"),
        ({"assistant_model": object()}, "assistant_model is not supported; pass it to the model"),
        ({"assistant_early_exit": 2}, "use lookahead, which"),
        ({"custom_generate": "some/repo"}, "custom_generate is not supported"),
        ({"token_healing": True}, "token healing is not supported"),
        ({"output_attentions": True}, "output_attentions=True is not supported"),
        ({"output_hidden_states": True}, "output_hidden_states=True is not supported"),
        ({"cache_implementation": "quantized"}, "cache_implementation='quantized' is not supported"),
        ({"inputs_embeds": torch.zeros(1, 2, 3)}, "inputs_embeds is not supported; pass input_ids"),
        ({"past_key_values": object()}, "past_key_values is a object; leave it out of the first call"),
        ({"position_ids": IDS}, "position_ids of row 0 are"),
        ({"token_type_ids": IDS}, "token_type_ids is not supported"),
        ({"negative_prompt_ids": IDS}, "negative_prompt_ids is not supported"),
        ({"max_new_token": 5}, "generate has no argument 'max_new_token'; did you mean 'max_new_tokens'"),
        ({"colour": 5}, "generate has no argument 'colour'; check its spelling"),
        ({"input_ids": IDS}, "both inputs and input_ids are given"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_bad_options(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(**kwargs)


@pytest.mark.skipif(not hasattr(generation, "WatermarkingConfig"), reason="this transformers has no watermarking yet")
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"watermarking_config": {"bias": 1.0, "colour": "green"}}, "watermarking_config .* is invalid: .*colour"),
        ({"watermarking_config": {"greenlist_ratio": 3.0}}, "watermarking_config .* is invalid"),
        ({"watermarking_config": "green"}, "watermarking_config is a str; pass a transformers.WatermarkingConfig or"),
    ],
)
def test_bad_watermarks(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(**kwargs)


@pytest.mark.parametrize(
    ("ids", "kwargs", "message"),
    [
        (None, {}, "the prompt is empty"),
        (torch.zeros((1, 0), dtype=torch.int64), {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        (torch.zeros((2, 0), dtype=torch.int64), {"bos_token_id": 1}, "the prompt is empty"),
        (torch.zeros((0, 3), dtype=torch.int64), {}, "the batch is empty"),
        ("Hello", {}, "the prompt is a text"),
        ([[1, 2], [3]], {}, "input_ids cannot be read as token ids .* shorter rows padded on the left"),
        (torch.zeros((1, 1, 1), dtype=torch.int64), {}, r"input_ids has shape \(1, 1, 1\)"),
        (torch.tensor([[0.5]]), {}, "input_ids has dtype torch.float32; token ids are integers"),
        (torch.tensor([[True]]), {}, "token ids are integers"),
        (torch.tensor([[1, 16]]), {}, "prompt 0 has token id 16; ids range from 0 to 15"),
        (torch.tensor([[1, -1]]), {}, "prompt 0 has token id -1"),
        (torch.tensor([[1, 2**40]]), {}, "ids range from 0 to 15"),
        (IDS, {"attention_mask": torch.ones(1, 4)}, r"attention_mask has shape \(1, 4\), input_ids \(1, 5\)"),
        (
            IDS,
            {"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])},
            "row 0 of attention_mask is 0 after a 1; pad on the left",
        ),
        (IDS, {"attention_mask": torch.tensor([[0, 1, 0, 1, 1]])}, "pad on the left"),
        (IDS, {"attention_mask": torch.zeros(1, 5)}, "prompt 0 is empty"),
        (IDS, {"attention_mask": torch.full((1, 5), 2)}, "values other than 0 and 1"),
        (torch.full((1, 3), 9), {"pad_token_id": 9}, "prompt 0 is empty"),
    ],
)
def test_bad_prompts(ids: Any, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(ids, **kwargs)


def test_an_empty_prompt_is_the_bos_token_where_there_is_one() -> None:
    expected = run(torch.tensor([[4]]))
    assert torch.equal(run(None, bos_token_id=4), expected)
    assert torch.equal(run(torch.zeros((1, 0), dtype=torch.int64), bos_token_id=4), expected)


@pytest.mark.parametrize(
    "ids", [[1, 2, 3, 1, 2], [[1, 2, 3, 1, 2]], np.array([[1, 2, 3, 1, 2]]), IDS.to(torch.int32), IDS[0]]
)
def test_prompts_in_other_shapes(ids: Any) -> None:
    assert torch.equal(run(ids), run())
    assert torch.equal(run(None, input_ids=ids), run())


def test_leading_pad_tokens_are_padding_without_a_mask() -> None:
    """As transformers decides it: unless the pad token is also an end token."""
    prompts = torch.tensor([[9, 9, 3], [1, 9, 3]])
    out = run(prompts, pad_token_id=9)
    assert torch.equal(out[0, 3:], run(torch.tensor([[3]]))[0, 1:])
    assert torch.equal(out[1, 3:], run(torch.tensor([[1, 9, 3]]))[0, 3:])
    out = run(prompts[:1], pad_token_id=9, eos_token_id=9)
    assert torch.equal(out[0, 3:], run(torch.tensor([[9, 9, 3]]), eos_token_id=9)[0, 3:])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (0, None),
        (False, None),
        (LookaheadConfig(num_draft_tokens=0), None),
        (1, LookaheadConfig(num_draft_tokens=1)),
        (128, LookaheadConfig(num_draft_tokens=128)),
        (np.int64(3), LookaheadConfig(num_draft_tokens=3)),
        ("auto", LookaheadConfig("auto" if "auto" in PROPOSERS else "prompt_lookup", 32)),
        (LookaheadConfig(num_draft_tokens=5), LookaheadConfig(num_draft_tokens=5)),
    ],
)
def test_what_lookahead_means(value: Any, expected: LookaheadConfig | None) -> None:
    assert resolve_lookahead(value) == expected


def test_whether_the_budget_adapts() -> None:
    assert resolve_lookahead(3) == LookaheadConfig(num_draft_tokens=3, adaptive=True)
    assert resolve_lookahead(3, adaptive=False) == LookaheadConfig(num_draft_tokens=3, adaptive=False)
    assert resolve_lookahead(LookaheadConfig(adaptive=False), adaptive=True) == LookaheadConfig(adaptive=True)
    for wrong in (1, "yes"):
        with pytest.raises(InputError, match="adaptive .* must be True or False"):
            resolve_lookahead(None, adaptive=wrong)


def test_max_matching_ngram_size_reaches_the_proposer() -> None:
    assert resolve_lookahead(3, 2) == LookaheadConfig(num_draft_tokens=3, max_matching_ngram_size=2)
    assert resolve_lookahead(LookaheadConfig(), 7) == LookaheadConfig(max_matching_ngram_size=7)
    assert resolve_lookahead(None, 7) is None


def test_the_layers_of_options() -> None:
    """Keyword before generation_config before the model's own; None switches off."""
    model = GenerationConfig(max_new_tokens=9, eos_token_id=3)
    engine = markov(vocab_size=16, seed=2)

    def length(passed: GenerationConfig | None = None, **kwargs: Any) -> int:
        out = generate(engine, IDS, passed, model_defaults=model, **kwargs)
        return out.shape[1] - IDS.shape[1]  # type: ignore[union-attr]

    whole = run(max_new_tokens=30)[0, 5:].tolist()
    until_eos = whole.index(3) + 1
    assert until_eos < 9
    assert length() == until_eos
    assert length(eos_token_id=None) == 9
    assert length(GenerationConfig(max_new_tokens=until_eos - 1)) == until_eos - 1
    assert length(GenerationConfig(max_new_tokens=2), max_new_tokens=3) == 3
    assert length(GenerationConfig(max_new_tokens=11), eos_token_id=None) == 11
    assert model.to_dict() == GenerationConfig(max_new_tokens=9, eos_token_id=3).to_dict()


def test_top_k_50_is_the_default_of_sampling() -> None:
    """As in transformers; 0 and None switch it off."""
    flat = markov(vocab_size=200, seed=1, sharpness=0.01)

    def drawn(**kwargs: Any) -> int:
        out = generate(
            flat,
            [5],
            do_sample=True,
            seed=1,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            **kwargs,
        )
        return int(torch.isfinite(out.scores[0]).sum())  # type: ignore[union-attr]

    assert drawn() == 50
    assert drawn(top_k=0) == drawn(top_k=None) == 200
    assert drawn(top_k=7) == 7


def test_seeds() -> None:
    def drawn(**kwargs: Any) -> list[int]:
        return run(do_sample=True, **kwargs)[0].tolist()

    assert drawn(seed=1) == drawn(seed=1, lookahead=4)
    assert drawn(seed=1) != drawn(seed=2)
    torch.manual_seed(5)
    first, second = drawn(), drawn(lookahead=3)
    assert first != second
    torch.manual_seed(5)
    assert [drawn(lookahead=2), drawn()] == [first, second]
    transformers.set_seed(5)
    assert drawn() == first


def test_greedy_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run(lookahead=3)
    run(do_sample=True, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_num_return_sequences() -> None:
    both = torch.tensor([[1, 2, 3], [3, 2, 1]])
    options = {"do_sample": True, "seed": 6, "lookahead": 3}
    out = run(both, num_return_sequences=3, **options)
    assert out.shape == (6, 15)
    assert out[:, :3].tolist() == [[1, 2, 3]] * 3 + [[3, 2, 1]] * 3
    assert len({tuple(row) for row in out.tolist()}) == 6
    for row in range(6):
        alone = run(out[row : row + 1, :3], sequence_ids=[row], **options)
        assert torch.equal(alone[0], out[row])
    named = run(both, num_return_sequences=3, sequence_ids=[9, 8, 7, 6, 5, 4], **options)
    assert torch.equal(run(both[:1], sequence_ids=[8], **options)[0], named[1])


def test_return_dict() -> None:
    stats = GenerationStats()
    out: Any = generate(markov(vocab_size=16, seed=2), IDS, max_new_tokens=4, return_dict_in_generate=True, stats=stats)
    assert isinstance(out, transformers.generation.GenerateDecoderOnlyOutput)
    assert out.sequences.shape == (1, 9)
    assert out.scores is None
    assert out.logits is None
    assert out.stats is stats
    assert stats.tokens == 4


def test_harmless_values_of_unsupported_options_pass() -> None:
    plain = run()
    assert torch.equal(
        run(
            num_beams=1,
            guidance_scale=1.0,
            output_attentions=False,
            use_cache=True,
            assistant_model=None,
            synced_gpus=False,
            penalty_alpha=0.0,
            cache_implementation=None,
            position_ids=None,
        ),
        plain,
    )


def test_a_strategy_by_name() -> None:
    from ipex_lookahead.runtime.lookahead import strategy_config

    assert strategy_config(None) == resolve_lookahead("auto")
    assert strategy_config(None, 5) == LookaheadConfig(num_draft_tokens=5)
    assert strategy_config(None, "auto", store="s") == dataclasses.replace(resolve_lookahead("auto"), store="s")
    assert strategy_config("suffix") == LookaheadConfig("suffix", 32)
    assert strategy_config("suffix", 3, adaptive=False) == LookaheadConfig("suffix", 3, adaptive=False)
    assert strategy_config("jacobi").num_draft_tokens == 4 * 30
    assert strategy_config("jacobi", window=60, guesses=60).num_draft_tokens == 128
    with pytest.raises(InputError, match="lookahead is -1"):
        strategy_config("suffix", -1)


@pytest.mark.parametrize("name", sorted(_names_of_transformers()))
def test_every_argument_of_transformers_is_taken_or_refused_with_a_reason(name: str) -> None:
    """Never "check its spelling", and nothing that is no error of ours."""
    error = ""
    try:
        generate(markov(vocab_size=16), IDS, **{name: True})
    except InputError as refused:
        error = str(refused)
    assert f"no argument {name!r}" not in error
    assert not error or name in error or "a generation option is not usable" in error


def test_prompt_lookup_by_transformers_name() -> None:
    stats, same = GenerationStats(), GenerationStats()
    options = {"max_new_tokens": 30, "eos_token_id": None, "adaptive": False}
    found = run(prompt_lookup_num_tokens=6, stats=stats, **options).tolist()
    assert found == run(lookahead=6, stats=same, **options).tolist() == run(**options).tolist()
    assert stats.drafted == same.drafted > 0
    config = GenerationConfig(prompt_lookup_num_tokens=6)
    run(generation_config=config, stats=stats, **options)
    assert stats.drafted == 2 * same.drafted
    run(generation_config=config, lookahead=0, stats=same, **options)
    assert stats.drafted == 2 * same.drafted, "what the call says comes before the configuration"
