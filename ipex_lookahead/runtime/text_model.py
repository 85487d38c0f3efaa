"""A loaded model for the commands and the server: token ids in, token ids out, without torch and transformers.

``LookaheadModelForCausalLM`` is the same for programs that are written for transformers. Both run on
:class:`~ipex_lookahead.runtime.runtime.Runtime`, and the same settings give the same tokens.
"""

from __future__ import annotations

import secrets
from collections import abc, deque
from collections.abc import Callable, Generator, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.generation_config import REFUSED, by_transformers, refused
from ipex_lookahead.checkpoints.recommended_sampling import with_recommended
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.decoding.cache_budget import conversation_memory
from ipex_lookahead.decoding.penalties import (
    NEVER,
    LeastLength,
    NoRepeatedNGrams,
    RepetitionPenalty,
    count_penalties,
)
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.sampling import Processor, Sampler, WarperParams
from ipex_lookahead.decoding.sequence import DraftFilter, Force, Sequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.api import AppliedAdapter, Engine, image_rows, state_bytes
from ipex_lookahead.engines.images import PromptImage
from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.cache_files import CacheFiles, write_all
from ipex_lookahead.runtime.checks import check_prompt, token_ids
from ipex_lookahead.runtime.recommended import resolved
from ipex_lookahead.runtime.repetition import stop_at_loops
from ipex_lookahead.runtime.run import length_limit, streamed
from ipex_lookahead.runtime.runtime import Runtime
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.second_model import check_vocabulary
from ipex_lookahead.runtime.stop_texts import Stop, StopTexts, any_of, time_limit
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.tokenization.prompts import turn_openings, turn_starts
from ipex_lookahead.tokenization.text import TextTokenizer

SEED_BITS = 53
"""Bits of seeds that are drawn and reported: every JSON reader keeps an integer of this size exactly."""


Constrain = Callable[[int], tuple[Processor, DraftFilter]]
"""``Grammar.constrain``: number of prompt tokens -> what keeps an answer in the grammar."""


