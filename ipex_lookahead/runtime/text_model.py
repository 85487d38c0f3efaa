"""A loaded model as the commands use it: token ids in, token ids out, without torch and transformers.

``LookaheadModelForCausalLM`` is the same for programs that are written for transformers. Both run
:func:`ipex_lookahead.runtime.run.run`, and the same settings give the same tokens.
"""

from __future__ import annotations

import secrets
import threading
from collections import abc, deque
from collections.abc import Callable, Generator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ipex_lookahead.checkpoints.generation_config import REFUSED, by_transformers, refused
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.controller.kept_costs import cost_folder
from ipex_lookahead.decoding.penalties import CountPenalties, LeastLength, NoRepeatedNGrams, RepetitionPenalty
from ipex_lookahead.decoding.prefix_cache import PAGE, PrefixCache, crop_to_shared, memory_for
from ipex_lookahead.decoding.sampling import Ids, Processor, Sampler, WarperParams
from ipex_lookahead.decoding.sequence import Sequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import SECOND_MODEL, make_proposer
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.api import Cache, Engine, state_bytes
from ipex_lookahead.engines.loading import LoadedModel
from ipex_lookahead.engines.low_bit_copy import low_bit_copy
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.checks import token_ids
from ipex_lookahead.runtime.lookahead import resolve_lookahead, second_model_lookahead
from ipex_lookahead.runtime.recommended import resolved, with_recommended
from ipex_lookahead.runtime.run import RunOptions, check_head, length_limit, run_stepwise, streamed
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.second_model import check_vocabulary
from ipex_lookahead.runtime.stop_texts import Stop, StopTexts, TimeLimit, any_of
from ipex_lookahead.system.extras import need_torch
from ipex_lookahead.tokenization.prompts import turn_openings, turn_starts
from ipex_lookahead.tokenization.text import TextTokenizer

SEED_BITS = 53
"""Of seeds that are drawn and reported: every JSON reader keeps these many."""


CHECKPOINTS = 4
"""Lengths of a conversation at which a draft model's states are kept, where it has some."""


