"""``LLM``: chat, text, structured output and batches in Python, without torch and transformers.

It runs on the same model object, service and conversations as ``ipex-lookahead serve``; the same settings and the same
seed give the same text in Python, on the command line and over HTTP.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.conversation.answer import AnswerState, shown_ends, submit
from ipex_lookahead.conversation.compiling import Client
from ipex_lookahead.conversation.given import check_text, conversation_of, form_of
from ipex_lookahead.conversation.model import ChatModel
from ipex_lookahead.conversation.options import AnswerOptions
from ipex_lookahead.conversation.other_names import OTHER_NAMES, OTHER_SETTINGS, refuse_unknown
from ipex_lookahead.conversation.pictures import ImageFile
from ipex_lookahead.conversation.request import Form, grammar_of, request_for
from ipex_lookahead.conversation.result import Answer, AnswerStream, ToolCall
from ipex_lookahead.conversation.thinking import Thought, has_switch, marks_of
from ipex_lookahead.embedding.llm_methods import VectorMethods, opened_vectors
from ipex_lookahead.embedding.model import Ranked, purpose_of
from ipex_lookahead.errors import InputError, LookaheadError, in_python
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.checks import integer
from ipex_lookahead.runtime.loading import load_text_model
from ipex_lookahead.runtime.request import Request
from ipex_lookahead.runtime.sampling_params import SamplingParams, checked_params
from ipex_lookahead.runtime.service import Service
from ipex_lookahead.runtime.stream import Stream
from ipex_lookahead.system.terminal import print_status

if TYPE_CHECKING:
    from typing_extensions import Never, Self, Unpack

MAX_NEW_TOKENS = 1024
"""Largest number of tokens of an answer where the caller gives none."""
Prompt = str | Sequence[Mapping[str, Any]]
"""A question, or the messages of a conversation as in OpenAI's API: ``{"role": ..., "content": ...}``."""


