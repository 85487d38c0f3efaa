"""Conversations that are longer than the context, where the request lets their oldest messages be left out."""

from __future__ import annotations

from dataclasses import replace

from ipex_lookahead.errors import ContextLengthError
from ipex_lookahead.serving.conversation import Conversation, Prepared, prepare
from ipex_lookahead.serving.server import Served


def fitted(served: Served, conversation: Conversation, asked: int | None) -> Prepared:
    """As :func:`prepare`, without the oldest messages where the prompt leaves no room for the answer.

    What is left begins with a message of the user's, so that no result stands without its call; system messages stay.

    Args:
        served: the model.
        conversation: the conversation.
        asked: most tokens of the answer, for which room is made, up to half of the context; None or -1 asks for an
            eighth of it.

    Raises ContextLengthError where the last of the user's messages does not fit by itself, and as ``prepare``.
    """
    context = served.max_context
    room = min(context // 8 if asked is None or asked < 0 else asked, context // 2)
    first = [message for message in conversation.messages if message["role"] == "system"]
    rest = [message for message in conversation.messages if message["role"] != "system"]
    begins = [0, *(at for at, message in enumerate(rest) if at and message["role"] == "user")]

    def of(number: int) -> Prepared | None:
        messages = conversation.messages if number == 0 else [*first, *rest[begins[number] :]]
        try:
            made = prepare(served, replace(conversation, messages=messages))
        except ContextLengthError:
            if number == len(begins) - 1:
                raise
            return None
        return made if len(made.prompt) + room <= context or number == len(begins) - 1 else None

    found, low, high = of(0), 1, len(begins) - 1
    while found is None:  # the longest that fits, by halves: the last one always ends it
        middle = (low + high) // 2
        made = of(middle)
        if made is None:
            low = middle + 1
        elif middle == low:
            found = made
        else:
            high = middle
    return found
