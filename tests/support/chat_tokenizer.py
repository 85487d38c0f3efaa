"""A tokenizer for tiny models: one token a byte, four special tokens, a chat template in the ChatML manner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.tiny import write_tiny_llama

SIZE = 260
"""Ids: 0 unknown, 1 begin, 2 end of turn, 3 start of turn, then the 256 bytes."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chat_tokenizer(*, chat: bool = True) -> Any:
    """A ``PreTrainedTokenizerFast`` of ``SIZE`` ids. It splits nothing and merges nothing."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<unk>", "<s>", "<|im_end|>", "<|im_start|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*specials, *alphabet])}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True) for t in specials])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    if chat:
        wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def write_chat_llama(folder: str | Path, **sizes: Any) -> Path:
    """Write a tiny llama with this tokenizer; ``sizes`` as ``write_tiny_llama`` has them."""
    made = write_tiny_llama(folder, **{"vocab": SIZE, **sizes})
    chat_tokenizer().save_pretrained(made)
    return made
