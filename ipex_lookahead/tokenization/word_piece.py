"""Tokenizers of encoders: WordPiece (BERT) and unigram models (XLM-RoBERTa), in parts of the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

MAX_WORD = 100
"""Characters of a word beyond which WordPiece gives the unknown token, as in BERT."""

End = tuple[str, int]
"""A special token and its id."""


def word_piece_core(
    vocabulary: Mapping[str, int], unknown: str, *, lowercase: bool, strip_accents: bool | None = None
) -> Tokenizer:
    """Return BERT's tokenizer without special tokens.

    Args:
        vocabulary: pieces with "##" inside words -> ids.
        unknown: the unknown token, for whole words.
        lowercase: whether texts are lowercased.
        strip_accents: whether accents are removed; None: if texts are lowercased.
    """
    core = Tokenizer(models.WordPiece(dict(vocabulary), unk_token=unknown, max_input_chars_per_word=MAX_WORD))
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    return core


def unigram_core(
    pieces: Sequence[tuple[str, float]], unknown: int | None, charsmap: bytes = b"", *, prefix: bool = True
) -> Tokenizer:
    """Return XLM-RoBERTa's tokenizer without special tokens.

    Args:
        pieces: pieces with "▁" at the beginning of words, and their scores.
        unknown: id of the unknown token.
        charsmap: checked table of SentencePiece's normalizer.
        prefix: whether the first word of a text begins with "▁" too.
    """
    core = Tokenizer(models.Unigram(list(pieces), unknown))
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    scheme = "always" if prefix else "never"
    mark = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    if prefix:
        core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    else:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]
        core.pre_tokenizer = mark
    if steps:
        core.normalizer = normalizers.Sequence(steps)
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return core


def pair_ends(first: End | None, last: End | None, *, types: bool) -> Any:
    """Return the post-processor that adds special tokens.

    Args:
        first: token before a text; None: none.
        last: token after a text.
        types: True for BERT's pairs, ``first A last B last`` with types 0 and 1; False for RoBERTa's, ``first A last
            last B last``.
    """
    start, end = ([] if token is None else [token[0]] for token in (first, last))
    second = int(types)
    single = [*(f"{t}:0" for t in start), "$A:0", *(f"{t}:0" for t in end)]
    joint = [] if types else [f"{t}:0" for t in end]
    pair = [*single, *joint, f"$B:{second}", *(f"{t}:{second}" for t in end)]
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=list(dict([t for t in (first, last) if t is not None]).items())
    )
