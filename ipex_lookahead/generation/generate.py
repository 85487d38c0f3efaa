"""``generate``: Hugging Face's arguments in, the loop, Hugging Face's results out.

transformers offers to run its own preparation and then a loop of ours (``custom_generate``). It builds processors for
the padded batch, evaluates criteria a step at a time and warns where nothing is wrong; so the preparation here is our
own, on public classes of transformers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.stopping_criteria import MaxTimeCriteria

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.controller import AdaptiveBudget, Controller, FixedBudget
from ipex_lookahead.decoding.cost import CostCurve, EngineCosts
from ipex_lookahead.decoding.loop import DecodingSequence, decode
from ipex_lookahead.decoding.processors import (
    Choose,
    Processor,
    build_processors,
    build_warpers,
    copies_for,
    sampling_params,
)
from ipex_lookahead.decoding.sampling import Sampler, SamplingParams
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import PROPOSERS, SECOND_MODEL, Proposer, make_proposer, make_second_model_proposer
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.base import Engine
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.generation.inputs import prompts_of
from ipex_lookahead.generation.options import DEFAULT_NEW_TOKENS, resolve, resolve_lookahead, token_ids, whole
from ipex_lookahead.generation.second_model import SharedChoice
from ipex_lookahead.generation.stopping import StopStrings

MakeProposer = Callable[..., Proposer]
"""From the LookaheadConfig and, where that names a store, the store's ``suffixes``."""


