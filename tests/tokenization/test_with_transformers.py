"""The tokenizers where transformers users put them: batches, chats, streams, stop strings, pipelines."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TextIteratorStreamer, TextStreamer, pipeline
from transformers.generation import stopping_criteria

from ipex_lookahead.errors import InputError, ModelFormatError
from tests.support.full_tokenizers import tokenizer_from_gguf

from .conftest import CHATML

pytestmark = pytest.mark.usefixtures("kept_renderer")

CHAT = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat on "}]


@pytest.fixture(params=["gpt2", "llama"])
def tokenizer(request, bpe_metadata, spm_metadata):
    metadata = bpe_metadata if request.param == "gpt2" else {**spm_metadata, "tokenizer.chat_template": CHATML}
    return tokenizer_from_gguf(metadata, "x.gguf")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_batches_are_padded_on_the_left(tokenizer):
    batch = tokenizer(["the cat sat on the mat", "Tim"], padding=True, return_tensors="pt")
    short = tokenizer("Tim")["input_ids"]
    ids, mask = batch["input_ids"][1].tolist(), batch["attention_mask"][1].tolist()
    assert ids[-len(short) :] == short
    assert set(ids[: -len(short)]) == {tokenizer.pad_token_id}
    assert mask == [0] * (len(ids) - len(short)) + [1] * len(short)
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == ["the cat sat on the mat", "Tim"]


def test_truncation(tokenizer):
    whole = tokenizer("the cat sat on the mat")["input_ids"]
    assert tokenizer("the cat sat on the mat", truncation=True, max_length=3)["input_ids"] == whole[:3]


def test_pieces_and_ids(tokenizer):
    ids = tokenizer.encode("the café", add_special_tokens=False)
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert tokenizer.tokenize("the café") == pieces
    assert tokenizer.convert_tokens_to_ids(pieces) == ids
    assert tokenizer.convert_tokens_to_string(pieces) == "the café"
    vocabulary = tokenizer.get_vocab()
    assert [vocabulary[piece] for piece in pieces] == ids
    assert len(vocabulary) == len(tokenizer)
    assert tokenizer.decode([]) == ""


def test_chat_templates(tokenizer):
    text = "<|start|>user\nthe cat<|end|>\n<|start|>assistant\n"
    assert tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, tokenize=False) == text
    encoded = tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, return_tensors="pt")
    assert encoded["input_ids"].tolist() == [tokenizer(text, add_special_tokens=False)["input_ids"]]
    ids = tokenizer.apply_chat_template(CHAT[:1], add_generation_prompt=True, return_dict=False)
    assert ids == encoded["input_ids"][0].tolist()
    several = tokenizer.apply_chat_template([CHAT[:1], CHAT], tokenize=False)
    assert several[0] == tokenizer.apply_chat_template(CHAT[:1], tokenize=False)
    assert len(several) == 2
    assert tokenizer.apply_chat_template([{**CHAT[0], "name": None}], tokenize=False, chat_template="{{ messages[0] }}")


def test_tools_may_be_functions(tokenizer):
    def weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: where
        """
        return city

    options = {"tokenize": False, "chat_template": "{{ tools[0]['function']['name'] }} {{ tools | length }}"}
    assert tokenizer.apply_chat_template(CHAT, tools=[weather, {"type": "function"}], **options) == "weather 2"


def test_the_last_message_can_be_continued(tokenizer):
    text = tokenizer.apply_chat_template(CHAT, continue_final_message=True, tokenize=False)
    assert text == "<|start|>user\nthe cat<|end|>\n<|start|>assistant\nsat on "
    trimming = "{% for m in messages %}{{ m.content | trim }}\n{% endfor %}"
    options = {"continue_final_message": True, "tokenize": False, "chat_template": trimming}
    assert tokenizer.apply_chat_template(CHAT, **options) == "the cat\nsat on"
    assert CHAT[1]["content"] == "sat on "  # the caller's messages are left alone
    with pytest.raises(InputError, match="does not show the last message"):
        tokenizer.apply_chat_template(CHAT, continue_final_message=True, chat_template="x")


def test_what_a_chat_may_not_be(tokenizer):
    for chat in ([], "text", {}, ["x"], [[]], [CHAT, 5]):
        with pytest.raises(InputError):
            tokenizer.apply_chat_template(chat, continue_final_message=True)
    with pytest.raises(InputError, match="exclude each other"):
        tokenizer.apply_chat_template(CHAT, continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InputError, match="return_assistant_tokens_mask"):
        tokenizer.apply_chat_template(CHAT, return_assistant_tokens_mask=True)
    with pytest.raises(ModelFormatError, match="unsafe"):
        tokenizer.apply_chat_template(CHAT, chat_template="{{ ''.__class__.__mro__ }}")
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="no chat template"):
        tokenizer.apply_chat_template(CHAT)


@pytest.mark.parametrize("text", ["the cat sat on the mat.\nTim liked  balls", "café — 日本 🙂 end", " leading"])
def test_streams_give_the_text(tokenizer, text, capsys):
    ids = tokenizer.encode(text, add_special_tokens=False)
    streamer = TextStreamer(tokenizer)
    parts = TextIteratorStreamer(tokenizer, skip_special_tokens=True)
    for token in [*ids, tokenizer.eos_token_id]:
        streamer.put(torch.tensor([token]))
        parts.put(torch.tensor([token]))
    streamer.end()
    parts.end()
    assert capsys.readouterr().out == text + tokenizer.eos_token + "\n"
    assert "".join(parts) == text


@pytest.mark.skipif(not hasattr(stopping_criteria, "StopStringCriteria"), reason="this transformers has none")
def test_stop_strings(tokenizer):
    stops = stopping_criteria.StopStringCriteria(tokenizer, ["the mat"])
    for text, expected in (("the cat sat on the mat", True), ("the cat sat on the ma", False)):
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        assert stops(ids, None).tolist() == [expected]


def test_pipelines(tokenizer, model):
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    options = {"max_new_tokens": 4, "do_sample": False}
    assert generate("the cat", **options)[0]["generated_text"].startswith("the cat")
    chat = generate(CHAT[:1], **options)[0]["generated_text"]
    assert chat[0] == CHAT[0]
    assert chat[1]["role"] == "assistant"
    assert len(generate(["Tim", "the cat sat"], batch_size=2, **options)) == 2


def test_a_large_vocabulary_asks_nobody(bpe_metadata, monkeypatch):
    """transformers treats tokenizers of more than 100,000 tokens specially; ours must not look anything up."""
    import socket

    def refuse(*arguments):
        raise AssertionError("a tokenizer opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    tokens = bpe_metadata["tokenizer.ggml.tokens"]
    tokens = tokens + [f"filler{i}" for i in range(110_000 - len(tokens))]
    metadata = {**bpe_metadata, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)}
    assert tokenizer_from_gguf(metadata, "x.gguf").encode("the cat")
