"""Processors see each emitted position once, in order, on the unpadded prefix; and do what they do in transformers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList, generation
from transformers.generation import logits_process as hf

from ipex_lookahead.errors import EngineError, InputError
from tests.support.generate import generate
from tests.support.proposers import TreeProposer
from tests.support.scripted_engine import markov

PROMPT = [1, 5, 3, 5, 3, 7]
LOOKAHEADS = [0, 2, 8]


class Remembering(hf.LogitsProcessor):
    """Keeps every call, and pushes the logits by an amount that depends on how often it was called."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert scores.shape[0] == input_ids.shape[0] == 1
        self.prefixes.append(input_ids[0].tolist())
        out = scores.clone()
        out[0, len(self.prefixes) * 7 % scores.shape[1]] += 3
        return out


def run(
    lookahead: int = 0, ids: Any = None, mask: Any = None, text: list[int] | None = None, **kwargs: Any
) -> list[list[int]]:
    engine = kwargs.pop("engine", None) or markov(vocab_size=16, seed=2)
    kwargs = {"eos_token_id": None, "max_new_tokens": 24} | kwargs
    if text is not None:
        kwargs["make"] = lambda _: TreeProposer(16, text)
    ids = torch.tensor([PROMPT]) if ids is None else ids
    out = generate(engine, ids, attention_mask=mask, lookahead=lookahead, **kwargs)
    return [row[ids.shape[1] :] for row in out.tolist()]


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "seed": 4}])
@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_a_processor_with_state_is_called_once_a_position(lookahead: int, sampling: dict[str, Any]) -> None:
    plain = run(logits_processor=[Remembering()], **sampling)[0]
    for text in (None, PROMPT + plain):
        processor = Remembering()
        new = run(lookahead, text=text, logits_processor=LogitsProcessorList([processor]), **sampling)[0]
        assert new == plain
        assert processor.prefixes == [PROMPT + plain[:n] for n in range(24)]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_objects_are_called_themselves_and_never_copied(lookahead: int) -> None:
    class Own(hf.LogitsProcessor):
        def __init__(self) -> None:
            self.lock = threading.Lock()  # cannot be copied
            self.lengths: list[int] = []

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.lengths.append(input_ids.shape[1])
            return scores

    processor = Own()
    plain = run(ids=torch.tensor([[1], [2]]))
    assert run(lookahead, ids=torch.tensor([[1], [2]]), logits_processor=[processor]) == plain
    assert processor.lengths == list(range(1, 25))


OPTIONS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[3], [5, 7]]},
    {"sequence_bias": {(4,): 2.5, (1, 2): -5.0}},
    {"min_new_tokens": 6, "eos_token_id": 7},
    {"min_length": 11, "eos_token_id": 7},
    {"suppress_tokens": [2, 9]},
    {"begin_suppress_tokens": [0, 1, 2, 3, 4, 5]},
    {"forced_eos_token_id": 7},
    {"exponential_decay_length_penalty": (4, 1.5), "eos_token_id": 7},
    {"prefix_allowed_tokens_fn": lambda row, ids: [int(ids[-1]) // 2, 11, 13]},
    *(
        [{"watermarking_config": {"bias": 8.0, "greenlist_ratio": 0.25}}]
        if hasattr(generation, "WatermarkingConfig")
        else []
    ),
    {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[6]],
        "min_new_tokens": 3,
        "eos_token_id": [7],
    },
]


def by_transformers(options: dict[str, Any]) -> list[int]:
    """transformers' own preparation and loop, on the same logits."""
    from transformers import GenerationMixin, LlamaConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    engine = markov(vocab_size=16, seed=2)

    class Plain(PreTrainedModel, GenerationMixin):
        config_class = LlamaConfig
        main_input_name = "input_ids"
        _supports_sdpa = True

        @property
        def device(self) -> torch.device:
            return torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> CausalLMOutput:
            return CausalLMOutput(logits=torch.from_numpy(engine._logits_of(input_ids[0].tolist()))[None, None])

        def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

    model = Plain(LlamaConfig(vocab_size=16, num_hidden_layers=1, bos_token_id=None, eos_token_id=None))
    ids = torch.tensor([PROMPT])
    config = {"max_new_tokens": 24, "eos_token_id": None, "pad_token_id": 0, "use_cache": False} | options
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **config)
    return out[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o))
