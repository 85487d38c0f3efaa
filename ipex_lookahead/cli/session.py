"""The state of a chat: model, conversation and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ipex_lookahead.cli.conversation import Conversation, Turn, chat_encoder
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.report import ending, is_loop, stats_line
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.stream import Answer, MarkedAnswer, Painter
from ipex_lookahead.cli.thinking import has_switch, think_variables
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.errors import LookaheadError


class Session:
    """A chat session, which slash commands change. The model caches keys and values of the conversation.

    Args:
        model: The loaded ``TextModel``.
        system: The system message, or None.
        sampling, lookahead, max_new_tokens: Settings of answers.
        drafting: Further arguments of ``generate`` for lookahead.
        think: Whether the model thinks; None is the default of the chat template.
        tell: Prints a line that is not the model's.
        show_accepted: Mark accepted drafts in answers, which are then printed step by step.
        painter: Prints the answer.
    """

    def __init__(
        self,
        model: Any,
        *,
        system: str | None = None,
        sampling: Sampling,
        lookahead: Any,
        max_new_tokens: int,
        drafting: dict[str, Any] | None = None,
        think: bool | None = None,
        tell: Callable[[str], None],
        show_accepted: bool = False,
        painter: Painter,
    ) -> None:
        self.sampling = sampling
        self.lookahead = lookahead
        self._drafting = drafting or {}
        self.max_new_tokens = max_new_tokens
        self.tell = tell
        self.show_accepted = show_accepted
        self.painter = painter
        self._explained: set[str] = set()
        self.over = False
        self.last_stats: GenerationStats | None = None
        self.context: int = model.engine.max_context
        self.variables = think_variables(think)
        encode = chat_encoder(model.tokenizer, model.config, self.variables)
        self.conversation = Conversation(encode, self._tokenize, system)
        self._model = model
        self._tokenizer = model.tokenizer

    def answer(self, text: str) -> bool:
        """Answer a message. An interrupt ends the answer and keeps its text; an error keeps the conversation.

        Returns True if the conversation has a new turn.
        """
        turn = Turn(text)
        try:
            fitted = self.conversation.fit([*self.conversation.turns, turn], self.context, self.max_new_tokens)
            if fitted is None:
                self.tell(f"error: the message exceeds the model's context of {self.context:,} tokens; shorten it")
                return False
            if fitted.dropped_turns:
                turns = "turn" if fitted.dropped_turns == 1 else f"{fitted.dropped_turns} turns"
                del self.conversation.turns[: fitted.dropped_turns]
                self.tell(
                    f"dropped the oldest {turns} ({fitted.dropped_tokens:,} tokens): the context has {self.context:,} "
                    f"tokens, of which {self.max_new_tokens:,} are for the answer (/set max_new_tokens=N)"
                )
            turn.answer, turn.ids = self._generate(fitted.ids, min(self.max_new_tokens, fitted.room))
        except LookaheadError as error:
            message, hint = in_options(error)
            self.tell(f"error: {message}")
            if hint:
                self.tell(f"hint: {hint}")
            return False
        if turn.ids:
            self.conversation.turns.append(turn)
        return bool(turn.ids)

    @property
    def can_switch_thinking(self) -> bool:
        """Whether ``/think on`` and ``off`` have an effect on the model."""
        return has_switch(self._model)

    @property
    def temperature(self) -> float:
        """The temperature of answers: as set, or as recommended for the model."""
        return self.sampling.effective(self._model)

    def sampling_in_words(self) -> str:
        """Return the sampling settings and their source as text."""
        rules = self._model.resolved(self.sampling.params(1))
        if not rules.temperature:
            return "temperature 0 (greedy)"
        seed = "random seed" if rules.seed is None else f"seed {rules.seed}"
        text = f"temperature {rules.temperature:g}, top_k {rules.top_k}, top_p {rules.top_p:g}, {seed}"
        return text if self.sampling.temperature is not None else f"{text}; from {self._model.recommended_by}"

    def past_turn(self, user: str, answer: str) -> Turn:
        """Return a turn from text."""
        return Turn(user, answer, self._tokenize(answer))

    def _generate(self, ids: list[int], new_tokens: int) -> tuple[str, list[int]]:
        from ipex_lookahead.cli.interrupt import stop_requested
        from ipex_lookahead.cli.progress import PromptBar

        model, bar = self._model, PromptBar()
        paint = self.painter.write
        marked = MarkedAnswer(self._tokenizer, paint, ids) if self.show_accepted else None
        streamed = marked or Answer(self._tokenizer, paint, partial(paint, thought=True), ids)
        interrupted = False
        try:
            with stop_requested() as stop:

                def after_step() -> bool:
                    if marked is not None:
                        marked.stepped(model.stats)
                    return stop.is_set()

                model.generate(
                    ids,
                    self.sampling.params(new_tokens),
                    lookahead=self.lookahead,
                    **self._drafting,
                    on_token=streamed.put,
                    on_prefill=bar.update,
                    cancelled=after_step,
                    keep=True,
                )
            interrupted = "cancelled" in model.stats.finish_reasons
        except KeyboardInterrupt:
            interrupted = True
        finally:
            bar.close()
            if marked is not None:
                marked.stepped(model.stats)
            streamed.end()
            self.painter.write("\n")
        self.last_stats = replace(model.stats)
        kept = streamed.ids
        if kept and kept[-1] in self._tokenizer.all_special_ids:
            kept = kept[:-1]  # the template adds the end-of-turn token
        if streamed.thought:  # prompts do not have earlier thoughts
            kept = self._tokenize(streamed.text)
        if interrupted:
            self.tell("stopped; the partial answer is kept (/undo removes it)" if kept else "stopped")
        else:
            self.tell(stats_line(self.last_stats, loop=is_loop(self.last_stats, streamed.ids)))
            limit = f"/set max_new_tokens={self.max_new_tokens}"
            if streamed.thought and not kept:
                self.tell("the answer ended during thinking and is not kept")
            for line in ending(self.last_stats, streamed.ids, limit=limit, setting="/set {}=".format):
                self.tell(line)
        if marked is not None:
            self._explain_colors()
        return streamed.text, kept

    def _explain_colors(self) -> None:
        """Print the meaning of new colors."""
        for source, color in self.painter.colors.items():
            if color and source not in self._explained:
                self._explained.add(source)
                self.tell(f"{color} = accepted from a {source} draft (/accepted off hides colors)")

    def _tokenize(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))
