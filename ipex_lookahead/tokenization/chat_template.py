"""Chat templates: programs that come with a checkpoint, run where they can do no harm.

A template is Jinja, as Hugging Face's tokenizers use it: blocks trimmed, ``raise_exception``, ``strftime_now``,
``tojson``, loop controls. It runs in Jinja's immutable sandbox, inside a process of its own with a budget of loop
steps, processor time and memory (``worker.py``). Starting that process takes some tens of milliseconds; who renders
often has it started ahead (``processes_ahead``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.tokenization.process import Ahead, Stopped, Worker, importable

MAX_SOURCE = 256 << 10
MAX_OUTPUT = 8 << 20
OUTPUT_ANYWAY = 256 << 10
OUTPUT_PER_BYTE = 16
"""Characters that a template may write for each byte of the messages and variables, besides those above."""
MAX_STEPS = 1 << 20
MAX_SECONDS = 1.0
MAX_MEMORY = 512 << 20

_IMPORTS = ("jinja2", "jinja2.debug", "jinja2.ext", "jinja2.sandbox")
"""What takes the time: a process that is started ahead has these when it is asked."""

_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    bos_token: str | None,
    eos_token: str | None,
    **extra: Any,
) -> str:
    """The prompt that a chat template makes of a conversation.

    Args:
        template: Jinja source, at most 256 KiB.
        messages: ``{"role": ..., "content": ...}`` each; plain JSON values only.
        add_generation_prompt: whether the prompt should end with the assistant's opening.
        bos_token: the template's ``bos_token``; None leaves it undefined, as ``eos_token``.
        eos_token: the template's ``eos_token``.
        extra: further variables of the template (``tools``, ``documents``, ...).

    Raises:
        ModelFormatError: the template is too long, is no valid Jinja, fails, is stopped by the sandbox, takes more than
            2**20 loop steps, one second of processor time or 512 MiB, or writes more than 256 Ki characters and 16
            for each byte of the conversation and the variables as JSON, or than 8 Mi.
        InputError: the template refuses the conversation, or the conversation holds something that is not JSON.
    """
    variables = {
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos_token,
        "eos_token": eos_token,
        **extra,
    }
    return render_chats(template, [messages], variables)[0]


def processes_ahead() -> Ahead:
    """Processes for ``render_chats``, each for one call, the next of which is started when the one before is done."""

    def start() -> Worker:
        worker = _started()
        worker.tell(json.dumps({"path": importable(), "import": _IMPORTS}).encode("ascii"))
        return worker

    return Ahead(start)


def render_chats(
    template: str,
    conversations: Sequence[Sequence[Message]],
    variables: Mapping[str, Any],
    ahead: Ahead | None = None,
) -> list[str]:
    """As :func:`render_chat` for several conversations at once; variables that are None stay undefined.

    ``ahead``: where the process comes from; None starts one.
    ``tools`` and ``documents`` are None, not undefined, where they are not given: templates ask ``tools is not none``.
    """
    if len(template.encode("utf-8", "replace")) > MAX_SOURCE:
        raise _fault(f"has more than {MAX_SOURCE} bytes")
    given = {name: value for name, value in variables.items() if value is not None}
    request: dict[str, Any] = {
        "path": importable(),
        "template": template,
        "variables": {"tools": None, "documents": None, **given},
        "contexts": [{"messages": list(map(_with_reasoning, messages))} for messages in conversations],
    }
    limits = {"steps": MAX_STEPS, "seconds": MAX_SECONDS, "memory": MAX_MEMORY}
    try:
        given_size = len(json.dumps([request["variables"], request["contexts"]]))
        limits["output"] = min(MAX_OUTPUT, OUTPUT_ANYWAY + OUTPUT_PER_BYTE * given_size)  # it is to be tokens yet
        question = json.dumps({**request, "limits": limits})
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the messages or template variables hold something that is not a string, number, list or mapping: {error}"
        ) from None
    try:
        return _answer(question, _started() if ahead is None else ahead.take())
    finally:
        if ahead is not None:
            ahead.prepare()


def _with_reasoning(message: Any) -> Any:
    """A message whose reasoning, where it has some, stands under both names that templates read, as in transformers."""
    if not isinstance(message, Mapping):
        return message
    said = next((text for name in _REASONING if (text := message.get(name)) is not None), None)
    return message if said is None else {"thinking": said, **message, "reasoning_content": said}


def _started() -> Worker:
    return Worker("the chat template", instead="pass plain text instead of chat messages")


def _answer(question: str, worker: Worker) -> list[str]:
    """Ask a worker and turn what it says, or its death, into a result or an error."""
    try:
        limits = f"{MAX_SECONDS:g} s of processor time or {MAX_MEMORY >> 20} MiB"
        answer = worker.ask(question.encode("ascii"), MAX_SECONDS, limits)
    except Stopped as stopped:
        raise _fault(str(stopped)) from None
    finally:
        worker.close()
    if "ok" in answer:
        return list(answer["ok"])
    if answer["error"] == "raised":
        raise InputError(f"the chat template refuses these messages: {answer['message']}")
    raise _fault(answer["message"])


def _fault(problem: str) -> ModelFormatError:
    return ModelFormatError(
        "chat template", "chat_template", None, problem, hint="pass plain text, or a chat template that works"
    )


def chat_template_of(tokenizer: Any, asked: str | None, for_tools: bool) -> str:
    """The template to use: the one asked for by text or by name, else the tokenizer's. Raises InputError if none."""
    own: Any = tokenizer.chat_template
    if isinstance(own, dict):
        name = asked if asked is not None else "tool_use" if for_tools and "tool_use" in own else "default"
        if asked is not None and asked not in own:
            return asked
        if name not in own:
            raise InputError(f"the tokenizer has no chat template {name!r}; it has {', '.join(map(repr, own))}")
        own, asked = own[name], None
    template = asked if asked is not None else own
    if template is None:
        raise InputError("this tokenizer has no chat template", hint="pass chat_template=..., or plain text as prompt")
    return str(template)
