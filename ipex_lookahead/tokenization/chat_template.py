"""Chat templates, which are programs in a checkpoint, rendered in a sandboxed process.

A template is Jinja as in Hugging Face's tokenizers, with trimmed blocks, ``raise_exception``, ``strftime_now``,
``tojson`` and loop controls. It runs in Jinja's immutable sandbox, in another process with limits on loop steps,
processor time and memory (``worker.py``). Starting that process takes 80 ms of processor time; a ``Renderer`` forks it
from a running one in 3 ms.
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
"""Output limit in characters: a constant part, plus this number for each byte of messages and variables."""
MAX_STEPS = 1 << 20
MAX_SECONDS = 1.0
MAX_MEMORY = 512 << 20

_IMPORTS = ("jinja2", "jinja2.debug", "jinja2.ext", "jinja2.sandbox")
"""Modules that a ``Renderer`` imports before the first request."""

_FIRST = "{%- set a = [1] -%}{% for i in a if i is not none %}{{ i | tojson }}{% else %}{{ a[0] ~ 'x' }}{% endfor %}"
"""Compiled once in the process of a ``Renderer``, to initialize Jinja's tables."""

_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class Renderer(KeptWorker):
    """A process that forks another for each call of ``render_chats``."""

    def __init__(self) -> None:
        """Start the process. Raises InputError if that fails."""
        super().__init__()
        self.prepare()

    def prepare(self) -> None:
        """Start the process if it does not run."""
        with self._lock:
            self._running()

    def request(self, question: bytes, limits: str) -> dict[str, Any]:
        """Call ``Worker.request``. Raises Stopped, and InputError if no process can be started."""
        with self._lock:
            return self._request(self._running(), question, MAX_SECONDS, limits)

    def close(self) -> None:
        """End the process; the next request starts another."""
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
    """Render the prompts of conversations.

    Args:
        template: Jinja source, at most 256 KiB.
        conversations: Lists of messages ``{"role": ..., "content": ...}`` with JSON values.
        variables: Variables of the template; None is undefined, except for ``tools`` and ``documents``, which templates
            compare with none.
        renderer: Process to fork from; None starts a new one.

    Raises:
        ModelFormatError: The template is too long or invalid, fails, is stopped by the sandbox, or exceeds 2**20 loop
            steps, one second of processor time, 512 MiB, or an output of 256 Ki characters plus 16 for each byte of the
            input as JSON, at most 8 Mi.
        InputError: The template rejects a conversation, or a conversation has values that are not JSON.
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
        limits["output"] = min(MAX_OUTPUT, OUTPUT_ANYWAY + OUTPUT_PER_BYTE * given_size)  # tokenization takes time too
        question = json.dumps({**request, "limits": limits})
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the messages or template variables hold something that is not a string, number, list or mapping: {error}"
        ) from None
    return _answer(question.encode("ascii"), renderer)


def _with_reasoning(message: Any) -> Any:
    """Return a message with its reasoning, if any, under both names that templates read, as in transformers."""
    if not isinstance(message, Mapping):
        return message
    thought = next((text for name in _REASONING if (text := message.get(name)) is not None), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _started() -> Worker:
    return Worker("the chat template", instead="pass plain text instead of chat messages")


def _answer(question: bytes, renderer: Renderer | None) -> list[str]:
    """Send the request to a process and return the texts, or raise an error."""
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
    """Return the requested template, by text or by name, else the tokenizer's. Raises InputError without one."""
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