class TextModel:
    """A loaded model.

    Args:
        loaded: result of an engine's loader.
        tokenizer: its tokenizer.
        note: called with a message while costs are measured.

    Attributes:
        runtime: the engine, and what its generations share.
        tokenizer: its tokenizer.
        config: the model's config.
        recommended_by: source of its recommended sampling, for people; "" where there is none.
        source: the folder or GGUF file that it was loaded from, or None.
        mmproj: the GGUF file with its vision part, if a caller named one.
        cache_files: the folder of its prefix caches, or None.
    """

    def __init__(
        self, loaded: LoadedModel, tokenizer: TextTokenizer, note: Callable[[str], None] | None = None
    ) -> None:
        self.runtime = Runtime.measured(loaded.engine, tokenizer.get_vocab, note)
        self.tokenizer = tokenizer
        self.config: dict[str, Any] = loaded.checkpoint_config
        self._defaults, self.recommended_by = with_recommended(
            loaded.generation_config, self.config, tokenizer.chat_template
        )
        self._eos = frozenset(token_ids("eos_token_id", self._defaults.get("eos_token_id"), self.engine.vocab_size))
        self.source = loaded.source
        self.mmproj: Path | None = None
        self.runtime.adapters.base = str(loaded.source or "")
        self.cache_files: CacheFiles | None = None
        self._draft: TextModel | None = None
        self._memory: PrefixCache | None = None  # of a conversation
        self._draft_memory: PrefixCache | None = None

    @property
    def engine(self) -> Engine:
        """The engine of the model."""
        return self.runtime.engine

    @property
    def costs(self) -> EngineCosts:
        """Measured costs of the engine's forwards."""
        assert self.runtime.costs is not None
        return self.runtime.costs

    @property
    def stores(self) -> Stores:
        """The stores of earlier answers."""
        return self.runtime.stores

    @property
    def stats(self) -> GenerationStats:
        """Statistics of the calling thread's last answer, also of one that was interrupted."""
        return self.runtime.stats

    @property
    def draft_engine(self) -> Engine | None:
        """The draft model's engine, or None."""
        return self.runtime.draft_engine

    @property
    def eos_ids(self) -> frozenset[int]:
        """The model's end tokens."""
        return self._eos

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """The model's own generation config, by transformers' names, with the sampling recommended for it."""
        return self._defaults

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with the model's recommendations (:mod:`ipex_lookahead.runtime.recommended`)."""
        return resolved(params, self._defaults)

    def use_draft_model(self, draft: TextModel) -> None:
        """Let a smaller model draft wherever ``generate`` gets a ``lookahead`` that names no other strategy.

        Raises InputError where it has another vocabulary.
        """
        check_vocabulary(self, draft, draft.engine)
        self.runtime.draft_engine = draft.engine
        self._draft, self._draft_memory = draft, None

    def generate(
        self,
        ids: abc.Sequence[int],
        params: SamplingParams,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        adaptive: bool | None = None,
        on_token: Callable[[int], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
        keep: bool = False,
        keep_drafts: bool = False,
        constrain: Constrain | None = None,
        force: Force | None = None,
        adapter: AppliedAdapter | None = None,
        images: abc.Sequence[PromptImage] = (),
    ) -> list[int]:
        """Answer a prompt.

        Args:
            ids: the prompt.
            params: how tokens are chosen.
            lookahead: how to draft, as for :func:`resolve_lookahead`. It never changes the answer.
            adaptive: False always drafts as much as allowed.
            on_token: called with each token as it comes.
            on_prefill: called before the prompt and after each of its chunks with the tokens done, and their number.
            cancelled: called between two chunks of the prompt and after each step; True ends the answer there.
            keep: use a prefix cache of one conversation: the tokens that this prompt shares with earlier texts are not
                read again (``stats.cached_tokens``). It never changes the answer: on an engine with rows that are not
                invariant there is no prefix cache.
            keep_drafts: store verified drafts in ``stats.drafts``.
            constrain: keeps the answer in a grammar, see ``conversation.grammar.Grammar.constrain``.
            force: chooses some tokens instead of the model, see ``decoding.sequence.Sequence``.
            adapter: a low-rank adapter of the model, from ``runtime.adapters.applied``; None: the base model.
            images: the images of the prompt, ascending, which has the model's placeholder id for each of their rows.

        Returns:
            The answer's ids. ``stats`` has the finish reason, the times and the seed.

        Raises:
            InputError: a rule outside what is allowed, an empty prompt, or an option of the model's own generation
                config that is not supported.
            ContextLengthError: a prompt that leaves no room for an answer.
        """
        options: dict[str, Any] = {"on_token": on_token, "on_prefill": on_prefill, "cancelled": cancelled}
        steps = self._stepwise(
            [ids],
            params,
            lookahead,
            adaptive,
            keep=keep,
            keep_drafts=keep_drafts,
            constrain=constrain,
            force=force,
            adapter=adapter,
            images=[images],
            **options,
        )
        (sequences,) = deque(steps, maxlen=1)  # there are at least the empty ones
        return sequences[0].new if sequences else []

    def generate_batch(
        self,
        prompts: abc.Sequence[abc.Sequence[int]],
        params: SamplingParams,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        on_token: Callable[[int], None] | None = None,
        adapter: AppliedAdapter | None = None,
        images: abc.Sequence[abc.Sequence[PromptImage]] = (),
    ) -> list[list[int]]:
        """Answer several prompts in the same forwards; number i in the sampling noise is prompt i.

        The arguments and errors are those of :meth:`generate`; ``images`` are those of each prompt, () = none.
        """
        steps = self._stepwise(
            prompts, params, lookahead, None, keep=False, on_token=on_token, adapter=adapter, images=images
        )
        (sequences,) = deque(steps, maxlen=1)
        return [sequence.new for sequence in sequences] if sequences else [[] for _ in prompts]

    def stream(
        self,
        ids: abc.Sequence[int],
        params: SamplingParams,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        adaptive: bool | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        keep: bool = False,
        adapter: AppliedAdapter | None = None,
        images: abc.Sequence[PromptImage] = (),
    ) -> Generator[int, None, None]:
        """Yield the tokens of an answer; the next ones are made when they are taken.

        Closing the iterator ends the answer. The arguments and errors are those of :meth:`generate`, the errors raised
        at once.
        """
        steps = self._stepwise(
            [ids], params, lookahead, adaptive, keep=keep, on_prefill=on_prefill, adapter=adapter, images=[images]
        )
        next(steps)
        return streamed(steps)

    def _stepwise(
        self,
        prompts: abc.Sequence[abc.Sequence[int]],
        params: SamplingParams,
        lookahead: int | str | LookaheadConfig | None,
        adaptive: bool | None,
        *,
        keep: bool,
        keep_drafts: bool = False,
        constrain: Constrain | None = None,
        force: Force | None = None,
        adapter: AppliedAdapter | None = None,
        images: abc.Sequence[abc.Sequence[PromptImage]] = (),
        on_token: Callable[[int], None] | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Generator[abc.Sequence[Sequence], None, None]:
        """Yield nothing once the arguments are checked, then the sequences after each forward."""
        stats = self.runtime.stats = GenerationStats(drafts=[] if keep_drafts else None)
        if not all(prompts):
            raise InputError("the prompt is empty; give at least one token")
        params = self.resolved(params)
        self.runtime.adapters.check(adapter)
        config, draft_engine = self.runtime.resolve(lookahead, adaptive=adaptive)
        sequences = []
        for number, ids in enumerate(prompts):
            limit, reason = length_limit(len(ids), self.engine.max_context, max_new_tokens=params.max_new_tokens)
            processor, draft_filter = (None, None) if constrain is None else constrain(len(ids))
            own = () if processor is None else (processor,)
            seen = images[number] if images else ()
            sequences.append(self.sequence(ids, params, limit, reason, own, number, images=seen))
            sequences[-1].draft_filter = draft_filter
            sequences[-1].force = force
            sequences[-1].adapter = adapter
            sequences[-1].on_token = on_token
        yield ()
        room = max((sequence.limit - len(sequence.prompt) for sequence in sequences), default=0)
        if room == 0:
            stats.sequences, stats.finish_reasons = len(sequences), [one.limit_reason for one in sequences]
            return
        if room == 1:
            config = None  # the only token follows the prompt, so there is nothing to draft
        memories: dict[str, PrefixCache | None] = {}
        if keep and self.engine.row_invariant:
            memories = self._memories()
            if state_bytes(self.engine):
                for sequence in sequences:
                    sequence.turns = self.turns_of(sequence.prompt)
        yield from self.runtime.stepwise(
            sequences,
            config,
            draft_engine,
            stats=stats,
            cancelled=cancelled,
            on_start=on_prefill,
            on_prefill=on_prefill,
            **memories,
        )

    def _conversation_memory(self, engine: Engine) -> PrefixCache:
        memory = conversation_memory(engine)
        if self.cache_files is not None:
            self.cache_files.attach(memory, engine)
        return memory

    def use_cache_folder(self, folder: str | PathLike[str] | None, size: int | None = None) -> None:
        """Store the prefixes of texts in a folder, where later processes find them; before a ``Service`` is made.

        The prefix cache of a conversation is written to its old folder and begins anew. Without an old folder it is
        written to the new one.

        Args:
            folder: created if it does not exist; None: the prefix cache is in memory alone.
            size: maximum size of its files in bytes; None: 20 GiB.

        Raises InputError for a folder that cannot be used, or an engine that cannot save KV caches.
        """
        files = None if folder is None else CacheFiles(folder, size)
        if files is not None:
            files.add(self.engine, self.source)
            if self._draft is not None:
                files.add(self._draft.engine, self._draft.source)
        self.close()
        if self.cache_files is not None:
            self._memory = self._draft_memory = None
        self.cache_files = files
        for memory, engine in ((self._memory, self.engine), (self._draft_memory, self.draft_engine)):
            if files is not None and memory is not None and engine is not None:
                files.attach(memory, engine)
                memory.flush()

    def close(self) -> None:
        """Write what the prefix cache of a conversation holds to its folder, if it has one."""
        write_all([self._memory, self._draft_memory])

    def forget(self) -> None:
        """Clear the stores of earlier answers that are in memory."""
        self.stores.forget()

    def _memories(self) -> dict[str, PrefixCache | None]:
        """Return the prefix caches of a conversation, for the model and its draft model."""
        draft = self.draft_engine
        if self._memory is None:
            self._memory = self._conversation_memory(self.engine)
        if self._draft_memory is None and draft is not None:
            self._draft_memory = self._conversation_memory(draft)
        return {"memory": self._memory, "draft_memory": self._draft_memory}

    def turns_of(self, ids: abc.Sequence[int] | npt.NDArray[np.int32]) -> list[int]:
        """Return the positions of the user's messages in a prompt of the chat template."""
        return turn_starts(np.asarray(ids, np.int32), self._turn_openings)

    @cached_property
    def _turn_openings(self) -> list[list[int]]:
        return turn_openings(self.tokenizer)

    def sequence(
        self,
        ids: abc.Sequence[int],
        params: SamplingParams,
        limit: int,
        reason: str,
        own: abc.Sequence[Processor] = (),
        number: int = 0,
        answered: int = 0,
        images: abc.Sequence[PromptImage] = (),
    ) -> Sequence:
        """Return the sequence of a prompt.

        Args:
            ids: the prompt.
            params: how tokens are chosen.
            limit: length at which it ends.
            reason: the finish reason there.
            own: processors after those of ``params``.
            number: number of the sequence in the sampling noise.
            answered: number of tokens at the end of ``ids`` that are the answer's first tokens.
            images: the images of the prompt, ascending; see :class:`~ipex_lookahead.engines.images.PromptImage`.

        Raises:
            InputError: images that do not fit the prompt, or for a model that takes none.
            InputError: the model's own generation config has an option that is not supported.
        """
        params = self.resolved(params)
        prompt = np.asarray(ids, np.int32)
        begin = len(prompt) - answered
        check_prompt(prompt, self.engine.vocab_size, self.tokenizer.get_vocab)
        rows = image_rows(self.engine, prompt, images) if images else None
        self.check_own_settings()
        warpers: abc.Sequence[Processor] = ()
        processors: abc.Sequence[Processor]
        if theirs := by_transformers(self._defaults, sampled=bool(params.temperature)):
            need_torch(f"{theirs[0]} in the model's generation config")
            from ipex_lookahead.hf.generation.own_settings import rules_of

            processors, warpers, warping = rules_of(
                self._defaults,
                params,
                prompt[:begin],
                limit=limit,
                eos_ids=self._eos,
                vocab_size=self.engine.vocab_size,
            )
        else:
            processors, warping = self._processors(params, begin), self._sampling(params)
        processors = [
            *processors,
            *count_penalties(params.presence_penalty or 0.0, params.frequency_penalty or 0.0, begin),
        ]
        ends = self._ends(params)
        if params.min_tokens and ends:
            processors.append(LeastLength(len(ids) + params.min_tokens, ends))
        seed = secrets.randbits(SEED_BITS) if params.seed is None else params.seed
        sequence = Sequence(
            prompt,
            limit,
            reason,
            ends,
            None if warping is None else Sampler(warping, seed, number),
            [*processors, *own, *warpers],
            [*processors, *warpers],
            stop=self._stop(params, len(ids), begin),
        )
        if rows is not None:
            sequence.attach_images(rows)
        return sequence

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """Return the end tokens of an answer. Raises InputError for an id outside the vocabulary."""
        size = self.engine.vocab_size
        for token in params.stop_token_ids:
            if not 0 <= token < size:
                raise InputError(argument="stop_token_ids", got=token, allowed=f"token ids from 0 to {size - 1}")
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        if params.min_tokens and len(ends) == size:
            raise InputError("min_tokens is impossible: every token of the vocabulary ends the answer")
        return ends

    def check_own_settings(self) -> None:
        """Raise InputError where the model's own generation config has an option that is not supported."""
        for name, refusal in REFUSED.items():
            if refused(name, value := self._defaults.get(name)):
                raise InputError(
                    f"the model's generation config: {name}={value!r} is not supported; {refusal.reason}",
                    hint="change or remove it in generation_config.json",
                )

    @property
    def own_stops(self) -> tuple[str, ...]:
        """Stop texts of the model's own generation config."""
        texts = self._defaults.get("stop_strings") or ()
        return (texts,) if isinstance(texts, str) else tuple(texts)

    def _stop(self, params: SamplingParams, prompt_length: int, begin: int) -> Stop | None:
        texts, seconds = (*params.stop, *self.own_stops), self._defaults.get("max_time")
        free = prompt_length + params.min_tokens if params.min_tokens else 0
        return any_of(
            StopTexts(self.tokenizer, texts, free) if texts else None,
            None if seconds is None else time_limit(seconds),
            stop_at_loops(begin) if params.stop_loops else None,
        )

    def _setting(self, name: str, given: Any, otherwise: Any) -> Any:
        """Return the given value, else the model's own, else ``otherwise``."""
        found = self._defaults.get(name) if given is None else given
        return otherwise if found is None else found

    def _sampling(self, params: SamplingParams) -> WarperParams | None:
        """Return the sampling of resolved parameters."""
        if not params.temperature:
            return None
        top_p = 1.0 if params.top_p is None else params.top_p
        return WarperParams(params.temperature, params.top_k or 0, top_p, params.min_p or 0.0)

    def _processors(self, params: SamplingParams, prompt_length: int) -> list[Processor]:
        """Return the processors in Hugging Face's order."""
        made: list[Processor] = []
        repetition = float(self._setting("repetition_penalty", params.repetition_penalty, 1.0))
        if repetition != 1.0:
            made.append(RepetitionPenalty(repetition))
        if size := self._setting("no_repeat_ngram_size", None, 0):
            made.append(NoRepeatedNGrams(size))
        new = self._defaults.get("min_new_tokens")
        least = prompt_length + new if new is not None else self._setting("min_length", None, 0)
        if least > prompt_length and self._eos:
            made.append(LeastLength(least, self._eos))
        suppressed = self._defaults.get("suppress_tokens", ())
        if tokens := [one for one in suppressed if one < self.engine.vocab_size]:
            made.append(LeastLength(NEVER, tokens))
        return made
