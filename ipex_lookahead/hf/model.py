"""The model as transformers' users know it: ``generate``, a call for logits, pipelines; an engine does the work."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from inspect import unwrap
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload
from weakref import WeakSet

import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.controller.cost import EngineCosts
from ipex_lookahead.controller.kept import cost_folder
from ipex_lookahead.decoding.sequence import Sequence as TokenSequence
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.base import Proposer
from ipex_lookahead.drafting.own import OwnProposer
from ipex_lookahead.engines.api import FINAL_NORM, Engine, TakesImages
from ipex_lookahead.errors import InputError
from ipex_lookahead.hf.generation.generate import LookaheadGenerateOutput, generate_stepwise
from ipex_lookahead.hf.generation.images import taken
from ipex_lookahead.hf.generation.past import LookaheadCache, given_cache, load_past, past_of
from ipex_lookahead.hf.modeling.adapters import ACTIVE, AdapterMethods
from ipex_lookahead.hf.modeling.copying import Copying
from ipex_lookahead.hf.modeling.forward import outputs_after
from ipex_lookahead.hf.modeling.placement import Placement
from ipex_lookahead.hf.modeling.refused import REFUSED, refuse
from ipex_lookahead.hf.modeling.statistics import IpexLlmStatistics
from ipex_lookahead.hf.modeling.weights import Weights
from ipex_lookahead.runtime.checks import flag
from ipex_lookahead.runtime.lookahead import proposer_lookahead
from ipex_lookahead.runtime.run import streamed, streamed_text, to_the_end
from ipex_lookahead.runtime.runtime import Runtime
from ipex_lookahead.runtime.second_model import check_vocabulary, engine_of
from ipex_lookahead.system.compat import CACHE, CausalOutput, text_config
from ipex_lookahead.system.terminal import print_status
from ipex_lookahead.tokenization.text import TextTokenizer
from ipex_lookahead.vision.model import VisionModel


class LookaheadLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """A LlamaConfig by another name, under which transformers' pipelines know :class:`LookaheadModelForCausalLM`."""


