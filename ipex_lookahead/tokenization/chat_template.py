"""Chat templates: programs that come with a checkpoint, run where they can do no harm.

A template is Jinja, as Hugging Face's tokenizers use it: blocks trimmed, ``raise_exception``, ``strftime_now``,
``tojson``, loop controls. It runs in Jinja's immutable sandbox, inside a process of its own with a budget of loop
steps, processor time and memory (``worker.py``). Starting that process takes 80 milliseconds of processor time; who
renders often has it forked from one that is kept (``Renderer``), which takes three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.tokenization.process import KeptWorker, Stopped, Worker, importable, spoken_memory, stopped_by

MAX_SOURCE = 256 << 10
MAX_OUTPUT = 8 << 20
OUTPUT_ANYWAY = 256 << 10
OUTPUT_PER_BYTE = 16
"""Characters that a template may write for each byte of the messages and variables, besides those above."""
MAX_STEPS = 1 << 20
MAX_SECONDS = 1.0
MAX_MEMORY = 512 << 20

_IMPORTS = ("jinja2", "jinja2.debug", "jinja2.ext", "jinja2.sandbox")
"""What takes the time: a process that is kept has these before its first request."""

_FIRST = "{%- set a = [1] -%}{% for i in a if i is not none %}{{ i | tojson }}{% else %}{{ a[0] ~ 'x' }}{% endfor %}"
"""Compiled once in the process that is kept, so that Jinja's own tables are there."""

_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class Renderer(KeptWorker):
    """A process that is kept, and forks one for each call of ``render_chats``."""

    def __init__(self) -> None:
        """Raises InputError where no process can be started."""
        super().__init__()
        self.prepare()

    def prepare(self) -> None:
        """Start the process, unless it runs."""
        with self._lock:
            self._running()

    def request(self, question: bytes, limits: str) -> dict[str, Any]:
        """See ``Worker.request``. Raises Stopped, and InputError where no process can be started."""
        with self._lock:
            return self._request(self._running(), question, MAX_SECONDS, limits)

    def close(self) -> None:
        """End the process; the next question starts another."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _running(self) -> Worker:
        if self._worker is not None and not self._worker.runs:
            self._worker.close()
            self._worker = None
        if self._worker is None:
            self._worker = _started()
            limits = {"steps": MAX_STEPS, "seconds": MAX_SECONDS, "memory": MAX_MEMORY, "output": MAX_OUTPUT}
            first = {"import": _IMPORTS, "template": _FIRST, "limits": limits}
            self._worker.send(json.dumps({"path": importable(), **first}).encode("ascii"))
        return self._worker


def render_chats(
    template: str,
    conversations: Sequence[Sequence[Message]],
    variables: Mapping[str, Any],
    renderer: Renderer | None = None,
) -> list[str]:
    """The prompts that a chat template makes of conversations.

    Args:
        template: Jinja source, at most 256 KiB.
        conversations: of each the messages, ``{"role": ..., "content": ...}``; plain JSON values only.
        variables: of the template; those that are None stay undefined, but for ``tools`` and ``documents``, for which
            templates ask ``tools is not none``.
        renderer: what the process is forked from; None starts one.

    Raises:
        ModelFormatError: the template is too long, is no valid Jinja, fails, is stopped by the sandbox, takes more than
            2**20 loop steps, one second of processor time or 512 MiB, or writes more than 256 Ki characters and 16
            for each byte of the conversations and the variables as JSON, or than 8 Mi.
        InputError: the template refuses a conversation, or one holds something that is not JSON.
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
    return _answer(question.encode("ascii"), renderer)


def _with_reasoning(message: Any) -> Any:
    """A message whose reasoning, where it has some, stands under both names that templates read, as in transformers."""
    if not isinstance(message, Mapping):
        return message
    said = next((text for name in _REASONING if (text := message.get(name)) is not None), None)
    return message if said is None else {"thinking": said, **message, "reasoning_content": said}


def _started() -> Worker:
    return Worker("the chat template", instead="pass plain text instead of chat messages")


def _answer(question: bytes, renderer: Renderer | None) -> list[str]:
    """Turn the answer of a process, or its death, into a result or an error."""
    limits = f"{MAX_SECONDS:g} s of processor time or {spoken_memory(MAX_MEMORY)}"
    try:
        if renderer is not None:
            answer = renderer.request(question, limits)
        else:
            worker = _started()
            try:
                answer = worker.request(question, MAX_SECONDS, limits)
            finally:
                worker.close()
    except Stopped as stopped:
        raise _fault(str(stopped)) from None
    if answer.get("error") == "stopped":
        raise _fault(stopped_by(answer["signal"], limits))
    if answer.get("error") == "broken":
        raise _fault(f"could not be run: {answer['message']}")
    if "ok" in answer:
        return list(answer["ok"])
    if answer["error"] == "raised":
        raise InputError(f"the chat template refuses these messages: {answer['message']}")
    raise _fault(answer["message"])


def _fault(problem: str) -> ModelFormatError:
    return ModelFormatError(
        "chat template", "chat_template", None, problem, hint="pass plain text, or a chat template that works"
    )


def chat_template_of(tokenizer: Any, wanted: str | None, for_tools: bool) -> str:
    """The template to use: the one asked for by text or by name, else the tokenizer's. Raises InputError if none."""
    own: Any = tokenizer.chat_template
    if isinstance(own, dict):
        name = wanted if wanted is not None else "tool_use" if for_tools and "tool_use" in own else "default"
        if wanted is not None and wanted not in own:
            return wanted
        if name not in own:
            raise InputError(f"the tokenizer has no chat template {name!r}; it has {', '.join(map(repr, own))}")
        own, wanted = own[name], None
    template = wanted if wanted is not None else own
    if template is None:
        raise InputError("this tokenizer has no chat template", hint="pass chat_template=..., or plain text as prompt")
    return str(template)