@dataclass
class LookaheadGenerateOutput(GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """Hugging Face's output of ``return_dict_in_generate``, and the generation's :class:`GenerationStats`."""

    logits: tuple[torch.Tensor, ...] | None = None  # transformers has it from 4.39
    stats: GenerationStats | None = None


class _Tape:
    """The tokens of one sequence, told one by one: kept, streamed, and shown to the stop criteria."""

    def __init__(self, prompt: npt.NDArray[np.int32], limit: int, eos: frozenset[int]) -> None:
        self.ids = torch.empty((1, limit), dtype=torch.int64)
        self._tokens = self.ids[0].numpy()
        self._tokens[: len(prompt)] = prompt
        self.start = self.length = len(prompt)
        self._eos = eos
        self.streamer: Any = None
        self.criteria: Sequence[Any] = ()
        self.choose: Choose | None = None

    def prefix(self) -> torch.Tensor:
        """The committed tokens, int64 [1, length]: a view, which later tokens do not change."""
        return self.ids[:, : self.length]

    def accept(self, token: int) -> bool:
        """Commit a token; True where the sequence ends with it."""
        self._tokens[self.length] = token
        self.length += 1
        if self.streamer is not None:
            self.streamer.put(torch.tensor([token]))
        ended = token in self._eos
        if self.criteria:
            prefix = self.prefix()
            scores = tuple(s[None] for s in self.choose.scores) if self.choose and self.choose.scores else None
            for criterion in self.criteria:
                ended = bool(torch.as_tensor(criterion(prefix, scores)).all()) or ended
        return ended


def generate(
    engine: Engine,
    inputs: Any = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
    streamer: Any = None,
    *,
    model_defaults: GenerationConfig | None = None,
    lookahead: int | str | LookaheadConfig | None = None,
    max_matching_ngram_size: int | None = None,
    adaptive: bool | None = None,
    seed: int | None = None,
    sequence_ids: Sequence[int] | None = None,
    tokenizer: Any = None,
    stats: GenerationStats | None = None,
    make: MakeProposer = make_proposer,
    costs: EngineCosts | None = None,
    draft_engine: Engine | None = None,
    stores: Stores | None = None,
    **kwargs: Any,
) -> torch.Tensor | LookaheadGenerateOutput:
    """Generate from prompts, one or several.

    Args:
        engine: where the model runs.
        inputs: int64 [batch, length], or ``input_ids=``; also lists of ids. Rows may be padded on the left.
        generation_config: options; those it does not set come from ``model_defaults``.
        logits_processor: called once for each emitted position in order, with the sequence so far, unpadded: int64
            [1, n]. In a batch every sequence but the first gets deep copies, so that state is not shared.
        stopping_criteria: called once for each emitted token in order, as above; shared by the sequences of a batch.
        prefix_allowed_tokens_fn: as in transformers; gets the row's number and its tokens so far, unpadded.
        streamer: gets the prompt, then token by token as accepted; ``end()`` is called whatever happens. One sequence
            only.
        model_defaults: the model's own generation configuration.
        lookahead: None, False or 0: off. 1 to 128: at most that many draft tokens a step, by prompt lookup. "auto": the
            best strategy. A LookaheadConfig.
        max_matching_ngram_size: ipex-llm's option: longest n-gram that prompt lookup matches.
        adaptive: False always drafts as many tokens as allowed; True, the default, only what pays.
        seed: 0 to 2**64 - 1, for sampling; None draws one from torch's global generator, so ``torch.manual_seed`` and
            ``transformers.set_seed`` make a run repeatable.
        sequence_ids: for each sequence its number in the noise, by default 0, 1, ...; row i of a batch is reproduced
            alone with the same seed and ``sequence_ids=[i]``.
        tokenizer: needed for ``stop_strings``.
        stats: filled where given.
        make: makes the proposer of a sequence from the LookaheadConfig.
        costs: what forwards cost on this engine; None learns it from this generation alone.
        draft_engine: the second model, for the strategies ``draft_model`` and ``self_speculation``.
        stores: keeps the store of ``LookaheadConfig.store`` open between generations; None opens it for this one.
        **kwargs: ``input_ids``, ``attention_mask`` and the options of ``transformers.GenerationConfig``.

    Returns:
        int64 [batch, length]: prompts as given, then the new tokens, shorter rows padded on the right with
        ``pad_token_id`` (an end token where there is none); with ``return_dict_in_generate`` an output that also has
        ``scores`` and ``logits`` where asked for (zeros for rows that have ended) and ``stats``. ``max_new_tokens=0``
        returns the prompts unchanged.

    Raises:
        InputError: an argument is outside what is allowed, or an option is not supported.
        ContextLengthError: a prompt leaves no room for a new token.
    """
    try:
        settings, left = resolve(model_defaults or GenerationConfig(), generation_config, kwargs)
        config = resolve_lookahead(lookahead, max_matching_ngram_size, adaptive)
        eos_ids = token_ids("eos_token_id", settings.eos_token_id, engine.vocab_size)
        given = left.pop("input_ids", None)
        if inputs is not None and given is not None:
            raise InputError("both inputs and input_ids are given; give one of them")
        ids, prompts = prompts_of(
            given if inputs is None else inputs,
            left.pop("attention_mask", None),
            vocab_size=engine.vocab_size,
            bos=settings.bos_token_id,
            pad=settings.pad_token_id,
            eos_ids=eos_ids,
        )
        _refuse_rest(left)
        times = settings.num_return_sequences
        ids, prompts = ids.repeat_interleave(times, 0), [p for p in prompts for _ in range(times)]
        if streamer is not None and len(prompts) > 1:
            raise InputError(
                f"a streamer takes one sequence, got {len(prompts)}; generate them one call each, or leave it out"
            )
        limits = [_limit(settings, len(p), engine.max_context) for p in prompts]
        stats = GenerationStats() if stats is None else stats
        stats.sequences = len(prompts)
        if streamer is not None:
            streamer.put(ids)
        if all(limit == len(p) for p, (limit, _) in zip(prompts, limits, strict=True)):
            stats.finish_reasons = ["length"] * len(prompts)
            return _result(settings, ids, [], eos_ids, stats, engine.vocab_size)

        tapes = [_Tape(p, limit, frozenset(eos_ids)) for p, (limit, _) in zip(prompts, limits, strict=True)]
        criteria = _criteria(settings, stopping_criteria, tokenizer)
        stores = Stores(engine.vocab_size) if stores is None else stores
        remembering = None if config is None else config.remembering
        store = None if remembering is None else stores.get(remembering)
        samplers = _samplers(settings, seed, sequence_ids, len(prompts))
        sequences = []
        for row, (prompt, (limit, reason), tape) in enumerate(zip(prompts, limits, tapes, strict=True)):
            tape.streamer, tape.criteria = streamer, criteria
            own = copies_for(logits_processor or (), row)
            tape.choose = _choose(
                settings, tape, limit, eos_ids, own, prefix_allowed_tokens_fn, row // times, samplers[row], engine
            )
            cache = engine.new_cache()
            proposer: Proposer | None = None
            if config is not None and draft_engine is not None and config.strategy in SECOND_MODEL:
                shared = _shared_choice(settings, len(prompt), limit, eos_ids, samplers[row], engine)
                proposer = make_second_model_proposer(config, draft_engine, cache, shared, eos_ids)
            elif config is not None:
                proposer = make(config) if store is None else make(config, store.suffixes)
            sequences.append(DecodingSequence(row, prompt, limit, cache, proposer, tape.choose, tape.accept, reason))
        if config is not None:
            stats.strategy = config.strategy
        decode(engine, sequences, _controller(config, [s.proposer for s in sequences], costs, engine), stats)
        if remembering is not None:
            stores.add(remembering, [tape.ids[0, tape.start : tape.length].tolist() for tape in tapes])
        return _result(settings, ids, tapes, eos_ids, stats, engine.vocab_size)
    finally:
        if streamer is not None:
            streamer.end()


def _controller(
    config: LookaheadConfig | None, proposers: Sequence[Proposer | None], costs: EngineCosts | None, engine: Engine
) -> Controller:
    if config is None or not config.adaptive:
        return FixedBudget(config.num_draft_tokens if config is not None else 0)
    curve = CostCurve() if costs is None else costs.curve()
    return AdaptiveBudget(curve, config.num_draft_tokens, config.strategy, proposers, widen=engine.supports_tree)


def _limit(settings: GenerationConfig, prompt_length: int, max_context: int) -> tuple[int, str]:
    """The length at which a sequence ends, and why it ends there. Lengths count the prompt without its padding."""
    if settings.max_new_tokens is not None:
        limit = prompt_length + settings.max_new_tokens
    elif settings.max_length is not None:
        limit = settings.max_length
        if limit <= prompt_length:
            raise InputError(
                f"max_length is {limit} and the prompt alone has {prompt_length} tokens; raise max_length, or use"
                " max_new_tokens, which does not count the prompt"
            )
    else:
        limit = prompt_length + DEFAULT_NEW_TOKENS
    if prompt_length > max_context or (prompt_length == max_context and limit > prompt_length):
        raise ContextLengthError(
            f"the prompt has {prompt_length} tokens and the model holds {max_context}, new tokens included;"
            f" shorten the prompt to at most {max_context - 1} tokens"
        )
    return (limit, "length") if limit <= max_context else (max_context, "context")


def _criteria(settings: GenerationConfig, own: Sequence[Any] | None, tokenizer: Any) -> list[Any]:
    made: list[Any] = []
    if settings.max_time is not None:
        made.append(MaxTimeCriteria(max_time=float(settings.max_time)))
    if settings.stop_strings is not None:
        if tokenizer is None:
            raise InputError("stop_strings needs the model's tokenizer; pass tokenizer=")
        try:
            made.append(StopStrings(tokenizer, settings.stop_strings))
        except ValueError as error:
            raise InputError(f"stop_strings {settings.stop_strings!r} cannot be matched: {error}") from error
    return [*made, *(own or ())]


def _samplers(
    settings: GenerationConfig, seed: int | None, sequence_ids: Sequence[int] | None, rows: int
) -> list[Sampler] | list[None]:
    numbers = list(range(rows)) if sequence_ids is None else list(sequence_ids)
    if len(numbers) != rows:
        raise InputError(f"sequence_ids has {len(numbers)} numbers for {rows} sequences; give one a sequence")
    numbers = [whole("sequence_ids", n, 0, 2**32 - 1) for n in numbers]
    if seed is not None:
        seed = whole("seed", seed, 0, 2**64 - 1)
    if not settings.do_sample:
        return [None] * rows
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_())
    params = sampling_params(settings) or SamplingParams()
    return [Sampler(params, seed, number) for number in numbers]


