"""``/v1/completions``: a text goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest

from ipex_lookahead.conversation.answer import Delta, Whole
from ipex_lookahead.conversation.request import grammar_of
from ipex_lookahead.conversation.text import TextDelta
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.serving.answers import Answers
from ipex_lookahead.serving.body import JsonRoute
from ipex_lookahead.serving.failures import refused
from ipex_lookahead.serving.fields import no_effect, required, supported
from ipex_lookahead.serving.handling import answer, checked, identity_of, openai_head
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.logprobs import draft_trace, legacy_logprobs, prompt_logprobs, spelled
from ipex_lookahead.serving.sampling import MINUS_ONE, Sampled, stops
from ipex_lookahead.serving.server import Served, Server
from ipex_lookahead.serving.usage import timings, usage
from ipex_lookahead.tokenization.detokenizer import Detokenizer

if TYPE_CHECKING:
    from ipex_lookahead.runtime.service import TokenLogprob
from ipex_lookahead.serving.writers import ChoiceWriter

router = APIRouter(route_class=JsonRoute)
_TOKENS = 16
"""OpenAI's default of ``max_tokens`` here."""


class CompletionRequest(Sampled):
    """A request for completions."""

    prompt: str | list[str] | list[int] | list[list[int]] = required(
        "up to 256 texts or lists of token ids; `n` answers for each"
    )
    max_tokens: int | None = supported(
        f"maximum number of tokens; default: 16; 0 with `echo` returns the prompt only; {MINUS_ONE}", ge=-1
    )
    logprobs: int | None = supported(
        "number of alternatives per token, 0 to 20, from the raw logits; with `echo` also for the prompt", ge=0
    )
    echo: bool | None = supported("return the prompt before the answer")
    best_of: int | None = supported(
        "number of generated answers; the `n` with the highest mean log probability are returned; not with `stream`",
        ge=1,
    )
    suffix: str | None = supported("the text after the gap, for models with fill-in-the-middle tokens; 400 for others")
    metadata: Any = no_effect("requests are not stored")

    def prompts(self) -> list[str] | list[list[int]]:
        """One or several, of one kind."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise refused("prompt", "the list is empty; give a text, token ids, or several of either")
        if isinstance(given[0], int):
            return [given]
        return given

    def made(self, limits: Limits) -> int:
        """Answers that are made of each prompt, of which ``n`` are given."""
        wanted = self.answers(limits)
        made = wanted if self.best_of is None else self.best_of
        if made < wanted or made > limits.answers:
            raise refused("best_of", f"it is {made}; it must be from n={wanted} to {limits.answers}")
        if made > wanted and self.stream:
            raise refused("best_of", "best_of compares complete answers, so it cannot be streamed; leave stream out")
        return made

    def alternatives(self, most: int) -> int | None:
        """How many alternatives are given for each token; None for no log probabilities."""
        if self.logprobs is not None and self.logprobs > most:
            raise refused("logprobs", f"it is {self.logprobs}; it must be 0 to {most}")
        return self.logprobs


@router.post("/v1/completions")
@router.post("/completions", include_in_schema=False)
async def completions(request: HttpRequest, body: CompletionRequest) -> Response:
    """Go on with texts."""
    server, served = checked(request, body, body.model)
    limits, count = server.limits, body.made(server.limits)
    form, given, alternatives = body.form_of_text(limits), body.prompts(), body.alternatives(limits.top_logprobs)
    if len(given) * count > limits.answers_of_prompts:
        most = limits.answers_of_prompts
        raise refused(
            "prompt", f"{len(given)} prompts times {count} answers are too many; at most {most} answers are allowed"
        )
    options = body.options(served, limits)
    if body.suffix and body.echo and alternatives is not None:
        raise refused(
            "echo", "log probabilities of a prompt with a suffix are not available; leave echo or logprobs out"
        )
    prompts, ends = await server.prepare(lambda: _prompts(served, given, body.suffix))
    grammar = None if form is None else await server.compile(request, lambda grammars: grammar_of(grammars, form))
    best = count > body.answers(limits)
    top = 0 if best and alternatives is None else alternatives
    options |= {**identity_of(request, body.cache_salt), "top_logprobs": top}
    if body.echo:
        options["prompt_logprobs"] = alternatives
    wanted, stop = _TOKENS if body.max_tokens is None else body.max_tokens, stops(body.stop, limits)
    requests = [
        Request(
            ids,
            body.params(served, len(ids), wanted, stop, ends),
            sequence=sequence,
            silent_too=top is not None,
            grammar=grammar,
            **options,
        )
        for ids in prompts
        for sequence in range(count)
    ]
    echoes = [Echo()] * len(prompts)
    if body.echo:
        echoes = await server.prepare(lambda: _echoes(served, given, prompts, alternatives is not None))
    answers = server.start(requests, body.id_slot)
    writer = _Writer(server, served, body, answers, [echo for echo in echoes for _ in range(count)], count)
    return await answer(request, server, answers, writer, stream=bool(body.stream))


def _prompts(
    served: Served, given: list[str] | list[list[int]], suffix: str | None
) -> tuple[list[list[int]], tuple[int, ...]]:
    """Each prompt's token ids, and the tokens that end what fills the gap before a suffix."""
    if not suffix:
        return encoded(served, given), ()
    made = [served.filled_in("suffix", prompt, suffix) for prompt in given]
    return [ids for ids, _ in made], made[0][1]


