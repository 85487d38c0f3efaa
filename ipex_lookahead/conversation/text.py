"""An answer's text as far as it may be shown: whole characters, and nothing of a text that it stops at."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipex_lookahead.tokenization.detokenizer import Detokenizer
from ipex_lookahead.tokenization.stop_matcher import StopMatcher
from ipex_lookahead.tokenization.text import TextTokenizer

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import TokenLogprob


@dataclass(slots=True)
class TextDelta:
    """A token and the text that it finished, which may be empty; a piece that is cut in two carries its token once.

    Attributes:
        text: see above.
        token: its id; None for the second half.
        source: what had drafted it, None = the model itself.
        logprob: if requested.
        start: characters of the answer before it.
    """

    text: str
    token: int | None
    source: str | None
    logprob: TokenLogprob | None
    start: int


@dataclass(slots=True)
class Shown:
    """What has become certain: the text, and the pieces that it is made of."""

    text: str = ""
    pieces: list[TextDelta] = field(default_factory=list)


class AnswerText:
    """Takes tokens, gives text.

    Args:
        tokenizer: the model's.
        stops: texts at which the answer ends; they are not part of it.
        markers: special tokens that are shown as text all the same, by id: a tool call may begin with one.
        silent_too: other special tokens are pieces as well, without text.
        stop_ids: tokens at which the answer ends; their text is not part of it.
        min_tokens: number of leading tokens at which it does not end.

    Attributes:
        stopped: the text, or the token of ``stop_ids``, that it has ended at.
        length: characters of the answer so far, the held back ones included.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        stops: Sequence[str] = (),
        markers: Mapping[int, str] | None = None,
        *,
        silent_too: bool = False,
        stop_ids: Sequence[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self.stopped: str | int | None = None
        self.length = 0
        self._detokenizer = Detokenizer(tokenizer)
        self._left_out = frozenset() if silent_too else tokenizer.silent_ids
        self._matcher = StopMatcher(stops)
        self._found: tuple[int, str] | None = None  # characters of what is held up to its end, and which it is
        self._characters = 0  # of what is held
        self._markers = markers or {}
        self._stop_ids = frozenset(stop_ids)
        self._end_id: int | None = None
        self._silent_too = silent_too
        self._free = min_tokens
        self._held: deque[TextDelta] = deque()

    def put(
        self,
        tokens: Sequence[int],
        sources: Sequence[str | None],
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> Shown:
        """Take the next tokens; what follows a text to stop at is dropped."""
        for at, token in enumerate(tokens):
            self._free -= 1
            if token in self._stop_ids:
                self._end_at(token, sources[at], logprobs[at] if logprobs is not None else None)
                break
            marker = self._markers.get(token)
            text = self._detokenizer.put(token) if marker is None else self._detokenizer.end() + marker
            if token in self._left_out and marker is None:
                continue
            self._hold(TextDelta(text, token, sources[at], logprobs[at] if logprobs is not None else None, self.length))
        return self._certain(last=False)

    def end(self) -> Shown:
        """What is left at the end."""
        self._hold(TextDelta(self._detokenizer.end(), None, None, None, self.length))
        shown = self._certain(last=True)
        if self.stopped is None:
            self.stopped = self._end_id
        return shown

    def _end_at(self, token: int, source: str | None, logprob: TokenLogprob | None) -> None:
        """End at a token of ``stop_ids``, which has no text."""
        self._end_id = token
        self._hold(
            TextDelta(self._detokenizer.end(), token if self._silent_too else None, source, logprob, self.length)
        )

    def _hold(self, piece: TextDelta) -> None:
        if self.stopped is None:
            self.length += len(piece.text)
            self._held.append(piece)
            if self._free >= 0:
                self._matcher.pass_over(piece.text)
            elif self._found is None and (found := self._matcher.put(piece.text)) is not None:
                self._found = self._characters + found[0], found[1]
            self._characters += len(piece.text)

    def _certain(self, *, last: bool) -> Shown:
        if self.stopped is not None:
            return Shown()
        if self._found is not None:
            end, stop = self._found
            self.stopped = stop
            at = end - len(stop)
            self.length -= self._characters - at
            shown = self._take(at, last=False)
            self._held.clear()
            return shown
        kept = 0 if last else self._matcher.begun
        return self._take(self._characters - kept, last=last or not kept)

    def _take(self, count: int, *, last: bool) -> Shown:
        """The first ``count`` characters of what is held, and with ``last`` the tokens without text behind them."""
        shown, left = Shown(), count
        while self._held and (left > 0 or last):
            piece = self._held.popleft()
            if len(piece.text) > left:
                rest = TextDelta(piece.text[left:], None, piece.source, None, piece.start + left)
                self._held.appendleft(rest)
                piece.text = piece.text[:left]
            left -= len(piece.text)
            self._characters -= len(piece.text)
            if piece.text or piece.token is not None:
                shown.pieces.append(piece)
        shown.text = "".join(piece.text for piece in shown.pieces)
        return shown
