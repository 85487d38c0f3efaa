"""Log probabilities and the origin of tokens, in the APIs' shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipex_lookahead.serving.text import Piece

LEAST = -9999.0
"""What JSON gets for the logarithm of nothing, as OpenAI's API has it."""


def chat_logprobs(pieces: Sequence[Piece], tokens: Sequence[bytes]) -> dict[str, Any]:
    """``{"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": None}``."""
    content = []
    for piece in pieces:
        if piece.token is not None and piece.logprob is not None:
            top = [_one(token, value, tokens) for token, value in piece.logprob.top]
            content.append({**_one(piece.token, piece.logprob.logprob, tokens), "top_logprobs": top})
    return {"content": content, "refusal": None}


def legacy_logprobs(pieces: Sequence[Piece], tokens: Sequence[bytes], start: int = 0) -> dict[str, Any]:
    """The shape of completions: parallel lists; ``start`` is added to ``text_offset``."""
    found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        if piece.token is None or piece.logprob is None:
            continue
        own = spelled(piece.token, tokens)
        found["tokens"].append(own)
        found["token_logprobs"].append(bounded(piece.logprob.logprob))
        top = {spelled(token, tokens): bounded(value) for token, value in piece.logprob.top}
        found["top_logprobs"].append({**top, own: bounded(piece.logprob.logprob)} if top else None)
        found["text_offset"].append(start + piece.start)
    return found


def draft_trace(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    """``{"text", "source"}`` for each run of text; the source is None where the model itself had the token."""
    found: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.text:
            found.append({"text": piece.text, "source": piece.source})
    return found


def spelled(token: int, tokens: Sequence[bytes]) -> str:
    """A token as text; bytes that are no characters as "bytes:" and their numbers, as OpenAI's API has it."""
    try:
        return tokens[token].decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokens[token])


def bounded(logprob: float) -> float:
    """Finite, for JSON."""
    return max(float(logprob), LEAST)


def _one(token: int, logprob: float, tokens: Sequence[bytes]) -> dict[str, Any]:
    return {"token": spelled(token, tokens), "logprob": bounded(logprob), "bytes": list(tokens[token])}
