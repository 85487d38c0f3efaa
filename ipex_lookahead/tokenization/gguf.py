"""The tokenizer inside a GGUF file, from its metadata.

Five kinds are supported: ``gpt2`` (byte-level BPE with merges), ``gemma4`` (BPE on text), ``llama`` (SentencePiece,
pieces with scores), ``t5`` (SentencePiece's unigram model) and ``bert`` (WordPiece). All are rebuilt from the arrays in
the file. The splitting of a file without ``tokenizer.ggml.pre`` is derived from its vocabulary, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from math import isfinite
from os import PathLike
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer

from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.tokenization.byte_pair import Pair, byte_level_bpe, merge_pairs, spelled_bpe
from ipex_lookahead.tokenization.chat_template import MAX_SOURCE
from ipex_lookahead.tokenization.growth import check_added
from ipex_lookahead.tokenization.sentencepiece_model import (
    BYTE,
    CONTROL,
    MAX_PIECE_BYTES,
    MAX_PIECES,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    check_charsmap,
    check_model,
)
from ipex_lookahead.tokenization.splitting import SPLITTINGS, implied_splitting
from ipex_lookahead.tokenization.text import BytePairText, SentencePieceText, TextTokenizer
from ipex_lookahead.tokenization.word_piece import pair_ends, unigram_core, word_piece_core

_log = logging.getLogger(__name__)

Value = TypeVar("Value")

MAX_ELEMENTS = 4 << 20
"""Maximum number of elements of an array; Python objects take many times the bytes of the file."""
_PHI_KEEPS_SPACE = ("<unk>", "<s>", "<|endoftext|>")
"""Phi-3's SentencePiece tokenizer removes the space after added tokens except these; the file does not record that."""
_GEMMA4_CONTROL = frozenset(
    {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'}
)
"""Gemma 4's control tokens that llama.cpp's converter marks as user-defined, so that its parser sees them."""
_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_FILL_IN = {
    "pre": ("fim_pre_token_id", "prefix_token_id"),
    "suf": ("fim_suf_token_id", "suffix_token_id"),
    "mid": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "rep": ("fim_rep_token_id",),
    "sep": ("fim_sep_token_id",),
}
"""Name of a fill-in-the-middle token in llama.cpp -> keys of its id."""


def text_from_gguf(metadata: Mapping[str, Any], file: str | PathLike[str]) -> TextTokenizer:
    """Build the tokenizer of a GGUF file.

    Args:
        metadata: Keys and values of the file; arrays are lists or numpy arrays.
        file: Name of the file, for messages.

    Returns:
        A tokenizer with its special tokens, and its chat template if the file has one.

    Raises:
        ModelFormatError: Missing, empty or duplicate tokens; arrays of different lengths; merges that do not combine
            two tokens to a third; special ids outside of the vocabulary; values of a wrong type.
        UnsupportedModelError: An unknown tokenizer or pre-tokenizer; the message lists the known ones.
    """
    return _Reader(metadata, file).tokenizer()


class _Reader:
    def __init__(self, metadata: Mapping[str, Any], file: str | PathLike[str]) -> None:
        self.metadata = metadata
        self.file = file
        self.bad_merges = partial(self.fail, "merges")

    def fail(self, key: str, problem: str) -> ModelFormatError:
        return ModelFormatError(self.file, key if "." in key else _PREFIX + key, None, problem)

    def tokenizer(self) -> TextTokenizer:
        kind = self.scalar("model", str)
        if kind is None:
            raise self.fail("model", "is missing")
        builders = {
            "gpt2": self.byte_pair,
            "gemma4": self.spelled,
            "llama": self.sentencepiece,
            "t5": self.unigram,
            "bert": self.word_pieces,
        }
        if kind not in builders:
            raise UnsupportedModelError(
                f"{self.file}: the tokenizer is of kind {kind!r}; known are {', '.join(map(repr, builders))}",
                hint="use a checkpoint of the same model that carries tokenizer.json",
            )
        self.tokens = self.strings("tokens")
        if not self.tokens or len(self.tokens) > MAX_PIECES:
            raise self.fail("tokens", f"has {len(self.tokens)} tokens; 1 to {MAX_PIECES} are allowed")
        if (longest := max(map(len, self.tokens))) > MAX_PIECE_BYTES:
            raise self.fail("tokens", f"has a token of {longest} characters; at most {MAX_PIECE_BYTES} are allowed")
        self.types = self.numbers("token_type", int) or [NORMAL] * len(self.tokens)
        bad = next((t for t in self.types if not NORMAL <= t <= BYTE), None)
        if bad is not None:
            raise self.fail("token_type", f"holds {bad}; types are {NORMAL} to {BYTE}")
        made = builders[kind]()
        made.fill_in_ids = self.fill_in_ids()
        return made

    def fill_in_ids(self) -> dict[str, int]:
        """Return the fill-in-the-middle tokens of the file, by current or earlier keys."""
        found: dict[str, int] = {}
        for name, keys in _FILL_IN.items():
            ids = [i for key in keys if (i := self.special_id(key)) is not None]
            if ids:
                found[name] = ids[0]
        return found

    def byte_pair(self) -> TextTokenizer:
        """Build ``gpt2``: tokens in the byte alphabet, and merges in order of rank."""
        name = self.scalar("pre", str) or self.implied()
        if name not in SPLITTINGS:
            raise UnsupportedModelError(
                f"{self.file}: the pre-tokenizer is {name!r}; known are {', '.join(sorted(SPLITTINGS))}",
                hint="use a checkpoint of the same model that carries tokenizer.json",
            )
        splitting = SPLITTINGS[name]
        vocabulary, merges = self.merged()
        return self.with_added(byte_level_bpe(vocabulary, merges, splitting, self.bad_merges), bos=splitting.bos)

    def implied(self) -> str:
        """Return the splitting of a file without a name for it, such as files of early 2024, and warn."""
        name = implied_splitting(self.metadata.get("general.architecture"), self.tokens)
        if name is not None:
            _log.warning(
                "%s: tokenizer.ggml.pre is missing; text is split by %r, as the vocabulary implies", self.file, name
            )
            return name
        _log.warning(
            "%s: tokenizer.ggml.pre is missing, and the splitting cannot be derived from the file: %r is used, and"
            " tokens may differ from the training of the model; convert the model again with a current llama.cpp",
            self.file, "default",
        )  # fmt: skip
        return "default"

    def spelled(self) -> TextTokenizer:
        """Build ``gemma4``: tokens of text, "▁" for spaces, and merges in order of rank."""
        for i, token in enumerate(self.tokens):
            if token in _GEMMA4_CONTROL and self.types[i] == USER_DEFINED:
                self.types[i] = CONTROL
        unknown = self.special_id("unknown_token_id")
        core = spelled_bpe(*self.merged(), None if unknown is None else self.tokens[unknown], self.bad_merges)
        return self.with_added(core, bos=False)

    def merged(self) -> tuple[dict[str, int], list[Pair]]:
        """Return the vocabulary and the merges."""
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        if len(vocabulary) != len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if vocabulary[token] != i)
            raise self.fail("tokens", f"holds {twice[:80]!r} twice")
        return vocabulary, merge_pairs(self.strings("merges"), vocabulary, self.bad_merges)

    def with_added(self, core: Tokenizer, *, bos: bool) -> TextTokenizer:
        """Return the tokenizer on ``core``; ``bos`` is the default of ``add_bos_token``."""
        special, ordinary = self.added_tokens()
        core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
        core.add_tokens([AddedToken(t, special=False, normalized=False) for t in ordinary])
        add_bos, add_eos = self.scalar("add_bos_token", bool), self.scalar("add_eos_token", bool)
        before = bos if add_bos is None else add_bos
        return BytePairText(core, self.options(self.roles(), bos=before, eos=bool(add_eos)))

    def sentencepiece(self) -> TextTokenizer:
        """Build ``llama``: pieces with scores, merged by the best score, with byte fallback."""
        scores = self.numbers("scores", float)
        if scores is None:
            raise self.fail("scores", "is missing")
        unknown = self.special_id("unknown_token_id")
        if UNKNOWN not in self.types:
            if unknown is None:
                raise self.fail("token_type", "names no unknown token, nor does unknown_token_id")
            self.types[unknown] = UNKNOWN
        remove_extra, prefix = self.scalar("remove_extra_whitespaces", bool), self.scalar("add_space_prefix", bool)
        model = SentencePieceModel(
            [Piece(*entry) for entry in zip(self.tokens, scores, self.types, strict=True)],
            byte_fallback=BYTE in self.types,
            add_dummy_prefix=prefix is not False,
            remove_extra_whitespaces=bool(remove_extra),
            precompiled_charsmap=self.octets("precompiled_charsmap"),
        )
        fields = {"score": "scores", "type": "token_type"}
        fields["normalizer_spec.precompiled_charsmap"] = "precompiled_charsmap"
        check_model(model, lambda field, _, problem: self.fail(fields.get(field, "tokens"), problem))
        special, ordinary = self.added_tokens()
        roles = self.roles()
        add_bos, add_eos = self.scalar("add_bos_token", bool), self.scalar("add_eos_token", bool)
        ids = {token: i for i, token in enumerate(self.tokens)}
        phi = self.metadata.get("general.architecture") == "phi3"
        added = {
            ids[t]: AddedToken(t, special=kind, normalized=False, rstrip=phi and t not in _PHI_KEEPS_SPACE)
            for kind, tokens in ((True, special), (False, ordinary))
            for t in tokens
        }
        try:
            options = self.options(roles, bos=add_bos is not False, eos=bool(add_eos))
            return SentencePieceText(model.serialize(), added, options)
        except RuntimeError as error:
            raise self.fail("tokens", f"sentencepiece does not take this model: {error}") from None

    def unigram(self) -> TextTokenizer:
        """Build ``t5``: the most likely pieces by scores, such as XLM-RoBERTa's."""
        scores = self.numbers("scores", float)
        if scores is None:
            raise self.fail("scores", "is missing")
        if not all(map(isfinite, scores)):
            raise self.fail("scores", "holds a score that is not finite")
        unknown = self.special_id("unknown_token_id")
        if unknown is None:
            unknown = next((i for i, kind in enumerate(self.types) if kind == UNKNOWN), None)
        core = unigram_core(
            list(zip(self.tokens, scores, strict=True)),
            unknown,
            self.charsmap(),
            prefix=self.scalar("add_space_prefix", bool) is not False,
        )
        return self.of_encoder(core, "bos_token_id", "eos_token_id", types=False)

    def charsmap(self) -> bytes:
        table = self.octets("precompiled_charsmap")
        if table:
            check_charsmap(table, lambda _, __, problem: self.fail("precompiled_charsmap", problem))
        return table

    def word_pieces(self) -> TextTokenizer:
        """Build ``bert``: words begin with "▁", other pieces have no mark, and tokens in brackets are special."""
        unknown = self.special_id("unknown_token_id")
        if unknown is None:
            unknown = next((i for i, token in enumerate(self.tokens) if token == "[UNK]"), None)
        if unknown is None:
            raise self.fail("unknown_token_id", "is missing, and no token is [UNK]")
        texts = [_word_piece(token) for token in self.tokens]
        vocabulary = {text: i for i, text in enumerate(texts)}
        if len(vocabulary) != len(texts):
            twice = next(text for i, text in enumerate(texts) if vocabulary[text] != i)
            raise self.fail("tokens", f"holds {twice[:80]!r} twice")
        self.tokens = texts
        lowercase = self.scalar(_PREFIX + "normalizer.lowercase", bool)
        accents = self.scalar(_PREFIX + "normalizer.strip_accents", bool)
        core = word_piece_core(vocabulary, texts[unknown], lowercase=lowercase is not False, strip_accents=accents)
        first = "cls_token_id" if _PREFIX + "cls_token_id" in self.metadata else "bos_token_id"
        return self.of_encoder(core, first, "seperator_token_id", types=True)  # llama.cpp's spelling

    def of_encoder(self, core: Tokenizer, first: str, last: str, *, types: bool) -> TextTokenizer:
        """Return a tokenizer with the special tokens of BERT (``types``) or RoBERTa, for single texts and pairs."""
        ids = [self.special_id(first), self.special_id(last)]
        names = (("[CLS]", "<s>"), ("[SEP]", "</s>"))
        for side, spellings in enumerate(names):
            if ids[side] is None:
                ids[side] = next((i for i, token in enumerate(self.tokens) if token in spellings), None)
        # llama.cpp adds both tokens of BERT whatever the file states: its converter writes add_sep_token=False.
        flags = [None if types else self.scalar(key, bool) for key in ("add_bos_token", "add_eos_token")]
        special, ordinary = self.added_tokens()
        more = [t for t, kind in zip(self.tokens, self.types, strict=True) if kind == UNKNOWN and t]
        more += [self.tokens[i] for i in ids if i is not None]
        special = list(dict.fromkeys([*special, *more]))
        core.add_special_tokens(
            [AddedToken(t, special=True, normalized=False, lstrip=t == "<mask>" and not types) for t in special]
        )
        core.add_tokens([AddedToken(t, special=False, normalized=False) for t in ordinary])
        ends = [None if i is None or flag is False else (self.tokens[i], i) for i, flag in zip(ids, flags, strict=True)]
        core.post_processor = pair_ends(*ends, types=types)
        roles = self.roles()
        return BytePairText(core, {"clean_up_tokenization_spaces": False, "chat_template": self.chat_template(),
                                   **{role: roles.get(role) for role in _ROLES}})  # fmt: skip

    def options(self, roles: Mapping[str, str], *, bos: bool, eos: bool) -> dict[str, Any]:
        """Return the options of both kinds of tokenizer."""
        return {
            "add_bos_token": bos and "bos_token" in roles,
            "add_eos_token": eos and "eos_token" in roles,
            "chat_template": self.chat_template(),
            "clean_up_tokenization_spaces": False,
            **{role: roles.get(role) for role in _ROLES},
        }

    def added_tokens(self) -> tuple[list[str], list[str]]:
        """Return control tokens and user-defined tokens in order of id."""
        by_type = [[t for t, kind in zip(self.tokens, self.types, strict=True) if kind == wanted and t]
                   for wanted in (CONTROL, USER_DEFINED)]  # fmt: skip
        check_added(by_type[0] + by_type[1], MAX_PIECE_BYTES, partial(self.fail, "token_type"))
        return by_type[0], by_type[1]

    def roles(self) -> dict[str, str]:
        """Return the special tokens by the names of transformers."""
        ids = {role: self.special_id(key) for role, key in _ROLES.items()}
        found = {role: self.tokens[i] for role, i in ids.items() if i is not None}
        if "pad_token" not in found and "eos_token" in found:
            found["pad_token"] = found["eos_token"]  # padding is masked: any token works
        return found

    def special_id(self, key: str) -> int | None:
        value = self.scalar(key, int)
        if value is not None and not 0 <= value < len(self.tokens):
            raise self.fail(key, f"is {value}; the vocabulary has ids 0 to {len(self.tokens) - 1}")
        return value

    def chat_template(self) -> str | dict[str, str] | None:
        """Return the template, or all by name if ``tokenizer.chat_templates`` lists more."""
        template = self.template("tokenizer.chat_template")
        if "tokenizer.chat_templates" not in self.metadata:
            return template
        found = {} if template is None else {"default": template}
        for name in self.strings("tokenizer.chat_templates"):
            if (source := self.template(f"tokenizer.chat_template.{name}")) is not None:
                found[name] = source
        return found or None

    def template(self, key: str) -> str | None:
        source = self.scalar(key, str)
        if source is not None and len(source.encode()) > MAX_SOURCE:
            raise self.fail(key, f"has more than {MAX_SOURCE} bytes")
        return source

    def scalar(self, key: str, kind: type[Value]) -> Value | None:
        value = self.metadata.get(key if "." in key else _PREFIX + key)
        if value is not None and type(value) is not kind:
            raise self.fail(key, f"is of type {type(value).__name__}; it must be {kind.__name__}")
        return value

    def strings(self, key: str) -> list[str]:
        value = self.array(key)
        if not {*map(type, value)} <= {str}:
            raise self.fail(key, "must be an array of strings")
        return value

    def numbers(self, key: str, kind: type[Value]) -> list[Value] | None:
        """Return an array with one element for each token, or None if it is missing."""
        if _PREFIX + key not in self.metadata:
            return None
        value = self.array(key)
        if len(value) != len(self.tokens):
            raise self.fail(key, f"has {len(value)} entries for {len(self.tokens)} tokens")
        if not {*map(type, value)} <= {kind}:
            raise self.fail(key, f"must be an array of {kind.__name__}")
        return value

    def octets(self, key: str) -> bytes:
        """Return an array of signed or unsigned bytes; empty if it is missing."""
        value = self.array(key) if _PREFIX + key in self.metadata else []
        if not all(type(item) is int and -128 <= item <= 255 for item in value):
            raise self.fail(key, "must be an array of bytes")
        return bytes(item & 0xFF for item in value)

    def array(self, key: str) -> list[Any]:
        value: Any = self.metadata.get(key if "." in key else _PREFIX + key)
        if (size := getattr(value, "size", 0)) > MAX_ELEMENTS:
            raise self.fail(key, f"has {size} numbers; at most {MAX_ELEMENTS} are read")
        if hasattr(value, "tolist"):
            value = value.tolist()  # Python scalars instead of numpy's
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.fail(key, "is missing" if value is None else "must be an array")
        return list(value)


def _word_piece(token: str) -> str:
    """Return a token of llama.cpp's files in BERT's own spelling."""
    if token.startswith("▁"):
        return token[1:]
    return token if token.startswith("[") and token.endswith("]") else "##" + token
