"""What the APIs work on: the model and its service, and what is made of them once."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ipex_lookahead.conversation.answer import shown_ends
from ipex_lookahead.conversation.compiling import Cancelled, Client, NotCompiled
from ipex_lookahead.conversation.grammar import Grammars
from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.errors import ContextLengthError, InputError, LookaheadError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.runtime.recommended import SETTINGS
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.answers import Answers, Mailbox
from ipex_lookahead.serving.failures import ApiError, from_ours
from ipex_lookahead.serving.hosts import Hosts
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.metrics import Metrics
from ipex_lookahead.serving.remembered import Remembered
from ipex_lookahead.serving.sse import ClientGoneError, unless_gone
from ipex_lookahead.tokenization.fill_in import FillIn, fill_in_of

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from ipex_lookahead.runtime.service import Service
    from ipex_lookahead.runtime.text_model import TextModel

Result = TypeVar("Result")
_ALIASES = ("claude-",)
_MUCH = 0.2
"""Seconds of work for a request that has taken memory worth giving back."""
_PROBES = 8
"""Tokens with logits in the fingerprint."""


@dataclass(slots=True)
class Settings:
    """How a server serves.

    Attributes:
        names: what the model may be called in requests; the first is what it calls itself.
        drafting: ``lookahead`` and ``adaptive`` of requests without these fields.
        limits, keys: see there.
        hosts: values of the header Host that are answered.
        origins: allowed values of the header Origin in addition to the page's own ("*": all).
        page: whether there is a page at ``/``.
        replica: this server's name among several behind one address; its figures have it as a label.
        strict_fields: whether fields that no API has are refused, not passed over.
        strict_model: whether programs that ask for one of Anthropic's models by name are refused, not answered.
    """

    names: Sequence[str] = ("default",)
    drafting: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    hosts: Hosts = field(default_factory=Hosts)
    origins: frozenset[str] = frozenset()
    page: bool = True
    replica: str = ""
    strict_fields: bool = False
    strict_model: bool = False


class Served(ChatModel):
    """A model that is being served.

    Args:
        model: as loaded.
        service: of that model.

    Attributes:
        keeps_content_apart: whether control tokens that messages spell stay text.
        defaults: the model's own generation config, with the sampling recommended for it.
        sampling: of a request without such fields, by the fields' names.
    """

    def __init__(self, model: TextModel, service: Service) -> None:
        super().__init__(model)
        self.service = service
        if self.tokenizer.chat_template is not None:
            self.tokenizer.render_often()
        self.keeps_content_apart = self.tokenizer.keeps_content_apart()
        self._longest = 0
        self.defaults: Mapping[str, Any] = model.generation_defaults
        self.facts: dict[str, Any] = model.engine.describe()
        own = model.resolved(SamplingParams(1, temperature=None))
        self.sampling = {name: getattr(own, name) for name in (*SETTINGS, "seed")}

    @cached_property
    def fill_in(self) -> FillIn | None:
        """The tokens for fill-in-the-middle; None for a vocabulary without."""
        return fill_in_of(self.tokenizer)

    def filled_in(
        self, param: str, before: str | Sequence[int], behind: str, files: Sequence[tuple[str, str]] = ()
    ) -> tuple[list[int], tuple[int, ...]]:
        """Return a prompt for what is missing between two texts, and the tokens that end the answer.

        Raises ApiError, which names ``param``, where the vocabulary has no tokens for that.
        """
        if self.fill_in is None:
            said = "this model has no fill-in-the-middle tokens; leave it out, or serve a model that has them"
            raise ApiError(400, f"{param}: {said}", param=param, code="unsupported_value")
        self.check_length([before if isinstance(before, str) else "", behind, *files])
        return self.fill_in.prompt(self.tokenizer, before, behind, files), tuple(sorted(self.fill_in.ends))

    def warm(self) -> None:
        """Make what takes its time and is needed sooner or later, before anybody waits for it."""
        self._longest = max(map(len, self.tokens))
        self.compiler.warm()

    def check_length(self, value: Any) -> None:
        """Raise ContextLengthError for texts, anywhere in a value, that are longer than the context's longest tokens.

        They are refused before they are tokenized, which takes a second for a million characters.
        """
        most = self.max_context * (self._longest or max(map(len, self.tokens)))
        if (count := _characters(value)) > most:
            raise ContextLengthError(
                f"the request's texts have {count:,} characters, and the model's context of {self.max_context:,} tokens"
                f" holds at most {most:,}"
            )

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """A text's tokens, by default without what begins a text. Raises InputError for invalid Unicode."""
        self.check_length(text)
        if has_surrogate(text):  # JSON can spell it; no tokenizer takes it
            raise InputError("the request must be valid Unicode, but has a lone surrogate")
        return self.tokenizer.encode(text, add_special_tokens=special)

    def fingerprint(self) -> str:
        """Equal for two servers that give the same bytes for the same request and seed.

        It stands for this package's version, the model's logits after a few tokens (its weights, their format and that
        of keys and values, to the last bit), the vocabulary, the chat template and the generation config.
        """
        from ipex_lookahead import __version__

        engine = self.model.engine
        probes = np.linspace(0, self.vocab_size - 1, _PROBES).astype(np.int32)
        chain = np.arange(-1, _PROBES - 1, dtype=np.int32)
        cache = engine.new_cache()
        output = engine.forward(Batch([cache], [_PROBES], probes, chain, OutputRequest(logits=True)))
        assert output.logits is not None
        digest = hashlib.sha256(np.ascontiguousarray(output.logits).tobytes())
        vocabulary = sorted(self.tokenizer.get_vocab().items())
        others = [__version__, self.template, vocabulary, sorted(self.defaults.items(), key=lambda one: one[0])]
        digest.update(json.dumps(others, default=str).encode())
        return "fp_" + digest.hexdigest()[:16]


