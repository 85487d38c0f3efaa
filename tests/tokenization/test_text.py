"""The tokenizers without transformers give the ids and the text of those with it."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import pytest
from tokenizers import processors

from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.prompts import build_prompt
from ipex_lookahead.tokenization.sentencepiece_model import read_model
from ipex_lookahead.tokenization.text import TextTokenizer

from .conftest import CHATML, TEXTS, metadata_of

pytestmark = pytest.mark.usefixtures("kept_renderer")

CONFIG = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2}
MIXED = [
    *TEXTS,
    "<|start|>user\nthe cat<|end|>\n<|start|>",
    "<s>[INST] ball [/INST]</s></s> x<s>",
    "a<|end|> <|end|>b<|end|>\n\n",
    "<|start<|start|>|>",
]


@pytest.fixture(params=["gguf bpe", "gguf bpe bos", "gguf spm", "gguf spm eos", "spm file", "user symbols", "unigram",
                        "no prefix", "json", "json flags", "json template", "json roles"])  # fmt: skip
def made(request, tmp_path, bpe_core, bpe_metadata, spm_bytes, spm_metadata, spm_variants) -> TextTokenizer:
    """One tokenizer of every kind."""
    kind: str = request.param
    if kind.startswith("gguf bpe"):
        return text_from_gguf({**bpe_metadata, "tokenizer.ggml.add_bos_token": kind.endswith("bos")}, "x.gguf")
    if kind.startswith("gguf spm"):
        ends = {"tokenizer.ggml.add_eos_token": kind.endswith("eos"), "tokenizer.chat_template": CHATML}
        return text_from_gguf({**spm_metadata, **ends}, "x.gguf")
    if kind == "no prefix":
        return text_from_gguf(metadata_of(read_model(spm_variants[kind], "tokenizer.model")), "x.gguf")
    settings: dict[str, Any] = {"chat_template": CHATML}
    if kind.startswith("json"):
        description = json.loads(bpe_core.to_str())
        if kind == "json template":
            around = processors.TemplateProcessing(
                "<|start|> $A", "<|start|> $A <|end|> $B", [("<|start|>", 0), ("<|end|>", 1)]
            )
            description["post_processor"] = json.loads(around.__getstate__())
        if kind == "json roles":  # tokens that become special because they have a role
            settings |= {"eos_token": "Ġcat", "additional_special_tokens": ["a", "<|end|>"]}
        if kind == "json flags":
            settings |= {"bos_token": "<|start|>", "eos_token": "<|end|>", "add_bos_token": True, "add_eos_token": True}
        (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    else:
        (tmp_path / "tokenizer.model").write_bytes(spm_variants.get(kind, spm_bytes))
        extra = {"430": {"content": "<|tool|>"}, "431": {"content": "<|too", "special": False}}
        settings |= {"added_tokens_decoder": extra if kind == "spm file" else {}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = text_from_folder(tmp_path, CONFIG)
    assert found is not None
    return found


def test_it_equals_transformers(made):
    theirs = made.for_transformers()
    assert made.all_special_ids == theirs.all_special_ids
    assert (made.bos_token_id, made.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert made.get_vocab() == theirs.get_vocab()
    assert made.chat_template == theirs.chat_template
    for text in [*MIXED, "x<|tool|><|tool <|too|>"]:
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert made.encode(text, add_special_tokens=special) == ids
            for skip in (True, False):
                assert made.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.rotating(6)
def test_it_decodes_any_ids_as_transformers_does(made):
    theirs, random_ids = made.for_transformers(), random.Random(1)
    for _ in range(100):
        ids = random_ids.choices(sorted(made.get_vocab().values()), k=12)
        for skip in (True, False):
            assert made.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
        silent = made.silent_ids
        assert made.decode([i for i in ids if i not in silent]) == made.decode(ids, skip_special_tokens=True)


@pytest.mark.rotating(4)
def test_it_makes_the_same_prompts(made):
    for system in (None, "be brief"):
        ours, theirs = (build_prompt(t, {}, "the cat", system) for t in (made, made.for_transformers()))
        assert ours == theirs


def test_a_chat_needs_a_template(bpe_metadata):
    del bpe_metadata["tokenizer.chat_template"]
    made = text_from_gguf(bpe_metadata, "x.gguf")
    with pytest.raises(InputError, match="no chat template"):
        made.apply_chat_template([{"role": "user", "content": "hi"}])


@pytest.mark.rotating(4)
def test_transformers_tokenizers_are_copied_and_pickled(made):
    theirs = made.for_transformers()
    again = pickle.loads(pickle.dumps(theirs))
    assert again.encode("the cat<|tool|>") == theirs.encode("the cat<|tool|>")
