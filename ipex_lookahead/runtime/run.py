"""Pieces of a generation that ids alone need: step-by-step functions run to their end, streams, length limits."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Generator
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.errors import ContextLengthError, InputError, arg
from ipex_lookahead.tokenization.detokenizer import Detokenizer

DEFAULT_NEW_TOKENS = 20
"""Hugging Face's default where neither ``max_new_tokens`` nor ``max_length`` is given."""

P = ParamSpec("P")
T = TypeVar("T")


def to_the_end(returns: str) -> Callable[[Callable[P, Generator[Any, None, T]]], Callable[P, T]]:
    """Decorate a generator function: calling it runs the generator to its end and returns its return value.

    The generator function remains available as ``inspect.unwrap(function)``.

    Args:
        returns: annotation of the return value, for the signature.
    """

    def decorated(stepwise: Callable[P, Generator[Any, None, T]]) -> Callable[P, T]:
        @wraps(stepwise)
        def whole(*args: P.args, **kwargs: P.kwargs) -> T:
            steps = stepwise(*args, **kwargs)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    value: T = end.value
                    return value

        whole.__signature__ = signature(stepwise).replace(return_annotation=returns)  # type: ignore[attr-defined]
        return whole

    return decorated


def streamed(steps: Generator[abc.Sequence[Sequence], None, Any]) -> Generator[int, None, None]:
    """Yield the new tokens of a generation of one sequence; closing the generator abandons the sequence."""
    yielded = 0
    try:
        for sequences in steps:
            if len(sequences) > 1:
                raise InputError(f"stream gives the tokens of one sequence, got {len(sequences)}; use generate")
            for sequence in sequences:
                new = sequence.new[yielded:]
                yielded += len(new)
                yield from new
    finally:
        steps.close()


def streamed_text(tokens: Generator[int, None, None], tokenizer: Any) -> Generator[str, None, None]:
    """Yield the text of tokens as it becomes complete, without special tokens; closing it closes ``tokens``."""
    detokenizer = Detokenizer(tokenizer)
    try:
        for token in tokens:
            if text := detokenizer.put(token):
                yield text
        if text := detokenizer.end():
            yield text
    finally:
        tokens.close()


def length_limit(
    prompt_length: int,
    max_context: int,
    *,
    max_new_tokens: int | None = None,
    max_length: int | None = None,
    padding: int = 0,
) -> tuple[int, str]:
    """Return the length at which a sequence ends, and the finish reason there.

    Args:
        prompt_length: number of prompt tokens, without padding, as in the returned length.
        max_context: the engine's context length.
        max_new_tokens: tokens after the prompt; takes precedence over ``max_length``.
        max_length: columns of the caller's batch, padding included, as transformers counts, so that all rows get the
            same number of new tokens.
        padding: columns before the prompt.

    Raises:
        InputError: ``max_length`` leaves no room for a new token.
        ContextLengthError: nor does the model's context.
    """
    if max_new_tokens is not None:
        limit = prompt_length + max_new_tokens
    elif max_length is not None:
        limit = max_length - padding
        if limit <= prompt_length:
            columns = f"{prompt_length + padding} tokens" + (", padding included" if padding else "")
            raise InputError(
                f"max_length is {max_length} and the prompt alone has {columns}; raise max_length, or use"
                f" {arg('max_new_tokens')}, which does not count the prompt"
            )
    else:
        limit = prompt_length + DEFAULT_NEW_TOKENS
    if prompt_length > max_context or (prompt_length == max_context and limit > prompt_length):
        raise ContextLengthError(
            f"the prompt has {prompt_length:,} tokens, which leaves no room in the model's context of {max_context:,}"
            f" tokens; shorten it to at most {max_context - 1:,} tokens, or start a new conversation",
            tokens=prompt_length,
            limit=max_context - 1,
        )
    return (limit, "length") if limit <= max_context else (max_context, "context")
