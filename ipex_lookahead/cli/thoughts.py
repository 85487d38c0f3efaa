"""Separation of thoughts from the text of a streaming answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ipex_lookahead.conversation.thinking import TAIL, Splitter, Thought, marks_of, mode_of
from ipex_lookahead.tokenization.detokenizer import Detokenizer


class Parts(Detokenizer):
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
        self._splitter = Splitter(mode, marks)
        spelled = () if marks is None else (marks.begin, marks.end)
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