def encoded(served: Served, prompts: Sequence[str] | Sequence[list[int]]) -> list[list[int]]:
    """Each prompt's token ids."""
    return [prompt if isinstance(prompt, list) else served.encode(prompt, special=True) for prompt in prompts]


@dataclass(frozen=True, slots=True)
class Echo:
    """What an answer begins with.

    Attributes:
        text: the prompt's, or nothing.
        ids, starts: its tokens and where in the text each begins, if their log probabilities are wanted.
    """

    text: str = ""
    ids: Sequence[int] = ()
    starts: Sequence[int] = ()


def _echoes(
    served: Served, prompts: Sequence[str] | Sequence[list[int]], ids: Sequence[list[int]], with_starts: bool
) -> list[Echo]:
    found = []
    for prompt, own in zip(prompts, ids, strict=True):
        text = prompt if isinstance(prompt, str) else served.tokenizer.decode(cast("list[int]", prompt))
        found.append(Echo(text, own, _starts(served, text, own)) if with_starts else Echo(text))
    return found


def _starts(served: Served, text: str, ids: Sequence[int]) -> list[int]:
    """Where each token begins in its text, in which the special ones are spelled, or, added by a tokenizer, are not."""
    pieces, starts, at = Detokenizer(served.tokenizer), [], 0
    for token in ids:
        special = spelled(token, served.tokens) if token in served.tokenizer.silent_ids else ""
        if special:
            at += len(pieces.end())
        starts.append(min(at, len(text)))
        at += len(pieces.put(token)) + (len(special) if text.startswith(special, at) else 0)
    return starts


def _likely(one: Whole) -> float:
    """The mean log probability of an answer's tokens."""
    values = [piece.logprob.logprob for piece in one.pieces if piece.logprob is not None]
    return sum(values) / len(values) if values else 0.0


class _Writer(ChoiceWriter):
    """One request's answers in OpenAI's shapes."""

    def __init__(
        self,
        server: Server,
        served: Served,
        body: CompletionRequest,
        answers: Answers,
        echoes: Sequence[Echo],
        sharing: int,
    ) -> None:
        super().__init__(openai_head(server, body, answers, "cmpl-", "text_completion"), served, body, answers)
        self._echoes = echoes
        self._sharing = sharing

    def _opening(self) -> Iterator[dict[str, Any]]:
        for index, echo in enumerate(self._echoes):
            if echo.text and not echo.ids:
                yield self._choice(index, echo.text)

    def _nothing(self) -> dict[str, Any]:
        return self._choice(0, "")

    def _new(self, delta: Delta) -> list[dict[str, Any]]:  # only the last chunk of an answer may have an empty ``text``
        found: list[dict[str, Any]] = []
        if delta.prompt:
            text = self._echoes[delta.index].text
            found.append({"choices": [self._choice(delta.index, text, prompt=delta.prompt)]})
        if delta.progress is not None:
            return found
        silent, new = self._silent[delta.index], list[dict[str, Any]]()
        silent += delta.pieces
        if delta.text:
            new.append({"choices": [self._choice(delta.index, delta.text, silent)]})
        if delta.finish is not None:
            choice = self._choice(delta.index, "", () if new else silent) | delta.finish.fields()
            new.append({"choices": [choice], "timings": timings(delta.finish)})
        return found + self._traced(new, silent)

    def _choice(
        self, index: int, text: str, pieces: Sequence[TextDelta] = (), prompt: Sequence[TokenLogprob | None] = ()
    ) -> dict[str, Any]:
        logprobs, echo, tokens = None, self._echoes[index], self._served.tokens
        if self._body.logprobs is not None and (pieces or prompt):
            logprobs = legacy_logprobs(pieces, tokens, len(echo.text))
            if prompt:
                of_prompt = prompt_logprobs(echo.ids, echo.starts, prompt, tokens)
                logprobs = {name: of_prompt[name] + logprobs[name] for name in logprobs}
        return {"index": index, "text": text, "finish_reason": None, "logprobs": logprobs}

    def _given(self, answers: Sequence[Whole]) -> list[int]:
        """Return the indices of the answers to send: the ``n`` most likely of each prompt."""
        n = self._body.n or 1
        found: list[int] = []
        for first in range(0, len(answers), self._sharing):
            own = range(first, first + self._sharing)
            found += sorted(own, key=lambda at: -_likely(answers[at])) if n < self._sharing else own
            del found[len(found) - self._sharing + n :]
        return found

    def _choices(self, answers: Sequence[Whole]) -> list[dict[str, Any]]:
        choices = []
        for number, index in enumerate(self._given(answers)):
            one = answers[index]
            choice = self._choice(index, self._echoes[index].text + one.text, one.pieces, one.prompt) | {
                "index": number
            }
            choice |= one.finish.fields()
            if self._body.return_draft_trace:
                choice["draft_trace"] = draft_trace(one.pieces)
            choices.append(choice)
        return choices

    def _usage(self) -> dict[str, int]:
        return usage(self._answers.finished, self._sharing)
