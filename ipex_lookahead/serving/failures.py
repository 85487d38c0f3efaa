"""Errors in the shapes of the APIs: OpenAI's, and on their own paths Anthropic's, Ollama's, Cohere's and TEI's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ipex_lookahead.errors import (
    ContextLengthError,
    InputError,
    LookaheadError,
    MissingPackageError,
    QueueFullError,
    in_python,
)

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    501: "not_supported_error",
    503: "overloaded_error",
}
"""Status -> ``error.type``; both APIs have these words."""
MESSAGES = "/v1/messages"
"""Where Anthropic's API begins."""
FIELDS = {"max_new_tokens": "max_tokens", "stop_strings": "stop", "num_draft_tokens": "lookahead"}
"""What errors call it, as Python does -> the field of a request, where that is another name."""

OLLAMA = "/api/"
"""Where Ollama's begins."""
COHERE = "/v2/"
"""Where Cohere's begins."""
TEI = ("/embed", "/rerank", "/info")
"""The paths of text-embeddings-inference."""
_TEI_KINDS = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
"""Status -> ``error_type`` there, if that is not "Validation"."""


class ApiError(Exception):
    """A request that is answered with an error.

    Args:
        status: of HTTP.
        message: what was got, what is allowed, what to do.
        param: the field at fault.
        code: a word that programs look for.
        headers: of the answer.
        too_long: tokens of a prompt that does not fit the context, and the most that it may have.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        too_long: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.too_long = too_long
        self.status = status
        self.message = _utf8(message)
        self.param = None if param is None else _utf8(param)
        self.code = code
        self.headers = {**({"x-should-retry": "false"} if status < 429 else {}), **(headers or {})}

    def body(self, path: str) -> dict[str, Any]:
        """The answer's JSON, as the API at ``path`` has it."""
        kind = KINDS.get(self.status, "api_error")
        if path.startswith(MESSAGES):
            if self.too_long is not None:  # at Anthropic's words agents compact their conversation
                said = "prompt is too long: {} tokens > {} maximum".format(*self.too_long)
                return {"type": "error", "error": {"type": kind, "message": said}}
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        if path.startswith(OLLAMA):
            return {"error": self.message}
        if path.startswith(COHERE):
            return {"message": self.message}
        if path in TEI:
            return {"error": self.message, "error_type": _TEI_KINDS.get(self.status, "Validation")}
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _utf8(said: str) -> str:
    """What a request called something may be no Unicode; the answer that repeats it is."""
    return said.encode("utf-8", "backslashreplace").decode()


def refused(param: str, message: str) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, f"{param}: {message}", param=param, code="unsupported_value")


def from_ours(error: LookaheadError) -> ApiError:
    """An error of this package as one of the API's."""
    message = "; ".join(filter(None, error.spelled(lambda name, value: in_python(FIELDS.get(name, name), value))))
    if isinstance(error, QueueFullError):
        return ApiError(
            429, message, code="queue_full", headers={"retry-after": str(max(1, math.ceil(error.retry_after)))}
        )
    if isinstance(error, ContextLengthError):
        lengths = (error.tokens, error.limit) if error.tokens else None
        return ApiError(400, message, code="context_length_exceeded", too_long=lengths)
    if isinstance(error, InputError):
        return ApiError(400, message, param=FIELDS.get(error.argument, error.argument) or None)
    if isinstance(error, MissingPackageError):
        return ApiError(501, message, code="missing_package")
    return ApiError(500, message)
