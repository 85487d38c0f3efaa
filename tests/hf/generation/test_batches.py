"""What the caller supplies sees a batch as transformers' own generate shows it, with and without lookahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as hf
from transformers.generation import stopping_criteria as stops

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.wrapping import wrap
from ipex_lookahead.system import compat

pytestmark = pytest.mark.skipif(
    compat.RELEASE < (5, 0), reason="the oracle is transformers 5; criteria have a verdict for each row from 4.39"
)

PAD = 0
IDS = torch.tensor([[PAD, PAD, 5, 9, 7], [3, 4, 3, 4, 3], [PAD, 8, 1, 2, 6]])
MASK = (IDS != PAD).long()
STRATEGIES = ["prompt_lookup", "auto", "suffix", "recycling", "jacobi", "draft_model"]
LOOKAHEADS = [0, *STRATEGIES]


@pytest.fixture(scope="module")
def theirs() -> LlamaForCausalLM:
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module", params=["wrapped", "native"])
def ours(request: pytest.FixtureRequest, theirs: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "wrapped":
        return wrap(theirs)
    pytest.importorskip("ipex_lookahead._native")
    folder = tmp_path_factory.mktemp("tiny")
    theirs.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, load_in_low_bit="fp32", engine="native", threads=1)


class Recorder(hf.LogitsProcessor, stops.StoppingCriteria):  # type: ignore[misc]
    """A processor with state that pushes the scores of each row by the number of the call; and a criterion."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any) -> Any:
        shape = None if scores is None else [tuple(s.shape) for s in scores]
        self.seen.append((input_ids.tolist(), shape, input_ids.is_contiguous(), input_ids.dtype))
        if not isinstance(scores, torch.Tensor):
            return torch.zeros(len(input_ids), dtype=torch.bool)
        scores = scores.clone()
        for row in range(len(scores)):
            scores[row, (7 * len(self.seen) + 11 * row) % 320] += 6
        return scores


def generated(model: Any, lookahead: Any = None, **kwargs: Any) -> Any:
    """New tokens of a batch; of our model where ``lookahead`` is given."""
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD} | kwargs
    ids, mask = options.pop("ids", IDS), options.pop("mask", MASK)
    if lookahead is not None:
        options |= {"lookahead": lookahead, "adaptive": False}
        if lookahead == "draft_model":
            options |= {"draft_model": model, "lookahead": 4}
    out = model.generate(ids, attention_mask=mask, **options)
    return out[:, ids.shape[1] :].tolist() if isinstance(out, torch.Tensor) else out


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.rotating(5)
def test_processors_and_criteria_see_what_transformers_shows_them(ours: Any, theirs: Any, lookahead: Any) -> None:
    plain = generated(theirs)
    eos = [plain[0][3], plain[2][6]]
    for extra in ({}, {"eos_token_id": eos}, {"num_return_sequences": 1, "min_new_tokens": 5, "eos_token_id": eos}):
        expected, found = [Recorder(), Recorder()], [Recorder(), Recorder()]
        wanted = generated(theirs, logits_processor=[expected[0]], stopping_criteria=[expected[1]], **extra)
        got = generated(ours, lookahead, logits_processor=[found[0]], stopping_criteria=[found[1]], **extra)
        assert got == wanted
        assert found[0].seen == expected[0].seen
        assert found[1].seen == expected[1].seen
    assert len(expected[0].seen) > 3


