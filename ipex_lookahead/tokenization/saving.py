"""Save tokenizers for transformers' own classes, with the same ids. Does not import transformers.

``AutoTokenizer`` does not know the classes of this package: the saved files name ``PreTrainedTokenizerFast`` and
include a ``tokenizer.json``. A SentencePiece model is saved too, for this package: the ``tokenizers`` library has the
same pieces, but another order of merges (``sentencepiece_core``). Models that this library would tokenize differently
(unigram, and rare kinds of BPE) are saved for the class of transformers that runs the ``sentencepiece`` package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from ipex_lookahead.tokenization.sentencepiece_model import BPE, NORMAL, UNKNOWN, UNUSED, SentencePieceModel

FAST = "PreTrainedTokenizerFast"


def sentencepiece_class() -> str:
    """Return the class of the installed (or newest) transformers that runs the sentencepiece package."""
    try:
        return "LlamaTokenizer" if int(version("transformers").split(".")[0]) < 5 else "SentencePieceBackend"
    except PackageNotFoundError:
        return "SentencePieceBackend"


def write_settings(folder: str | Path, name: str, options: Mapping[str, Any], **more: Any) -> None:
    """Write ``tokenizer_config.json`` for a class of transformers, with options of its constructor."""
    settings = {key: value for key, value in options.items() if value is not None and value != []}
    template = settings.get("chat_template")
    if isinstance(template, dict):
        settings["chat_template"] = [{"name": key, "template": text} for key, text in template.items()]
    settings |= {"padding_side": "left", "model_input_names": ["input_ids", "attention_mask"], **more}
    _write(Path(folder) / "tokenizer_config.json", {**settings, "tokenizer_class": name})


def described(tokens: Mapping[int, AddedToken]) -> dict[str, dict[str, Any]]:
    """Return added tokens in the format of ``added_tokens_decoder`` in ``tokenizer_config.json``."""
    flags = ("content", "special", "normalized", "lstrip", "rstrip", "single_word")
    return {str(i): {flag: getattr(token, flag) for flag in flags} for i, token in tokens.items()}


def pattern_of(add_bos: bool, add_eos: bool) -> str:
    """Return ``special_tokens_pattern`` for transformers' class of SentencePiece models."""
    return "_".join(role for role, added in (("bos", add_bos), ("eos", add_eos)) if added) or "none"


def name_class(folder: str | Path, name: str, **more: Any) -> None:
    """Set the class in ``tokenizer_config.json``, and add ``more``."""
    path = Path(folder) / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    _write(path, {**settings, "tokenizer_class": name, **more})


def _write(path: Path, settings: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def around(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]) -> Any:
    """Return a post-processor that adds special tokens before and after a text, and after both texts of a pair."""

    def side(text: str, number: int) -> list[str]:
        return [*(f"{t}:{number}" for t, _ in before), f"${text}:{number}", *(f"{t}:{number}" for t, _ in after)]

    return processors.TemplateProcessing(
        single=side("A", 0), pair=side("A", 0) + side("B", 1), special_tokens=list(dict([*before, *after]).items())
    )


def ends_of(options: Mapping[str, Any], id_of: Callable[[str], Any]) -> Any:
    """Return the post-processor that adds bos and eos according to the options."""
    roles = [[options[f"{role}_token"]] if options.get(f"add_{role}_token") else [] for role in ("bos", "eos")]
    before, after = ([(token, id_of(token)) for token in tokens] for tokens in roles)
    return around(before, after)


def sentencepiece_core(
    model: SentencePieceModel,
    added: Mapping[int, AddedToken],
    before: Sequence[tuple[str, int]],
    after: Sequence[tuple[str, int]],
) -> Tokenizer | None:
    """Return a SentencePiece model in the parts of the ``tokenizers`` library, or None if that would differ.

    ``sentencepiece`` merges the neighbors with the best resulting piece, the first ones if there are several. The
    library orders pairs: by the piece, then by the longest left half. This differs only if two pairs with the same
    result and different halves overlap in a text, which no known model does. It would also differ for equal scores and
    for unigram models; these return None.

    Args:
        model: The checked model.
        added: Id -> token that is split off before a text is encoded.
        before: Tokens and ids before a text.
        after: Tokens and ids after a text.
    """
    if model.model_type != BPE or model.treat_whitespace_as_suffix or not model.escape_whitespaces:
        return None
    if any(piece.type == UNUSED for piece in model.pieces):  # sentencepiece merges to these, and splits them again
        return None
    size = max([len(model.pieces) - 1, *added]) + 1
    names = {i: piece.text for i, piece in enumerate(model.pieces)} | {i: t.content for i, t in added.items()}
    texts = [names.get(i, f"\u2063no token {i}\u2063") for i in range(size)]  # the library has no gaps in ids
    unknown = next(i for i, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    normal = {p.text: p.score for p in model.pieces if p.type == NORMAL}
    scores = [score for text, score in normal.items() if len(text) > 1]
    if len(set(scores)) != len(scores):
        return None
    ids = {text: i for i, text in enumerate(texts)}
    options = {"unk_token": texts[unknown], "fuse_unk": True, "byte_fallback": model.byte_fallback}
    core = Tokenizer(models.BPE(ids, _merges(normal), **options))
    core.normalizer = _normalizer(model)
    core.decoder = _decoder(model)
    core.add_special_tokens([token for token in added.values() if token.special])
    core.add_tokens([token for token in added.values() if not token.special])
    if before or after:
        core.post_processor = around(before, after)
    return core


def _merges(normal: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return every pair of pieces that makes a piece, ordered by score."""
    best_first = sorted(normal, key=lambda text: -normal[text])  # stable: equal scores by id
    return [
        (text[:cut], text[cut:])
        for text in best_first
        for cut in range(len(text) - 1, 0, -1)
        if text[:cut] in normal and text[cut:] in normal
    ]


def _normalizer(model: SentencePieceModel) -> Any:
    steps: list[Any] = []
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        # The library's Strip removes all white space; sentencepiece removes spaces only.
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def _decoder(model: SentencePieceModel) -> Any:
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else steps)
