"""Fill-in-the-middle: its tokens in a vocabulary, and its prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ipex_lookahead.tokenization.text import TextTokenizer

_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma, Granite 3 and 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code, StableCode
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
"""Tokens before the prefix, before the suffix, and before the middle."""
_REPOSITORY = ("<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<repo_name>")
_SEPARATOR = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")
_ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|endoftext|>", "<EOT>", "▁<EOT>", "<|EOT|>"),
    *_REPOSITORY,
    *_SEPARATOR,
)


@dataclass(frozen=True, slots=True)
class FillIn:
    """The tokens of a vocabulary for fill-in-the-middle.

    Attributes:
        prefix, suffix, middle: Ids before the three parts of a prompt, in this order.
        ends: Ids that end the middle, in addition to the model's own.
        repository, separator: Ids before the name of a repository and of a file, or None.
    """

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int]
    repository: int | None = None
    separator: int | None = None

    def prompt(
        self,
        tokenizer: TextTokenizer,
        before: str | Sequence[int],
        behind: str,
        files: Sequence[tuple[str, str]] = (),
    ) -> list[int]:
        """Return the ids of a prompt: other files, the text before the gap, the text after it, the middle token.

        Args:
            tokenizer: The tokenizer of the vocabulary.
            before: Text before the gap, or its ids; control tokens in a text are text.
            behind: Text after the gap.
            files: Name and text of other files, as sent by clients of llama.cpp.
        """
        beginning = tokenizer.encode("", add_special_tokens=True)[:1]
        ids = beginning if beginning == [tokenizer.bos_token_id] else []
        for at, (name, text) in enumerate([*files, ("filename", "")] if files else []):
            if self.separator is None:
                ids += _content(tokenizer, f"\n\n--- snippet ---\n\n{text}") if at < len(files) else []
                continue
            if self.repository is not None and at == 0:
                ids += [self.repository, *_content(tokenizer, "myproject\n")]
            ids += [self.separator, *_content(tokenizer, f"{name}\n"), *(_content(tokenizer, text) if text else [])]
        own = _content(tokenizer, before) if isinstance(before, str) else before
        return [*ids, self.prefix, *own, self.suffix, *_behind(tokenizer, behind), self.middle]


def fill_in_of(tokenizer: TextTokenizer) -> FillIn | None:
    """Return the tokens for fill-in-the-middle, by the keys of a GGUF file or by name, or None."""
    vocabulary, keys = tokenizer.get_vocab(), tokenizer.fill_in_ids
    parts: Sequence[int | None] = [keys.get(name) for name in ("pre", "suf", "mid")]
    if None in parts:
        named = next((names for names in _NAMES if vocabulary.keys() >= set(names)), None)
        if named is None:
            return None
        parts = [vocabulary[name] for name in named]
    prefix, suffix, middle = (part for part in parts if part is not None)
    ends = {prefix, suffix, middle, *keys.values(), *(vocabulary[name] for name in _ENDS if name in vocabulary)}
    repository = keys.get("rep", _first(vocabulary, _REPOSITORY))
    return FillIn(prefix, suffix, middle, frozenset(ends), repository, keys.get("sep", _first(vocabulary, _SEPARATOR)))


def _first(vocabulary: Mapping[str, int], names: Sequence[str]) -> int | None:
    return next((vocabulary[name] for name in names if name in vocabulary), None)


def _content(tokenizer: TextTokenizer, text: str) -> list[int]:
    return tokenizer.encode_content(text, add_special_tokens=False)


def _behind(tokenizer: TextTokenizer, text: str) -> list[int]:
    """Return the ids of a text without SentencePiece's leading space, as in the training of Code Llama."""
    line = tokenizer.encode("\n", add_special_tokens=False)
    if line[:1] == [tokenizer.get_vocab().get("▁")]:
        ids = _content(tokenizer, f"\n{text}")
        if ids[: len(line)] == line:
            return ids[len(line) :]
    return _content(tokenizer, text)