def test_a_batch_under_the_callers_rules_decodes_without_drafts(ours: Any) -> None:
    recorder = Recorder()
    generated(ours, "draft_model", stopping_criteria=[recorder])
    assert (ours.stats.drafted, ours.stats.steps) == (0, 11)
    assert len(recorder.seen) == 12


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.rotating(5)
def test_a_rule_of_each_row(ours: Any, lookahead: Any) -> None:
    class Force(hf.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            forced = torch.full_like(scores, -torch.inf)
            for row, token in enumerate([300, 301, 302]):
                forced[row, token] = 0
            return forced

    rows = generated(ours, lookahead, logits_processor=[Force()], max_new_tokens=4)
    assert rows == [[300] * 4, [301] * 4, [302] * 4]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.rotating(4)
def test_a_limit_of_each_row(ours: Any, theirs: Any, lookahead: Any, streaming: bool) -> None:
    """Rows that have ended go on as padding. (transformers pads them only where there is an end token.)"""

    class Limits(stops.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            return torch.tensor([input_ids.shape[1] - 5 >= limit for limit in (5, 7, 9)])

    class Streamer:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.got.append(value.tolist())

        def end(self) -> None:
            self.got.append("end")

    streamers = [Streamer(), Streamer()] if streaming else [None, None]
    expected = generated(theirs, stopping_criteria=[Limits()], eos_token_id=319, streamer=streamers[0])
    rows = generated(ours, lookahead, stopping_criteria=[Limits()], eos_token_id=319, streamer=streamers[1])
    assert rows == expected
    assert [row.count(PAD) for row in rows] == [4, 2, 0]
    assert ours.stats.finish_reasons == ["stop"] * 3
    assert ours.stats.tokens == 5 + 7 + 9
    if streaming:
        assert streamers[1].got == streamers[0].got  # type: ignore[union-attr]


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.rotating(5)
def test_a_criterion_that_counts_counts_steps(ours: Any, lookahead: Any) -> None:
    calls = [0]

    def four(ids: torch.Tensor, scores: Any) -> bool:
        calls[0] += 1
        return calls[0] >= 4

    assert [len(row) for row in generated(ours, lookahead, stopping_criteria=[four])] == [4, 4, 4]
    assert calls == [4]


@pytest.mark.parametrize("lookahead", [0, "prompt_lookup", "draft_model"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.rotating(4)
def test_allowed_tokens_get_the_arguments_that_transformers_gives(
    ours: Any, theirs: Any, lookahead: Any, times: int
) -> None:
    def recording(seen: list[Any]) -> Any:
        def allowed(row: int, ids: torch.Tensor) -> list[int]:
            seen.append((row, ids.tolist()))
            return [50 + row, 60 + len(seen) % 3, 70]

        return allowed

    sampling: dict[str, Any] = {} if times == 1 else {"do_sample": True, "num_return_sequences": times, "top_k": 0}
    expected: list[Any] = []
    found: list[Any] = []
    wanted = generated(theirs, prefix_allowed_tokens_fn=recording(expected), **sampling)
    got = generated(ours, lookahead, prefix_allowed_tokens_fn=recording(found), **sampling)
    if times == 1:
        assert got == wanted
        assert found == expected
    else:  # another sampler: rows, order and lengths
        by_row = max(row for row, _ in expected) >= len(IDS)  # transformers before 5.24 counted rows, not prompts
        wanted = [(row // times if by_row else row, len(ids)) for row, ids in expected]
        assert [(prompt, len(ids)) for prompt, ids in found] == wanted
        assert {prompt for prompt, _ in found} == set(range(len(IDS)))


def test_one_row_with_padding_is_shown_its_padding(ours: Any, theirs: Any) -> None:
    one: dict[str, Any] = {"ids": IDS[:1], "mask": MASK[:1]}
    for lookahead in (0, "prompt_lookup"):
        expected, found = [Recorder(), Recorder()], [Recorder(), Recorder()]
        wanted = generated(theirs, logits_processor=[expected[0]], stopping_criteria=[expected[1]], **one)
        got = generated(ours, lookahead, logits_processor=[found[0]], stopping_criteria=[found[1]], **one)
        assert got == wanted
        assert [r.seen for r in found] == [r.seen for r in expected]


@pytest.mark.parametrize("lookahead", [0, "draft_model"])
def test_hugging_faces_own_objects_do_what_they_do_there(ours: Any, theirs: Any, lookahead: Any) -> None:
    """They see the padding, as there: a penalty for the padding token, a length that counts it."""
    eos = generated(theirs)[1][2]
    processors = [
        hf.RepetitionPenaltyLogitsProcessor(1.7),
        hf.MinLengthLogitsProcessor(9, eos),
        hf.SuppressTokensLogitsProcessor([17]),
        hf.NoRepeatNGramLogitsProcessor(2),
        hf.SequenceBiasLogitsProcessor([[[5], 2.0], [[9, 7], 4.0]]),
    ]
    criteria = [stops.MaxLengthCriteria(13)]
    wanted = generated(theirs, logits_processor=processors, stopping_criteria=criteria, eos_token_id=eos)
    got = generated(ours, lookahead, logits_processor=processors, stopping_criteria=criteria, eos_token_id=eos)
    assert got == wanted


@pytest.mark.parametrize("lookahead", [0, "prompt_lookup", "draft_model"])
def test_scores_that_criteria_see(ours: Any, theirs: Any, lookahead: Any) -> None:
    shown: list[list[Any]] = [[], []]

    def watching(seen: list[Any]) -> Any:
        def criterion(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
            seen.append([s.clone() for s in scores])
            return torch.zeros(len(ids), dtype=torch.bool)

        return criterion

    options: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 5}
    wanted = generated(theirs, stopping_criteria=[watching(shown[0])], **options)
    got = generated(ours, lookahead, stopping_criteria=[watching(shown[1])], **options)
    assert torch.equal(got.sequences, wanted.sequences)
    assert [len(s) for s in shown[1]] == [1, 2, 3, 4, 5]
    for step in range(5):
        np.testing.assert_allclose(shown[1][4][step], shown[0][4][step], atol=0.02)  # fp16 keys and values
        assert torch.equal(shown[1][4][step], got.scores[step])


@pytest.mark.parametrize("mode", [{}, {"do_sample": True, "seed": 5, "top_k": 0}])
def test_lookahead_changes_no_logit_of_a_batch_under_the_callers_rules(ours: Any, mode: dict[str, Any]) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "max_new_tokens": 20}
    if not ours.engine.row_invariant:
        options |= {"output_scores": False, "output_logits": False, "max_new_tokens": 10}
    plain = generated(ours, 0, logits_processor=[Recorder()], **options, **mode)
    for lookahead in STRATEGIES:
        out = generated(ours, lookahead, logits_processor=[Recorder()], **options, **mode)
        assert torch.equal(out.sequences, plain.sequences)
        for one, other in ((out.logits, plain.logits), (out.scores, plain.scores)):
            assert all(torch.equal(a, b) for a, b in zip(one or (), other or (), strict=True))


@pytest.mark.parametrize("answer", [torch.zeros(2, dtype=torch.bool), torch.zeros((3, 2), dtype=torch.bool)])
def test_a_criterion_that_answers_for_other_rows_is_named(ours: Any, answer: Any) -> None:
    with pytest.raises(InputError, match=r"stopping_criteria function returned \(.*one for each row"):
        generated(ours, 0, stopping_criteria=[lambda ids, scores: answer])


def test_a_processor_that_answers_for_one_row_is_named(ours: Any) -> None:
    with pytest.raises(InputError, match=r"logits_processor function returned \(1, 320\).*\(3, 320\)"):
        generated(ours, 0, logits_processor=[lambda ids, scores: scores[:1]])


@pytest.mark.parametrize("lookahead", [0, "prompt_lookup", "draft_model"])
def test_lengths_of_settings_count_the_padding(ours: Any, theirs: Any, lookahead: Any) -> None:
    """``max_length`` and ``min_length`` are columns of the batch, so every row gets as many new tokens."""
    plain = generated(theirs)
    eos = [row[1] for row in plain]
    for lengths in (
        {"max_length": 13},
        {"max_length": 13, "min_length": 9, "eos_token_id": eos},
        {"max_length": 13, "forced_eos_token_id": 17},
        {"max_length": 6, "min_length": 2, "eos_token_id": eos},
        {"max_length": 14, "min_length": 14, "min_new_tokens": 3, "eos_token_id": eos},
    ):
        wanted = generated(theirs, max_new_tokens=None, **lengths)
        assert generated(ours, lookahead, max_new_tokens=None, **lengths) == wanted
    assert [len(row) for row in generated(ours, lookahead, max_new_tokens=None, max_length=13)] == [8, 8, 8]
    with pytest.raises(InputError, match="max_length is 5 and the prompt alone has 5 tokens, padding included; raise"):
        generated(ours, lookahead, max_new_tokens=None, max_length=5)