class TextModel:
    """A loaded model.

    Args:
        loaded: as an engine's loader gives it.
        tokenizer: its tokenizer.
        note: called with what is being waited for.

    Attributes:
        engine, tokenizer: its parts.
        config: the model's config.
        stats: of the last answer, also of one that was interrupted.
        recommended_by: who recommends its sampling, for people; "" where nobody does.
        costs: what a forward of n rows costs on this engine.
        stores: the memories of earlier answers.
        draft_engine: the draft model's, or None.
    """

    def __init__(
        self, loaded: LoadedModel, tokenizer: TextTokenizer, note: Callable[[str], None] | None = None
    ) -> None:
        self.engine: Engine = loaded.engine
        self.tokenizer = tokenizer
        self.config: dict[str, Any] = loaded.checkpoint_config
        self.stats = GenerationStats()
        self._defaults, self.recommended_by = with_recommended(
            loaded.generation_config, self.config, tokenizer.chat_template
        )
        self._eos = frozenset(token_ids("eos_token_id", self._defaults.get("eos_token_id"), self.engine.vocab_size))
        self.costs = EngineCosts(self.engine, cost_folder(), note)
        self._turn = threading.Lock()
        self.stores = Stores(self.engine.vocab_size, tokenizer.get_vocab)
        self.draft_engine: Engine | None = None
        self._draft_memory: PrefixCache | None = None
        self._copy: Engine | None = None
        self._kept: tuple[Cache, Ids] | None = None  # of the last answer: a conversation's turns begin as it did
        self._led: tuple[Cache, Ids] | None = None  # up to the end of its system prompt, where layers have states

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._eos

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """The model's own generation config, by transformers' names, with the sampling recommended for it."""
        return self._defaults

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """The rules with what they leave to the model; see :func:`ipex_lookahead.runtime.recommended.resolved`."""
        return resolved(params, self._defaults)

    def use_draft_model(self, draft: TextModel) -> None:
        """Let a smaller model draft wherever ``generate`` gets a ``lookahead`` that names no other strategy.

        Raises InputError where it has another vocabulary.
        """
        check_vocabulary(self, draft, draft.engine)
        self.draft_engine = draft.engine
        self._draft_memory = memory_for(draft.engine, [draft.engine.max_context], CHECKPOINTS)  # one conversation

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
    ) -> list[int]:
        """Answer a prompt.

        Args:
            ids: the prompt.
            params: how tokens are chosen.
            lookahead: how to draft, as for :func:`resolve_lookahead`. It never changes the answer.
            adaptive: False always drafts as much as allowed.
            on_token: called with each token as it comes.
            on_prefill: called before the prompt and after each piece of it with how many of its tokens are done, and
                their number.
            cancelled: called between two pieces of the prompt and after each step; True ends the answer there.
            keep: keep the keys and values for the next call that keeps them, and do not read again what this prompt
                and the last one's text begin with (``stats.cached_tokens``). It never changes the answer: where it
                might, on an engine whose rows are not invariant, nothing is kept.

        Returns:
            The answer's ids. ``stats`` says why it ended, how fast it was, and with which seed.

        Raises:
            InputError: a rule outside what is allowed, an empty prompt, or an option of the model's own generation
                config that is not supported.
            ContextLengthError: a prompt that leaves no room for an answer.
        """
        options = RunOptions(cancelled=cancelled, on_prefill=on_prefill)
        steps = self._stepwise(ids, params, lookahead, adaptive, options, on_token=on_token, keep=keep)
        (sequences,) = deque(steps, maxlen=1)  # there are at least the empty ones
        return sequences[0].new if sequences else []

    def stream(
        self,
        ids: abc.Sequence[int],
        params: SamplingParams,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        adaptive: bool | None = None,
        on_prefill: Callable[[int, int], None] | None = None,
        keep: bool = False,
    ) -> Generator[int, None, None]:
        """The tokens of an answer as they come; the next ones are made when they are taken.

        Closing the iterator ends the answer. The arguments and errors are those of :meth:`generate`, the errors raised
        at once.
        """
        steps = self._stepwise(ids, params, lookahead, adaptive, RunOptions(on_prefill=on_prefill), keep=keep)
        next(steps)
        return streamed(steps)

    def _stepwise(
        self,
        ids: abc.Sequence[int],
        params: SamplingParams,
        lookahead: int | str | LookaheadConfig | None,
        adaptive: bool | None,
        options: RunOptions,
        *,
        on_token: Callable[[int], None] | None = None,
        keep: bool = False,
    ) -> Generator[abc.Sequence[Sequence], None, None]:
        """The answer so far: nothing, once the arguments are checked, then the sequence after each forward."""
        self.stats = stats = options.stats
        if not ids:
            raise InputError("the prompt is empty; give at least one token")
        params = self.resolved(params)
        options.config, options.draft_engine = self.drafting(lookahead, adaptive)
        limit, reason = length_limit(len(ids), self.engine.max_context, max_new_tokens=params.max_new_tokens)
        sequence = self.sequence(ids, params, limit, reason)
        sequence.on_token = on_token
        yield ()
        if limit == len(ids):
            stats.sequences, stats.finish_reasons = 1, [reason]
            return
        if limit - len(ids) == 1:
            options.config = None  # the one token comes with the prompt: there is nothing to draft
        self.costs.ready(options.config)
        keep = keep and self.engine.row_invariant
        sequence.cache, sequence.checkpoints = self._reused(sequence.prompt) if keep else self.engine.new_cache(), keep
        if keep and state_bytes(self.engine):
            self._cut(sequence)
        if options.on_prefill is not None:
            options.on_prefill(sequence.cache.length, len(ids))
        options.costs, options.stores, options.turn = self.costs, self.stores, self._turn
        options.draft_memory = self._draft_memory if keep else None
        yield from run_stepwise(self.engine, [sequence], options)
        if keep:
            self._kept = sequence.cache, sequence.prefix()[: sequence.cache.length].copy()

    def _reused(self, prompt: npt.NDArray[np.int32]) -> Cache:
        """A cache with what the prompt and the last text begin with.

        Nothing is left here, so whatever ends a generation half-way, the next one never starts from its keys.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            crop_to_shared(*kept, prompt)
        cache = self.engine.new_cache() if kept is None else kept[0]
        if self._led is not None:
            led, text = self._led
            if cache.length < len(text) < len(prompt) and (text == prompt[: len(text)]).all():
                return led.fork()
        return cache

    def _cut(self, sequence: Sequence) -> None:
        """Have the states be kept where the first and the last turn begin, for other turns from there on."""
        sequence.turns = self.turns_of(sequence.prompt)
        sequence.cuts = sorted(sequence.cuts_at_turns(PAGE))

        def on_cut(cache: Cache) -> None:
            if cache.length == sequence.turns[0]:
                self._led = cache.fork(), sequence.prefix()[: cache.length].copy()
            sequence.checkpoint()

        sequence.on_cut = on_cut

    def turns_of(self, ids: abc.Sequence[int] | npt.NDArray[np.int32]) -> list[int]:
        """Where the user's texts begin in a prompt that the chat template has made."""
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
    ) -> Sequence:
        """A prompt under its rules. ``own``: processors after those of the rules; ``number``: its own in the noise.

        Raises InputError where the model's own generation config asks for what is not supported.
        """
        params = self.resolved(params)
        prompt = np.asarray(ids, np.int32)
        self._check_ids(prompt)
        self.check_own_settings()
        warpers: list[Processor] = []
        if theirs := by_transformers(self._defaults, sampled=bool(params.temperature)):
            need_torch(f"{theirs[0]} in the model's generation config")
            from ipex_lookahead.hf.generation.own_settings import rules_of

            found = rules_of(
                self._defaults, params, prompt, limit=limit, eos_ids=self._eos, vocab_size=self.engine.vocab_size
            )
            processors, warpers, warping = found.processors, found.warpers, found.sampling
        else:
            processors, warping = self._processors(params, len(ids)), self._sampling(params)
        processors = [*processors, *_count_penalties(params, len(ids))]
        ends = self._ends(params)
        if params.min_tokens and ends:
            processors.append(LeastLength(len(ids) + params.min_tokens, ends))
        seed = secrets.randbits(SEED_BITS) if params.seed is None else params.seed
        return Sequence(
            prompt,
            limit,
            reason,
            ends,
            None if warping is None else Sampler(warping, seed, number),
            [*processors, *own, *warpers],
            [*processors, *warpers],
            stop=self._stop(params, len(ids)),
        )

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end an answer. Raises InputError for an id outside the vocabulary."""
        size = self.engine.vocab_size
        for token in params.stop_token_ids:
            if not 0 <= token < size:
                raise InputError(argument="stop_token_ids", got=token, allowed=f"token ids from 0 to {size - 1}")
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        if params.min_tokens and len(ends) == size:
            raise InputError("every token of the vocabulary ends the answer, so it cannot have min_tokens tokens")
        return ends

    def check_own_settings(self) -> None:
        """Raise InputError where the model's own generation config asks for what is not supported."""
        for name, refusal in REFUSED.items():
            if refused(name, value := self._defaults.get(name)):
                raise InputError(
                    f"the model's generation config: {name}={value!r} is not supported; {refusal.reason}",
                    hint="change it in generation_config.json, or take it out there",
                )

    @property
    def own_stops(self) -> tuple[str, ...]:
        """The texts that the model's own generation config stops at."""
        texts = self._defaults.get("stop_strings") or ()
        return (texts,) if isinstance(texts, str) else tuple(texts)

    def _stop(self, params: SamplingParams, prompt_length: int) -> Stop | None:
        texts, seconds = (*params.stop, *self.own_stops), self._defaults.get("max_time")
        free = prompt_length + params.min_tokens if params.min_tokens else 0
        return any_of(
            StopTexts(self.tokenizer, texts, free) if texts else None, None if seconds is None else TimeLimit(seconds)
        )

    def drafting(
        self, lookahead: int | str | LookaheadConfig | None, adaptive: bool | None
    ) -> tuple[LookaheadConfig | None, Engine | None]:
        """What ``lookahead`` means for this model, and the engine that drafts where a second one does.

        Raises InputError for a strategy that needs what this model has not, a head or a draft model.
        """
        named = isinstance(lookahead, LookaheadConfig) or (isinstance(lookahead, str) and lookahead != "auto")
        if self.draft_engine is not None and lookahead is not None and not named:
            lookahead = second_model_lookahead(lookahead, strategy="draft_model")
        config = resolve_lookahead(lookahead, None, adaptive)
        check_head(config, self.engine)
        if config is None or config.strategy != "self_speculation":
            if config is not None and config.strategy in SECOND_MODEL and self.draft_engine is None:
                make_proposer(config)  # which says what it needs
            return config, self.draft_engine
        if self._copy is None:
            self._copy = low_bit_copy(self.engine)
        return config, self._copy

    def _setting(self, name: str, given: Any, otherwise: Any) -> Any:
        """What was given, else the model's own, else ``otherwise``."""
        found = self._defaults.get(name) if given is None else given
        return otherwise if found is None else found

    def _sampling(self, params: SamplingParams) -> WarperParams | None:
        """Of rules that are resolved."""
        if not params.temperature:
            return None
        top_p = 1.0 if params.top_p is None else params.top_p
        return WarperParams(params.temperature, params.top_k or 0, top_p, params.min_p or 0.0)

    def _check_ids(self, prompt: npt.NDArray[np.int32]) -> None:
        """Raise InputError, which names the token, for one that the model has no embedding for."""
        rows = self.engine.vocab_size
        wrong = prompt[(prompt < 0) | (prompt >= rows)]
        if len(wrong):
            vocabulary = self.tokenizer.get_vocab().items()
            token = next((f"{token[:80]!r}, id {i}" for token, i in vocabulary if i == wrong[0]), f"id {wrong[0]}")
            raise InputError(
                f"the prompt holds a token that the model has no embedding for: {token}; ids go from 0 to {rows - 1}",
                hint="leave the token out of the prompt",
            )

    def _processors(self, params: SamplingParams, prompt_length: int) -> list[Processor]:
        """In Hugging Face's order."""
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
        return made


def _count_penalties(params: SamplingParams, prompt_length: int) -> list[Processor]:
    """The penalties that Hugging Face does not have."""
    presence, frequency = params.presence_penalty or 0.0, params.frequency_penalty or 0.0
    return [CountPenalties(presence, frequency, prompt_length)] if presence or frequency else []