class Server:
    """The state of one server.

    Args:
        settings: how it serves.

    Attributes:
        created: when it began, in seconds since 1970.
        metrics: what it has done.
        remembered: responses that later requests name.
        fingerprint: see :meth:`Served.fingerprint`; "" while the model is being loaded.
        draining: whether it is to end.
        reading_pdfs: slots for PDF files that are read at the same time.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.created = int(time.time())
        self.metrics = Metrics(settings.replica)
        self.remembered = Remembered(self.limits.remembered_bytes, self.limits.all_remembered_bytes)
        self.fingerprint = ""
        self.draining = False
        self.reading_pdfs = asyncio.Semaphore(self.limits.reading_pdfs)
        self._served: Served | None = None
        self._preparing: asyncio.Semaphore | None = None
        self._compiling: dict[str, asyncio.Semaphore] = {}
        self._compilers = ThreadPoolExecutor(self.limits.all_compiling, "grammar")
        self._mailbox: Mailbox | None = None

    def ready(self, model: TextModel, make_service: Callable[[TextModel], Service]) -> None:
        """The model is there: serve it. ``make_service`` starts its service, after its fingerprint was taken."""
        fingerprint = Served(model, None).fingerprint()  # type: ignore[arg-type]  # before the service owns the engine
        served = Served(model, make_service(model))
        served.warm()
        self.fingerprint, self._served = fingerprint, served
        self.metrics.watch(served.service)

    @property
    def state(self) -> str:
        """One of "loading", "ready", "draining" and "closed"."""
        if self._served is None:
            return "draining" if self.draining else "loading"
        state = self._served.service.state
        if state == "loading":  # its thread is about to begin, and it takes requests already
            state = "ready"
        return "draining" if self.draining and state == "ready" else state

    @property
    def served(self) -> Served:
        """The model. Raises ApiError where it cannot answer now."""
        state = self.state
        if self._served is None or state != "ready":
            seconds = self.limits.loading_retry_seconds
            doing = {"loading": "the model is being loaded", "draining": "the server is shutting down"}
            message = f"{doing.get(state, 'the server is closed')}; ask again in {seconds} s"
            raise ApiError(503, message, code=state, headers={"retry-after": str(seconds)})
        return self._served

    def known(self, model: str | None) -> Served:
        """The model of that name. Raises ApiError for another, and as ``served``.

        Coding agents ask for Anthropic's models by their own names, some of which cannot be set: they get the only one
        that there is.
        """
        names = self.settings.names
        meant = model is not None and model.startswith(_ALIASES) and not self.settings.strict_model
        if model is not None and model not in names and not meant:
            said = f"there is no model {model[:200]!r}; this server has {', '.join(names)}"
            raise ApiError(404, said, param="model", code="model_not_found")
        return self.served

    def close(self, drain: float) -> None:
        """Refuse what comes, let what is there go on for ``drain`` seconds, and end. Waits; for a thread."""
        self.draining = True
        if self._served is not None:
            self._served.service.close(drain)
            self._served.close()
        self._compilers.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, work: Callable[[], Result]) -> Result:
        """Run work that takes its time (templates, tokenizers) in a thread, few at once.

        Raises ApiError for errors of this package.
        """
        if self._preparing is None:
            self._preparing = asyncio.Semaphore(self.limits.preparing)
        async with self._preparing:
            began = time.perf_counter()
            try:
                return await asyncio.to_thread(work)
            except LookaheadError as error:
                raise from_ours(error) from None
            finally:
                if time.perf_counter() - began > _MUCH:
                    await asyncio.to_thread(_give_back)

    async def prepared(self, request: HttpRequest, work: Callable[[], Request]) -> Request:
        """Prepare an answer, and compile the grammar that it keeps to. Raises as :meth:`compile`."""
        made = await self.prepare(work)
        if made.constraint is not None:
            made.grammar = await self.compile(request, made.constraint)
        return made

    async def compile(self, request: HttpRequest, work: Callable[[Grammars], Result]) -> Result:
        """Run work that compiles grammars for a request; cached ones do not wait.

        Others take one of the slots of the request's key, so that one key's grammars keep out no other's. A client that
        leaves frees its slot.

        Raises:
            ApiError: an error of this package.
            ClientGoneError: the client left.
        """
        grammars, owner = self.served.grammars, str(request.scope.get("owner", ""))
        with contextlib.suppress(NotCompiled):
            return await self.prepare(lambda: work(grammars.of(Client(owner, waits=False))))
        client = Client(owner)
        return await unless_gone(request.receive, self._in_slot(client, lambda: work(grammars.of(client))))

    async def _in_slot(self, client: Client, work: Callable[[], Result]) -> Result:
        slot = self._compiling.setdefault(client.owner, asyncio.Semaphore(self.limits.compiling))
        await slot.acquire()
        done = asyncio.get_running_loop().run_in_executor(self._compilers, work)
        done.add_done_callback(lambda _: slot.release())
        try:
            return await asyncio.shield(done)
        except LookaheadError as error:
            raise from_ours(error) from None
        except Cancelled:
            raise ClientGoneError from None
        except asyncio.CancelledError:
            client.leave()
            done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # no caller waits for it
            raise

    def start(self, requests: Sequence[Request]) -> Answers:
        """Begin answers. The caller closes them."""
        served, limits = self.served, self.limits
        for request in requests:
            request.params = shown_ends(served.model, request.params)
            for name, value in self.settings.drafting.items():
                if getattr(request, name) is None:
                    setattr(request, name, value)
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return Answers(
            served.service, served.tokenizer, requests, limits.ping_seconds, limits.answers_at_once, self._mailbox
        )


def _characters(value: Any) -> int:
    """Of all texts in a value of lists and mappings, keys included."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            count += len(one)
        elif isinstance(one, Mapping):
            left.extend(one)
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return count


def _give_back() -> None:
    """Give memory that is free back to the system: the C library keeps what a long text took."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not in every C library
    if trim is not None:
        trim(0)