def _choose(
    settings: GenerationConfig,
    tape: _Tape,
    limit: int,
    eos_ids: Sequence[int],
    own: Sequence[Any],
    allowed: Callable[[int, torch.Tensor], list[int]] | None,
    row: int,
    sampler: Sampler | None,
    engine: Engine,
) -> Choose | None:
    """How this sequence's tokens are chosen; None where the engine's argmax is all there is to it."""
    processors, warpers = _processors(settings, tape.start, limit, eos_ids, engine, own, allowed, row)
    keep_scores = bool(settings.return_dict_in_generate and settings.output_scores)
    keep_raw = bool(settings.return_dict_in_generate and settings.output_logits)
    if not (processors or sampler or keep_scores or keep_raw):
        return None
    return Choose(tape.prefix, processors, sampler, warpers, keep_scores=keep_scores, keep_raw=keep_raw)


def _shared_choice(
    settings: GenerationConfig,
    prompt_length: int,
    limit: int,
    eos_ids: Sequence[int],
    sampler: Sampler | None,
    engine: Engine,
) -> SharedChoice | None:
    """How a draft model chooses: as the target does, without the caller's own processors, which may keep state."""
    processors, _ = _processors(settings, prompt_length, limit, eos_ids, engine)
    return SharedChoice(processors, sampler) if processors or sampler else None


