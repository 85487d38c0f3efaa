"""Checks of ``tokenizer.json`` before the ``tokenizers`` library reads it.

The file describes a pipeline of parts. Parts that take linear time and memory are listed here with their settings, and
the description for the library is rebuilt from them, so that nothing else has an effect; their regular expressions must
be known ones (``splitting.py``). A pipeline of such parts runs in this process. Other parts of the library and other
regular expressions run in another process (``isolated.py``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

from ipex_lookahead.errors import LookaheadError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.safe_json import File, kind
from ipex_lookahead.tokenization.byte_pair import Pair, bpe, check_merges, merge_pairs
from ipex_lookahead.tokenization.growth import check_added, leaves, note_unproducible, stays_short
from ipex_lookahead.tokenization.release import check_whole_words, merges_are_pairs, merges_for_json
from ipex_lookahead.tokenization.sentencepiece_model import MAX_PIECE_BYTES, MAX_PIECES, check_charsmap
from ipex_lookahead.tokenization.splitting import KNOWN_PATTERNS

Check = Callable[[Any], bool]


def _is(*types: type) -> Check:
    return lambda value: type(value) in types


def _one_of(*values: str) -> Check:
    return lambda value: value in values


def _is_zero(value: Any) -> bool:
    """Return True for 0: the library panics if it removes more characters than a text has."""
    return type(value) is int and value == 0


def _is_some_text(value: Any) -> bool:
    """Return True for non-empty text: the library panics if it prepends "" to an empty text."""
    return type(value) is str and value != ""


_TEXT, _FLAG, _COUNT = _is(str), _is(bool), lambda value: type(value) is int and 0 <= value < 1 << 16
_BEHAVIOR = _one_of("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_PATTERN = "pattern"  # checked by _check_pattern
_CHARSMAP = "charsmap"  # checked by _Reader.charsmap
_TOKEN = "token"  # checked by _Reader.named_token
MAX_WORD = 1000
"""Maximum characters of a word for WordPiece, which tries all ends for each start of a piece."""


def _is_choice(value: Any) -> bool:
    """Return True for true, false and null."""
    return value is None or type(value) is bool


_METASPACE: dict[str, Any] = {
    "replacement": lambda value: type(value) is str and len(value) == 1,
    "prepend_scheme": _one_of("always", "never", "first"),
    "split": _FLAG,
    "add_prefix_space": _FLAG,
}
_BYTE_LEVEL: dict[str, Any] = {"add_prefix_space": _FLAG, "trim_offsets": _FLAG, "use_regex": _FLAG}
_REPLACE: dict[str, Any] = {"pattern": _PATTERN, "content": _TEXT}

_PARTS: dict[str, dict[str, dict[str, Any]]] = {
    "normalizer": {
        "NFC": {}, "NFD": {}, "NFKC": {}, "NFKD": {}, "Lowercase": {}, "StripAccents": {},
        "BertNormalizer": {
            "clean_text": _FLAG, "handle_chinese_chars": _FLAG, "strip_accents": _is_choice, "lowercase": _FLAG,
        },
        "Precompiled": {"precompiled_charsmap": _CHARSMAP},
        "Prepend": {"prepend": _is_some_text},
        "Replace": _REPLACE,
        "Strip": {"strip_left": _FLAG, "strip_right": _FLAG},
    },
    "pre_tokenizer": {
        "BertPreTokenizer": {},
        "ByteLevel": _BYTE_LEVEL,
        "Digits": {"individual_digits": _FLAG},
        "Metaspace": _METASPACE,
        "Punctuation": {"behavior": _BEHAVIOR},
        "Split": {"pattern": _PATTERN, "behavior": _BEHAVIOR, "invert": _FLAG},
        "WhitespaceSplit": {},
    },
    "decoder": {
        "ByteFallback": {}, "Fuse": {},
        "ByteLevel": _BYTE_LEVEL,
        "Metaspace": _METASPACE,
        "Replace": _REPLACE,
        "Strip": {"content": _TEXT, "start": _COUNT, "stop": _is_zero},
        "WordPiece": {"prefix": _is_some_text, "cleanup": _FLAG},
    },
    "post_processor": {
        "BertProcessing": {"sep": _TOKEN, "cls": _TOKEN},
        "ByteLevel": _BYTE_LEVEL,
        "RobertaProcessing": {"sep": _TOKEN, "cls": _TOKEN, "trim_offsets": _FLAG, "add_prefix_space": _FLAG},
        "TemplateProcessing": {"single": "template", "pair": "template", "special_tokens": "template"},
    },
}  # fmt: skip
_SEQUENCES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}
_ELSEWHERE: dict[str, frozenset[str]] = {
    "model": frozenset({"WordLevel"}),
    "normalizer": frozenset({"ByteLevel", "Nmt"}),
    "pre_tokenizer": frozenset({"CharDelimiterSplit", "FixedLength", "UnicodeScripts", "Whitespace"}),
    "decoder": frozenset({"BPEDecoder", "CTC"}),
    "post_processor": frozenset(),
}
"""Parts that run in another process, where the library checks their settings."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A checked tokenizer.

    Attributes:
        file: Name of the file, for messages.
        description: Description for the library, without truncation and padding.
        vocab: Token -> id, without added tokens.
        merges: Merges of byte-pair encoding as pairs, which ``core`` checks; empty for other models.
        apart: The first part that needs another process, such as "pre_tokenizer.Split.pattern", or None.
    """

    file: File
    description: dict[str, Any]
    vocab: dict[str, int]
    merges: list[Pair]
    apart: str | None

    def core(self) -> Tokenizer:
        """Return the ``tokenizers`` object. Raises ModelFormatError."""
        try:
            return self._core()
        except LookaheadError:
            raise
        except BaseException as error:  # a panic in the library is not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise ModelFormatError(
                self.file, "file", None, f"the tokenizers library does not take it: {error}"
            ) from None

    def _core(self) -> Tokenizer:
        """Pass vocabulary and merges as objects: JSON would take most of the time."""
        empty = {"type": "BPE", "vocab": {}, "merges": []}
        core = Tokenizer.from_str(json.dumps(self.description | {"model": empty, "added_tokens": []}))
        core.model = self._model(self.description["model"])
        for special, tokens in groupby(self.description["added_tokens"], lambda token: token["special"]):
            made = [AddedToken(**{k: v for k, v in token.items() if k != "id"}) for token in tokens]
            (core.add_special_tokens if special else core.add_tokens)(made)
        self._check_spaces(core)
        return core

    def _model(self, model: Mapping[str, Any]) -> Any:
        if model["type"] == "WordPiece":
            names = ("unk_token", "max_input_chars_per_word", "continuing_subword_prefix")
            return models.WordPiece(self.vocab, **{name: model[name] for name in names})
        if model["type"] == "Unigram":
            options = {"byte_fallback": True} if model["byte_fallback"] else {}  # older releases do not have it
            return models.Unigram([(piece, score) for piece, score in model["vocab"]], model["unk_id"], **options)
        settings = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
        options = {name: model[name] for name in settings if model[name]}  # older releases do not have all of them
        return bpe(self.vocab, self.merges, partial(ModelFormatError, self.file, "model.merges", None), **options)

    def _check_spaces(self, core: Tokenizer) -> None:
        """Reject white space with lstrip or rstrip.

        In a run of spaces the library's matches would overlap: it panics, or copies the rest of the run for each.
        """
        for n, token in enumerate(self.description["added_tokens"]):
            text = token["content"]
            if token["normalized"] and core.normalizer is not None:
                text = core.normalizer.normalize_str(text)
            if not text.strip() and (token["lstrip"] or token["rstrip"]):
                problem = "is white space with lstrip or rstrip"
                raise ModelFormatError(self.file, f"added_tokens[{n}]", None, problem)


def read_pipeline(description: Mapping[str, Any], file: File, vocab_size: int | None) -> Pipeline:
    """Check a parsed ``tokenizer.json``.

    Args:
        description: JSON object of the file.
        file: Name of the file, for messages.
        vocab_size: Rows of the model's embedding, the limit of ids except for added tokens; None if unknown.

    Raises:
        ModelFormatError: A part or a setting of a wrong type, or inconsistent ids or merges.
        UnsupportedModelError: An unknown type of part.
    """
    return _Reader(file, vocab_size).pipeline(description)


class _Reader:
    def __init__(self, file: File, vocab_size: int | None) -> None:
        self.file = file
        self.limit = MAX_PIECES if vocab_size is None else vocab_size
        self.apart: str | None = None
        self.merges: list[Pair] = []

    def fail(self, field: str, problem: str) -> ModelFormatError:
        return ModelFormatError(self.file, field, None, problem)

    def unsupported(self, field: str, got: Any, known: Any) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.file}: {field}: {str(got)[:200]!r} is not supported; known are {', '.join(sorted(known))}"
        )

    def object(self, value: Any, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(field, f"is {kind(value)}; it must be an object")
        return value

    def pipeline(self, description: Mapping[str, Any]) -> Pipeline:
        model, vocab = self.model(self.object(description.get("model"), "model"))
        clean: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None, "model": model}
        clean["added_tokens"] = self.added_tokens(description.get("added_tokens", []), vocab)
        for stage in _PARTS:
            part = description.get(stage)
            clean[stage] = None if part is None else self.part(self.object(part, stage), stage)
        self.growth(clean)
        if self.merges:
            if self.apart is not None or not merges_are_pairs():  # otherwise Pipeline.core checks them
                check_merges(self.merges, vocab, partial(self.fail, "model.merges"))
            model["merges"] = merges_for_json(self.merges)
        return Pipeline(self.file, clean, vocab, self.merges, self.apart)

    def growth(self, clean: Mapping[str, Any]) -> None:
        """Limit the growth of a text in encoding, decoding and post-processing."""
        parts = {stage: list(leaves(clean[stage], key)) for stage, key in _SEQUENCES.items()}
        if not stays_short(parts["normalizer"] + parts["pre_tokenizer"]) or not stays_short(parts["decoder"]):
            self.apart = self.apart or "growth"
        templates = [part for part in parts["post_processor"] if part["type"] == "TemplateProcessing"]
        if len(templates) > 1:  # not implemented in the library, which panics
            raise self.fail("post_processor", f"has {len(templates)} templates; at most one is allowed")
        for template in templates:
            for side, allowed in (("single", ["A"]), ("pair", ["A", "B"])):
                texts = [item["Sequence"]["id"] for item in template[side] if "Sequence" in item]
                if len(set(texts)) != len(texts) or not set(texts) <= set(allowed):
                    problem = f"holds the texts {texts}; each of {allowed} may appear once"
                    raise self.fail(f"post_processor.{side}", problem)

    def model(self, model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the description of the model, and its vocabulary."""
        name = model.get("type", "BPE")
        builders = {"BPE": self.merged, "WordPiece": self.pieced, "Unigram": self.likely}
        if isinstance(name, str) and name in _ELSEWHERE["model"]:
            self.apart = self.apart or f"model.{name}"
        elif not isinstance(name, str) or name not in builders:
            raise self.unsupported("model.type", name, [*builders, *_ELSEWHERE["model"]])
        vocab = self.scored(model) if name == "Unigram" else self.object(model.get("vocab"), "model.vocab")
        if not 0 < len(vocab) <= MAX_PIECES:
            raise self.fail("model.vocab", f"has {len(vocab)} tokens; 1 to {MAX_PIECES} are allowed")
        ids = vocab.values()
        if {*map(type, ids)} != {int} or min(ids) < 0 or max(ids) >= self.limit:
            for token, i in vocab.items():  # find the invalid one
                self.identifier(i, f"model.vocab[{token[:80]!r}]")
        if (longest := max(map(len, vocab))) > MAX_PIECE_BYTES:
            raise self.fail(
                "model.vocab", f"has a token of {longest} characters; at most {MAX_PIECE_BYTES} are allowed"
            )
        if len(set(vocab.values())) != len(vocab):
            raise self.fail("model.vocab", "two tokens have the same id")
        return (builders[name](model, vocab) if name in builders else model), vocab

    def pieced(self, model: dict[str, Any], vocab: dict[str, int]) -> dict[str, Any]:
        """Return the description of a WordPiece model."""
        clean: dict[str, Any] = {"type": "WordPiece", "vocab": vocab}
        clean["unk_token"] = self.setting(
            model.get("unk_token", "[UNK]"), lambda v: type(v) is str and v in vocab, "model.unk_token"
        )
        clean["continuing_subword_prefix"] = self.setting(
            model.get("continuing_subword_prefix", "##"), _TEXT, "model.continuing_subword_prefix"
        )
        clean["max_input_chars_per_word"] = self.setting(
            model.get("max_input_chars_per_word", 100), _COUNT, "model.max_input_chars_per_word"
        )
        if clean["max_input_chars_per_word"] > MAX_WORD:
            self.apart = self.apart or "model.max_input_chars_per_word"
        return clean

    def likely(self, model: dict[str, Any], vocab: dict[str, int]) -> dict[str, Any]:
        """Return the description of a unigram model."""
        pieces = model["vocab"]
        if not all(len(piece) == 2 and type(piece[1]) in (int, float) for piece in pieces):
            raise self.fail("model.vocab", "must be an array of pieces and scores")
        clean: dict[str, Any] = {"type": "Unigram", "vocab": [[piece, float(score)] for piece, score in pieces]}
        clean["unk_id"] = self.setting(
            model.get("unk_id"), lambda v: v is None or (type(v) is int and 0 <= v < len(vocab)), "model.unk_id"
        )
        clean["byte_fallback"] = self.setting(model.get("byte_fallback", False), _FLAG, "model.byte_fallback")
        return clean

    def merged(self, model: dict[str, Any], vocab: dict[str, int]) -> dict[str, Any]:
        """Return the description of a byte-pair model."""
        merges = model.get("merges")
        if not isinstance(merges, list) or not {*map(type, merges)} <= {str, list}:
            raise self.fail("model.merges", "must be an array of pairs")
        if model.get("dropout"):
            raise self.unsupported("model.dropout", model["dropout"], ["null"])
        check_whole_words(bool(model.get("ignore_merges")))
        if affix := next((key for key in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(key)), None):
            self.apart = self.apart or f"model.{affix}"
            return model
        self.merges = merge_pairs(merges, vocab, partial(self.fail, "model.merges"))
        unknown = model.get("unk_token")
        if unknown is not None and (type(unknown) is not str or unknown not in vocab):
            raise self.fail("model.unk_token", f"is {str(unknown)[:80]!r}, which is not in the vocabulary")
        clean: dict[str, Any] = {"type": "BPE", "vocab": vocab, "merges": [], "unk_token": unknown}
        for name in ("fuse_unk", "byte_fallback", "ignore_merges"):
            clean[name] = self.setting(model.get(name, False), _FLAG, f"model.{name}")
        return clean

    def scored(self, model: dict[str, Any]) -> dict[str, int]:
        """Return the vocabulary of a unigram model, which is a list of pieces and scores."""
        pieces = model.get("vocab")
        if not isinstance(pieces, list) or not all(isinstance(p, list) and p and type(p[0]) is str for p in pieces):
            raise self.fail("model.vocab", "must be an array of pieces and scores")
        vocab = {piece[0]: i for i, piece in enumerate(pieces)}
        if len(vocab) != len(pieces):
            raise self.fail("model.vocab", "the same piece appears twice")
        return vocab

    def added_tokens(self, tokens: Any, vocab: Mapping[str, int]) -> list[dict[str, Any]]:
        if not isinstance(tokens, list):
            raise self.fail("added_tokens", "must be an array")
        by_id = {i: token for token, i in vocab.items()}
        clean: list[dict[str, Any]] = []
        for n, entry in enumerate(tokens):
            field = f"added_tokens[{n}]"
            token = self.object(entry, field)
            i = self.identifier(token.get("id"), f"{field}.id", self.limit + len(tokens))
            content = self.setting(token.get("content"), lambda v: type(v) is str and v != "", f"{field}.content")
            if by_id.setdefault(i, content) != content or vocab.get(content, i) != i:
                raise self.fail(field, f"{content[:80]!r} has id {i}, which the vocabulary contradicts")
            flags = {
                name: self.setting(token.get(name, False), _FLAG, f"{field}.{name}")
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
            }
            clean.append({"id": i, "content": content, **flags})
        contents = [token["content"] for token in clean]
        note_unproducible(self.file, (token["content"] for token in clean if token["id"] >= self.limit), self.limit)
        check_added(contents, MAX_PIECE_BYTES, partial(self.fail, "added_tokens"))
        if len(set(contents)) != len(contents):
            raise self.fail("added_tokens", "the same token appears twice")
        missing = [i for i in range(len(by_id)) if i not in by_id] if clean else []
        if missing and any(token["content"] not in vocab and token["id"] > missing[0] for token in clean):
            # The library numbers added tokens after the vocabulary: with a gap they would have other ids.
            raise self.fail("added_tokens", f"ids leave out {missing[0]}, and later ones are given to added tokens")
        return sorted(clean, key=lambda token: token["id"])

    def part(self, part: dict[str, Any], stage: str) -> dict[str, Any]:
        name = part.get("type")
        known = _PARTS[stage]
        if name == "Sequence":
            key = _SEQUENCES[stage]
            members = part.get(key)
            if not isinstance(members, list):
                raise self.fail(f"{stage}.{key}", "must be an array")
            return {"type": name, key: [self.part(self.object(member, stage), stage) for member in members]}
        if isinstance(name, str) and name in _ELSEWHERE[stage]:
            self.apart = self.apart or f"{stage}.{name}"
            return part
        if not isinstance(name, str) or name not in known:
            raise self.unsupported(f"{stage}.type", name, [*known, *_ELSEWHERE[stage], "Sequence"])
        clean: dict[str, Any] = {"type": name}
        for key, value in part.items():
            check = known[name].get(key)
            if check is None:
                continue
            field = f"{stage}.{name}.{key}"
            if check == "pattern":
                clean[key] = self.pattern(value, field)
            elif check == _CHARSMAP:
                clean[key] = self.charsmap(value, field)
            elif check == _TOKEN:
                clean[key] = self.named_token(value, field)
            elif check == "template":
                clean[key] = value
            else:
                clean[key] = self.setting(value, check, field)
        if name == "TemplateProcessing":
            self.template(clean)
        return clean

    def pattern(self, value: Any, field: str) -> dict[str, str]:
        pattern = self.object(value, field)
        if set(pattern) == {"String"} and isinstance(pattern["String"], str) and pattern["String"]:
            return {"String": pattern["String"]}
        if set(pattern) != {"Regex"} or not isinstance(pattern["Regex"], str):
            raise self.fail(field, "must be a String or a Regex")
        if pattern["Regex"] not in KNOWN_PATTERNS:
            self.apart = self.apart or field
        return {"Regex": pattern["Regex"]}

    def charsmap(self, value: Any, field: str) -> Any:
        """Check the table of a SentencePiece normalizer, which is in base64."""
        if value is None or value == "":
            raise self.fail(field, "is empty")
        try:
            table = base64.b64decode(value, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise self.fail(field, "is not text in base64") from None
        check_charsmap(table, lambda _, __, problem: self.fail(field, problem))
        return value

    def named_token(self, value: Any, field: str) -> list[Any]:
        """Check a special token with its id."""
        if not isinstance(value, list) or len(value) != 2 or type(value[0]) is not str:
            raise self.fail(field, "must be a token and its id")
        return [value[0], self.identifier(value[1], field)]

    def template(self, clean: dict[str, Any]) -> None:
        """Check TemplateProcessing, which adds tokens before and after a text."""
        tokens = self.object(clean.get("special_tokens"), "post_processor.special_tokens")
        special: dict[str, Any] = {}
        for name, value in tokens.items():
            field = f"post_processor.special_tokens[{name[:80]!r}]"
            entry = self.object(value, field)
            ids, texts = entry.get("ids"), entry.get("tokens")
            if not isinstance(ids, list) or not isinstance(texts, list) or len(ids) != len(texts) or len(ids) > 64:
                raise self.fail(field, "needs one id for each token, at most 64")
            if not all(isinstance(text, str) for text in texts):
                raise self.fail(field, "tokens must be strings")
            special[name] = {"id": name, "ids": [self.identifier(i, field) for i in ids], "tokens": texts}
        clean["special_tokens"] = special
        for side in ("single", "pair"):
            clean[side] = [self.template_item(item, f"post_processor.{side}", special) for item in
                           self.setting(clean.get(side), lambda v: type(v) is list and len(v) <= 64,
                                        f"post_processor.{side}")]  # fmt: skip

    def template_item(self, item: Any, field: str, special: Mapping[str, Any]) -> dict[str, Any]:
        entry = self.object(item, field)
        for name in ("SpecialToken", "Sequence"):
            if set(entry) == {name}:
                inner = self.object(entry[name], field)
                if inner.get("id") in (special if name == "SpecialToken" else ("A", "B")):
                    return {name: {"id": inner["id"], "type_id": self.setting(inner.get("type_id", 0), _COUNT, field)}}
        raise self.fail(field, "holds something that is neither a sequence nor a listed special token")

    def identifier(self, value: Any, field: str, limit: int | None = None) -> int:
        limit = self.limit if limit is None else limit
        if type(value) is not int or not 0 <= value < limit:
            raise self.fail(field, f"is {value!r}; the model has ids 0 to {limit - 1}")
        return value

    def setting(self, value: Any, check: Check, field: str) -> Any:
        if not check(value):
            raise self.fail(field, f"is {str(value)[:80]!r}, which is not allowed there")
        return value
