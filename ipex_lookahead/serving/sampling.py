"""The fields that generating requests share, and what they mean to the service."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ipex_lookahead.config import MAX_DRAFT, bounds_of
from ipex_lookahead.conversation.request import Form
from ipex_lookahead.decoding.sampling import Ids, Logits
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import AdapterScale, Body, ignored, no_effect, refused_unless, supported
from ipex_lookahead.serving.handling import new_tokens
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.server import Served
from ipex_lookahead.serving.structured import Structured
from ipex_lookahead.serving.usage import LARGEST

LOOKAHEAD = "maximum draft length, or `auto`; 0 is off; default: the server's `--lookahead`; never changes the answer"
MINUS_ONE = "-1: up to the end of the context"
VERBOSITY = "`verbosity` of the chat template, if it has one"

EFFORT = (
    "`reasoning_effort` of the chat template; also its `enable_thinking`: false for none and minimal, else true; a"
    " template without the former gets a budget of thinking tokens: low 1,024, medium 4,096, high 16,384"
)
BUDGET = "most tokens of thought: the thought is ended there; -1 for no limit (Qwen, vLLM)"
SALT = "separates cached prompts and remembered answers within an API key; never changes the answer (vLLM)"


SAID = {
    "temperature": "0 is greedy; default: the model's own, else 0",
    "top_p": "default: the model's own, else 1",
    "top_k": "0 or -1 keeps all tokens; default: the model's own, else 50",
    "min_p": "default: the model's own, else 0",
    "seed": "the same seed, request and `system_fingerprint` give the same bytes; default: fixed, or random if"
    " `temperature` is given; -1: random; returned in `timings.seed` up to 2^53 - 1",
    "presence_penalty": "as in OpenAI's API",
    "frequency_penalty": "as in OpenAI's API",
    "repetition_penalty": "as in transformers, over prompt and answer; default: the model's own, else 1",
    "min_tokens": "minimum number of tokens before an end token, `stop` or `stop_token_ids` can end the answer; not"
    " with a grammar or tools (vLLM)",
}
"""Descriptions of fields, by their names in ``SamplingParams``."""


def sampled(name: str, said: str = "") -> Any:
    """A field with the bounds of ``SamplingParams``; -1 is vLLM's: all of `top_k`, and a seed that is drawn."""
    bounds = bounds_of(SamplingParams, name)
    drawn = name in ("seed", "top_k")
    limits = {"gt" if bounds.above else "ge": -1 if drawn else bounds.low}
    if bounds.high is not None:
        limits["le"] = bounds.high
    return supported(said or SAID[name], **limits)


def _some(count: int) -> int:
    if count == 0:
        raise ValueError("it must be 1 or more, or -1 for the rest of the context")
    return count


Most = Annotated[int, Field(ge=-1), AfterValidator(_some)]
"""Most tokens of an answer; -1 for the rest of the context."""


Budget = Annotated[int, Field(ge=-1)]
"""Most tokens of thought; -1 for no limit."""


class StreamOptions(Body):
    """``stream_options``."""

    include_usage: bool | None = supported("a last chunk with the usage and no choices")
    include_obfuscation: bool | None = no_effect("streams are not padded")


