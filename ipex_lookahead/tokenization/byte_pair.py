"""Byte-pair encoding: checks of merges, and pipelines of the ``tokenizers`` library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ipex_lookahead.tokenization.release import check_whole_words
from ipex_lookahead.tokenization.splitting import Splitting

Pair = tuple[str, str]
Fail = Callable[[str], Exception]
"""Problem -> the error to raise."""


def merge_pairs(merges: Sequence[Any], vocabulary: Mapping[str, int], fail: Fail) -> list[Pair]:
    """Return merges as unique pairs. ``bpe`` and ``check_merges`` check the tokens."""
    pairs: list[Any] = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    with contextlib.suppress(TypeError):  # not a string: the later checks find it
        if len(set(pairs)) != len(pairs):
            raise fail("the same pair appears twice")
    if "" in vocabulary:  # the library accepts pairs with it
        check_merges(pairs, vocabulary, fail)
    return pairs


def check_merges(pairs: Sequence[Any], vocabulary: Mapping[str, int], fail: Fail) -> None:
    """Raise if a merge is not two tokens of the vocabulary that form a third."""
    for rank, pair in enumerate(pairs):
        if problem := _fault(pair, vocabulary):
            raise fail(f"merge {rank}, {' '.join(map(str, pair))[:80]!r}, {problem}")


def bpe(vocabulary: Mapping[str, int], pairs: Sequence[Pair], fail: Fail, **options: Any) -> models.BPE:
    """Return the library's model of a vocabulary and of the result of ``merge_pairs``.

    The library checks merges like ``check_merges``, which runs only after an error, for its message: it takes a tenth
    of the time to open a small model.
    """
    try:
        return models.BPE(dict(vocabulary), list(pairs), **options)
    except Exception:
        check_merges(pairs, vocabulary, fail)
        raise


def _fault(pair: tuple[Any, ...], vocabulary: Mapping[str, int]) -> str:
    """Return the problem of a merge, or ""."""
    if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str) or "" in pair:
        return "is not two tokens with one space between them"
    missing = next((token for token in (*pair, "".join(pair)) if token not in vocabulary), None)
    return "" if missing is None else f"needs {missing[:80]!r}, which is not in the vocabulary"


def byte_level_bpe(
    vocabulary: Mapping[str, int], merges: Sequence[Pair], splitting: Splitting, fail: Fail
) -> Tokenizer:
    """Return a byte-level ``tokenizers`` tokenizer, as of GPT-2, that splits text by ``splitting``."""
    check_whole_words(splitting.whole_words)
    options: dict[str, Any] = {"ignore_merges": True} if splitting.whole_words else {}
    core = Tokenizer(bpe(vocabulary, merges, fail, **options))
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    if splitting.compose:
        core.normalizer = normalizers.NFC()
    return core


def spelled_bpe(vocabulary: Mapping[str, int], merges: Sequence[Pair], unknown: str | None, fail: Fail) -> Tokenizer:
    """Return a ``tokenizers`` tokenizer on text, as of Gemma, with "▁" for a space and byte fallback.

    llama.cpp uses a token for a run of line breaks even without merges for it; such merges are added if there are none.
    """
    check_merges(merges, vocabulary, fail)
    pairs = list(merges)
    if not any("\n" in left for left, _ in pairs):
        runs = [text for text in vocabulary if text.strip("\n") == "" and len(text) > 1]
        pairs += [
            (run[:cut], run[cut:])
            for run in sorted(runs, key=len)
            for cut in range(1, len(run))
            if run[:cut] in vocabulary and run[cut:] in vocabulary
        ]
    core = Tokenizer(bpe(vocabulary, pairs, fail, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return core
