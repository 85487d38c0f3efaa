"""Events for streams of requests that wait for their model, because clients drop streams without events."""

from __future__ import annotations

import secrets
from typing import Any

from ipex_lookahead.serving.failures import MESSAGES, OLLAMA, ApiError
from ipex_lookahead.serving.handling import now
from ipex_lookahead.serving.router.entries import ModelEntry
from ipex_lookahead.serving.sse import EVENTS, event, line

LINES = "application/x-ndjson"


class WaitingStream:
    """The beginning of a stream, in the shape of the API at ``path``, until the worker answers.

    Args:
        path: of the request.
        model: the requested name.
    """

    def __init__(self, path: str, model: str) -> None:
        self._path = path
        self._api = path.removeprefix("/v1")
        self._head = {"created": now(), "model": model}
        self._number = secrets.token_hex(12)
        self.kind = LINES if path.startswith(OLLAMA) else EVENTS

    def pulse(self, entry: ModelEntry) -> bytes:
        """Return an event without content, and, where the API has comments, the state of the model.

        A Responses stream has the comment only: its first event must be ``response.created``.
        """
        if self.kind == LINES:
            said: dict[str, Any] = {"response": ""}
            if self._path.endswith("/chat"):
                said = {"message": {"role": "assistant", "content": ""}}
            return line({"model": self._head["model"], "created_at": _iso(), **said, "done": False})
        return f": {progress(entry)}\n\n".encode() + self._event()

    def _event(self) -> bytes:
        if self._path.startswith(MESSAGES):
            return event({"type": "ping"}, "ping")
        if self._api == "/chat/completions":
            head = {"id": f"chatcmpl-{self._number}", "object": "chat.completion.chunk", **self._head}
            return event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": None, "logprobs": None}]})
        if self._api == "/completions":
            head = {"id": f"cmpl-{self._number}", "object": "text_completion", **self._head}
            return event({**head, "choices": [{"index": 0, "text": "", "finish_reason": None, "logprobs": None}]})
        return b""

    def error(self, body: Any) -> bytes:
        """Return an error, which is the JSON of an answer, as the last event."""
        if self.kind == LINES:
            return line(body)
        return event(body, "error" if isinstance(body, dict) and "type" in body else None)

    def failed(self, error: ApiError) -> bytes:
        """Return an error as the last event."""
        return self.error(error.body(self._path))


def progress(entry: ModelEntry) -> str:
    """Return the state of a model in words, with the percentage of its weights that are loaded."""
    worker = None if entry.run is None else entry.run.worker
    done, total = (0, 0) if worker is None else worker.progress
    share = f" {100 * done // total} %" if total and entry.state == "loading" else ""
    return f"{entry.state} {entry.name.encode('ascii', 'replace').decode()}{share}".replace("\n", " ")


def _iso() -> str:
    from ipex_lookahead.serving.ollama import when

    return when(now())