class Sampler(Body):
    """How tokens are chosen: the same fields in all APIs. What only other servers have is named in the header."""

    place: ClassVar[str] = ""
    """Where a request has these fields, as errors name them."""

    temperature: float | None = sampled("temperature")
    top_p: float | None = sampled("top_p")
    top_k: int | None = sampled("top_k")
    min_p: float | None = sampled("min_p")
    seed: int | None = sampled("seed")
    presence_penalty: float | None = sampled("presence_penalty")
    frequency_penalty: float | None = sampled("frequency_penalty")
    repetition_penalty: float | None = sampled("repetition_penalty")
    repeat_penalty: float | None = sampled("repetition_penalty", "llama.cpp's name of `repetition_penalty`")
    logit_bias: dict[str, float | bool] | list[Any] | None = supported(
        "map from token ids to biases of -100 to 100; or llama.cpp's list of pairs, where false forbids a token"
    )
    ignore_eos: bool | None = supported("do not stop at end tokens; not with a grammar or tools (vLLM)")
    min_tokens: int | None = supported(SAID["min_tokens"], ge=0)
    stop_loops: bool | None = supported(
        "true: an answer ends when its last 192 tokens are one part of at most 64 tokens again and again"
    )
    stop_token_ids: list[int] | None = supported(
        "up to 1,024 additional end tokens, excluded from the text (vLLM)", max_length=1024
    )
    typical_p: Any = ignored("use `top_p` or `min_p`", 1)
    tfs_z: Any = ignored("use `top_p` or `min_p`", 1)
    top_n_sigma: Any = ignored("use `min_p`", -1, 0)
    mirostat: Any = ignored("use `top_p` or `min_p`", 0)
    mirostat_tau: Any = ignored("mirostat is not supported")
    mirostat_eta: Any = ignored("mirostat is not supported")
    dynatemp_range: Any = ignored("dynamic temperature is not supported", 0)
    dynatemp_exponent: Any = ignored("dynamic temperature is not supported")
    xtc_probability: Any = ignored("XTC is not supported", 0)
    xtc_threshold: Any = ignored("XTC is not supported")
    dry_multiplier: Any = ignored("use `repetition_penalty`", 0)
    dry_base: Any = ignored("DRY is not supported")
    dry_allowed_length: Any = ignored("DRY is not supported")
    dry_penalty_last_n: Any = ignored("DRY is not supported")
    dry_sequence_breakers: Any = ignored("DRY is not supported")
    repeat_last_n: Any = ignored("the penalty covers the whole text", -1)
    penalize_nl: Any = ignored("newlines are penalized like other tokens", True)
    penalize_newline: Any = ignored("newlines are penalized like other tokens", True)
    samplers: Any = ignored("the order is fixed: penalties, temperature, `top_k`, `top_p`, `min_p`")
    sampler_seq: Any = ignored("the order is fixed: penalties, temperature, `top_k`, `top_p`, `min_p`")
    min_keep: Any = ignored("at least one token is always kept", 0, 1)
    bad_words: Any = ignored("use `logit_bias`", [])
    allowed_token_ids: Any = ignored("use `logit_bias` or a grammar")
    length_penalty: Any = ignored("beam search is not supported", 1)
    use_beam_search: Any = ignored("beam search is not supported", False)
    early_stopping: Any = ignored("beam search is not supported", False)

    def params(
        self,
        served: Served,
        prompt: int,
        requested: int | None,
        stop: tuple[str, ...] = (),
        ends: tuple[int, ...] = (),
    ) -> SamplingParams:
        """Return how the answer is made.

        Args:
            served: the model.
            prompt: number of tokens of the prompt.
            requested: most tokens of the answer, see :func:`new_tokens`.
            stop: texts to stop at.
            ends: further tokens that end the answer, unless nothing of the model's is to.

        Raises:
            ApiError: fields that contradict each other, or an id outside the vocabulary.
        """
        most = new_tokens(served, prompt, requested)
        given = {name: getattr(self, name) for name in SAID}
        if self.seed == -1:
            given["seed"] = secrets.randbelow(LARGEST + 1)
        if self.top_k == -1:
            given["top_k"] = 0
        if self.repeat_penalty is not None:
            if self.repetition_penalty not in (None, self.repeat_penalty):
                said = f"it is {self.repeat_penalty:g} and repetition_penalty {self.repetition_penalty:g}; give one"
                raise refused(f"{self.place}repeat_penalty", said)
            given["repetition_penalty"] = self.repeat_penalty
        given["min_tokens"] = least = self.min_tokens or 0
        if least and least > (room := max(0, min(most, served.max_context - prompt))):
            said = f"it is {least}, and the answer has room for {room} tokens; lower it, or raise the maximum"
            raise refused(f"{self.place}min_tokens", said)
        ids = tuple(self.stop_token_ids or ())
        wrong = next((i for i in ids if not 0 <= i < served.vocab_size), None)
        if wrong is not None:
            said = f"{wrong} is not a token id; ids are 0 to {served.vocab_size - 1}"
            raise refused(f"{self.place}stop_token_ids", said)
        if not self.ignore_eos:
            ids = tuple(dict.fromkeys((*ids, *ends)))
        given["stop_loops"], given["ignore_eos"] = bool(self.stop_loops), bool(self.ignore_eos)
        return SamplingParams(most, stop=stop, stop_token_ids=ids, **given)

    def processors(self, served: Served, limits: Limits) -> dict[str, Any]:
        """Return ``logit_bias`` as the service takes it, where given. Raises ApiError."""
        found: dict[str, Any] = {}
        if self.logit_bias:
            bias = LogitBias.of(self.logit_bias, served.vocab_size, limits, f"{self.place}logit_bias")
            found["processors"] = [bias]
        return found

    def check_end(self, *, constrained: bool) -> None:
        """Raise ApiError where an answer must not end by itself and has a grammar, which the model ends."""
        for name, value in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens)):
            if value and constrained:
                said = "the grammar of a structured answer or a tool call decides where it ends; leave one of them out"
                raise refused(f"{self.place}{name}", said)


