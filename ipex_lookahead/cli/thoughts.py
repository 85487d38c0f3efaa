"""Thoughts in an answer as it comes: which of its text is thought, and which is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ipex_lookahead.conversation.thinking import TAIL, Splitter, Thought, marks_of, mode_of
from ipex_lookahead.tokenization.detokenizer import Detokenizer


class Parts(Detokenizer):
    """A detokenizer that tells thoughts apart; the marks round them, special tokens or text, are left out.

    Args:
        tokenizer: a ``TextTokenizer`` or a ``transformers`` tokenizer; its chat template says what the marks are.
        prompt: ids of the prompt, which may end in a thought; None: all is said.
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
        """What has become certain with the next tokens: thoughts, and what is said between and behind them."""
        text = ""
        for token in tokens:
            mark = self._marks.get(token)
            text += self.put(token) if mark is None else self.end() + mark
        return self._splitter.put(text, last=False)

    def rest(self) -> list[Thought | str]:
        """What was held back."""
        return self._splitter.put(self.end(), last=True)
