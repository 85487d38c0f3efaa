"""Which prompt format is chosen, and what it looks like."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.tokenization.gguf import text_from_gguf
from ipex_lookahead.tokenization.prompts import build_prompt, llama2_prompt, turn_openings, turn_starts
from tests.support.full_tokenizers import tokenizer_from_gguf
from tests.support.tool_templates import TOOL_TEMPLATES

pytestmark = pytest.mark.usefixtures("kept_renderer")

LLAMA2 = {"model_type": "llama", "vocab_size": 32000}


def test_llama2_prompt():
    assert llama2_prompt(" Hi ") == "[INST] Hi [/INST]"
    assert llama2_prompt("Hi", "Be brief. ") == "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"


def test_the_chat_template_comes_first(bpe_metadata):
    tokenizer = tokenizer_from_gguf({**bpe_metadata, "tokenizer.ggml.add_bos_token": True}, "x.gguf")
    ids = build_prompt(tokenizer, LLAMA2, "Hi", system="Be brief.")
    text = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert tokenizer.decode(ids) == text  # the template writes its special tokens itself: no second bos
    assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_llama2_without_a_template(spm_metadata):
    tokenizer = tokenizer_from_gguf(spm_metadata, "x.gguf")
    assert build_prompt(tokenizer, LLAMA2, "Hi", "Be brief.") == tokenizer.encode(llama2_prompt("Hi", "Be brief."))
    assert build_prompt(tokenizer, LLAMA2, "Hi")[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("config", [{"model_type": "llama", "vocab_size": 512}, {"vocab_size": 32000}, {}])
def test_other_models_get_the_plain_text(spm_metadata, config):
    tokenizer = tokenizer_from_gguf(spm_metadata, "x.gguf")
    assert build_prompt(tokenizer, config, "Hi") == tokenizer.encode("Hi")
    assert build_prompt(tokenizer, config, "Hi", "Be brief.") == tokenizer.encode("Be brief.\n\nHi")


def test_a_template_without_system_messages_says_so(bpe_metadata):
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}x"
    tokenizer = tokenizer_from_gguf({**bpe_metadata, "tokenizer.chat_template": template}, "x.gguf")
    with pytest.raises(InputError, match="no system messages"):
        build_prompt(tokenizer, {}, "Hi", system="x")


@pytest.mark.parametrize(("text", "system"), [("a\udc80", None), ("a", "\ud800")])
def test_text_that_is_no_unicode_is_refused(bpe_metadata, text, system):
    with pytest.raises(InputError, match="lone surrogate"):
        build_prompt(tokenizer_from_gguf(bpe_metadata, "x.gguf"), {}, text, system)


@pytest.mark.parametrize("template", TOOL_TEMPLATES.values(), ids=list(TOOL_TEMPLATES))
@pytest.mark.rotating(5)
def test_where_turns_begin_is_found_in_a_prompt(bpe_metadata, template):
    """Of each of the user's texts behind an answer or a system prompt, by one look at the template."""
    tokenizer = text_from_gguf({**bpe_metadata, "tokenizer.chat_template": template}, "x.gguf")
    openings = turn_openings(tokenizer)
    assert openings
    texts = ("Be brief.", "the sea?", "It is wide", "and 7 ships")
    for roles in (
        ("system", "user", "assistant", "user"),
        ("user", "assistant", "user"),
        ("system", "user"),
        ("user",),
    ):
        said = [{"role": role, "content": text} for role, text in zip(roles, texts[-len(roles) :], strict=True)]
        if roles == ("system", "user"):
            said = [{"role": "system", "content": texts[0]}, {"role": "user", "content": texts[1]}]
        try:
            ids = tokenizer.prompt_ids(said, {"add_generation_prompt": True})
        except LookaheadError:
            continue
        found = turn_starts(np.array(ids, np.int32), openings)
        rest = [tokenizer.decode(ids[at:]) for at in found]
        users = [one["content"] for one in said if one["role"] == "user"]
        assert len(found) <= len(users) + 1
        if len(roles) > 1:
            assert rest[-1].lstrip().startswith(users[-1])
        if roles[0] == "system":
            assert any(one.lstrip().startswith(users[0]) for one in rest)


def test_a_prompt_without_a_template_has_no_turns(spm_metadata):
    assert turn_openings(text_from_gguf(spm_metadata, "x.gguf")) == []
    assert turn_starts(np.array([3, 1, 2, 1, 2, 5, 1], np.int32), [[1, 2], [5]]) == [3, 5, 6]
    assert turn_starts(np.array([], np.int32), [[1, 2]]) == []
