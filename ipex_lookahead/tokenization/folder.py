"""The tokenizer of a Hugging Face folder: ``tokenizer.json``, or a SentencePiece ``tokenizer.model``.

Class names, ``auto_map`` and other keys have no effect: no code in the folder runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from ipex_lookahead.errors import ModelFormatError
from ipex_lookahead.files.safe_json import kind, load_object, read_file
from ipex_lookahead.tokenization.chat_template import MAX_SOURCE
from ipex_lookahead.tokenization.growth import LONGEST_SPELLED, check_added, note_unproducible
from ipex_lookahead.tokenization.isolated import IsolatedText
from ipex_lookahead.tokenization.pieces import MARKER
from ipex_lookahead.tokenization.sentencepiece_model import (
    CONTROL,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
    read_model,
)
from ipex_lookahead.tokenization.text import ROLES, BytePairText, SentencePieceText, TextTokenizer
from ipex_lookahead.tokenization.tokenizer_json import read_pipeline

MAX_TOKENIZER = 64 << 20
MAX_SETTINGS = 4 << 20
MOST_TEMPLATES = 32


def text_from_folder(path: Path, config: Mapping[str, Any], *, keep_ends: bool = False) -> TextTokenizer | None:
    """Build the tokenizer of a folder.

    Args:
        path: The folder.
        config: The config of the model. ``vocab_size`` is the limit of ids, except for added tokens; ``bos_token_id``
            and ``eos_token_id`` are used if the tokenizer's files do not name these tokens.
        keep_ends: ``add_bos_token`` and ``add_eos_token`` of false do not remove the special tokens that
            ``tokenizer.json`` adds: Qwen3-Embedding has both, and its vectors need the end token.

    Returns:
        A tokenizer with its chat template, if any; None if the folder has neither ``tokenizer.json`` nor
        ``tokenizer.model``.

    Raises:
        ModelFormatError: A file is too large, malformed, or inconsistent with another file or the config.
        UnsupportedModelError: An unknown kind of tokenizer.
    """
    path = Path(path)
    present = [name for name in ("tokenizer.json", "tokenizer.model") if (path / name).exists()]
    if not present:
        return None
    folder = _Folder(path, config)
    if folder.vocabulary(present) == "tokenizer.model":
        return folder.sentencepiece()
    return folder.pipeline(keep_ends=keep_ends)


class _Folder:
    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self.path = path
        self.config = config
        self.settings_file = path / "tokenizer_config.json"
        self.settings: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the second takes precedence
            if (path / name).exists():
                self.settings |= load_object(path / name, MAX_SETTINGS)

    def fail(self, field: str, problem: str) -> ModelFormatError:
        return ModelFormatError(self.settings_file, field, None, problem)

    def vocabulary(self, present: list[str]) -> str:
        """Return the file to read: the one named by our own save, else the first."""
        marker = self.settings.get(MARKER)
        named = marker.get("vocabulary") if isinstance(marker, dict) else None
        return named if named in present else present[0]

    def pipeline(self, *, keep_ends: bool) -> TextTokenizer:
        file = self.path / "tokenizer.json"
        pipeline = read_pipeline(load_object(file, MAX_TOKENIZER), file, self.config.get("vocab_size"))
        ids = pipeline.vocab | {token["content"]: token["id"] for token in pipeline.description["added_tokens"]}
        flags = {name: flag for name in ("add_bos_token", "add_eos_token") if (flag := self.flag(name)) is not None}
        roles = self.roles(ids)
        for name in list(flags):
            flags[name] = flags[name] and roles[name[4:]] is not None
        if keep_ends and not any(flags.values()):
            flags = {}
        options = {**self.common(ids, roles), **flags}
        return BytePairText(pipeline.core(), options) if pipeline.apart is None else IsolatedText(pipeline, options)

    def sentencepiece(self) -> TextTokenizer:
        file = self.path / "tokenizer.model"
        model = read_model(read_file(file, MAX_TOKENIZER), file)
        rows = self.config.get("vocab_size")
        if rows is not None and len(model.pieces) > rows:
            problem = f"has {len(model.pieces)} pieces, but the model's embedding has {rows} rows"
            raise ModelFormatError(file, "pieces", None, problem)
        ids = {piece.text: i for i, piece in enumerate(model.pieces)}
        added = {
            i: AddedToken(piece.text, special=piece.type == CONTROL, normalized=False)
            for i, piece in enumerate(model.pieces)
            if piece.type == CONTROL or (piece.type == USER_DEFINED and not _spaces(piece))
        }
        added |= self.added_tokens(model)
        ids |= {token.content: i for i, token in added.items()}
        roles = self.roles(ids)
        add_bos, add_eos = self.flag("add_bos_token"), self.flag("add_eos_token")
        options = {
            "add_bos_token": add_bos is not False and roles["bos_token"] is not None,
            "add_eos_token": bool(add_eos) and roles["eos_token"] is not None,
            **self.common(ids, roles),
        }
        try:
            return SentencePieceText(model.serialize(), added, options)
        except RuntimeError as error:
            raise ModelFormatError(file, "model", None, f"sentencepiece does not take this model: {error}") from None

    def common(self, ids: Mapping[str, int], roles: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the settings of both kinds of tokenizer."""
        length = self.settings.get("model_max_length")
        sensible = type(length) is int and 0 < length <= 1 << 40
        extra = self.settings.get("additional_special_tokens", self.settings.get("extra_special_tokens"))
        names = [self.text("additional_special_tokens", t) for t in extra] if isinstance(extra, list) else []
        names = list(dict.fromkeys(names))
        if unknown := next((name for name in names if name not in ids), None):
            raise self.fail("additional_special_tokens", f"{unknown[:80]!r} is not in the vocabulary")
        return {
            **roles,
            "additional_special_tokens": names,
            "chat_template": self.chat_template(),
            "clean_up_tokenization_spaces": False,
            **({"model_max_length": length} if sensible else {}),
        }

    def roles(self, ids: Mapping[str, int]) -> dict[str, str | None]:
        """Return the special tokens, by the settings or by the ids of the config."""
        found: dict[str, str | None] = {}
        for role in ROLES:
            named = self.settings.get(role)
            text = None if named is None else self.text(role, named)
            if text is not None and text not in ids:
                raise self.fail(role, f"{text[:80]!r} is not in the vocabulary")
            i = self.config.get(f"{role}_id")
            i = i[0] if isinstance(i, list) and i else i
            if text is None and i is not None:
                text = next((token for token, number in ids.items() if number == i and type(i) is int), None)
                if text is None:
                    raise ModelFormatError(
                        self.path / "config.json", f"{role}_id", None, f"is {i!r}, which is not an id of the tokenizer"
                    )
            found[role] = text
        if found["pad_token"] is None:
            found["pad_token"] = found["eos_token"]  # padding is masked: any token works
        return found

    def text(self, field: str, value: Any) -> str:
        """Return a token, given as a string or as an object with ``content``."""
        text = value.get("content") if isinstance(value, dict) else value
        if not isinstance(text, str) or not text:
            raise self.fail(field, f"is {kind(value)}; it must be a token, or an object with its content")
        return text

    def flag(self, name: str) -> bool | None:
        value = self.settings.get(name)
        if value is not None and type(value) is not bool:
            raise self.fail(name, f"is {kind(value)}; it must be true or false")
        return value

    def added_tokens(self, model: SentencePieceModel) -> dict[int, AddedToken]:
        """Return ``added_tokens_decoder`` of the settings, with pieces of the model and further tokens."""
        tokens = self.settings.get("added_tokens_decoder", {})
        if not isinstance(tokens, dict):
            raise self.fail("added_tokens_decoder", f"is {kind(tokens)}; it must be an object")
        rows = self.config.get("vocab_size", len(model.pieces) + len(tokens))
        limit = max(rows, len(model.pieces)) + len(tokens)
        known = {piece.text: i for i, piece in enumerate(model.pieces)}
        found: dict[int, AddedToken] = {}
        for key, entry in tokens.items():
            field = f"added_tokens_decoder[{key[:20]!r}]"
            if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < limit):
                raise self.fail(field, f"is not a valid id; the model has ids 0 to {limit - 1}")
            i, text = int(key), self.text(field, entry)
            if known.get(text, i) != i or (i < len(model.pieces) and model.pieces[i].text != text):
                raise self.fail(field, f"{text[:80]!r} has id {i}, which tokenizer.model contradicts")
            known[text] = i
            if i < len(model.pieces) and _spaces(model.pieces[i]):
                continue
            flags = entry if isinstance(entry, dict) else {}
            sides = {side: flags.get(side) is True for side in ("lstrip", "rstrip")}
            found[i] = AddedToken(text, special=flags.get("special") is not False, normalized=False, **sides)
        problems = partial(self.fail, "added_tokens_decoder")
        check_added([token.content for token in found.values()], LONGEST_SPELLED, problems)
        note_unproducible(self.settings_file, (token.content for i, token in found.items() if i >= rows), rows)
        return found

    def chat_template(self) -> str | dict[str, str] | None:
        """Return the template, or named templates: from their files, the settings, or the file of a processor."""
        template = self.settings.get("chat_template")
        if isinstance(template, list):
            found: str | dict[str, str] | None = {
                self.source(entry, "name"): self.source(entry, "template") for entry in template
            }
        else:
            found = None if template is None else self.source({"template": template}, "template")
        file = self.path / "chat_template.jinja"
        if file.exists():
            found = _jinja(file)
        elif found is None and (file := self.path / "chat_template.json").exists():
            source = load_object(file, MAX_SETTINGS).get("chat_template")
            if source is not None and (not isinstance(source, str) or len(source.encode()) > MAX_SOURCE):
                raise ModelFormatError(file, "chat_template", None, f"must be text of at most {MAX_SOURCE} bytes")
            found = source
        named = self.path / "additional_chat_templates"
        others = sorted(named.glob("*.jinja"))[: MOST_TEMPLATES + 1] if named.is_dir() else []
        if len(others) > MOST_TEMPLATES:
            raise ModelFormatError(named, "folder", None, f"holds more than {MOST_TEMPLATES} templates")
        if not others:
            return found
        known = found if isinstance(found, dict) else {} if found is None else {"default": found}
        return known | {file.stem: _jinja(file) for file in others}

    def source(self, entry: Any, key: str) -> str:
        value = entry.get(key) if isinstance(entry, dict) else None
        if not isinstance(value, str) or len(value.encode()) > MAX_SOURCE:
            raise self.fail("chat_template", f"must be text of at most {MAX_SOURCE} bytes, or a list of named ones")
        return value


def _spaces(piece: Piece) -> bool:
    """Return True for a symbol with spaces, which sentencepiece finds in its own normalized text."""
    return piece.type == USER_DEFINED and "▁" in piece.text


def _jinja(file: Path) -> str:
    try:
        return read_file(file, MAX_SOURCE).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFormatError(file, "chat template", error.start, "is not UTF-8") from None
