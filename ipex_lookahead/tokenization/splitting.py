"""How text is split before byte-pair merging: the known ways, and no others.

A splitting pattern is a regular expression, and a tokenizer file may bring any. They run on an engine that backtracks,
so a hostile one takes for ever; hence a file may only name or spell one of these. They are the published patterns of
the tokenizers in question.
"""

from __future__ import annotations

from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
QWEN2 = _SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

KNOWN_PATTERNS = frozenset({GPT2, LLAMA3, QWEN2, TEKKEN})
"""The regular expressions that a ``tokenizer.json`` may spell."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """One way to split.

    Attributes:
        pattern: cuts the text into the pieces that it matches.
        single_digits: every digit is cut off first.
        whole_words: a piece that is a token as it stands is not merged from its bytes (``ignore_merges``).
        compose: the text is brought to Unicode form C first.
        bos: whether a beginning-of-sequence token is added where the file does not say.
    """

    pattern: str
    single_digits: bool = False
    whole_words: bool = False
    compose: bool = False
    bos: bool = False


_GPT2, _CODE = Splitting(GPT2), Splitting(GPT2, single_digits=True)
_LLAMA3, _QWEN2 = Splitting(LLAMA3, whole_words=True, bos=True), Splitting(QWEN2, compose=True)

SPLITTINGS: dict[str, Splitting] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _CODE,
    "starcoder": _CODE,
    "refact": _CODE,
    "command-r": _CODE,
    "codeshell": _CODE,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "tekken": Splitting(TEKKEN, whole_words=True, bos=True),
}
"""Value of ``tokenizer.ggml.pre`` to what it means."""
