"""Kinds of values on the command line: what they may be, and how a shell completes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ipex_lookahead.cli.names import STRATEGIES
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.low_bits import ALIASES, ALL_LOW_BITS, LOW_BITS, PRESETS

if TYPE_CHECKING:
    AnyType = click.ParamType[Any]
else:
    AnyType = click.ParamType  # in click before 8.4 it cannot be subscripted


class Refused(click.UsageError):
    """Wrong usage with a hint of its own; without one the command's help is named."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, click.get_current_context(silent=True))
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``name``, if one does."""
    spellings = {other.replace("-", "_"): other for other in known}
    meant = name.lower().replace("-", "_")
    begun = [other for other in spellings if meant and other.startswith(meant)]
    found = begun if len(begun) == 1 else difflib.get_close_matches(meant, spellings, 1)
    return spellings[found[0]] if found else None


def unknown(kind: str, option: str, name: str, known: Iterable[str]) -> Refused:
    """The error for a name that is none of ``known``, with the nearest as hint."""
    known = list(known)
    same = next((one for one in known if one == name.lower()), None)
    near = same or nearest(name, [one for one in known if one not in ALIASES]) or nearest(name, known)
    hint = f"did you mean {option} {near}?" if near else ""
    return Refused(f"{option}: there is no {kind} {name!r}; there are {', '.join(known)}", hint=hint)


class Words(AnyType):
    """A text for which a shell offers some words, each with what is said of it; any other will do too."""

    name = "word"
    files = False
    """Whether the shell offers files and folders where no word begins as the text does."""

    def __init__(self, **words: str) -> None:
        self.words: Mapping[str, str] = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        """As help shows it: the words, or in a kind of its own its name in capitals."""
        return "|".join(self.words) if type(self) is Words else None

    def offered(self, incomplete: str) -> Mapping[str, str]:
        """The words for what has been typed."""
        return self.words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words that begin so."""
        words = self.offered(incomplete)
        found = [CompletionItem(word, help=words[word] or None) for word in words if word.startswith(incomplete)]
        return found if found or not self.files else [CompletionItem(incomplete, type="file")]


class Strategy(Words):
    """A strategy's name; ``without`` are those that the command cannot use, and why."""

    name = "name"

    def __init__(self, without: Mapping[str, str] | None = None) -> None:
        self.without = dict(without or {})
        super().__init__(**{name: said for name, said in STRATEGIES.items() if name not in self.without})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, if there is such a strategy and the command can use it."""
        if value in self.words:
            return str(value)
        if value in self.without:
            hint = f"choose one of {', '.join(self.words)}"
            raise Refused(f"--strategy {value}: {self.without[value]}", hint=hint)
        raise unknown("strategy", "--strategy", str(value), self.words)


class DraftVocab(AnyType):
    """How many tokens a head may draft, or a file that names them."""

    name = "n|file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Path:
        """The number, or the file's path."""
        try:
            number = value if isinstance(value, int) else int(value, 10)
        except (TypeError, ValueError):
            if not Path(value).is_file():
                said = f"--draft-vocab: {str(value)!r} is neither a number nor a file that is there"
                raise Refused(said, hint="ipex-lookahead drafter cut makes such a file") from None
            return Path(value)
        if number < 0:
            raise Refused(f"--draft-vocab: {number} is less than 0", hint="0 is all tokens")
        return number

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Files."""
        return [CompletionItem(incomplete, type="file")]


class LowBit(Words):
    """A low-bit format's name, a preset's, or a file of rules; with ``alike`` the name of one format.

    It is checked when the engine is known: ipex-llm has formats of its own.
    """

    name = "format"

    def __init__(self, *, alike: bool = False) -> None:
        self.alike, self.files = alike, not alike
        aliases = {name: f"the same as {ours}" for name, ours in ALIASES.items()}
        super().__init__(**(LOW_BITS if alike else LOW_BITS | PRESETS | aliases))


class LowBits(LowBit):
    """Several names with commas between, or ``ALL_LOW_BITS``."""

    name = "format,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """The names, which are checked when the engine is known."""
        return value if isinstance(value, tuple) else tuple(str(value).split(","))

    def offered(self, incomplete: str) -> Mapping[str, str]:
        """For the last of the names."""
        before, comma, _ = incomplete.rpartition(",")
        first = {} if comma else {ALL_LOW_BITS: "every one of them"}
        return first | {f"{before}{comma}{name}": said for name, said in self.words.items()}


class Tokens(Words):
    """A number of drafted tokens, or "auto"."""

    def __init__(self) -> None:
        super().__init__(auto="as many as pay")  # a number needs no help

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """As help shows it."""
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """A number from 0 to ``MAX_DRAFT``, or "auto"."""
        if value == "auto":
            return "auto"
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MAX_DRAFT:
            self.fail(f"{value!r} is neither a number from 0 to {MAX_DRAFT} nor 'auto'.", param, ctx)
        return number


class Size(AnyType):
    """Bytes, as people write them: 512M, 2G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number of bytes; K, M and G are powers of 1,024."""
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("IB").removesuffix("B")
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:], 1)
        digits = text[:-1] if factor > 1 else text
        if not digits.isdecimal():
            self.fail(f"{value!r} is no size; write bytes, or 512M, or 2G.", param, ctx)
        return int(digits) * factor


class Model(Words):
    """A model's name: a folder, a .gguf file, a short name, a hub id, or "default"."""

    name = "model"
    files = True

    def offered(self, incomplete: str) -> Mapping[str, str]:
        """Models where the path points, and short names."""
        from ipex_lookahead.hub.recommended import recommended_models

        found = {"default": "the model that comes with the package"} | dict.fromkeys(_models(incomplete), "")
        return found | {name: f"{model.download / 1e9:.1f} GB" for name, model in recommended_models().items()}


class Cached(Words):
    """The name of a model that is kept on this machine."""

    name = "name"

    def offered(self, incomplete: str) -> Mapping[str, str]:
        """The names."""
        from ipex_lookahead.hub import cached_models

        return {model.name: "" for model in cached_models()}


class Store(Words):
    """The file of a store, "memory" or "none"."""

    def __init__(self) -> None:
        super().__init__(memory="until the program ends", none="remember nothing")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The two words, and files."""
        files = [] if incomplete else [CompletionItem("", type="file")]
        return [*files, *super().shell_complete(ctx, param, incomplete)]


def _models(incomplete: str) -> list[str]:
    """The .gguf files and model folders whose paths begin so, as they would be typed."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").expanduser().iterdir())
    except OSError:
        return []
    return [
        folder + slash + path.name
        for path in entries
        if path.name.startswith(start)
        and (path.suffix == ".gguf" if not path.is_dir() else (path / "config.json").is_file())
    ]
