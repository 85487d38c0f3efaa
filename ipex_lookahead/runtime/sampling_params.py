"""How an answer is made, as the commands say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ipex_lookahead.config import bounded
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.checks import flag, integer


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of an answer. None is the value recommended for the model (``recommended.py``), else transformers'.

    Attributes:
        max_new_tokens: maximum number of tokens of the answer, 0 or more.
        temperature: 0 is greedy; None is the value recommended for the model.
        top_k, top_p, min_p: see ``WarperParams``; without effect at temperature 0.
        seed: sampling seed; None is ``SEED`` with a recommended temperature, else a random one, see the statistics.
        repetition_penalty: see ``decoding/penalties.py``.
        presence_penalty, frequency_penalty: see ``decoding/penalties.py``; 0 by default for every model.
        stop: an answer ends where one of these texts appears.
        ignore_eos: the tokens that end an answer do not end it.
        min_tokens: number of tokens before an end token may come; a text of ``stop`` that they complete is passed over.
        stop_token_ids: tokens that end an answer too, also with ``ignore_eos``.
        stop_loops: an answer that repeats itself ends, see ``runtime/repetition.py``.
    """

    max_new_tokens: int
    temperature: float | None = bounded(0.0, float, 0, 100)
    top_k: int | None = bounded(None, int, 0)
    top_p: float | None = bounded(None, float, 0, 1, above=True)
    min_p: float | None = bounded(None, float, 0, 1)
    seed: int | None = bounded(None, int, 0, 2**63 - 1)
    repetition_penalty: float | None = bounded(None, float, 1e-6, 100)
    presence_penalty: float | None = bounded(None, float, -2, 2)
    frequency_penalty: float | None = bounded(None, float, -2, 2)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_loops: bool = False


def checked_params(max_new_tokens: Any, *, stop: Any = (), stop_token_ids: Any = (), **given: Any) -> SamplingParams:
    """Return the parameters of a caller in Python, checked.

    Args:
        max_new_tokens: as in :class:`SamplingParams`.
        stop: one text or several.
        stop_token_ids: token ids; the model checks them against its vocabulary.
        **given: the other fields.

    Raises InputError, which names the field.
    """
    texts = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise InputError(argument="stop", got=stop, allowed="a text, or several, of at least one character")
    ids = () if stop_token_ids is None else stop_token_ids
    if not isinstance(ids, Sequence):
        raise InputError(argument="stop_token_ids", got=stop_token_ids, allowed="a list of token ids")
    for one in fields(SamplingParams):
        value, bounds = given.get(one.name), one.metadata.get("bounds")
        if bounds is not None and value is not None and not bounds.allow(value):
            raise InputError(argument=one.name, got=value, allowed=str(bounds))
    if given.get("min_tokens") is not None:
        integer("min_tokens", given["min_tokens"], 0)
    for name in ("ignore_eos", "stop_loops"):
        flag(name, given.get(name, False))
    ends = tuple(integer("stop_token_ids", token, 0) for token in ids)
    return SamplingParams(integer("max_new_tokens", max_new_tokens, 0), stop=tuple(texts), stop_token_ids=ends, **given)
