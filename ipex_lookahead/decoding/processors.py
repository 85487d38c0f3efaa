"""Logits on their way to a token: Hugging Face's processors, one list for each sequence, then the choice.

The lists are built for the prompt without its padding, so a sequence of a batch sees exactly what it sees alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig
from transformers.generation import logits_process as hf

from ipex_lookahead.compat import MinPLogitsWarper, TopHLogitsWarper
from ipex_lookahead.decoding.sampling import Sampler, SamplingParams, greedy
from ipex_lookahead.errors import InputError

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(input_ids int64 [1, n], scores float32 [1, vocab_size]) -> scores of the same shape."""


class Choose:
    """Raw logits -> the next token of one sequence, called once for each emitted position, in order.

    Attributes:
        scores, raw: processed and raw logits of every position, float32 [vocab_size] each, where they were asked for.
    """

    def __init__(
        self,
        prefix: Callable[[], torch.Tensor],
        processors: Sequence[Processor],
        sampler: Sampler | None,
        warpers: Sequence[Processor] = (),
        *,
        keep_scores: bool = False,
        keep_raw: bool = False,
    ) -> None:
        self._prefix = prefix
        self._processors = processors
        self._sampler = sampler
        self._warpers = warpers
        self.scores: list[torch.Tensor] | None = [] if keep_scores else None
        self.raw: list[torch.Tensor] | None = [] if keep_raw else None

    def __call__(self, logits: npt.NDArray[np.float32]) -> int:
        """Process, choose, and record what was asked for."""
        prefix = self._prefix()
        if self.raw is not None:
            self.raw.append(torch.from_numpy(logits.copy()))
        if self._processors:
            logits = apply(self._processors, prefix, logits)
        if self._sampler is None:
            token = greedy(logits)
        else:
            token = self._sampler(np.ascontiguousarray(logits), prefix.shape[1])
        if self.scores is not None:
            self.scores.append(torch.from_numpy(apply(self._warpers, prefix, logits.copy())))
        return token


class RepetitionPenalty(hf.RepetitionPenaltyLogitsProcessor):  # type: ignore[misc]
    """Hugging Face's, the same bits, touching only the tokens that were seen.

    Theirs copies all logits more than once: 49,152 take 39 us in one thread, here 23. Paper: CTRL, arXiv 1909.05858.
    """

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Divide the seen tokens' logits from 0 on by the penalty, multiply the others; int64 [1, n], [1, vocab]."""
        processed = scores.numpy().copy()
        seen = input_ids.numpy()[0]
        seen = seen[seen < processed.shape[1]]
        logits, penalty = processed[0, seen], np.float32(self.penalty)
        with np.errstate(over="ignore"):
            processed[0, seen] = np.where(logits < 0, logits * penalty, logits / penalty)
        return torch.from_numpy(processed)


def build_processors(
    settings: GenerationConfig,
    *,
    prompt_length: int,
    limit: int,
    eos_ids: Sequence[int],
    own: Sequence[Processor],
    allowed_tokens: Callable[[int, torch.Tensor], list[int]] | None = None,
    row: int = 0,
) -> list[Processor]:
    """The processors that come before temperature, in Hugging Face's order, ``own`` (the caller's) last.

    A processor of the caller's replaces the one of the same class that the settings ask for.
    """
    eos = list(eos_ids) or None
    made: list[Processor] = []
    if settings.sequence_bias is not None:
        made.append(hf.SequenceBiasLogitsProcessor(settings.sequence_bias))
    if settings.repetition_penalty not in (None, 1.0):
        made.append(RepetitionPenalty(float(settings.repetition_penalty)))
    if settings.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(settings.no_repeat_ngram_size))
    if settings.bad_words_ids is not None:
        made.append(hf.NoBadWordsLogitsProcessor(settings.bad_words_ids, eos))
    if settings.min_length and eos is not None and settings.min_new_tokens is None:
        made.append(hf.MinLengthLogitsProcessor(settings.min_length, eos))
    if settings.min_new_tokens and eos is not None:
        made.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, settings.min_new_tokens, eos))
    if allowed_tokens is not None:
        made.append(hf.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed_tokens(row, ids), 1))
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
        made.append(hf.SuppressTokensAtBeginLogitsProcessor(settings.begin_suppress_tokens, prompt_length))
    classes = tuple({type(p) for p in own})
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


def sampling_params(settings: GenerationConfig) -> SamplingParams | None:
    """The settings as our own sampler takes them, or None where they ask for a warper that only Hugging Face has."""
    if (
        _used(settings.typical_p, 1.0)
        or _used(settings.epsilon_cutoff, 0.0)
        or _used(settings.eta_cutoff, 0.0)
        or getattr(settings, "top_h", None) is not None
        or settings.watermarking_config is not None
    ):
        return None
    return SamplingParams(
        temperature=1.0 if settings.temperature is None else float(settings.temperature),
        top_k=settings.top_k or 0,
        top_p=1.0 if settings.top_p is None else float(settings.top_p),
        min_p=settings.min_p or 0.0,
    )


def copies_for(own: Sequence[Processor], row: int) -> list[Processor]:
    """The caller's processors for one row of a batch: the originals for the first, copies for the others.

    A processor may keep state, and a row must get what it would get alone. Raises InputError where one cannot be
    copied.
    """
    if row == 0:
        return list(own)
    copied = []
    for processor in own:
        try:
            copied.append(copy.deepcopy(processor))
        except Exception as error:
            raise InputError(
                f"logits_processor {type(processor).__name__} cannot be copied for each sequence of a batch ({error});"
                " give it a __deepcopy__, or generate one sequence a call"
            ) from error
    return copied


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


def apply(
    processors: Sequence[Processor], prefix: torch.Tensor, logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Logits, float32 [vocab_size], through processors. Raises InputError for one that returns anything else."""
    scores = torch.from_numpy(logits)[None]
    for processor in processors:
        with _one_thread() if _is_small(processor) else nullcontext():
            scores = processor(prefix, scores)
        if not isinstance(scores, torch.Tensor) or scores.shape != (1, logits.size):
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise InputError(
                f"logits_processor {type(processor).__name__} returned {got};"
                f" it must return a tensor (1, {logits.size})"
            )
    processed: npt.NDArray[np.float32] = scores[0].detach().to("cpu", torch.float32).numpy()
    return processed
