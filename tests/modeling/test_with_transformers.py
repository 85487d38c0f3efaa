"""Our model where transformers expects one of its own: guidance, assistants on either side, pipelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.generation.logits_process import UnbatchedClassifierFreeGuidanceLogitsProcessor

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead import AutoModelForCausalLM, InputError
from tests.support.tiny import write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2, 17, 60]])
PLAIN: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None}


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


def test_an_assistant_of_another_vocabulary_is_refused(ours: Any, tmp_path: Path) -> None:
    other = LlamaForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "m", vocab=80))
    with pytest.raises(InputError, match="the draft model has 80 token ids and the target 96"):
        ours.generate(IDS, assistant_model=other, **PLAIN)
    with pytest.raises(InputError, match="draft_model is a builtins.str; load it with"):
        ours.generate(IDS, assistant_model="gpt2", **PLAIN)
