"""``--think`` and ``--no-think``: the switch of a chat template that turns a model's thinking on or off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Refused

if TYPE_CHECKING:
    from ipex_lookahead.runtime.text_model import TextModel

SWITCH = "enable_thinking"
"""The variable of chat templates."""

think_option = option("Turn the model's thinking on or off. Default: the chat template's.", None, "--think/--no-think")


def think_variables(think: bool | None) -> dict[str, Any]:
    """Return the variables of the chat template; None leaves the default of the template."""
    return {} if think is None else {SWITCH: think}


def has_switch(model: TextModel) -> bool:
    """Return True if the model's chat template can turn thinking on and off."""
    from ipex_lookahead.conversation import thinking

    template = model.tokenizer.chat_template or ""
    return thinking.has_switch("\n".join(template.values()) if isinstance(template, dict) else template)


def check_think(model: TextModel, think: bool | None) -> None:
    """Raise Refused if the switch has no effect on the model."""
    if think is not None and not has_switch(model):
        flag = "--think" if think else "--no-think"
        raise Refused(f"{flag} has no effect: {NO_SWITCH}", hint=f"leave {flag} out")


NO_SWITCH = f"the model's chat template has no {SWITCH} switch"
