"""Byte-level byte-pair encoding: its merges checked, its pipeline built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ipex_lookahead.tokenization.release import check_whole_words
from ipex_lookahead.tokenization.splitting import Splitting


def check_merges(
    merges: Sequence[Any], vocabulary: Mapping[str, int], fail: Callable[[str], Exception]
) -> list[tuple[str, str]]:
    """Merges as pairs; each must be two known tokens whose concatenation is a known token, and be there once."""
    pairs: list[Any] = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges]
    try:  # all at once and without a line of Python for each: there are a hundred thousand of them
        lefts, rights = zip(*pairs, strict=True)
        known = all(all(map(vocabulary.__contains__, of)) for of in (lefts, rights, map(str.__add__, lefts, rights)))
    except (TypeError, ValueError):  # no pairs, or something else than two strings
        known = False
    if not known or "" in vocabulary:
        for rank, (merge, pair) in enumerate(zip(merges, pairs, strict=True)):
            if problem := _fault(pair, vocabulary):
                raise fail(f"merge {rank}, {str(merge)[:80]!r}, {problem}")
    if len(set(pairs)) != len(pairs):
        raise fail("the same pair is there twice")
    return pairs


def _fault(pair: tuple[Any, ...], vocabulary: Mapping[str, int]) -> str:
    """What is wrong with a merge, if anything."""
    if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str) or "" in pair:
        return "is not two tokens with one space between them"
    missing = next((token for token in (*pair, "".join(pair)) if token not in vocabulary), None)
    return "" if missing is None else f"needs {missing[:80]!r}, which is not in the vocabulary"


def byte_level_bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], splitting: Splitting) -> Tokenizer:
    """A ``tokenizers`` tokenizer of GPT-2's kind that splits text as told."""
    check_whole_words(splitting.whole_words)
    options: dict[str, Any] = {"ignore_merges": True} if splitting.whole_words else {}
    core = Tokenizer(models.BPE(dict(vocabulary), list(merges), **options))
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    core.pre_tokenizer = pre_tokenizers.Sequence(steps)
    core.decoder = decoders.ByteLevel()
    if splitting.compose:
        core.normalizer = normalizers.NFC()
    return core


def spelled_bpe(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], unknown: str | None) -> Tokenizer:
    """A ``tokenizers`` tokenizer of Gemma's kind: text as it is spelled, "▁" for a space, and bytes for what is left.

    llama.cpp takes a run of line ends as one token where there is one, whether merges make it or not, so where no merge
    makes one they are added here.
    """
    pairs = list(merges)
    if not any("\n" in left for left, _ in pairs):
        runs = [text for text in vocabulary if text.strip("\n") == "" and len(text) > 1]
        pairs += [
            (run[:cut], run[cut:])
            for run in sorted(runs, key=len)
            for cut in range(1, len(run))
            if run[:cut] in vocabulary and run[cut:] in vocabulary
        ]
    core = Tokenizer(models.BPE(dict(vocabulary), pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return core
