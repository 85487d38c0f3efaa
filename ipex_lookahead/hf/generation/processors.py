"""Logits processors of the settings and of the caller, and how each kind is called.

Processors that :mod:`ipex_lookahead.decoding.penalties` has are taken from there; the others are Hugging Face's. The
lists are built for the prompt without its padding, so a sequence of a batch sees exactly what it sees alone. The
caller's own processors see what transformers shows them: the padding as given, and (:mod:`.batch`) the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as hf

from ipex_lookahead.decoding import penalties
from ipex_lookahead.decoding import sampling as decoding
from ipex_lookahead.decoding.sampling import Ids, Logits, WarperParams
from ipex_lookahead.errors import InputError
from ipex_lookahead.system.compat import MinPLogitsWarper, TopHLogitsWarper

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | penalties.Penalty
"""(input_ids int64 [rows, n], scores float32 [rows, vocab_size]) -> scores of the same shape; or one on numpy arrays of
one row."""

_BY_ROW = (
    "EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty ForcedBOSTokenLogitsProcessor"
    " ForcedEOSTokenLogitsProcessor InfNanRemoveLogitsProcessor LogitNormalization MinLengthLogitsProcessor"
    " MinNewTokensLengthLogitsProcessor MinPLogitsWarper NoBadWordsLogitsProcessor NoRepeatNGramLogitsProcessor"
    " RepetitionPenaltyLogitsProcessor SequenceBiasLogitsProcessor SuppressTokensAtBeginLogitsProcessor"
    " SuppressTokensLogitsProcessor TemperatureLogitsWarper TopHLogitsWarper TopKLogitsWarper TopPLogitsWarper"
    " TypicalLogitsWarper"
).split()
"""Hugging Face's processors without state that compute each row independently of the others."""

_SAME = {
    "RepetitionPenaltyLogitsProcessor": (penalties.RepetitionPenalty,),
    "NoRepeatNGramLogitsProcessor": (penalties.NoRepeatedNGrams,),
    "MinLengthLogitsProcessor": (penalties.LeastLength,),
    "MinNewTokensLengthLogitsProcessor": (penalties.LeastLength,),
}
"""Hugging Face's class -> ours of the same meaning, which a processor of the caller's replaces in the same way."""


def by_row(processor: Any) -> bool:
    """Whether a caller's processor need not see a batch whole: one of Hugging Face's own that works row by row."""
    return any(type(processor) is getattr(hf, name, None) for name in _BY_ROW)


def with_padding(padding: Ids | None, prefix: Ids) -> torch.Tensor:
    """Return a sequence as the caller's batch has it, int64 [1, padding + n]."""
    if padding is None or not len(padding):
        return torch.from_numpy(prefix)[None]
    return torch.from_numpy(np.concatenate([padding, prefix]))[None]


def as_logits(scores: torch.Tensor) -> Logits:
    """Return scores from any device and dtype as float32 in numpy."""
    processed: Logits = scores.detach().to("cpu", torch.float32).numpy()
    return processed


def chained(
    processors: Sequence[Processor], padding: Ids | None = None, padded: Collection[Any] = ()
) -> Sequence[decoding.Processor]:
    """Return processors as a sequence takes them, on numpy arrays.

    Args:
        processors: called in order.
        padding: int64 [k], the columns on the left of the prompt in the caller's batch.
        padded: those of the processors that see the padding.
    """
    ours = [processor for processor in processors if isinstance(processor, penalties.PENALTIES)]
    if len(ours) == len(processors):
        return ours
    seen = {id(processor) for processor in padded}

    def chain(prefix: Ids, logits: Logits) -> Logits:
        ids, shown = torch.from_numpy(prefix)[None], with_padding(padding, prefix)
        scores = torch.from_numpy(logits)[None]
        for processor in processors:
            scores = call(processor, shown if id(processor) in seen else ids, scores)
        return as_logits(scores[0])

    return [chain]


