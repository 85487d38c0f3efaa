"""A byte-level tokenizer built on the spot: token i < 256 is byte i's character; then bos, eos and pad."""

from __future__ import annotations

from typing import Any

VOCAB = 259
BOS, EOS, PAD = 256, 257, 258


def byte_tokenizer() -> Any:
    """A ``PreTrainedTokenizerFast`` of 259 tokens, with left padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = _byte_characters()
    vocab = {character: byte for byte, character in enumerate(alphabet)} | {"<s>": BOS, "</s>": EOS, "<pad>": PAD}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left"
    )


def _byte_characters() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
