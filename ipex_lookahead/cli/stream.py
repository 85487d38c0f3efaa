"""Streaming output of an answer, optionally with accepted drafts marked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, Protocol

import click

from ipex_lookahead.cli.wrapping import Paint, WordWrap
from ipex_lookahead.conversation.channels import splitter_of
from ipex_lookahead.conversation.thinking import TAIL, Thought, marks_of, mode_of
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.system.terminal import is_terminal, may_draw
from ipex_lookahead.tokenization.detokenizer import Detokenizer

COLORS = ("green", "cyan", "magenta", "yellow", "blue", "red")

_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Painter:
    """Writes text to standard output: accepted drafts in the color of their source, or in brackets without colors.

    On a terminal, control characters other than line breaks and tabs are removed, so that a model cannot control it.

    Args:
        wrap: Breaks lines; None leaves that to the terminal.
        colored: Whether to write colors; by default if the terminal supports them.

    Attributes:
        colors: Source -> color; "" without colors.
    """

    def __init__(self, wrap: WordWrap | None = None, colored: bool | None = None) -> None:
        self.colors: dict[str, str] = {}
        self._wrap = wrap
        self._colored = colored
        self._thinking = False

    def write(self, part: str, origin: str | None = None, *, thought: bool = False) -> None:
        """Write a piece of text with the source that drafted it; None is the model itself.

        Thoughts are dim, with an empty line after them; without colors they are between ``<think>`` and ``</think>``.
        """
        colored = may_draw(sys.stdout) if self._colored is None else self._colored
        part = part.translate(_CONTROL) if colored or is_terminal(sys.stdout) else part
        if thought != self._thinking:
            self._thinking = thought
            begin, end = ("", "\n\n") if colored else ("<think>\n", "\n</think>\n\n")
            self._put(begin if thought else end, str)
        paint: Paint = partial(click.style, dim=True) if thought and colored else str
        if origin is not None:
            number = len(self.colors) % len(COLORS)
            color = self.colors.setdefault(origin, COLORS[number] if colored else "")
            if color:
                paint = partial(click.style, fg=color, dim=thought or None)
            else:
                part = f"[{part}]"
        self._put(part, paint)
        sys.stdout.flush()

    def _put(self, part: str, paint: Paint) -> None:
        if self._wrap is not None:
            self._wrap.put(part, paint)
        elif part:
            sys.stdout.write(paint(part))


class ThoughtSplitter(Detokenizer):
    """A detokenizer that separates thoughts and removes the marks around them, special tokens or text.

    Args:
        tokenizer: A ``TextTokenizer`` or a tokenizer of transformers; its chat template determines the marks.
        prompt: Token ids of the prompt, which may end in a thought; None does not separate thoughts.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] | None) -> None:
        super().__init__(tokenizer)
        template = getattr(tokenizer, "chat_template", None) or "" if prompt is not None else ""
        marks = marks_of("\n".join(template.values()) if isinstance(template, dict) else template)
        end = "" if marks is None or prompt is None else str(tokenizer.decode(list(prompt[-TAIL:])))
        mode = mode_of(marks, end, "")
        self._splitter = splitter_of(mode, marks)
        spelled = () if marks is None else marks.spelled
        ids = tokenizer.get_vocab() if spelled else {}
        self._marks = {ids[text]: text for text in spelled if ids.get(text) in self._silent}

    def of(self, tokens: Iterable[int]) -> list[Thought | str]:
        """Return the thoughts and texts that are complete with the next tokens."""
        text = ""
        for token in tokens:
            mark = self._marks.get(token)
            text += self.put(token) if mark is None else self.end() + mark
        return self._splitter.put(text, last=False)

    def rest(self) -> list[Thought | str]:
        """Return the rest."""
        return self._splitter.put(self.end(), last=True)


class Answer:
    """An answer that is printed as it is generated.

    Args:
        tokenizer: The tokenizer of the model.
        write: Receives the text.
        think: Receives the thoughts; None does not separate them.
        prompt: Token ids of the prompt, for ``think``.

    Attributes:
        ids: The generated token ids.
        text: The text so far, without special tokens and thoughts.
        thought: Whether there were thoughts.
    """

    def __init__(
        self,
        tokenizer: Any,
        write: Callable[[str], None],
        think: Callable[[str], None] | None = None,
        prompt: Sequence[int] = (),
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.thought = False
        self._parts = ThoughtSplitter(tokenizer, None if think is None else prompt)
        self._write = write
        self._think = think or write

    def put(self, token: int) -> None:
        """Add the next token."""
        self.ids.append(token)
        self._emit(self._parts.of([token]))

    def end(self) -> None:
        """Write the rest: incomplete characters and marks."""
        self._emit(self._parts.rest())

    def _emit(self, parts: Sequence[str]) -> None:
        for part in parts:
            if isinstance(part, Thought):
                self.thought = True
                self._think(part)
            else:
                self.text += part
                self._write(part)


class Paints(Protocol):
    """``Painter.write``."""

    def __call__(self, part: str, origin: str | None = None, *, thought: bool = False) -> None: ...


class MarkedAnswer(Answer):
    """An answer that is printed after each step, with the sources of accepted drafts.

    Args:
        tokenizer: The tokenizer of the model.
        paint: Receives the text and its source.
        prompt: Token ids of the prompt.
    """

    def __init__(self, tokenizer: Any, paint: Paints, prompt: Sequence[int] = ()) -> None:
        super().__init__(
            tokenizer,
            lambda text: paint(text, self._origin),
            lambda text: paint(text, self._origin, thought=True),
            prompt,
        )
        self._origin: str | None = None
        self._shown = 0

    def put(self, token: int) -> None:
        """Add the next token; ``stepped`` prints it."""
        self.ids.append(token)

    def stepped(self, stats: GenerationStats) -> None:
        """Print the tokens of a step that ``stats`` includes."""
        stats.fold()
        waiting, origins = self.ids[self._shown :], stats.origins()[self._shown :]
        self._shown = len(self.ids)
        for tokens, origin in _runs(waiting, origins):
            self._origin = origin
            self._emit(self._parts.of(tokens))
        self._origin = None


def by_origin(
    detokenizer: Detokenizer, ids: Sequence[int], origins: Sequence[str | None]
) -> Iterator[tuple[str, str | None]]:
    """Yield the text in pieces of one source each. A character of several tokens belongs to the last one."""
    for tokens, origin in _runs(ids, origins):
        if text := "".join(map(detokenizer.put, tokens)):
            yield text, origin


def _runs(ids: Sequence[int], origins: Sequence[str | None]) -> Iterator[tuple[list[int], str | None]]:
    """Yield runs of tokens with the same source."""
    marked = zip_longest(ids, origins[: len(ids)])  # tokens of an interrupted step have no source
    for origin, group in groupby(marked, key=lambda entry: entry[1]):
        yield [token for token, _ in group], origin


def print_accepted(tokenizer: Any, ids: Sequence[int], origins: Sequence[str | None]) -> None:
    """Print text with accepted tokens in the color of their source, or in brackets without colors."""
    from rich.text import Text

    from ipex_lookahead.cli.progress import console

    out, detokenizer = console(), Detokenizer(tokenizer)
    painter = Painter(colored=out.is_terminal and not out.no_color)
    for part, origin in by_origin(detokenizer, ids, origins):
        painter.write(part, origin)
    painter.write(detokenizer.end() + "\n")
    if painter.colors:
        names = Text("accepted from drafts of: ", style="dim")
        for origin, color in painter.colors.items():
            names.append(f"{origin} ", style=color)
        console(stderr=True).print(names)
