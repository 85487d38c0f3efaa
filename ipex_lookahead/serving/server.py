"""What the APIs work on: the model and its service, and what is made of them once.

The file has more than 500 lines because ``Server`` is the one object of all APIs; its fields are set in one place.
"""

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
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ipex_lookahead.checkpoints.recommended_sampling import SETTINGS
from ipex_lookahead.conversation.answer import shown_ends
from ipex_lookahead.conversation.compiling import Cancelled, Client, NotCompiled
from ipex_lookahead.conversation.grammar import Grammars
from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.decoding.saved_cache import cache_key
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.engines.fingerprint import fingerprint as model_fingerprint
from ipex_lookahead.errors import ContextLengthError, InputError, LookaheadError
from ipex_lookahead.files.safe_json import has_surrogate
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.serving.answers import Answers, Mailbox
from ipex_lookahead.serving.failures import ApiError, from_ours, refused
from ipex_lookahead.serving.hosts import Hosts
from ipex_lookahead.serving.image_hosts import ImageHosts
from ipex_lookahead.serving.keys import Keys
from ipex_lookahead.serving.limits import Limits
from ipex_lookahead.serving.metrics import Metrics
from ipex_lookahead.serving.purposes import EMBEDDING, RERANKING, TEXT, misdirected
from ipex_lookahead.serving.remembered import Remembered
from ipex_lookahead.serving.slots import Slots
from ipex_lookahead.serving.sse import ClientGoneError, unless_gone
from ipex_lookahead.tokenization.fill_in import FillIn, fill_in_of

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest

    from ipex_lookahead.architectures.adapter import AppliedAdapter
    from ipex_lookahead.runtime.service import Service
    from ipex_lookahead.runtime.text_model import TextModel
    from ipex_lookahead.serving.embedding.embedder import Embedder