class LLM(VectorMethods):
    """A language model, an embedding model or a reranker. One object serves any number of threads.

    Concurrent answers are batched.

    The text of an answer depends on the prompt, the options and the seed only: not on lookahead, on other calls, or on
    earlier ones. A prompt that begins like an earlier one, such as the next turn of a conversation, reads the new
    tokens only (``answer.stats.cached_tokens``).

    Args:
        model: a folder, a ``.gguf`` file, a short name (``ipex-lookahead pull`` lists them), a Hugging Face id, or
            "default", a small demo model.
        low_bit: low-bit format of the weights, such as "sym_int4"; None keeps the file's own.
        lookahead: maximum number of drafted tokens per step, 0 to 128 (0 is off), "auto", the name of a strategy, or a
            :class:`LookaheadConfig`. It never changes the text.
        threads: worker threads; None is the number of physical cores.
        kv_cache: format of keys and values: "fp16", or "int8" for half the memory.
        max_context: maximum number of tokens of a prompt and its answer; None is the model's.
        engine: "auto", "native", "opencl", "torch" or "ipex-llm".
        device: "cpu", "xpu" (OpenCL's GPUs), "opencl" or "cuda"; None is the engine's own.
        gpu_layers: number of last layers on an OpenCL device; None is all that fit.
        n_cpu_moe: number of first layers with their routed experts on the CPU, all else on the OpenCL device; None is
            the smallest number with which the model fits.
        cpu_moe: run the routed experts of all layers on the CPU.
        draft_model: a smaller model with the same vocabulary, which drafts.
        drafter: a trained drafting head for the model.
        draft_vocab: size of the drafting head's vocabulary.
        slots: maximum number of answers that are generated at the same time.
        cache_memory: bytes for keys and values of running answers and cached prompts; None has room for one text of the
            model's full context.
        cache_dir: a folder for keys and values of earlier prompts and answers, which later processes read instead of
            computing them. It is created if it does not exist. None: they are in memory alone.
        cache_disk: maximum size of ``cache_dir`` in bytes; None is 20 GiB.
        adapters: LoRA adapters by name: PEFT folders, GGUF files or hub ids. An answer uses the one that its option
            ``adapter`` names; concurrent answers may use different ones.
        mmproj: the GGUF file with the vision part, for images; None is the one in the folder of the model's GGUF file
            with "mmproj" in its name. It is loaded for the first image.
        special_tokens_in_content: parse control tokens such as ``<|im_end|>`` in messages. Never for untrusted text.
        progress: show the progress of loading on a terminal.

    Attributes:
        name: ``model`` as given.
        tokenizer: the model's tokenizer, with ``encode(text)`` and ``decode(ids)``.
        max_context: maximum number of tokens of a prompt and its answer.
        adapters: names of the loaded adapters.

    Raises:
        InputError: no such model, or an invalid argument.
        DownloadError: the model could not be downloaded.
        ModelFormatError: the model's files contradict their format.
        UnsupportedModelError: the model needs a feature that this package lacks.
        EngineError: the engine cannot run on this machine.
    """

    def __init__(
        self,
        model: str | PathLike[str] = "default",
        *,
        low_bit: str | None = None,
        lookahead: int | str | LookaheadConfig | None = "auto",
        threads: int | None = None,
        kv_cache: str = "fp16",
        max_context: int | None = None,
        engine: str = "auto",
        device: str | None = None,
        gpu_layers: int | None = None,
        n_cpu_moe: int | None = None,
        cpu_moe: bool = False,
        draft_model: str | PathLike[str] | None = None,
        drafter: str | PathLike[str] | None = None,
        draft_vocab: int | str | PathLike[str] | None = None,
        slots: int = 8,
        cache_memory: int | None = None,
        cache_dir: str | PathLike[str] | None = None,
        cache_disk: int | None = None,
        adapters: Mapping[str, str | PathLike[str]] | None = None,
        mmproj: str | PathLike[str] | None = None,
        special_tokens_in_content: bool = False,
        progress: bool = True,
        **unknown: Never,
    ) -> None:
        known = [name for name in LLM.__init__.__annotations__ if name not in ("unknown", "return")]
        refuse_unknown("argument", unknown, known, OTHER_SETTINGS)
        self.name = str(model)
        self.max_context: int
        integer("slots", slots, 1, 256)
        if cache_disk is not None and cache_dir is None:
            raise InputError("cache_disk needs cache_dir, the folder that it limits", hint="give both, or leave it out")
        if not isinstance(adapters or {}, Mapping):
            raise InputError(argument="adapters", got=adapters, allowed="a mapping of names to paths")
        local = resolve_model(self.name, progress=progress)
        if purpose_of(local) != "text":
            of_text = {
                "draft_model": draft_model, "drafter": drafter, "draft_vocab": draft_vocab, "cache_dir": cache_dir,
                "adapters": adapters, "mmproj": mmproj, "gpu_layers": gpu_layers, "n_cpu_moe": n_cpu_moe,
                "cpu_moe": cpu_moe, "engine": engine if engine not in ("auto", "native") else None,
                "device": device if device != "cpu" else None,
            }  # fmt: skip
            vectors = opened_vectors(self.name, local, low_bit, threads, max_context, progress, of_text)
            self._vectors, self._close = vectors, weakref.finalize(self, vectors.close)
            self.tokenizer, self.max_context = vectors.tokenizer, vectors.max_length
            return
        try:
            loaded = load_text_model(
                str(local),
                low_bit=low_bit,
                threads=threads,
                kv_cache=kv_cache,
                max_context=max_context,
                engine=engine,
                device=device,
                gpu_layers=gpu_layers,
                n_cpu_moe=n_cpu_moe,
                cpu_moe=cpu_moe,
                draft_model=None if draft_model is None else str(draft_model),
                drafter=None if drafter is None else str(drafter),
                draft_vocab=draft_vocab,
                mmproj=mmproj,
                progress=progress,
                note=print_status if progress else None,
            )
        except LookaheadError as error:
            error.respell(lambda name, value: in_python("low_bit" if name == "load_in_low_bit" else name, value))
            raise
        loaded.tokenizer.special_tokens_in_content = special_tokens_in_content
        for name, path in (adapters or {}).items():
            loaded.runtime.adapters.load(path, name)
        loaded.runtime.resolve(lookahead)  # an invalid setting is an error here, not in the first answer
        if cache_dir is not None:
            loaded.use_cache_folder(cache_dir, cache_disk)
        self._lookahead = lookahead
        self._model = ChatModel(loaded)
        self._service = Service(loaded, slots=slots, queue=_ANY, cache_memory=cache_memory)
        self._close = weakref.finalize(self, _close, self._service, self._model)
        self.tokenizer = loaded.tokenizer
        self.max_context = loaded.engine.max_context

    def chat(
        self,
        messages: Prompt,
        *,
        system: str | None = None,
        images: Sequence[ImageFile] = (),
        schema: Any = None,
        grammar: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        think: bool | None = None,
        think_budget: int | None = None,
        think_sentence: str | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Answer a question, or the last message of a conversation, through the model's chat template.

        Args:
            messages: the question, or messages ``{"role": ..., "content": ...}`` as in OpenAI's API. Append
                ``answer.message`` and the next question to continue.
            system: the system message.
            images: paths or contents of image files (JPEG, PNG, WebP, GIF, BMP), before the text of the last message.
                Messages can have parts ``{"type": "image", "image": path or bytes}`` and OpenAI's ``image_url`` with
                ``data:`` URLs as well.
            schema: a JSON schema as a dict, or a pydantic model: the answer cannot leave it, and ``answer.parsed`` is
                the value.
            grammar: a grammar in llama.cpp's GBNF or llguidance's Lark; the answer cannot leave it.
            tools: functions that the model may call: ``{"type": "function", "function": {"name", "description",
                "parameters"}}``, or the inner object alone. The calls are ``answer.tool_calls``.
            tool_choice: "auto", "none", "required", or the name of the function to call.
            think: turn the model's thinking on or off, for templates with a switch; None: the template decides.
            think_budget: maximum number of thinking tokens, at which the thought is ended; None: any number.
            think_sentence: text that ends the thought at its budget, before the mark of its end.
            **options: see :class:`AnswerOptions`.

        Returns:
            The answer, a string with ``stats``, ``finish_reason``, ``reasoning`` and ``tool_calls``.

        Raises:
            InputError: an invalid message or option, or messages that the chat template rejects.
            ContextLengthError: the prompt leaves no room for an answer.
            MissingPackageError: ``schema``, ``grammar`` or ``tools`` without llguidance.
            ServiceError: the LLM is closed.
        """
        extras = {"system": system, "images": images, "schema": schema, "grammar": grammar}
        extras |= {"tools": tools, "tool_choice": tool_choice}
        extras |= {"think": think, "think_budget": think_budget, "think_sentence": think_sentence}
        with self._start(messages, extras, options) as stream:
            return stream.answer

    def stream(
        self,
        messages: Prompt,
        *,
        raw: bool = False,
        reasoning: bool = False,
        system: str | None = None,
        images: Sequence[ImageFile] = (),
        schema: Any = None,
        grammar: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = "auto",
        think: bool | None = None,
        think_budget: int | None = None,
        think_sentence: str | None = None,
        **options: Unpack[AnswerOptions],
    ) -> AnswerStream:
        """Return the text of an answer in pieces, as the model generates them; ``.answer`` is the whole answer.

        The model generates in the background, independently of the caller's iteration. Errors in the arguments are
        raised at once.

        Args:
            messages: as for :meth:`chat`.
            raw: continue a text without the chat template, as :meth:`generate` does.
            reasoning: also yield the model's reasoning, as strings of the type :class:`Thought`.
            system: as for :meth:`chat`.
            images: as for :meth:`chat`.
            schema: as for :meth:`chat`.
            grammar: as for :meth:`chat`.
            tools: as for :meth:`chat`.
            tool_choice: as for :meth:`chat`.
            think: as for :meth:`chat`.
            think_budget: as for :meth:`chat`.
            think_sentence: as for :meth:`chat`.
            **options: see :class:`AnswerOptions`.

        Example: ``for text in llm.stream("Tell me a story."): print(text, end="", flush=True)``
        """
        extras = {"system": system, "images": images, "schema": schema, "grammar": grammar, "tools": tools}
        extras |= {"tool_choice": tool_choice, "think": think}
        extras |= {"think_budget": think_budget, "think_sentence": think_sentence}
        return self._start(messages, extras, options, raw=raw, reasoning=reasoning)

    def generate(
        self, prompt: str, *, schema: Any = None, grammar: str | None = None, **options: Unpack[AnswerOptions]
    ) -> Answer:
        """Continue a text, without the chat template.

        Args:
            prompt: the text.
            schema: as for :meth:`chat`.
            grammar: as for :meth:`chat`.
            **options: see :class:`AnswerOptions`.

        Returns:
            The new text, without the prompt.

        Raises as :meth:`chat`.
        """
        with self._start(prompt, {"schema": schema, "grammar": grammar}, options, raw=True) as stream:
            return stream.answer

    def complete_batch(
        self,
        prompts: Sequence[Prompt],
        *,
        raw: bool = False,
        system: str | None = None,
        schema: Any = None,
        grammar: str | None = None,
        think: bool | None = None,
        think_budget: int | None = None,
        think_sentence: str | None = None,
        **options: Unpack[AnswerOptions],
    ) -> list[Answer]:
        """Answer many prompts, ``slots`` at a time in one batch. Each answer equals :meth:`chat`'s for this prompt.

        Args:
            prompts: questions or conversations, each as for :meth:`chat`.
            raw: continue texts without the chat template, as :meth:`generate` does.
            system: as for :meth:`chat`.
            schema: as for :meth:`chat`.
            grammar: as for :meth:`chat`.
            think: as for :meth:`chat`.
            think_budget: as for :meth:`chat`.
            think_sentence: as for :meth:`chat`.
            **options: see :class:`AnswerOptions`.

        Returns:
            The answers, in the order of the prompts.

        Raises as :meth:`chat`; an error of one prompt, which the message names, cancels the others.
        """
        if isinstance(prompts, str) or any(isinstance(one, Mapping) for one in prompts):
            raise InputError("complete_batch takes a list of prompts", hint="put the conversation into a list: [...]")
        extras = {"system": system, "schema": schema, "grammar": grammar, "think": think}
        extras |= {"think_budget": think_budget, "think_sentence": think_sentence}
        with ExitStack() as running:
            streams = []
            for number, prompt in enumerate(prompts):
                try:
                    streams.append(running.enter_context(self._start(prompt, extras, options, raw=raw)))
                except InputError as error:
                    raise type(error)(f"prompt {number}: {error}", hint=error.hint) from error
            return [stream.answer for stream in streams]

    @property
    def adapters(self) -> list[str]:
        """The names of the loaded adapters."""
        self._check_text()
        return [*self._model.model.runtime.adapters]

    def load_adapter(self, path: str | PathLike[str], name: str) -> None:
        """Load a LoRA adapter, a PEFT folder or a GGUF file, for the option ``adapter``; it replaces one of that name.

        Raises:
            InputError: there is no adapter at ``path``, or it is for another model.
            ModelFormatError: the adapter is invalid.
            UnsupportedModelError: the engine takes no adapters, or the adapter changes what no adapter may change.
        """
        self._check_text()
        self._model.model.runtime.adapters.load(path, name)

    def unload_adapter(self, name: str) -> None:
        """Release an adapter. Running answers that use it end with an InputError. Raises InputError if unknown."""
        self._check_text()
        self._model.model.runtime.adapters.unload(name)

    def close(self) -> None:
        """End running answers and release the model's memory. Later calls raise ServiceError."""
        self._close()
        for name in ("_model", "_service", "_vectors", "tokenizer"):
            vars(self).pop(name, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._close.alive:
            return f"LLM({self.name!r}, closed)"
        if self._vectors is not None:
            return f"LLM({self.name!r}, purpose={self._vectors.purpose!r}, max_context={self.max_context})"
        facts = self._model.model.engine.describe()
        shown = ", ".join(f"{key}={facts.get(key)!r}" for key in ("engine", "low_bit", "threads"))
        return f"LLM({self.name!r}, {shown}, max_context={self.max_context})"

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _start(
        self,
        prompt: Any,
        extras: dict[str, Any],
        options: Mapping[str, Any],
        *,
        raw: bool = False,
        reasoning: bool = False,
    ) -> AnswerStream:
        """Submit one prompt. Raises as :meth:`chat`."""
        self._check_text()
        given = dict(options)
        lookahead = given.pop("lookahead", self._lookahead)
        adapter = self._model.model.runtime.adapters.applied(
            given.pop("adapter", None), given.pop("adapter_scale", 1.0)
        )
        params = self._params(given)
        form = form_of(extras.get("schema"), extras.get("grammar"))
        if raw:
            request = self._of_text(prompt, extras, form)
        else:
            think = extras.get("think")
            if think is not None and not has_switch(self._model.template):
                said = f"think={think} has no effect: the model's chat template has no enable_thinking switch"
                raise InputError(said, hint="leave think out")
            if (budget := extras.get("think_budget")) is not None and marks_of(self._model.template) is None:
                said = f"think_budget={budget} has no effect: the model's chat template has no thinking"
                raise InputError(said, hint="leave think_budget out")
            conversation = conversation_of(prompt, extras, form)
            request = request_for(self._model, conversation)
            if request.constraint is not None:
                request.grammar = request.constraint(self._model.grammars.of(Client()))
        if (request.grammar is not None or extras.get("tools")) and (params.ignore_eos or params.min_tokens):
            name = "ignore_eos" if params.ignore_eos else "min_tokens"
            raise InputError(f"{name} cannot be combined with a schema, a grammar or tools; leave it out")
        request.params, request.lookahead = shown_ends(self._model.model, params), lookahead
        request.adapter = adapter
        events = Stream()
        events.request = submit(self._service, self.tokenizer, request, events.put)
        state = AnswerState(request, self.tokenizer)
        return AnswerStream(events, state, extras.get("schema"), reasoning=reasoning, owner=self)

    def _check_text(self) -> None:
        self._check_open()
        self._check_generates()

    def _params(self, given: dict[str, Any]) -> SamplingParams:
        known = AnswerOptions.__annotations__
        refuse_unknown("option", given, known, OTHER_NAMES)
        return checked_params(given.pop("max_new_tokens", MAX_NEW_TOKENS), **{"temperature": None, **given})

    def _of_text(self, prompt: Any, extras: Mapping[str, Any], form: Form | None) -> Request:
        """Return the request of a prompt without the chat template."""
        for name in ("system", "images", "tools", "think", "think_budget", "think_sentence"):
            if extras.get(name) or (name == "think_budget" and extras.get(name) is not None):
                raise InputError(f"{name} needs the chat template, which raw=True leaves out; leave one of them out")
        if not isinstance(prompt, str):
            said = f"a prompt without the chat template is a text, got {type(prompt).__name__}"
            texts = isinstance(prompt, list | tuple) and all(isinstance(one, str) for one in prompt)
            raise InputError(
                said, hint="complete_batch(prompts, raw=True) takes several" if texts else "chat takes messages"
            )
        check_text(prompt)
        request = Request(self.tokenizer.encode(prompt))
        if form is not None:
            request.grammar = grammar_of(self._model.grammars.of(Client()), form)
        return request


_ANY = 2**31
"""Requests that may wait: a caller that waits for its answers bounds them."""


def _close(service: Service, model: ChatModel) -> None:
    service.close()
    model.close()


__all__ = ["LLM", "Answer", "AnswerOptions", "AnswerStream", "Ranked", "Thought", "ToolCall"]
