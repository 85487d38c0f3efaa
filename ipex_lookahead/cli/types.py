"""Types of option values, with their checks and shell completion."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ipex_lookahead.cli.names import STRATEGIES
from ipex_lookahead.config import MAX_DRAFT
from ipex_lookahead.low_bits import ALIASES, ALL_LOW_BITS, LOW_BITS, NAMES, NOT_MADE, PRESETS

if TYPE_CHECKING:
    AnyType = click.ParamType[Any]
else:
    AnyType = click.ParamType  # not subscriptable before click 8.4


class Refused(click.UsageError):
    """Wrong usage with a hint; by default the hint is the help of the command."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, click.get_current_context(silent=True))
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to ``name``, if any."""
    spellings = {other.replace("-", "_"): other for other in known}
    wanted = name.lower().replace("-", "_")
    matches = [other for other in spellings if wanted and other.startswith(wanted)]
    found = matches if len(matches) == 1 else difflib.get_close_matches(wanted, spellings, 1)
    return spellings[found[0]] if found else None


def unknown(kind: str, option: str, name: str, known: Iterable[str]) -> Refused:
    """Return the error for an unknown name, with the nearest one as hint."""
    known = list(known)
    near = nearest(name, [one for one in known if one not in ALIASES]) or nearest(name, known)
    hint = f"did you mean {option} {near}?" if near else ""
    return Refused(f"{option}: unknown {kind} {name!r}: choose one of {', '.join(known)}", hint=hint)


class Words(AnyType):
    """A text with suggested words (word -> description) for shell completion; other values are allowed."""

    name = "word"
    files = False
    """Whether to complete files and folders if no word matches."""

    def __init__(self, **words: str) -> None:
        self.words: Mapping[str, str] = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str | None:
        return "|".join(self.words) if type(self) is Words else None

    def offered(self, incomplete: str) -> Mapping[str, str]:
        """Return the words for completion."""
        return self.words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = self.offered(incomplete)
        found = [CompletionItem(word, help=words[word] or None) for word in words if word.startswith(incomplete)]
        return found if found or not self.files else [CompletionItem(incomplete, type="file")]


class Strategy(Words):
    """The name of a strategy; ``without`` has unsupported ones with the reason."""

    name = "name"

    def __init__(self, without: Mapping[str, str] | None = None) -> None:
        self.without = dict(without or {})
        super().__init__(**{name: text for name, text in STRATEGIES.items() if name not in self.without})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        strategy = str(value).lower()
        if strategy in self.words:
            return strategy
        if strategy in self.without:
            hint = f"choose one of {', '.join(self.words)}"
            raise Refused(f"--strategy {strategy}: {self.without[strategy]}", hint=hint)
        raise unknown("strategy", "--strategy", strategy, self.words)


class DraftVocab(AnyType):
    """The size of a draft vocabulary, or a file with its ids."""

    name = "n|file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Path:
        try:
            number = value if isinstance(value, int) else int(value, 10)
        except (TypeError, ValueError):
            if not Path(value).is_file():
                problem = f"--draft-vocab must be a number or a file, got {str(value)!r}: no such file"
                raise Refused(problem, hint="ipex-lookahead drafter cut writes such a file") from None
            return Path(value)
        if number < 0:
            raise Refused(f"--draft-vocab must be 0 (all tokens) or more, got {number}")
        return number

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class LowBit(Words):
    """The name of a low-bit format or a preset in any case, or a file of rules; with ``alike`` a format only.

    It is checked when the engine is known, because ipex-llm has its own formats.
    """

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return lower_name(str(value))

    def __init__(self, *, alike: bool = False) -> None:
        self.alike, self.files = alike, not alike
        aliases = {name: f"the same as {ours}" for name, ours in ALIASES.items()}
        super().__init__(**(LOW_BITS if alike else LOW_BITS | PRESETS | aliases))


def lower_name(name: str) -> str:
    """Return the name of a format in lower case; the name of a file of rules, or an unknown name, is unchanged."""
    return name.lower() if name.lower() in (*NAMES, *NOT_MADE) else name


class LowBits(LowBit):
    """Names separated by commas, or ``ALL_LOW_BITS``."""

    name = "format,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(map(lower_name, str(value).split(",")))

    def offered(self, incomplete: str) -> Mapping[str, str]:
        before, comma, _ = incomplete.rpartition(",")
        first = {} if comma else {ALL_LOW_BITS: "every one of them"}
        return first | {f"{before}{comma}{name}": text for name, text in self.words.items()}


class Tokens(Words):
    """A number of drafted tokens, or "auto"."""

    def __init__(self) -> None:
        super().__init__(auto="the number that is fastest")

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if str(value).lower() == "auto":
            return "auto"
        try:
            number = int(value)
        except ValueError:
            number = -1
        if not 0 <= number <= MAX_DRAFT:
            self.fail(f"must be 0 to {MAX_DRAFT} or 'auto', got {value!r}.", param, ctx)
        return number


class Size(AnyType):
    """A number of bytes such as 512M or 2G; K, M and G are powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip().upper().removesuffix("IB").removesuffix("B")
        factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}.get(text[-1:], 1)
        digits = text[:-1] if factor > 1 else text
        if not digits.isdecimal():
            self.fail(f"must be a size such as 512M or 2G, got {value!r}.", param, ctx)
        return int(digits) * factor


class Model(Words):
    """The name of a model: a folder, a .gguf file, a short name, a hub id, or "default"."""

    name = "model"
    files = True

    def split_envvar_value(self, rv: str) -> list[str]:
        """Return the value of an environment variable as one model: paths have spaces."""
        return [rv]

    def offered(self, incomplete: str) -> Mapping[str, str]:
        from ipex_lookahead.hub.recommended import recommended_models
        from ipex_lookahead.hub.recommended_embedding import recommended_embedding_models

        found = {"default": "a small demo model"} | dict.fromkeys(_models(incomplete), "")
        return (
            found
            | {name: f"{model.download / 1e9:.1f} GB" for name, model in recommended_models().items()}
            | {name: f"{model.size}, for {model.purpose}" for name, model in recommended_embedding_models().items()}
        )


class Cached(Words):
    """The name of a model in the cache."""

    name = "name"

    def offered(self, incomplete: str) -> Mapping[str, str]:
        from ipex_lookahead.hub import cached_models

        return {model.name: "" for model in cached_models()}


class Store(Words):
    """The file of a store, "memory" or "none"."""

    def __init__(self) -> None:
        super().__init__(memory="until the program ends", none="no store")

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        files = [] if incomplete else [CompletionItem("", type="file")]
        return [*files, *super().shell_complete(ctx, param, incomplete)]


def _models(incomplete: str) -> list[str]:
    """Return the .gguf files and model folders that complete a path."""
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