class Sampled(Sampler, Structured):
    """What `/v1/chat/completions` and `/v1/completions` have in common."""

    model: str | None = supported("a name of `/v1/models`; default: the served model; 404 for other names")
    stream: bool | None = supported("server-sent events")
    id_slot: int | None = supported(
        "llama-server's slot of the answer, for `/slots`; -1 (default) chooses one. It changes nothing else", ge=-1
    )
    lora: list[AdapterScale] | None = supported(
        "llama-server's adapters and their scales, one of them not 0; `model` with an adapter's name does the same",
        max_length=256,
    )
    stream_options: StreamOptions | None = supported("`include_usage`")
    n: int | None = supported("number of answers; answer i is sampled with the seed and i", ge=1)
    stop: str | list[str] | None = supported("up to 16 texts; the answer ends before the first occurrence of one")
    user: Any = no_effect("users are not recorded")
    lookahead: int | Literal["auto"] | None = supported(LOOKAHEAD)
    return_draft_trace: bool | None = supported(
        "add `draft_trace`: the new text in pieces, with the source of each piece"
    )
    cache_prompt: Any = no_effect("prompts are always cached, without effect on answers")
    timings_per_token: Any = no_effect("timings come at the end")
    return_progress: Any = no_effect("streams report progress in comments")
    priority: Any = no_effect("API keys have equal shares, and requests of a key are served in order")
    request_id: Any = no_effect("the server assigns ids")
    cache_salt: str | None = supported(SALT, min_length=1, max_length=1024)
    keep_alive: Any = no_effect("the model stays loaded")
    include_stop_str_in_output: Any = refused_unless("an answer always ends before its stop text", False)
    skip_special_tokens: Any = refused_unless("special tokens are never shown", True)
    prompt_logprobs: Any = refused_unless("`/v1/completions` with `echo` and `logprobs` returns them")

    def answers(self, limits: Limits) -> int:
        """``n``, within the limit."""
        count = 1 if self.n is None else self.n
        if count > limits.answers:
            raise refused("n", f"{count} answers are too many; at most {limits.answers} are allowed per request")
        return count

    def options(self, served: Served, limits: Limits) -> dict[str, Any]:
        """``lookahead`` and ``logit_bias`` as the service takes them; empty if the request has neither."""
        return {**drafting(self.lookahead), **self.processors(served, limits)}

    def form_of_text(self, limits: Limits) -> Form | None:
        """As ``form``, for an answer without a conversation."""
        form = self.form(limits)
        self.check_end(constrained=form is not None)
        return form


def drafting(lookahead: int | str | None) -> dict[str, Any]:
    """``lookahead`` as the service takes it; empty if the request has neither."""
    if isinstance(lookahead, int) and not 0 <= lookahead <= MAX_DRAFT:
        raise refused("lookahead", f"it is {lookahead}; it must be 0 to {MAX_DRAFT} or 'auto'")
    return {} if lookahead is None else {"lookahead": lookahead}


def stops(given: str | list[str] | None, limits: Limits, param: str = "stop") -> tuple[str, ...]:
    """Texts to stop at, within the limits."""
    texts = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if len(texts) > limits.stops:
        raise refused(param, f"{len(texts)} stop texts are too many; at most {limits.stops} are allowed")
    for text in texts:
        if not 1 <= len(text) <= limits.stop_characters:
            raise refused(param, f"a text has {len(text)} characters; it must have 1 to {limits.stop_characters}")
    return texts


_NEVER = -1e9
"""The bias of a forbidden token: finite, so that a grammar which allows no other token still has one."""


@dataclass(frozen=True, slots=True)
class LogitBias:
    """A processor that adds to the logits of some tokens, independent of the text before them.

    Attributes:
        ids: int64 [n].
        values: float32 [n].
    """

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]

    @classmethod
    def of(
        cls, given: Mapping[str, Any] | list[Any], vocab_size: int, limits: Limits, param: str = "logit_bias"
    ) -> LogitBias:
        """Of the field ``logit_bias``. Raises ApiError for anything but ids below ``vocab_size`` and -100 to 100.

        A list holds llama.cpp's pairs, of which the last of an id counts; false stands for ``_NEVER``.
        """
        if len(given) > limits.biases:
            raise refused(param, f"{len(given)} entries are too many; at most {limits.biases} are allowed")
        found: dict[int, float] = {}
        for entry in given.items() if isinstance(given, Mapping) else given:
            token, value = _pair(entry, param)
            if not 0 <= token < vocab_size:
                raise refused(param, f"{token} is not a token id; ids are 0 to {vocab_size - 1}")
            if value is False:
                value = _NEVER
            elif not -100 <= value <= 100:
                raise refused(param, f"{value:g} for token {token}; it must be -100 to 100")
            found[token] = value
        return cls(np.array(list(found), np.int64), np.array(list(found.values()), np.float32))

    def __call__(self, ids: Ids, logits: Logits) -> Logits:
        """See :data:`ipex_lookahead.decoding.sampling.Processor`."""
        logits[self.ids] += self.values
        return logits


def _pair(entry: Any, param: str) -> tuple[int, float | bool]:
    """A token's id and its bias. Raises ApiError for anything else."""
    token, value = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (None, None)
    if isinstance(token, str) and token.isascii() and token.isdigit() and len(token) < 10:
        token = int(token)
    if type(token) is not int:
        raise refused(param, f"{str(entry if token is None else token)[:40]!r} is not a token id; give a number")
    if value is not False and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise refused(param, f"the bias of token {token} is {str(value)[:40]!r}; it must be -100 to 100, or false")
    return token, value