def test_options_do_what_they_do_in_transformers(options: dict[str, Any]) -> None:
    expected = by_transformers(options)
    for lookahead in LOOKAHEADS:
        assert run(lookahead, **options)[0] == expected
        assert run(lookahead, text=PROMPT + expected, **options)[0] == expected
    config = {k: v for k, v in options.items() if k != "prefix_allowed_tokens_fn"}
    if config == options:
        settings = GenerationConfig(max_new_tokens=24, **config)
        out = generate(markov(vocab_size=16, seed=2), torch.tensor([PROMPT]), settings, lookahead=3)
        assert out[0, len(PROMPT) :].tolist() == expected


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o))
def test_left_padding_is_invisible_to_every_option(options: dict[str, Any]) -> None:
    ids = torch.tensor([[7, 7, 7, *PROMPT[:3]], PROMPT])
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
    options = {"pad_token_id": 15, **options}
    together = run(3, ids, mask, **options)
    for row, prompt in enumerate((PROMPT[:3], PROMPT)):
        alone = run(2, torch.tensor([prompt]), **options)[0]
        assert together[row][: len(alone)] == alone
        assert set(together[row][len(alone) :]) <= {15}


def test_the_callers_processor_replaces_the_one_of_the_settings() -> None:
    own = hf.RepetitionPenaltyLogitsProcessor(1.5)
    assert run(logits_processor=[own], repetition_penalty=5.0) == run(repetition_penalty=1.5)
    shorter = hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), 1, [8])
    options = {"eos_token_id": 8, "repetition_penalty": 1.5}  # whose third token is 8
    assert run(logits_processor=[shorter], min_new_tokens=9, **options) == run(min_new_tokens=1, **options)
    assert run(min_new_tokens=9, **options) != run(min_new_tokens=1, **options)


def test_scores_are_processed_logits_are_raw() -> None:
    out: Any = generate(
        markov(vocab_size=16, seed=2),
        torch.tensor([PROMPT]),
        max_new_tokens=5,
        eos_token_id=None,
        do_sample=True,
        seed=1,
        temperature=0.5,
        top_k=4,
        bad_words_ids=[[3]],
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    assert len(out.scores) == len(out.logits) == 5
    for step, (scores, logits) in enumerate(zip(out.scores, out.logits, strict=True)):
        assert scores.shape == logits.shape == (1, 16)
        assert torch.isfinite(scores).sum() == 4
        assert scores[0, 3] == -torch.inf
        kept = torch.isfinite(scores)
        assert torch.equal(scores[kept], logits[kept] / 0.5)
        assert torch.isfinite(scores[0, out.sequences[0, 6 + step]])


def test_raw_logits_stay_raw_under_a_processor_that_works_in_place() -> None:
    def in_place(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 3] = 99.0
        return scores

    engine = markov(vocab_size=16, seed=2)
    options = {"return_dict_in_generate": True, "output_logits": True, "output_scores": True, "max_new_tokens": 2}
    out: Any = generate(engine, torch.tensor([PROMPT]), logits_processor=[in_place], eos_token_id=None, **options)
    assert out.sequences[0, 6:].tolist() == [3, 3]
    assert np.array_equal(out.logits[0][0].numpy(), engine._logits_of(PROMPT))
    assert out.scores[0][0, 3] == 99


def test_nan_logits_are_an_error_not_a_token() -> None:
    def poisoned(tokens: list[int]) -> Any:
        return np.full(16, np.nan, np.float32)

    engine = markov(vocab_size=16)
    engine._logits_of = poisoned
    for options in ({"do_sample": True}, {"repetition_penalty": 1.1}):
        with pytest.raises(EngineError, match="NaN"):
            run(engine=engine, **options)
    assert run(engine=engine, repetition_penalty=1.1, remove_invalid_values=True)[0][0] == 0


def test_forbidding_every_token_is_an_error() -> None:
    for options in ({"suppress_tokens": list(range(16))}, {"suppress_tokens": list(range(16)), "do_sample": True}):
        with pytest.raises(InputError, match="forbid every token"):
            run(3, **options)


@pytest.mark.parametrize("answer", [None, np.zeros(16), torch.zeros(16), torch.zeros((1, 15))])
def test_a_processor_that_returns_something_else_is_named(answer: Any) -> None:
    class Odd(hf.LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
            return answer

    with pytest.raises(InputError, match="logits_processor Odd returned"):
        run(logits_processor=[Odd()])


def test_hugging_faces_processors_run_in_one_thread_and_the_callers_in_all() -> None:
    seen: dict[str, int] = {}

    class Watched(hf.TemperatureLogitsWarper):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            seen[type(self).__module__] = torch.get_num_threads()
            if type(self) is Failing:
                raise ValueError("on purpose")
            return scores

    theirs = type("Theirs", (Watched,), {"__module__": hf.__name__})(1.0)
    Failing = type("Failing", (Watched,), {"__module__": hf.__name__})
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(logits_processor=[theirs, Watched(1.0)])
        assert seen == {hf.__name__: 1, __name__: 3}
        with pytest.raises(ValueError, match="on purpose"):
            run(logits_processor=[Failing(1.0)])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