def call(processor: Processor, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Call a processor on int64 [rows, n] and float32 [rows, vocab_size]; one on numpy arrays has one row.

    Raises InputError where it returns anything but a tensor of the shape of ``scores``.
    """
    if isinstance(processor, penalties.PENALTIES):
        return torch.from_numpy(processor(ids[0].numpy(), as_logits(scores[0])))[None]
    with _one_thread() if _is_small(processor) else nullcontext():
        found = processor(ids, scores)
    if not isinstance(found, torch.Tensor) or found.shape != scores.shape:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise InputError(
            f"logits_processor {type(processor).__name__} returned {got}; it must return a tensor {tuple(scores.shape)}"
        )
    return found


def constrain(allowed: Callable[[int, torch.Tensor], list[int]], times: int) -> Processor:
    """Only the tokens that a ``prefix_allowed_tokens_fn`` allows; it gets a prompt's number, of ``times`` rows."""
    made: Processor = hf.PrefixConstrainedLogitsProcessor(allowed, times)
    return made


def build_processors(
    settings: GenerationConfig,
    *,
    prompt: npt.NDArray[np.int32],
    padding: int,
    limit: int,
    eos_ids: Sequence[int],
    own: Sequence[Processor],
    constrained: Processor | None = None,
) -> list[Processor]:
    """Return the processors that come before temperature, in Hugging Face's order, the caller's last.

    A processor of the caller replaces the one of the same class in the settings.

    Args:
        settings: the generation options.
        prompt: int32 [n], without the padding; also the encoder's input of the options that name one, as in
            transformers.
        padding: number of columns before the prompt, which ``min_length`` counts.
        limit: length at which the sequence ends.
        eos_ids: tokens that end it.
        own: the caller's processors.
        constrained: calls the caller's ``prefix_allowed_tokens_fn`` (:func:`constrain`).
    """
    eos = list(eos_ids) or None
    prompt_length, seen = len(prompt), torch.from_numpy(prompt.astype(np.int64))[None]
    made: list[Processor] = []
    if settings.sequence_bias is not None:
        made.append(hf.SequenceBiasLogitsProcessor(settings.sequence_bias))
    if settings.encoder_repetition_penalty not in (None, 1.0):
        made.append(hf.EncoderRepetitionPenaltyLogitsProcessor(float(settings.encoder_repetition_penalty), seen))
    if settings.repetition_penalty not in (None, 1.0):
        made.append(penalties.RepetitionPenalty(float(settings.repetition_penalty)))
    if settings.no_repeat_ngram_size:
        made.append(penalties.NoRepeatedNGrams(settings.no_repeat_ngram_size))
    if settings.encoder_no_repeat_ngram_size:
        made.append(hf.EncoderNoRepeatNGramLogitsProcessor(settings.encoder_no_repeat_ngram_size, seen))
    if settings.bad_words_ids is not None:
        made.append(hf.NoBadWordsLogitsProcessor(settings.bad_words_ids, eos))
    if (settings.min_length or 0) > padding and eos is not None and settings.min_new_tokens is None:
        made.append(penalties.LeastLength(settings.min_length - padding, eos))
    if settings.min_new_tokens and eos is not None:
        made.append(penalties.LeastLength(prompt_length + settings.min_new_tokens, eos))
    if constrained is not None:
        made.append(constrained)
    if settings.forced_bos_token_id is not None:
        made.append(hf.ForcedBOSTokenLogitsProcessor(settings.forced_bos_token_id))
    if settings.forced_eos_token_id is not None:
        made.append(hf.ForcedEOSTokenLogitsProcessor(limit, settings.forced_eos_token_id))
    if settings.remove_invalid_values:
        made.append(hf.InfNanRemoveLogitsProcessor())
    if settings.exponential_decay_length_penalty is not None and eos is not None:
        made.append(hf.ExponentialDecayLengthPenalty(settings.exponential_decay_length_penalty, eos, prompt_length))
    if settings.suppress_tokens is not None:
        made.append(hf.SuppressTokensLogitsProcessor(settings.suppress_tokens))
    if settings.begin_suppress_tokens is not None:
        forced = prompt_length == 1 and settings.forced_bos_token_id is not None  # which goes first, then
        made.append(hf.SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, prompt_length + forced))
    classes = tuple({cls for p in own for cls in (type(p), *_SAME.get(type(p).__name__, ()))})
    return [*(p for p in made if not isinstance(p, classes)), *own]


def build_warpers(settings: GenerationConfig, vocab_size: int) -> list[Processor]:
    """What Hugging Face applies after the processors when it samples, in its order."""
    made: list[Processor] = []
    if settings.do_sample:
        if settings.temperature not in (None, 1.0):
            made.append(hf.TemperatureLogitsWarper(float(settings.temperature)))
        if getattr(settings, "top_h", None) is not None:
            made.append(TopHLogitsWarper(top_h=settings.top_h))
        if settings.top_k:
            made.append(hf.TopKLogitsWarper(top_k=settings.top_k))
        if settings.top_p is not None and settings.top_p < 1.0:
            made.append(hf.TopPLogitsWarper(top_p=float(settings.top_p)))
        if settings.min_p is not None:
            made.append(MinPLogitsWarper(min_p=float(settings.min_p)))
        if _used(settings.typical_p, 1.0):
            made.append(hf.TypicalLogitsWarper(mass=settings.typical_p))
        if _used(settings.epsilon_cutoff, 0.0):
            made.append(hf.EpsilonLogitsWarper(epsilon=settings.epsilon_cutoff))
        if _used(settings.eta_cutoff, 0.0):
            made.append(hf.EtaLogitsWarper(epsilon=settings.eta_cutoff))
    if settings.watermarking_config is not None:
        made.append(settings.watermarking_config.construct_processor(vocab_size, "cpu"))
    if settings.renormalize_logits:
        made.append(hf.LogitNormalization())
    return made


def sampling_params(settings: GenerationConfig) -> WarperParams | None:
    """The settings as our own sampler takes them, or None where they ask for a warper that only Hugging Face has."""
    if (
        _used(settings.typical_p, 1.0)
        or _used(settings.epsilon_cutoff, 0.0)
        or _used(settings.eta_cutoff, 0.0)
        or getattr(settings, "top_h", None) is not None
        or settings.watermarking_config is not None
    ):
        return None
    return WarperParams(
        temperature=1.0 if settings.temperature is None else float(settings.temperature),
        top_k=settings.top_k or 0,
        top_p=1.0 if settings.top_p is None else float(settings.top_p),
        min_p=settings.min_p or 0.0,
    )


def _used(value: Any, neutral: float) -> bool:
    return value is not None and value != neutral


def _is_small(processor: Processor) -> bool:
    """Whether it is one of Hugging Face's, which look at the logits once or twice; not those that run a model."""
    return type(processor).__module__ == hf.__name__ and not hasattr(processor, "model")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use this thread alone.

    A second one would wait for a core that the engine's threads have, and then spin there while the engine wants it:
    49,152 logits, ``no_repeat_ngram_size``, two cores: 205 tokens a second, and 329 with one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
