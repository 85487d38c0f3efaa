"""Our model where transformers expects one of its own: guidance, assistants on either side, pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM, LlamaTokenizer, pipeline
from transformers.cache_utils import Cache
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError
from ipex_lookahead.tokenization.tokenizers import SentencePieceTokenizer
from tests.hf.test_model import build
from tests.support.scripted_engine import scripted
from tests.support.tiny import write_tiny_llama
from tests.support.vocabularies import sentencepiece_model

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])
PLAIN: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "m", seed=5)


@pytest.fixture(scope="module")
def ours(folder: Path) -> Any:
    """The weights in float32 on our engine."""
    return AutoModelForCausalLM.from_pretrained(folder, threads=2, progress=False)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """The same weights in transformers."""
    return LlamaForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()


@pytest.mark.parametrize("use_cache", [True, False])
def test_classifier_free_guidance_asks_our_model(ours: Any, theirs: Any, use_cache: bool) -> None:
    negative = torch.tensor([[7, 8, 9]])

    def guided(model: Any, **more: Any) -> torch.Tensor:
        guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, model, negative, use_cache=use_cache)
        return model.generate(IDS, logits_processor=[guidance], **PLAIN, **more)

    expected = guided(theirs)
    assert not torch.equal(expected, theirs.generate(IDS, **PLAIN))
    for lookahead in (None, 3, "auto"):
        assert torch.equal(guided(ours, lookahead=lookahead), expected)


def test_a_transformers_model_drafts_for_ours(ours: Any, theirs: Any) -> None:
    expected = ours.generate(IDS, **PLAIN)
    for words in ({"assistant_model": theirs}, {"draft_model": theirs, "max_step_draft": 3}):
        assert torch.equal(ours.generate(IDS, **PLAIN, **words), expected)
        assert ours.stats.strategy == "draft_model"
        assert ours.stats.accepted > ours.stats.drafted / 2
    ours.use_draft_model(theirs)
    try:
        assert torch.equal(ours.generate(IDS, **PLAIN, lookahead=4), expected)
        assert ours.stats.accepted > 0
    finally:
        ours.use_draft_model(None)


def test_the_pipeline_loses_a_space_with_any_sentencepiece_tokenizer(tmp_path: Path) -> None:
    """It decodes the new tokens alone; with transformers' own tokenizer too. docs/transformers.md says what helps."""
    pytest.importorskip("transformers", minversion="5", reason="older pipelines decode the whole text")
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    ours = SentencePieceTokenizer(sentencepiece_model(True), **roles)
    ours.save_pretrained(tmp_path)
    theirs = LlamaTokenizer.from_pretrained(tmp_path)
    ids = ours("Once upon a time").input_ids
    start = len(ours("Once upon").input_ids)
    model = build(scripted([*ids[start:], ours.eos_token_id], len(ours), start), tokenizer=ours)
    for tokenizer in (ours, theirs):
        assert tokenizer("Once upon a time").input_ids == ids
        pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": ours.eos_token_id}
        assert pipe("Once upon", **settings)[0]["generated_text"] == "Once upona time"
        (answer,) = pipe("Once upon", return_tensors=True, **settings)
        assert tokenizer.decode(answer["generated_token_ids"], skip_special_tokens=True) == "Once upon a time"


def test_an_assistant_of_another_vocabulary_is_refused(ours: Any, tmp_path: Path) -> None:
    other = LlamaForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "m", vocab=80))
    with pytest.raises(InputError, match="the draft model has 80 token ids and the target 96"):
        ours.generate(IDS, assistant_model=other, **PLAIN)
    with pytest.raises(InputError, match="draft_model is a builtins.str; load it with"):
        ours.generate(IDS, assistant_model="gpt2", **PLAIN)


@pytest.mark.parametrize("options", [{}, {"attention_mask": torch.ones_like(IDS)}, {"repetition_penalty": 1.3}])
def test_our_model_drafts_for_a_transformers_model(ours: Any, theirs: Any, options: dict[str, Any]) -> None:
    read: list[int] = []
    forward = ours.engine.forward

    def counting(batch: Any) -> Any:
        read.append(len(batch.tokens))
        return forward(batch)

    expected = theirs.generate(IDS, **PLAIN, **options)
    try:
        ours.engine.forward = counting
        assert torch.equal(theirs.generate(IDS, **PLAIN, **options, assistant_model=ours), expected)
    finally:
        ours.engine.forward = forward
    assert len(read) > 1
    if hasattr(Cache, "crop"):  # before, transformers cut tuples only, and had none left of a cache like ours
        assert max(read[1:]) <= 3  # the prompt is read once: what was accepted is still there


def test_a_generation_goes_on_from_the_past_of_another(ours: Any) -> None:
    first = ours.generate(IDS, **PLAIN, return_dict_in_generate=True, lookahead=3)
    assert first.past_key_values.get_seq_length() > IDS.shape[1]
    longer = torch.cat([first.sequences, torch.tensor([[8, 8, 61]])], 1)
    expected = ours.generate(longer, **PLAIN, lookahead=2)
    past = first.past_key_values
    held = past.get_seq_length()
    for _ in range(2):  # the second time it holds all of the prompt, and more
        again = ours.generate(longer, **PLAIN, lookahead=2, past_key_values=past, return_dict_in_generate=True)
        assert torch.equal(again.sequences, expected)
        assert again.past_key_values is past
        assert again.stats.cached_tokens == held
        assert again.stats.prompt_tokens == longer.shape[1]
        held = longer.shape[1] - 1
    other = torch.tensor([[5, 9, 34, 2, 17, 60]])
    assert torch.equal(ours.generate(other, **PLAIN, past_key_values=past), ours.generate(other, **PLAIN))


def test_the_past_of_a_batch_is_that_of_its_shortest_row(ours: Any) -> None:
    ids = torch.tensor([[0, 0, 5, 9, 33], [7, 7, 90, 4, 4]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0), "lookahead": 3}
    out = ours.generate(ids, **PLAIN, **options, return_dict_in_generate=True)
    past, columns = out.past_key_values, out.past_key_values.get_seq_length()
    assert torch.equal(past.ids, out.sequences[:, :columns])
    rest = ours(out.sequences[:, columns:], past_key_values=past).logits
    whole = torch.cat([mask, torch.ones(2, out.sequences.shape[1] - 5, dtype=torch.int64)], 1)
    assert torch.equal(rest, ours(out.sequences, attention_mask=whole).logits[:, columns:])
    again = ours.generate(ids, **PLAIN, **options, past_key_values=past)
    assert torch.equal(again, out.sequences)


def test_a_generation_that_fails_leaves_an_empty_past(ours: Any) -> None:
    past = ours(IDS).past_key_values

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the processor's own")

    with pytest.raises(RuntimeError, match="the processor's own"):
        ours.generate(IDS, **PLAIN, past_key_values=past, logits_processor=[fails])
    assert past.get_seq_length() == 0
    assert torch.equal(ours(IDS, past_key_values=past).logits, ours(IDS).logits)


def test_positions_and_pasts_that_do_not_fit_are_refused(ours: Any) -> None:
    for words, message in (
        ({"position_ids": torch.arange(1, 7)[None]}, r"position_ids of row 0 are \[1, 2"),
        ({"past_key_values": ours(IDS.repeat(2, 1)).past_key_values}, "past_key_values hold 2 rows and input_ids 1"),
        ({"past_key_values": DynamicCache()}, "past_key_values is a DynamicCache"),
    ):
        with pytest.raises(InputError, match=message):
            ours.generate(IDS, **PLAIN, **words)