def _processors(
    settings: GenerationConfig,
    prompt_length: int,
    limit: int,
    eos_ids: Sequence[int],
    engine: Engine,
    own: Sequence[Any] = (),
    allowed: Callable[[int, torch.Tensor], list[int]] | None = None,
    row: int = 0,
) -> tuple[list[Processor], list[Processor]]:
    """What comes before our own sampler, and the warpers that it stands for."""
    try:
        processors = build_processors(
            settings,
            prompt_length=prompt_length,
            limit=limit,
            eos_ids=eos_ids,
            own=own,
            allowed_tokens=allowed,
            row=row,
        )
        warpers = build_warpers(settings, engine.vocab_size)
    except (ValueError, TypeError) as error:
        raise InputError(f"a generation option is not usable: {error}") from error
    return (processors, warpers) if sampling_params(settings) is not None else ([*processors, *warpers], [])


def _result(
    settings: GenerationConfig,
    ids: torch.Tensor,
    tapes: Sequence[_Tape],
    eos_ids: Sequence[int],
    stats: GenerationStats,
    vocab_size: int,
) -> torch.Tensor | LookaheadGenerateOutput:
    new = max((t.length - t.start for t in tapes), default=0)
    pad = settings.pad_token_id if settings.pad_token_id is not None else (eos_ids[0] if eos_ids else 0)
    rows = torch.full((len(ids), ids.shape[1] + new), int(pad), dtype=torch.int64)
    rows[:, : ids.shape[1]] = ids
    for row, tape in zip(rows, tapes, strict=bool(tapes)):
        row[ids.shape[1] : ids.shape[1] + tape.length - tape.start] = tape.ids[0, tape.start : tape.length]
    if not settings.return_dict_in_generate:
        return rows
    return LookaheadGenerateOutput(
        sequences=rows,
        scores=_columns([t.choose.scores if t.choose else None for t in tapes], new, vocab_size),
        logits=_columns([t.choose.raw if t.choose else None for t in tapes], new, vocab_size),
        stats=stats,
    )


def _columns(kept: Sequence[list[torch.Tensor] | None], steps: int, vocab_size: int) -> tuple[torch.Tensor, ...] | None:
    """Rows of each sequence -> one float32 [batch, vocab_size] for each step."""
    if not any(kept):
        return None
    zeros = torch.zeros(vocab_size)
    return tuple(torch.stack([rows[i] if rows and i < len(rows) else zeros for rows in kept]) for i in range(steps))


def _refuse_rest(left: dict[str, Any]) -> None:
    """Arguments of ``transformers.generate`` that mean nothing here raise, unless they ask for nothing."""
    instead = {
        "assistant_model": "pass it to the model's own generate, as draft_model=",
        "draft_model": "pass draft_engine=, or use the model's own generate",
        "custom_generate": "leave it out: this model has its own decoding loop",
        "inputs_embeds": "pass input_ids",
        "past_key_values": "leave it out: each generation has its own cache",
        "position_ids": "leave it out: positions follow from the attention mask",
        "negative_prompt_ids": "classifier-free guidance is not supported: leave it out",
        "negative_prompt_attention_mask": "classifier-free guidance is not supported: leave it out",
        "token_type_ids": "leave it out: Llama models have no token types",
    }
    for name, value in left.items():
        if value is None or value is False:
            continue
        if name in instead:
            raise InputError(f"{name} is not supported; {instead[name]}")
        raise InputError(f"generate has no argument {name!r}; check its spelling")


__all__ = ["PROPOSERS", "LookaheadGenerateOutput", "generate"]