@refuse(REFUSED)
class LookaheadModelForCausalLM(
    Weights,
    Placement,
    Copying,
    AdapterMethods,
    IpexLlmStatistics,
    PreTrainedModel,  # type: ignore[misc]
    GenerationMixin,  # type: ignore[misc]
):
    """A causal language model of transformers that runs on an engine of this package.

    It has no torch parameters: the engine stores the weights, and ``parameters()`` and ``state_dict()`` return copies.
    Methods of torch and transformers that it cannot support raise InputError with the alternative. Each generation has
    its own KV cache, which is released when the generation ends or is abandoned. Several threads may call ``generate``;
    their forwards take turns.

    Args:
        config: the model's transformers config.
        engine: where it runs.
        generation_config: the checkpoint's defaults for ``generate``.
        low_bit: name of the low-bit format, for ``info`` and ``save_low_bit``.
        tokenizer: used for ``stop_strings``, and saved by ``save_low_bit``; may be None. A tokenizer of this package is
            converted to a transformers tokenizer at first access.
        source: path or name of the checkpoint; transformers' ``name_or_path``.
        checkpoint_config: the config that ``save_low_bit`` writes, by default ``config``.
        speculative: draft with a four-bit copy of the engine's weights if ``generate`` gets no ``lookahead``.
        origin: a ``functools.partial`` that loads the same model again, also in another process.

    Attributes:
        runtime: the engine, and the costs, stores and draft model that its generations share.
    """

    config_class = LookaheadLlamaConfig
    main_input_name = "input_ids"
    base_model_prefix = "model"
    _supports_sdpa = True  # a LlamaConfig may name any attention; the engine has its own
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(
        self,
        config: LlamaConfig,
        engine: Engine,
        *,
        generation_config: GenerationConfig | None = None,
        low_bit: str,
        tokenizer: Any = None,
        source: str | PathLike[str] | None = None,
        checkpoint_config: dict[str, Any] | None = None,
        speculative: bool = False,
        origin: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(_own_config(config, source))
        self.generation_config = generation_config or GenerationConfig()
        self.low_bit = low_bit
        self._tokenizer = tokenizer
        self.source = None if source is None else Path(source)
        self.runtime = Runtime.measured(engine, getattr(tokenizer, "get_vocab", None), print_status)
        self.speculative = speculative
        self._checkpoint_config = checkpoint_config
        self._origin = origin
        self._draft_used: tuple[Any, ...] = ()  # a tuple, since torch takes a module for a part of what has it
        self._draft_models: WeakSet[Any] = WeakSet()  # with a checked vocabulary
        self._vision: VisionModel | None = None
        self._assistant: Engine | None = None  # of the last assistant that transformers had loaded
        self.eval()

    @property
    def engine(self) -> Engine:
        """The engine of the model."""
        return self.runtime.engine

    def _see(self) -> VisionModel:
        """Return the model's vision part, which is loaded for the first image. Raises InputError if it has none."""
        if self._vision is None:
            takes = self.engine.images if isinstance(self.engine, TakesImages) else None
            assert takes is not None
            self._vision = VisionModel.of_model(
                self.source, takes.hidden, threads=self.engine.describe().get("threads")
            )
        return self._vision

    @property
    def costs(self) -> EngineCosts:
        """Costs of the engine's forwards, measured when adaptive lookahead is first used."""
        assert self.runtime.costs is not None
        return self.runtime.costs

    def _run_on(self, engine: Engine) -> None:
        """Run later generations on another engine, with costs and a low-bit copy of its own."""
        self.runtime.move_to(engine, EngineCosts(engine, cost_folder(), print_status))

    # ---- generation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    @to_the_end("torch.Tensor | LookaheadGenerateOutput")
    def generate(
        self,
        inputs: Any = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
        synced_gpus: bool | None = None,
        assistant_model: Any = None,
        streamer: Any = None,
        *,
        lookahead: int | str | LookaheadConfig | None = None,
        max_matching_ngram_size: int | None = None,
        adaptive: bool | None = None,
        draft_model: LookaheadModelForCausalLM | None = None,
        max_step_draft: int | None = None,
        min_step_draft: int | None = None,
        th_stop_draft: float | None = None,
        auto_th_stop_draft: bool | None = None,
        proposer: Callable[[LookaheadConfig], Proposer] | None = None,
        keep_drafts: bool = False,
        seed: int | None = None,
        tokenizer: Any = None,
        adapter: str | Sequence[str | None] | None = ACTIVE,
        adapter_scale: float = 1.0,
        **kwargs: Any,
    ) -> Generator[Sequence[TokenSequence], None, torch.Tensor | LookaheadGenerateOutput]:
        """Generate token ids as transformers' ``generate`` does, with lookahead and a seed.

        :func:`ipex_lookahead.hf.generation.generate.generate` describes the arguments and errors, and
        :func:`ipex_lookahead.runtime.lookahead.second_model_lookahead` describes ``max_step_draft``,
        ``min_step_draft``, ``th_stop_draft`` and ``auto_th_stop_draft``. ``draft_model`` is a smaller model with the
        same vocabulary that drafts; ``assistant_model`` is transformers' name for it. Either may be a model that
        transformers has loaded. ``proposer`` is a function that is called with the settings, once per sequence, and
        returns a :class:`ipex_lookahead.drafting.Proposer` (docs/lookahead.md). If the proposer returns anything but a
        Draft with ids of this vocabulary, ``generate`` raises InputError. ``keep_drafts`` stores verified drafts in
        ``stats.drafts``. ``adapter`` is the name of a loaded adapter, one for each prompt, or None for the base model;
        left out, it is the active one (``set_adapter``). ``adapter_scale`` multiplies what it changes.
        """
        stats = GenerationStats(drafts=[] if flag("keep_drafts", keep_drafts) else None)
        own = None
        if proposer is not None:
            if draft_model is not None or assistant_model is not None:
                raise InputError("both proposer and a draft model are given, and both draft; leave one of them out")
            lookahead = proposer_lookahead(lookahead) or 0
            own = lambda config: OwnProposer(proposer(config), self.engine.vocab_size)  # noqa: E731
        if draft_model is not None and assistant_model is not None and draft_model is not assistant_model:
            raise InputError("both draft_model and assistant_model are given; they mean the same: give one of them")
        draft_model = assistant_model if draft_model is None else draft_model
        self.runtime.stats = stats
        return (
            yield from generate_stepwise(
                self.runtime,
                inputs,
                generation_config,
                logits_processor,
                stopping_criteria,
                prefix_allowed_tokens_fn,
                streamer,
                model_defaults=self.generation_config,
                lookahead=lookahead,
                max_matching_ngram_size=max_matching_ngram_size,
                adaptive=adaptive,
                seed=seed,
                tokenizer=self.tokenizer if tokenizer is None else tokenizer,
                synced_gpus=synced_gpus,
                second_model={
                    "draft_engine": None if draft_model is None else self._checked_engine(draft_model),
                    "speculative": self.speculative,
                    "max_step_draft": max_step_draft,
                    "min_step_draft": min_step_draft,
                    "th_stop_draft": th_stop_draft,
                    "auto_th_stop_draft": auto_th_stop_draft,
                },
                own_proposer=own,
                adapters=self._applied_each(adapter, adapter_scale),
                stats=stats,
                see=self._see,
                **kwargs,
            )
        )

    @overload
    def stream(self, *args: Any, text: Literal[True], **kwargs: Any) -> Generator[str, None, None]: ...
    @overload
    def stream(self, *args: Any, text: Literal[False] = False, **kwargs: Any) -> Generator[int, None, None]: ...
    def stream(
        self, *args: Any, text: bool = False, **kwargs: Any
    ) -> Generator[str, None, None] | Generator[int, None, None]:
        """Yield the new tokens of one sequence as they are generated, with ``generate``'s arguments.

        The caller's iteration drives the generation; closing the iterator ends it. Errors in the arguments are raised
        at once. ``stats`` is complete when the iterator has ended.

        Args:
            *args: as for ``generate``.
            text: yield text without special tokens instead of token ids, decoded by ``tokenizer=`` or the model's own.
            **kwargs: as for ``generate``.

        Example: ``for piece in model.stream(input_ids, max_new_tokens=100, text=True): print(piece, end="")``
        """
        tokenizer = kwargs.get("tokenizer") if kwargs.get("tokenizer") is not None or not text else self.tokenizer
        if flag("text", text) and tokenizer is None:
            raise InputError(
                "text=True needs a tokenizer, and this model has none", hint="pass tokenizer=, or leave text out"
            )
        steps = torch.no_grad()(unwrap(type(self).generate))(self, *args, **kwargs)
        next(steps)
        return streamed_text(streamed(steps), tokenizer) if text else streamed(steps)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | Any:
        """The model's tokenizer, as transformers has them; None where it has none, which few models have not."""
        if isinstance(self._tokenizer, TextTokenizer):
            self._tokenizer = self._tokenizer.for_transformers()
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def forget(self) -> None:
        """Drop the stores of earlier generations that are in memory (``LookaheadConfig.store``)."""
        self.runtime.stores.forget()

    def use_draft_model(self, draft_model: LookaheadModelForCausalLM | None) -> None:
        """Use a smaller model for drafts if ``generate`` gets a ``lookahead`` that names no other strategy.

        None stops using it. Raises InputError if it has another vocabulary.
        """
        self.runtime.draft_engine = None if draft_model is None else self._checked_engine(draft_model)
        self._draft_used = () if draft_model is None else (draft_model,)

    def _checked_engine(self, draft_model: Any) -> Engine:
        """A draft model's engine; vocabularies are compared, and engines made, once."""
        if draft_model in self._draft_models:
            known: Engine = draft_model.engine
            return known
        if self._assistant is not None and getattr(self._assistant, "model", None) is draft_model:
            return self._assistant
        engine = engine_of(draft_model)
        check_vocabulary(self, draft_model, engine)
        if hasattr(draft_model, "engine"):
            self._draft_models.add(draft_model)
        else:
            self._assistant = engine
        return engine

    def can_generate(self) -> bool:
        """Always."""
        return True

    # ---- caches ----------------------------------------------------------------------------------------------------

    def load_cache(self, path: str | PathLike[str]) -> LookaheadCache:
        """Return a ``past_key_values`` that its ``save(path)`` wrote, for :meth:`generate` and :meth:`forward`.

        The file must be of the same model: equal weights, formats, settings, drafting head and version of the kernels.

        Raises:
            CacheFileError: the file is missing, damaged, of another model, or longer than the context; or an adapter
                that computed it is not loaded.
            InputError: the model runs on an engine that cannot save KV caches.
            OutOfMemoryError: there is no memory for the cache.
        """
        return load_past(self.engine, path, self.runtime.adapters)

    # ---- logits ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: LookaheadCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        cache_position: torch.Tensor | None = None,
        return_dict: bool | None = None,
        output_hidden_states: bool | None = None,
        cache: LookaheadCache | None = None,
        adapter: str | None = ACTIVE,
        adapter_scale: float = 1.0,
        **kwargs: Any,
    ) -> CausalOutput | tuple[Any, ...]:
        """Return the logits at every position. A text in several calls has the logits of one call, bit for bit.

        Args:
            input_ids: int64 [batch, length].
            attention_mask: [batch, columns in ``past_key_values`` + length]; each row's ones must be contiguous. None:
                all ones, and the padding stored in ``past_key_values``. Padding has logits of zero.
            position_ids: int64 [batch or 1, length]. A token's position must be the number of tokens before it in its
                row; other values raise InputError.
            past_key_values: the cache of an earlier output of this model; it is extended in place.
            labels: int64 [batch, length]; the loss is the mean cross entropy of the next token where it is not -100.
            use_cache: whether the output has ``past_key_values``; None: the config's value, usually True.
            logits_to_keep: 0 = all positions; n = the last n; or int64 indices of positions.
            cache_position: int64 [length], the numbers of the new columns; other values raise InputError.
            return_dict: False returns a tuple.
            output_hidden_states: whether the output has ``hidden_states``; None: the config's value, usually False.
            cache: the name of ``past_key_values`` since transformers 5.24; both names work with every release.
            adapter: the name of a loaded adapter, or None for the base model; left out, the active one.
            adapter_scale: factor on what the adapter changes.
            **kwargs: ``pixel_values`` and the other image arguments of a processor, for images among the new tokens;
                anything else must be None or False.

        Returns:
            ``logits`` float32 [batch, kept, vocab_size]; ``loss`` if ``labels`` are given; ``past_key_values``, a
            :class:`~ipex_lookahead.hf.generation.past.LookaheadCache`, or None; ``hidden_states``, those after the
            embeddings and after each layer, float32 [batch, length, hidden_size], the last ones after the final norm,
            or None. Padding gets zeros.

        Raises:
            InputError: an invalid argument, such as token ids outside the vocabulary.
            ContextLengthError: a row is longer than the model's context.
        """
        seen = taken(kwargs)
        for name, value in kwargs.items():
            if value is not None and value is not False:
                raise InputError(
                    f"{name} is not supported; the model takes input_ids, attention_mask, position_ids,"
                    " past_key_values or cache, labels, use_cache, logits_to_keep, output_hidden_states"
                )
        if input_ids is None or input_ids.dim() != 2 or input_ids.numel() == 0:
            shape = None if input_ids is None else tuple(input_ids.shape)
            raise InputError(f"input_ids has shape {shape}; it must be integers [batch, length], not empty")
        rows, length = input_ids.shape
        kept = torch.arange(length)
        if isinstance(logits_to_keep, torch.Tensor):
            kept = kept[logits_to_keep.cpu()]
        elif logits_to_keep:
            kept = kept[-logits_to_keep:]
        if labels is not None and len(kept) != length:
            raise InputError("labels need the logits of all positions; leave logits_to_keep out")
        past = past_of(self.engine, past_key_values, cache, rows)
        if output_hidden_states is None:
            output_hidden_states = getattr(self.config, "output_hidden_states", False)
        hidden: Sequence[int] = ()
        if output_hidden_states:
            text = text_config(self.config)
            normed = getattr(text, "tie_last_hidden_states", None) is not False
            hidden = [*range(text.num_hidden_layers), FINAL_NORM if normed else text.num_hidden_layers]
        logits, states = outputs_after(
            past,
            input_ids,
            attention_mask,
            position_ids,
            cache_position,
            kept=kept,
            hidden=hidden,
            adapter=self._applied(adapter, adapter_scale),
            see=self._see,
            seen=seen,
        )
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[:, 1:].reshape(-1).to(torch.int64),
                ignore_index=-100,
            )
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", True)
        output = CausalOutput(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if output_hidden_states else None,
            **{CACHE: past if use_cache else None},
        )
        return output.to_tuple() if return_dict is False else output

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        *,
        past_key_values: LookaheadCache | None = None,
        cache: LookaheadCache | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return arguments of ``forward`` for a text, int64 [batch, length], that begins with what the cache holds.

        The cache is returned under the name of the release of transformers that is installed. Raises InputError where
        both names are given.
        """
        past = given_cache(past_key_values, cache)
        before = 0 if past is None else past.get_seq_length()
        known = {name: kwargs.get(name) for name in ("attention_mask", "use_cache")}
        if not before:  # later calls have only tokens that were generated
            known |= taken(kwargs)
        return {"input_ids": input_ids[:, before:], CACHE: past, **known}

    def extra_repr(self) -> str:
        """Engine and format."""
        return f"engine={self.engine.name}, low_bit={self.low_bit}, vocab_size={self.engine.vocab_size}"


def _own_config(config: Any, source: Any) -> Any:
    """A copy of a config that names the checkpoint and names no kernels of transformers': the engine has its own."""
    config = copy.deepcopy(config)
    if source is not None:
        config._name_or_path = str(source)
    for name in ("_attn_implementation", "_experts_implementation"):
        if hasattr(config, name):
            setattr(config, name, "eager")
    return config


# transformers' pipelines complain about model classes that they do not know; this is its public way of telling them.
AutoModelForCausalLM.register(LookaheadLlamaConfig, LookaheadModelForCausalLM, exist_ok=True)
