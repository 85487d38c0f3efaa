"""The fields that all generating requests of OpenAI's share, and what they mean to the service."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ipex_lookahead.config import MAX_DRAFT, bounds_of
from ipex_lookahead.decoding.sampling import Ids, Logits
from ipex_lookahead.generation.sampling_params import SamplingParams
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import Body, honoured, no_effect, refused_unless
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.structured import Form, Structured
from ipex_lookahead.serving.usage import LARGEST

LOOKAHEAD = "most drafted tokens a step, 0 is off; the server's `--lookahead` if left out; never changes the answer"
MINUS_ONE = "-1: as many as the context holds"
VERBOSITY = "the template's `verbosity`, where it knows one"

SALT = "vLLM's: kept prompts and remembered answers are apart for each salt within a key; the answer is the same"


SAID = {
    "temperature": "0 takes the likeliest token; the model's own, else 0",
    "top_p": "the model's own, else 1",
    "top_k": "0, or -1, keeps all; the model's own, else 50",
    "min_p": "the model's own, else 0",
    "seed": "the same seed, request and `system_fingerprint` give the same bytes; where it is left out always the same"
    " one, or drawn where a temperature is given; -1 draws one too; returned in `timings.seed`, up to 2^53 - 1",
    "presence_penalty": "as OpenAI defines it",
    "frequency_penalty": "as OpenAI defines it",
    "repetition_penalty": "Hugging Face's; the model's own, else 1",
}
"""What the fields say of themselves, by their names in ``SamplingParams``."""


def sampled(name: str, said: str = "") -> Any:
    """A field with the bounds of ``SamplingParams``; -1 is vLLM's: all of `top_k`, and a seed that is drawn."""
    bounds = bounds_of(SamplingParams, name)
    limits = {"gt" if bounds.above else "ge": -1 if bounds.kind is int else bounds.low}
    if bounds.high is not None:
        limits["le"] = bounds.high
    return honoured(said or SAID[name], **limits)


def _some(count: int) -> int:
    if count == 0:
        raise ValueError("it must be 1 or more, or -1 for as many as the context holds")
    return count


Most = Annotated[int, Field(ge=-1), AfterValidator(_some)]
"""Most tokens of an answer; -1 for as many as the context holds."""


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = honoured("a last chunk with the usage and no choices")
    include_obfuscation: bool | None = no_effect("nothing is padded")


class Sampled(Structured):
    """What `/v1/chat/completions` and `/v1/completions` have in common."""

    model: str | None = honoured("one of `/v1/models`; 404 for another name; left out, the model that is served")
    stream: bool | None = honoured("server-sent events")
    stream_options: StreamOptions | None = honoured("`include_usage`")
    n: int | None = honoured("so many answers; answer i is drawn with the seed and the number i", ge=1)
    temperature: float | None = sampled("temperature")
    top_p: float | None = sampled("top_p", "as OpenAI; the model's own, else 1")
    top_k: int | None = sampled("top_k")
    min_p: float | None = sampled("min_p")
    seed: int | None = sampled("seed")
    stop: str | list[str] | None = honoured("up to 16 texts; the answer ends before the first that appears")
    presence_penalty: float | None = sampled("presence_penalty")
    frequency_penalty: float | None = sampled("frequency_penalty")
    repetition_penalty: float | None = sampled("repetition_penalty")
    logit_bias: dict[str, float] | None = honoured("token ids to what is added to their logits, -100 to 100")
    user: Any = no_effect("users are not recorded")
    lookahead: int | Literal["auto"] | None = honoured(LOOKAHEAD)
    return_draft_trace: bool | None = honoured("adds `draft_trace`: the new text in pieces, each with what drafted it")
    cache_prompt: Any = no_effect("llama.cpp's: prompts are kept, and no answer depends on it")
    timings_per_token: Any = no_effect("llama.cpp's: timings come with the end")
    return_progress: Any = no_effect("llama.cpp's: streams tell their progress in comments")
    priority: Any = no_effect("vLLM's: keys share alike, and of one key whoever comes first is first")
    request_id: Any = no_effect("vLLM's: answers have ids of their own")
    cache_salt: str | None = honoured(SALT, min_length=1, max_length=1024)
    keep_alive: Any = no_effect("Ollama's: the model stays loaded")
    ignore_eos: bool | None = honoured("vLLM's: tokens that end an answer do not end it; not with a grammar or tools")
    min_tokens: Any = refused_unless("there is no least length", 0)
    stop_token_ids: Any = refused_unless("use `stop`", [])
    include_stop_str_in_output: Any = refused_unless("an answer ends before its stop text", False)
    skip_special_tokens: Any = refused_unless("special tokens are not shown", True)
    typical_p: Any = refused_unless("use `top_p` or `min_p`", 1)
    mirostat: Any = refused_unless("use `top_p` or `min_p`", 0)
    length_penalty: Any = refused_unless("there is no beam search", 1)
    use_beam_search: Any = refused_unless("there is no beam search", False)
    prompt_logprobs: Any = refused_unless("`/v1/completions` with `echo` and `logprobs` tells them")

    def params(self, limits: Limits, max_new_tokens: int) -> SamplingParams:
        """How the answer is made. Raises ApiError for a list that is too long."""
        return params_of(self, max_new_tokens, stops(self.stop, limits), ignore_eos=bool(self.ignore_eos))

    def answers(self, limits: Limits) -> int:
        """``n``, within the limit."""
        count = 1 if self.n is None else self.n
        if count > limits.answers:
            raise refused("n", f"{count} answers are too many; at most {limits.answers} are made of one request")
        return count

    def options(self, vocab_size: int, limits: Limits) -> dict[str, Any]:
        """``lookahead`` and ``logit_bias`` as the service takes them; empty where the request says nothing."""
        found = drafting(self.lookahead)
        if self.logit_bias:
            found["processors"] = [LogitBias.of(self.logit_bias, vocab_size, limits)]
        return found

    def form_of_text(self, limits: Limits) -> Form | None:
        """As ``form``, for an answer without a conversation."""
        form = self.form(limits)
        if form is not None and self.ignore_eos:
            raise refused("ignore_eos", "an answer in a grammar ends with it; leave one of them out")
        return form