Result = TypeVar("Result")
ALIASES = ("claude-",)
"""Beginnings of names that mean the served model, or the first of several."""
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
        admin_keys: keys for requests that load, unload, download or delete models; none: such requests are refused.
        hosts: values of the header Host that are answered.
        origins: allowed values of the header Origin in addition to the page's own ("*": all).
        page: whether there is a page at ``/``.
        labels: labels of all figures in ``/metrics``, which distinguish several servers behind one address.
        secret: value of the header that every request to a worker of ``serving/router`` carries; "": not a worker.
        strict_fields: whether fields that no API has are refused, not passed over.
        think_budget: most tokens of thought in an answer to a request without a limit of its own; None: no limit.
        think_sentence: text that ends a thought there.
        slot_folder: folder of saved slots; None: slots are not saved.
        image_hosts: downloads images with URLs.
        strict_model: whether programs that ask for one of Anthropic's models by name are refused, not answered.
    """

    names: Sequence[str] = ("default",)
    drafting: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    keys: Keys = field(default_factory=Keys)
    admin_keys: Keys = field(default_factory=Keys)
    hosts: Hosts = field(default_factory=Hosts)
    origins: frozenset[str] = frozenset()
    page: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    strict_fields: bool = False
    strict_model: bool = False
    think_budget: int | None = None
    think_sentence: str = ""
    slot_folder: Path | None = None
    image_hosts: ImageHosts = field(default_factory=ImageHosts)


class Served(ChatModel):
    """A model that is being served.

    Args:
        model: as loaded.
        service: of that model.

    Attributes:
        defaults: the model's own generation config, with the sampling recommended for it.
        sampling: of a request without such fields, by the fields' names.
    """

    def __init__(self, model: TextModel, service: Service) -> None:
        super().__init__(model)
        self.service = service
        if self.tokenizer.chat_template is not None:
            self.tokenizer.render_often()
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
        longest = self._longest or max(map(len, self.tokens))
        most = self.max_context * longest
        if (count := _characters(value)) > most:
            raise ContextLengthError(
                f"the request's texts have {count:,} characters, and the model's context of {self.max_context:,} tokens"
                f" holds at most {most:,}",
                tokens=-(-count // longest),
                limit=self.max_context - 1,
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
        adapter_scales: scales of adapters for requests that name the model, of ``POST /lora-adapters``.
        slots: the texts of llama-server's slots; None without a folder for them.
        reading_pdfs: slots for PDF files that are read at the same time.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.created = int(time.time())
        self.metrics = Metrics(settings.labels)
        self.remembered = Remembered(self.limits.remembered_bytes, self.limits.all_remembered_bytes)
        self.fingerprint = ""
        self.draining = False
        self.adapter_scales: dict[str, float] = {}
        self.reading_pdfs = asyncio.Semaphore(self.limits.reading_pdfs)
        self.slots: Slots | None = None
        self._model_print = b""
        self._served: Served | None = None
        self._embedder: Embedder | None = None
        self._preparing: asyncio.Semaphore | None = None
        self._compiling: dict[str, asyncio.Semaphore] = {}
        self._compilers = ThreadPoolExecutor(self.limits.all_compiling, "grammar")
        self._reading: dict[str, asyncio.Semaphore] = {}
        self._readers = ThreadPoolExecutor(self.limits.all_reading_images, "images")
        self._mailbox: Mailbox | None = None

    def ready(self, model: TextModel, make_service: Callable[[TextModel], Service]) -> None:
        """Serve a loaded model. ``make_service`` starts its service, after its fingerprint was taken.

        Raises InputError where slots are to be saved and the engine cannot save KV caches.
        """
        fingerprint = Served(model, None).fingerprint()  # type: ignore[arg-type]  # before the service owns the engine
        if self.settings.slot_folder is not None:
            self._model_print = model_fingerprint(model.engine, model.source)
        served = Served(model, make_service(model))
        served.think_budget, served.think_sentence = self.settings.think_budget, self.settings.think_sentence
        served.warm()
        if served.sees:
            self.remembered.resize(self.limits.image_remembered_bytes, self.limits.all_image_remembered_bytes)
        if self.settings.slot_folder is not None:
            self.slots = Slots(served.service.slots, self.settings.slot_folder, self.limits.saved_slots)
        self.fingerprint, self._served = fingerprint, served
        self.metrics.watch(served.service)

    def ready_to_embed(self, embedder: Embedder) -> None:
        """Serve an embedding or reranking model."""
        from ipex_lookahead.serving.embedding.embedder import EmbedderFigures

        self.fingerprint, self._embedder = embedder.fingerprint, embedder
        self.metrics.collect(EmbedderFigures(embedder.batcher))

    @property
    def purpose(self) -> str:
        """What the model is for: "text", "embedding" or "reranking"; "text" while it is being loaded."""
        return TEXT if self._embedder is None else self._embedder.purpose

    @property
    def counts(self) -> tuple[int, int]:
        """Numbers of running and waiting requests. Raises ApiError as ``check_ready``."""
        self.check_ready()
        work = self.served.service if self._embedder is None else self._embedder.batcher
        return work.running, work.waiting

    @property
    def state(self) -> str:
        """One of "loading", "ready", "draining" and "closed"."""
        if self._embedder is not None:
            state = self._embedder.batcher.state
            return "draining" if self.draining and state == "ready" else state
        if self._served is None:
            return "draining" if self.draining else "loading"
        state = self._served.service.state
        if state == "loading":  # its thread is about to begin, and it takes requests already
            state = "ready"
        return "draining" if self.draining and state == "ready" else state

    def check_ready(self) -> None:
        """Raise ApiError where the model cannot answer now."""
        if (state := self.state) != "ready":
            seconds = self.limits.loading_retry_seconds
            doing = {"loading": "the model is being loaded", "draining": "the server is shutting down"}
            message = f"{doing.get(state, 'the server is closed')}; ask again in {seconds} s"
            raise ApiError(503, message, code=state, headers={"retry-after": str(seconds)})

    @property
    def served(self) -> Served:
        """The text model. Raises ApiError where it cannot answer now, and for a model of another purpose."""
        self.check_ready()
        if self._served is None:
            raise misdirected(self.settings.names[0], self.purpose, TEXT)
        return self._served

    def embedder(self, wanted: str = "") -> Embedder:
        """The embedding or reranking model.

        Args:
            wanted: purpose of the request; "": either.

        Raises ApiError where it cannot answer now, and for a model of another purpose.
        """
        self.check_ready()
        purposes = (wanted,) if wanted else (EMBEDDING, RERANKING)
        if self._embedder is None or self._embedder.purpose not in purposes:
            raise misdirected(self.settings.names[0], self.purpose, wanted)
        return self._embedder

    @property
    def takes_images(self) -> bool:
        """Whether requests may have images, and larger bodies."""
        return self._served is not None and self._served.sees

    @property
    def names(self) -> list[str]:
        """The names of the model, and of its adapters, which requests use in the same way."""
        adapters = () if self._served is None else self._served.model.runtime.adapters
        return [*self.settings.names, *adapters]

    def known(self, model: str | None) -> Served:
        """The text model of that name, or with the adapter of that name. Raises ApiError."""
        self.check_name(model)
        return self.served

    def check_name(self, model: str | None) -> None:
        """Raise ApiError for a name of another model.

        Coding agents ask for Anthropic's models by their own names, some of which cannot be set: they get the only one
        that there is.
        """
        names = self.names
        meant = model is not None and model.startswith(ALIASES) and not self.settings.strict_model
        if model is not None and model not in names and not meant:
            said = f"there is no model {model[:200]!r}; this server has {', '.join(names)}"
            raise ApiError(404, said, param="model", code="model_not_found")

    def applied(self, model: str | None, scales: Mapping[int, float] | None = None) -> AppliedAdapter | None:
        """Return the adapter of a request; None for the model itself.

        Args:
            model: the request's model, which may be the name of an adapter.
            scales: llama-server's ``lora``: number of an adapter -> its scale, 0 for the others. None: 1 for the named
                adapter, or the scales of ``POST /lora-adapters``.

        Raises ApiError for a number without an adapter, for several adapters, and for another one than ``model`` names.
        """
        names = list(self.served.model.runtime.adapters)
        named = model if model in names and model not in self.settings.names else None
        if scales is None:
            if named is not None:
                return self._applied(named, 1.0)
            found = {name: scale for name, scale in self.adapter_scales.items() if scale and name in names}
        else:
            if wrong := [number for number in scales if not 0 <= number < len(names)]:
                there = f"adapters are 0 to {len(names) - 1}" if names else "this server has none (--lora NAME=PATH)"
                raise refused("lora", f"there is no adapter {wrong[0]}; {there}")
            given = {names[number]: scale for number, scale in scales.items()}
            found = {name: scale for name, scale in ({named: 1.0} | given if named else given).items() if scale}
            if named is not None and (others := {*found} - {named}):
                raise refused("lora", f"model is the adapter {named!r}, and lora is about {others.pop()!r}; give one")
        if len(found) > 1:
            raise refused("lora", f"it combines {' and '.join(found)}; one adapter at a time may have a scale but 0")
        return next((self._applied(name, scale) for name, scale in found.items()), None)

    def _applied(self, name: str, scale: float) -> AppliedAdapter | None:
        try:
            return self.served.model.runtime.adapters.applied(name, scale)
        except LookaheadError as error:  # it has just been unloaded, or the scale is not finite
            raise from_ours(error) from None

    def fingerprint_of(self, adapter: AppliedAdapter | None) -> str:
        """Return the fingerprint of answers with an adapter."""
        if adapter is None:
            return self.fingerprint
        return "fp_" + hashlib.sha256(f"{self.fingerprint} {adapter.key}".encode()).hexdigest()[:16]

    def slot_key(self, owner: str) -> bytes:
        """Return the key of saved slots, 32 bytes; ``owner`` is a ``Request.prefix_key``."""
        return cache_key(self.served.model.engine, self._model_print, owner)

    def close(self, drain: float) -> None:
        """Refuse what comes, let what is there go on for ``drain`` seconds, and end. Waits; for a thread."""
        self.draining = True
        if self._served is not None:
            self._served.service.close(drain)
            self._served.close()
        if self._embedder is not None:
            self._embedder.close(drain)
        for pool in (self._compilers, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)

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

    async def with_images(self, request: HttpRequest, work: Callable[[], Result]) -> Result:
        """Run work that reads images in a thread: large images keep out no requests without.

        It takes one of the slots of the request's key until it has ended, also if the client leaves.

        Raises:
            ApiError: an error of this package.
            ClientGoneError: the client left.
        """

        def measured() -> Result:
            began = time.perf_counter()
            try:
                return work()
            finally:
                if time.perf_counter() - began > _MUCH:
                    _give_back()

        owner = str(request.scope.get("owner", ""))
        slot = self._reading.setdefault(owner, asyncio.Semaphore(self.limits.reading_images))
        return await unless_gone(request.receive, self._run(slot, self._readers, measured))

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
        try:
            return await self._run(slot, self._compilers, work)
        except Cancelled:
            raise ClientGoneError from None
        except asyncio.CancelledError:
            client.leave()
            raise

    async def _run(self, slot: asyncio.Semaphore, pool: ThreadPoolExecutor, work: Callable[[], Result]) -> Result:
        """Run work in a pool, and hold the slot until it has ended. Raises ApiError for errors of this package."""
        await slot.acquire()
        done = asyncio.get_running_loop().run_in_executor(pool, work)
        done.add_done_callback(lambda _: slot.release())
        try:
            return await asyncio.shield(done)
        except LookaheadError as error:
            raise from_ours(error) from None
        except asyncio.CancelledError:
            done.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # no caller waits for it
            raise

    def start(self, requests: Sequence[Request], slot: int | None = None) -> Answers:
        """Begin answers. The caller closes them.

        Args:
            requests: one for each answer.
            slot: llama-server's slot of the first answer; None or -1 chooses one.

        Raises ApiError where one is refused, or there is no such slot.
        """
        served, limits = self.served, self.limits
        for request in requests:
            request.params = shown_ends(served.model, request.params)
            for name, value in self.settings.drafting.items():
                if getattr(request, name) is None:
                    setattr(request, name, value)
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        number, first, on_end = 0, requests[0], None
        if self.slots is not None:
            number = self.slots.begin(first.tenant, first.keys, slot, first.adapter)
            on_end = partial(self.slots.put, first.tenant, number, prompt=len(first.prompt), adapter=first.adapter)
        elif slot is not None and slot >= served.service.slots:
            raise refused("id_slot", f"{slot} is not a slot; slots are 0 to {served.service.slots - 1}")
        answers = Answers(
            served.service,
            served.tokenizer,
            requests,
            limits.ping_seconds,
            limits.answers_at_once,
            self._mailbox,
            on_end,
        )
        answers.slot = number
        return answers


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
