"""``--think``, ``--no-think`` and ``--think-budget``: whether a model thinks before it answers, and how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Refused

if TYPE_CHECKING:
    from ipex_lookahead.runtime.text_model import TextModel

SWITCH = "enable_thinking"
"""The variable of chat templates."""


@dataclass
class ThinkOptions:
    """Thinking before the answer."""

    think: bool | None = option(
        "Turn the model's thinking on or off. Default: the chat template's.", None, "--think/--no-think"
    )
    think_budget: int | None = option("Maximum thinking tokens of an answer. Default: no limit.", low=0)
    think_sentence: str = option("Text that ends the thought at its budget.", "", metavar="TEXT")

    def check(self, model: TextModel) -> None:
        """Raise Refused for an option that has no effect on the model."""
        if self.think is not None and not has_switch(model):
            flag = "--think" if self.think else "--no-think"
            raise Refused(f"{flag} has no effect: {NO_SWITCH}", hint=f"leave {flag} out")
        if self.think_budget is not None and not can_think(model):
            raise Refused(f"--think-budget has no effect: {NO_THINKING}", hint="leave --think-budget out")

    def without_template(self) -> None:
        """Raise UsageError for an option that needs the chat template."""
        if self.think is not None:
            raise click.UsageError("--think and --no-think need the chat template, which --raw leaves out")
        if self.think_budget is not None:
            raise click.UsageError("--think-budget needs the chat template, which --raw leaves out")


class ThoughtLimit:
    """The budget of a model's thoughts.

    Args:
        model: The loaded model; None: there is none now.
        budget: Maximum thinking tokens of an answer; None removes the limit.
        sentence: Text that ends the thought at its budget.

    Attributes:
        budget: As given; it may be changed between answers.
    """

    def __init__(self, model: TextModel | None, budget: int | None, sentence: str) -> None:
        self.budget = budget
        self._model = model
        self._sentence = sentence

    def arguments(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return the arguments of ``TextModel.generate`` that keep to the budget after a prompt of the template."""
        if self.budget is None or self._model is None:
            return {}
        from ipex_lookahead.conversation.answer import AnswerEnd
        from ipex_lookahead.conversation.model import ChatModel
        from ipex_lookahead.conversation.request import thinking_request

        model = ChatModel(self._model)
        model.think_budget, model.think_sentence = self.budget, self._sentence
        return {"force": AnswerEnd(model.tokenizer, thinking_request(model, ids)).force}


def think_variables(think: bool | None) -> dict[str, Any]:
    """Return the variables of the chat template; None leaves the default of the template."""
    return {} if think is None else {SWITCH: think}


def has_switch(model: TextModel) -> bool:
    """Return True if the model's chat template can turn thinking on and off."""
    from ipex_lookahead.conversation import thinking

    return thinking.has_switch(_template(model))


def can_think(model: TextModel) -> bool:
    """Return True if the model's chat template has marks of thoughts."""
    from ipex_lookahead.conversation import thinking

    return thinking.marks_of(_template(model)) is not None


def _template(model: TextModel) -> str:
    template = model.tokenizer.chat_template or ""
    return "\n".join(template.values()) if isinstance(template, dict) else template


NO_SWITCH = f"the model's chat template has no {SWITCH} switch"
NO_THINKING = "the model's chat template has no thinking"
