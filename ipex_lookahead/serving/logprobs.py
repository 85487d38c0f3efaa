"""Log probabilities and the origin of tokens, in the APIs' shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ipex_lookahead.conversation.text import TextDelta

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import TokenLogprob

LEAST = -9999.0
"""What JSON gets for the logarithm of nothing, as OpenAI's API has it."""


def chat_logprobs(pieces: Sequence[TextDelta], tokens: Sequence[bytes]) -> dict[str, Any]:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": None}``."""
    content = []
    for piece in pieces:
        if piece.token is not None and piece.logprob is not None:
            top = [_one(token, value, tokens) for token, value in piece.logprob.top]
            content.append({**_one(piece.token, piece.logprob.logprob, tokens), "top_logprobs": top})
    return {"content": content, "refusal": None}


def legacy_logprobs(pieces: Sequence[TextDelta], tokens: Sequence[bytes], start: int = 0) -> dict[str, Any]:
    """The shape of completions: parallel lists; ``start`` is added to ``text_offset``."""
    entries = [(one.token, one.logprob, start + one.start) for one in pieces if one.token is not None]
    return _legacy(entries, tokens)


def prompt_logprobs(
    ids: Sequence[int], starts: Sequence[int], logprobs: Sequence[TokenLogprob | None], tokens: Sequence[bytes]
) -> dict[str, Any]:
    """The same for a prompt, where the first token has no predecessor; ``starts`` are the ``text_offset``."""
    return _legacy(list(zip(ids, logprobs, starts, strict=True)), tokens)


def _legacy(entries: Sequence[tuple[int, TokenLogprob | None, int]], tokens: Sequence[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, logprob, start in entries:
        own = spelled(token, tokens)
        value = None if logprob is None else bounded(logprob.logprob)
        top = {} if logprob is None else {spelled(other, tokens): bounded(one) for other, one in logprob.top}
        found["tokens"].append(own)
        found["token_logprobs"].append(value)
        found["top_logprobs"].append({**top, own: value} if top else None)
        found["text_offset"].append(start)
    return found


def draft_trace(pieces: Sequence[TextDelta]) -> list[dict[str, Any]]:
    """``{"text", "source"}`` for each run of text; the source is None where the model itself had the token."""
    return [{"text": piece.text, "source": piece.source} for piece in pieces if piece.text]


def token_ids(pieces: Sequence[TextDelta]) -> list[int]:
    """Return the ids of the tokens in the pieces."""
    return [piece.token for piece in pieces if piece.token is not None]


def spelled(token: int, tokens: Sequence[bytes]) -> str:
    """A token as text; bytes outside UTF-8 as "bytes:" and their numbers, as OpenAI's API has it."""
    try:
        return tokens[token].decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokens[token])


def bounded(logprob: float) -> float:
    """Finite, for JSON."""
    return max(float(logprob), LEAST)


def _one(token: int, logprob: float, tokens: Sequence[bytes]) -> dict[str, Any]:
    return {"token": spelled(token, tokens), "logprob": bounded(logprob), "bytes": list(tokens[token])}
