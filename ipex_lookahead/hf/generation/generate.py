"""``generate``: Hugging Face's arguments in, the loop, Hugging Face's results out.

transformers offers to run its own preparation and then our own loop (``custom_generate``). It builds processors for
the padded batch, evaluates criteria a step at a time and warns where nothing is wrong; so the preparation here is our
own, on public classes of transformers only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.sampling import Logits, Sampler, WarperParams
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting import PROPOSERS
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.engines.api import AppliedAdapter, image_rows
from ipex_lookahead.engines.images import row_keys
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation import processors as logits_processors
from ipex_lookahead.hf.generation import stopping
from ipex_lookahead.hf.generation.arguments import check_callers_objects, check_streamer, refuse_rest
from ipex_lookahead.hf.generation.batch import CallersBatch
from ipex_lookahead.hf.generation.images import See, images_of, taken
from ipex_lookahead.hf.generation.inputs import prompts_of
from ipex_lookahead.hf.generation.options import resolve
from ipex_lookahead.hf.generation.past import LookaheadCache, check_positions, past_of
from ipex_lookahead.hf.generation.processors import (
    Processor,
    build_processors,
    build_warpers,
    chained,
    constrain,
    sampling_params,
)
from ipex_lookahead.hf.generation.stopping import cancellation, row_criteria
from ipex_lookahead.runtime.checks import integer, token_ids
from ipex_lookahead.runtime.lookahead import lookup_of
from ipex_lookahead.runtime.run import length_limit, to_the_end
from ipex_lookahead.runtime.runtime import Runtime
from ipex_lookahead.runtime.stop_texts import Stop, StopTexts, any_of, time_limit
from ipex_lookahead.system.compat import CACHE, BothCacheNames


@dataclass
class LookaheadGenerateOutput(BothCacheNames, GenerateDecoderOnlyOutput):  # type: ignore[misc]
    """Hugging Face's output of ``return_dict_in_generate``, and the generation's :class:`GenerationStats`."""

    logits: tuple[torch.Tensor, ...] | None = None  # transformers has it from 4.39
    stats: GenerationStats | None = None


def generate_stepwise(
    runtime: Runtime,
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
    cancel: Any = None,
    on_prefill: Callable[[int, int], None] | None = None,
    second_model: Mapping[str, Any] | None = None,
    own_proposer: Callable[[LookaheadConfig], Proposer] | None = None,
    adapters: AppliedAdapter | Sequence[AppliedAdapter | None] | None = None,
    stats: GenerationStats | None = None,
    see: See | None = None,
    **kwargs: Any,
) -> Generator[Sequence[TokenSequence], None, torch.Tensor | LookaheadGenerateOutput]:
    """Generate token ids from one prompt or a batch.

    The caller's objects (``logits_processor``, ``stopping_criteria``, ``prefix_allowed_tokens_fn``, ``streamer``) get
    the arguments that transformers gives them: ids int64 [batch, n] in the caller's order with their padding, ended
    rows padded on the right, and scores float32 [batch, vocab_size]. They are called once per emitted position, in
    order, with and without drafts. With such objects, a batch of several sequences decodes without drafts, except
    for Hugging Face's own classes that work row by row. Processors and criteria from *settings* see each sequence
    without its padding, so a row of a batch has the tokens of a run with this row alone. As in transformers,
    ``max_length`` and ``min_length`` count columns including padding.

    Args:
        runtime: the engine, and the costs, stores and draft model that generations share.
        inputs: int64 [batch, length], or ``input_ids=``; also lists of ids. Rows may be padded on the left.
        generation_config: options; ``model_defaults`` has the values that it does not set.
        logits_processor: called with the ids so far and the scores, after the processors of the settings. The objects
            themselves are called, never copies.
        stopping_criteria: called with the ids so far after each position; True for a row ends it there. A criterion
            with the attribute ``during_prompt = True`` is also called with the prompt, between the 512-token chunks of
            a long prompt.
        prefix_allowed_tokens_fn: as in transformers: called with the prompt's number and the row's ids so far.
        streamer: gets the prompts, then the accepted tokens of each position, int64 [batch]; ``end()`` is always
            called, also after an error. transformers' own streamers take one sequence.
        model_defaults: the model's own generation configuration.
        lookahead: None, False or 0: off. 1 to 128: maximum number of tokens to draft per step, by prompt lookup.
            "auto": all draft sources. Also a strategy's name or a LookaheadConfig. transformers'
            ``prompt_lookup_num_tokens=N`` is the same as ``lookahead=N``.
        max_matching_ngram_size: ipex-llm's option: longest n-gram that prompt lookup matches.
        adaptive: True, the default, drafts only where measured costs predict a gain; False always drafts the maximum.
        seed: sampling seed, 0 to 2**64 - 1. None draws one from torch's global generator, so ``torch.manual_seed`` and
            ``transformers.set_seed`` make a run reproducible. ``stats.seed`` is the seed used.
        sequence_ids: for each sequence the number that selects its sampling noise, by default 0, 1, ...; the same seed
            with ``sequence_ids=[i]`` reproduces row i of a batch alone.
        tokenizer: needed for ``stop_strings``.
        cancel: a ``threading.Event``, or a function. When the event is set or the function returns True, the generation
            ends after the current step or prompt chunk, with the tokens so far and the finish reason "cancelled".
            ``max_time`` ends a long prompt in the same way.
        on_prefill: called after each prompt chunk with the number of processed prompt tokens and their total.
        second_model: arguments of :meth:`~ipex_lookahead.runtime.runtime.Runtime.resolve` for a draft model.
        own_proposer: function of the settings that returns the caller's proposer; called once per sequence.
        adapters: the low-rank adapter of all prompts, or of each; None: the base model.
        stats: the statistics object to fill; None creates one.
        see: returns the model's vision part; None: there is none.
        **kwargs: ``input_ids``, ``attention_mask``, ``pixel_values`` and the other outputs of an image processor
            (docs/transformers.md), and the options of ``transformers.GenerationConfig``;
            ``past_key_values`` (or ``cache``, its name since transformers 5.24) of an earlier output; its tokens at the
            start of the prompts are not processed again (the cache is changed in place and then contains this
            generation's tokens); ``position_ids``, if they equal those that the mask implies.

    Returns:
        int64 [batch, length]: the prompts, then the new tokens, shorter rows padded on the right with ``pad_token_id``
        (or an end token). With ``return_dict_in_generate``, an output that also has ``past_key_values``, ``stats``,
        and, if requested, ``scores`` and ``logits`` (zeros for ended rows). ``max_new_tokens=0`` returns the prompts
        unchanged.

    Raises:
        InputError: an invalid argument, or an unsupported option.
        ContextLengthError: a prompt leaves no room for a new token.
    """
    # As a generator it yields nothing once the arguments are checked, then the sequences after each forward. Closing it
    # abandons the generation.
    check_streamer(streamer)
    engine = runtime.engine
    try:
        check_callers_objects(logits_processor, stopping_criteria, prefix_allowed_tokens_fn)
        settings, left = resolve(model_defaults or GenerationConfig(), generation_config, kwargs)
        lookahead, longest = lookup_of(settings, kwargs, lookahead)
        config, second_engine = runtime.resolve(
            lookahead,
            max_matching_ngram_size=longest if max_matching_ngram_size is None else max_matching_ngram_size,
            adaptive=adaptive,
            **(second_model or {}),
        )
        eos_ids = token_ids("eos_token_id", settings.eos_token_id, engine.vocab_size)
        for name in ("forced_bos_token_id", "forced_eos_token_id"):  # what is forced must be there
            token_ids(name, getattr(settings, name), engine.vocab_size)
        given, seen = left.pop("input_ids", None), taken(left)
        if inputs is not None and given is not None:
            raise InputError("both inputs and input_ids are given; give one of them")
        if isinstance(inputs, Mapping):
            seen = {name: inputs.get(name) if value is None else value for name, value in seen.items()}
        ids, prompts = prompts_of(
            given if inputs is None else inputs,
            left.pop("attention_mask", None),
            vocab_size=engine.vocab_size,
            bos=settings.bos_token_id,
            pad=settings.pad_token_id,
            eos_ids=eos_ids,
        )
        padding = [ids.shape[1] - len(prompt) for prompt in prompts]
        real = torch.arange(ids.shape[1])[None] >= torch.tensor(padding)[:, None]
        check_positions(real, 0, left.pop("position_ids", None))
        given_past = left.pop("past_key_values", None), left.pop("cache", None)
        refuse_rest(left)
        applied = _adapters(adapters, len(prompts))
        pictures = images_of(see, engine, ids, prompts, seen)
        times = settings.num_return_sequences
        applied = [one for one in applied for _ in range(times)]
        ids, prompts = ids.repeat_interleave(times, 0), [p for p in prompts for _ in range(times)]
        pictures = [own for own in pictures for _ in range(times)]
        limits = [
            length_limit(
                len(p),
                engine.max_context,
                max_new_tokens=settings.max_new_tokens,
                max_length=settings.max_length,
                padding=ids.shape[1] - len(p),
            )
            for p in prompts
        ]
        past = past_of(engine, *given_past, len(prompts))
        stats = GenerationStats() if stats is None else stats
        stats.sequences = len(prompts)
        yield ()
        if streamer is not None:
            streamer.put(ids)
        if all(limit == len(p) for p, (limit, _) in zip(prompts, limits, strict=True)):
            stats.finish_reasons = ["length"] * len(prompts)
            return _result(settings, ids, [], eos_ids, stats, engine.vocab_size, past)

        keys = [row_keys(prompt, own) for prompt, own in zip(prompts, pictures, strict=True)]
        samplers = _samplers(settings, seed, sequence_ids, len(prompts))
        stops = [_stop_texts(settings, tokenizer) for _ in prompts]
        keeps = bool(settings.return_dict_in_generate)
        sequences = [
            TokenSequence(
                prompt,
                limit,
                reason,
                frozenset(eos_ids),
                sampler,
                stop=stop,
                cache=cache,
                adapter=adapter,
                scores=[] if keeps and settings.output_scores else None,
                raw=[] if keeps and settings.output_logits else None,
            )
            for prompt, (limit, reason), sampler, stop, cache, adapter in zip(
                prompts, limits, samplers, stops, past.take(keys, applied), applied, strict=True
            )
        ]
        for sequence, own in zip(sequences, pictures, strict=True):
            if own:
                sequence.attach_images(image_rows(engine, sequence.prompt, own))
        in_time = None if settings.max_time is None else time_limit(float(settings.max_time))
        read = stats.prompt_tokens + sum(map(len, prompts))
        in_prompt = [c for c in stopping_criteria or () if getattr(c, "during_prompt", False) is True]
        cancelled = cancellation(cancel, in_prompt, ids, lambda: stats.prompt_tokens < read, in_time)
        constrained = None if prefix_allowed_tokens_fn is None else constrain(prefix_allowed_tokens_fn, times)
        callbacks = _apply_rules(
            settings,
            ids,
            sequences,
            engine.vocab_size,
            own=logits_processor or (),
            constrained=constrained,
            in_time=in_time,
            own_criteria=stopping_criteria or (),
            streamer=streamer,
            pad=_pad(settings, eos_ids),
        )
        returned = bool(settings.return_dict_in_generate) and settings.use_cache is not False
        used_again = returned or given_past != (None, None)
        for sequence in sequences:
            sequence.checkpoints = used_again
        with runtime.prefixes(wanted=len(sequences) == 1 and not used_again and callbacks is None) as memory:
            yield from runtime.stepwise(
                sequences,
                config,
                second_engine,
                stats=stats,
                own=own_proposer,
                memory=memory,
                cancelled=cancelled,
                callbacks=callbacks,
                on_prefill=on_prefill,
            )
        return _result(settings, ids, sequences, eos_ids, stats, engine.vocab_size, past if used_again else None)
    finally:
        if streamer is not None:
            streamer.end()


generate = to_the_end("torch.Tensor | LookaheadGenerateOutput")(generate_stepwise)
"""As :func:`generate_stepwise`, from end to end."""


def _apply_rules(
    settings: GenerationConfig,
    ids: torch.Tensor,
    sequences: Sequence[TokenSequence],
    vocab_size: int,
    *,
    own: Sequence[Any],
    constrained: Processor | None,
    in_time: Stop | None,
    own_criteria: Sequence[Any],
    streamer: Any,
    pad: int,
) -> CallersBatch | None:
    """Give the sequences their processors and stop criteria; return the callbacks that see all sequences, or None.

    Args:
        settings: the generation options.
        ids: the prompts as given, int64 [batch, n].
        sequences: changed.
        vocab_size: the model's.
        own: the caller's processors.
        constrained: calls the caller's ``prefix_allowed_tokens_fn``, or None.
        in_time: ``max_time`` of the settings, or None.
        own_criteria: the caller's stop criteria.
        streamer: the caller's, or None.
        pad: the padding token.
    """
    whole_batch = len(sequences) > 1 and not (
        streamer is None
        and constrained is None
        and all(map(logits_processors.by_row, own))
        and all(map(stopping.by_row, own_criteria))
    )
    lists, padded = [], [*own, constrained]
    for row, sequence in zip(ids, sequences, strict=True):
        padding = row[: len(row) - len(sequence.prompt)].numpy()
        processors, warpers = _processors_of(settings, sequence, vocab_size, len(padding), own, constrained)
        lists.append(processors)
        sequence.draft_processors = chained(_processors_of(settings, sequence, vocab_size, len(padding))[0])
        sequence.warpers = chained(warpers)
        sequence.stop = any_of(sequence.stop, in_time)
        if whole_batch:
            continue
        sequence.processors = chained(processors, padding, padded)
        if own_criteria:
            sequence.stop = any_of(sequence.stop, row_criteria(own_criteria, padding, sequence.scores))
        if streamer is not None:
            sequence.on_token = lambda token: streamer.put(torch.tensor([token]))
    if not whole_batch:
        return None
    keep_scores = bool(settings.return_dict_in_generate and settings.output_scores)
    return CallersBatch(
        ids, sequences, lists, padded, own_criteria, streamer, pad=pad, vocab_size=vocab_size, keep_scores=keep_scores
    )


def _stop_texts(settings: GenerationConfig, tokenizer: Any) -> Stop | None:
    """Return the stop texts of one sequence. Raises InputError where they need a tokenizer and there is none."""
    if settings.stop_strings is None:
        return None
    if tokenizer is None:
        raise InputError("stop_strings needs the model's tokenizer; pass tokenizer=")
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    return StopTexts(SimpleNamespace(decode=decode), settings.stop_strings)


def _processors_of(
    settings: GenerationConfig,
    sequence: TokenSequence,
    vocab_size: int,
    padding: int,
    own: Sequence[Any] = (),
    constrained: Processor | None = None,
) -> tuple[list[Processor], list[Processor]]:
    """Return the processors before our own sampler, and the warpers that the sampler replaces."""
    try:
        processors = build_processors(
            settings,
            prompt=sequence.prompt,
            padding=padding,
            limit=sequence.limit,
            eos_ids=sorted(sequence.eos_ids),
            own=own,
            constrained=constrained,
        )
        warpers = build_warpers(settings, vocab_size)
    except (ValueError, TypeError) as error:
        raise InputError(f"a generation option is not usable: {error}") from error
    return (processors, warpers) if sampling_params(settings) is not None else ([*processors, *warpers], [])


def _samplers(
    settings: GenerationConfig, seed: int | None, sequence_ids: Sequence[int] | None, rows: int
) -> list[Sampler] | list[None]:
    numbers = list(range(rows)) if sequence_ids is None else list(sequence_ids)
    if len(numbers) != rows:
        raise InputError(f"sequence_ids has {len(numbers)} numbers for {rows} sequences; give one a sequence")
    numbers = [integer("sequence_ids", n, 0, 2**32 - 1) for n in numbers]
    if seed is not None:
        seed = integer("seed", seed, 0, 2**64 - 1)
    if not settings.do_sample:
        return [None] * rows
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_())
    params = sampling_params(settings) or WarperParams()
    return [Sampler(params, seed, number) for number in numbers]


def _adapters(
    adapters: AppliedAdapter | Sequence[AppliedAdapter | None] | None, rows: int
) -> Sequence[AppliedAdapter | None]:
    """Return the adapter of each prompt."""
    if adapters is None or isinstance(adapters, AppliedAdapter):
        return [adapters] * rows
    if len(adapters) != rows:
        raise InputError(f"adapter has {len(adapters)} names for {rows} prompts; give one name, or one for each prompt")
    return adapters


def _pad(settings: GenerationConfig, eos_ids: Sequence[int]) -> int:
    """Return the padding token after a row that has ended."""
    return int(settings.pad_token_id if settings.pad_token_id is not None else (eos_ids[0] if eos_ids else 0))


def _result(
    settings: GenerationConfig,
    ids: torch.Tensor,
    sequences: Sequence[TokenSequence],
    eos_ids: Sequence[int],
    stats: GenerationStats,
    vocab_size: int,
    past: LookaheadCache | None,
) -> torch.Tensor | LookaheadGenerateOutput:
    new = max((s.length - len(s.prompt) for s in sequences), default=0)
    rows = torch.full((len(ids), ids.shape[1] + new), _pad(settings, eos_ids), dtype=torch.int64)
    rows[:, : ids.shape[1]] = ids
    for row, sequence in zip(rows, sequences, strict=bool(sequences)):
        found = sequence.ids[len(sequence.prompt) : sequence.length]
        row[ids.shape[1] : ids.shape[1] + len(found)] = torch.from_numpy(found)
    if sequences and past is not None:
        padding = [ids.shape[1] - len(s.prompt) for s in sequences]
        adapted, images = [s.adapter for s in sequences], [s.images for s in sequences]
        past.hold([s.cache for s in sequences], rows, padding, adapted, images)
    if not settings.return_dict_in_generate:
        return rows
    return LookaheadGenerateOutput(
        sequences=rows,
        scores=_columns([sequence.scores for sequence in sequences], new, vocab_size),
        logits=_columns([sequence.raw for sequence in sequences], new, vocab_size),
        stats=stats,
        **{CACHE: None if settings.use_cache is False else past},
    )


def _columns(kept: Sequence[list[Logits] | None], steps: int, vocab_size: int) -> tuple[torch.Tensor, ...] | None:
    """Return one float32 [batch, vocab_size] for each step, from the rows of each sequence."""
    if not any(kept):
        return None
    zeros = np.zeros(vocab_size, np.float32)
    return tuple(
        torch.from_numpy(np.stack([rows[i] if rows and i < len(rows) else zeros for rows in kept]))
        for i in range(steps)
    )


__all__ = ["PROPOSERS", "LookaheadGenerateOutput", "generate"]