def params_of(body: Body, max_new_tokens: int, stop: tuple[str, ...] = (), **more: Any) -> SamplingParams:
    """How an answer is made, by those fields of ``SamplingParams`` that a request declares under their own names."""
    given = {name: getattr(body, name) for name in SAID if name in type(body).model_fields} | more
    if given.get("seed") == -1:
        given["seed"] = secrets.randbelow(LARGEST + 1)
    if given.get("top_k") == -1:
        given["top_k"] = 0
    return SamplingParams(max_new_tokens, stop=stop, **given)


def drafting(lookahead: int | str | None) -> dict[str, Any]:
    """``lookahead`` as the service takes it; empty where the request says nothing."""
    if isinstance(lookahead, int) and not 0 <= lookahead <= MAX_DRAFT:
        raise refused("lookahead", f"it is {lookahead}; it must be 0 to {MAX_DRAFT} or 'auto'")
    return {} if lookahead is None else {"lookahead": lookahead}


def stops(given: str | list[str] | None, limits: Limits, param: str = "stop") -> tuple[str, ...]:
    """Texts to stop at, within the limits."""
    texts = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if len(texts) > limits.stops:
        raise refused(param, f"{len(texts)} texts are too many; at most {limits.stops} are watched for")
    for text in texts:
        if not 1 <= len(text) <= limits.stop_characters:
            raise refused(param, f"a text has {len(text)} characters; it must have 1 to {limits.stop_characters}")
    return texts


@dataclass(frozen=True, slots=True)
class LogitBias:
    """A processor that adds to the logits of some tokens, whatever stands before them.

    Attributes:
        ids: int64 [n].
        values: float32 [n].
    """

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    @classmethod
    def of(cls, given: Mapping[str, float], vocab_size: int, limits: Limits) -> LogitBias:
        """Of the field ``logit_bias``. Raises ApiError for anything but ids below ``vocab_size`` and -100 to 100."""
        if len(given) > limits.biases:
            raise refused("logit_bias", f"{len(given)} entries are too many; at most {limits.biases} are taken")
        for token, value in given.items():
            if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocab_size):
                raise refused("logit_bias", f"{token[:40]!r} is no token id; ids are 0 to {vocab_size - 1}")
            if not -100 <= value <= 100:
                raise refused("logit_bias", f"{value:g} for token {token}; it must be -100 to 100")
        return cls(np.array([int(token) for token in given], np.int64), np.array(list(given.values()), np.float32))

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`ipex_lookahead.decoding.sampling.Processor`."""
        logits[self.ids] += self.values
        return logits
