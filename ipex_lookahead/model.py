"""The model as transformers' users know it: ``generate``, a call for logits, pipelines; an engine does the work."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.config import LookaheadConfig
from ipex_lookahead.decoding.cost import EngineCosts, cost_folder
from ipex_lookahead.decoding.loop import PREFILL_ROWS
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.drafting.self_speculation import low_bit_copy
from ipex_lookahead.drafting.store import Stores
from ipex_lookahead.engines.base import Batch, Engine
from ipex_lookahead.errors import ContextLengthError, InputError
from ipex_lookahead.generation.generate import LookaheadGenerateOutput, generate
from ipex_lookahead.generation.second_model import check_vocabulary, second_model_lookahead


class LookaheadLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """A LlamaConfig by another name, under which transformers' pipelines know :class:`LookaheadModelForCausalLM`."""


class LookaheadModelForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A causal language model on one of our engines.

    It holds no torch parameters: the weights are the engine's. It runs where its engine runs, and says so when asked to
    move. One generation at a time; the engine's caches belong to a generation, so one that was abandoned half-way
    leaves nothing behind.

    Args:
        config: the model's transformers config.
        engine: where it runs.
        generation_config: the checkpoint's defaults for ``generate``.
        low_bit: name of the low-bit format, for ``info`` and ``save_low_bit``.
        tokenizer: used for ``stop_strings``, and saved by ``save_low_bit``; may be None.
        source: where the checkpoint came from.
        checkpoint_config: the config that ``save_low_bit`` writes, by default ``config``'s.
        speculative: draft with a four-bit copy of the engine's weights wherever ``generate`` gets no ``lookahead``.

    Attributes:
        stats: the :class:`GenerationStats` of the last generation, or None.
        costs: what a forward of n rows costs on this engine, measured when adaptive lookahead is first used.
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
    ) -> None:
        super().__init__(_without_kernels(config))
        self.engine = engine
        self.generation_config = generation_config or GenerationConfig()
        self.low_bit = low_bit
        self.tokenizer = tokenizer
        self.source = None if source is None else Path(source)
        self.stats: GenerationStats | None = None
        self.costs = EngineCosts(engine, cost_folder(), _note)
        self._stores = Stores(engine.vocab_size, getattr(tokenizer, "get_vocab", None))
        self.speculative = speculative
        self._checkpoint_config = checkpoint_config
        self._self_draft: Engine | None = None
        self._draft_engine: Engine | None = None
        self._draft_models: WeakSet[Any] = WeakSet()  # those whose vocabulary has been compared
        self.eval()

    # ---- generation ------------------------------------------------------------------------------------------------

    @torch.no_grad()
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
        th_stop_draft: float | None = None,
        auto_th_stop_draft: bool | None = None,
        seed: int | None = None,
        tokenizer: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor | LookaheadGenerateOutput:
        """Generate as transformers does, with lookahead and a seed beside.

        See :func:`ipex_lookahead.generation.generate.generate` for what each argument means and which errors it may
        raise, and :func:`ipex_lookahead.generation.second_model.second_model_lookahead` for ``max_step_draft``,
        ``th_stop_draft`` and ``auto_th_stop_draft``. ``draft_model`` is a smaller model of the same vocabulary that
        drafts; ``assistant_model`` is transformers' name for it.
        """
        lookahead, draft_engine = self._second_model(
            lookahead,
            draft_model,
            assistant_model,
            max_step_draft=max_step_draft,
            th_stop_draft=th_stop_draft,
            auto_th_stop_draft=auto_th_stop_draft,
        )
        stats = GenerationStats()
        self.stats = stats
        return generate(
            self.engine,
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
            costs=self.costs,
            stores=self._stores,
            seed=seed,
            tokenizer=self.tokenizer if tokenizer is None else tokenizer,
            stats=stats,
            synced_gpus=synced_gpus,
            draft_engine=draft_engine,
            **kwargs,
        )

    def forget(self) -> None:
        """Drop what is remembered in memory of earlier generations (``LookaheadConfig.store``)."""
        self._stores.forget()

    def use_draft_model(self, draft_model: LookaheadModelForCausalLM | None) -> None:
        """Let a smaller model draft wherever ``generate`` gets a ``lookahead`` that names no other strategy.

        None ends it. Raises InputError where it has another vocabulary.
        """
        if draft_model is not None:
            self._check_draft_model(draft_model)
        self._draft_engine = None if draft_model is None else draft_model.engine

    def _check_draft_model(self, draft_model: Any) -> None:
        if draft_model not in self._draft_models:
            check_vocabulary(self, draft_model)
            self._draft_models.add(draft_model)

    def _second_model(
        self, lookahead: Any, draft_model: Any, assistant_model: Any, **options: Any
    ) -> tuple[Any, Engine | None]:
        """What ``lookahead`` means beside a second model, and the second model's engine where there is one."""
        if draft_model is not None and assistant_model is not None and draft_model is not assistant_model:
            raise InputError("both draft_model and assistant_model are given; they mean the same: give one of them")
        draft_model = assistant_model if draft_model is None else draft_model
        strategy, engine = None, self._draft_engine
        if draft_model is not None:
            self._check_draft_model(draft_model)
            strategy, engine = "draft_model", draft_model.engine
        elif engine is not None and lookahead is not None and not isinstance(lookahead, LookaheadConfig):
            strategy = "draft_model"
        elif self.speculative:
            strategy = "self_speculation"
        lookahead = second_model_lookahead(lookahead, strategy=strategy, **options)
        if not isinstance(lookahead, LookaheadConfig) or not lookahead.num_draft_tokens:
            return lookahead, None
        if lookahead.strategy != "self_speculation":
            return lookahead, engine
        if self._self_draft is None:
            self._self_draft = low_bit_copy(self.engine)
        return lookahead, self._self_draft

    def can_generate(self) -> bool:
        """Always."""
        return True

    # ---- logits ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        return_dict: bool | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput | tuple[torch.Tensor, ...]:
        """Logits at every position.

        Args:
            input_ids: int64 [batch, length].
            attention_mask: [batch, length]; each row's ones must be contiguous. Padding gets logits of zero.
            labels: int64 [batch, length]; the loss is the mean cross entropy of the next token where it is not -100.
            logits_to_keep: 0 = all positions; n = the last n; or int64 indices of positions.
            return_dict: False returns a tuple.
            use_cache: accepted and without effect: a call keeps no cache.
            **kwargs: nothing else is supported.

        Returns:
            ``logits`` float32 [batch, kept, vocab_size], and ``loss`` where labels were given.

        Raises:
            InputError: ids, mask or another argument outside what is allowed.
            ContextLengthError: a row is longer than the model holds.
        """
        for name, value in kwargs.items():
            if value is not None and value is not False:
                raise InputError(
                    f"{name} is not supported; the model takes input_ids, attention_mask, labels, logits_to_keep"
                )
        if input_ids is None or input_ids.dim() != 2 or input_ids.numel() == 0:
            shape = None if input_ids is None else tuple(input_ids.shape)
            raise InputError(f"input_ids has shape {shape}; it must be integers [batch, length], not empty")
        spans = _spans(input_ids, attention_mask)
        rows, length = input_ids.shape
        if max(stop - start for start, stop in spans) > self.engine.max_context:
            raise ContextLengthError(f"input_ids has {length} positions; the model holds {self.engine.max_context}")
        kept = torch.arange(length)
        if isinstance(logits_to_keep, torch.Tensor):
            kept = kept[logits_to_keep.cpu()]
        elif logits_to_keep:
            kept = kept[-logits_to_keep:]
        logits = torch.zeros((rows, len(kept), self.engine.vocab_size))
        for row, (start, stop) in enumerate(spans):
            wanted = [(place, int(at) - start) for place, at in enumerate(kept) if start <= at < stop]
            self._row_logits(input_ids[row, start:stop].cpu().numpy(), wanted, logits[row])
        loss = None
        if labels is not None:
            if len(kept) != length:
                raise InputError("labels need the logits of all positions; leave logits_to_keep out")
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[:, 1:].reshape(-1).to(torch.int64),
                ignore_index=-100,
            )
        if return_dict is False:
            return (logits,) if loss is None else (loss, logits)
        return CausalLMOutput(loss=loss, logits=logits)

    def _row_logits(self, ids: Any, wanted: list[tuple[int, int]], out: torch.Tensor) -> None:
        """Fill ``out[place]`` with the logits at ``position`` for each (place, position)."""
        low, high = ids.min(), ids.max()
        if low < 0 or high >= self.engine.vocab_size:
            wrong = int(low if low < 0 else high)
            raise InputError(f"input_ids holds {wrong}; ids go from 0 to {self.engine.vocab_size - 1} for this model")
        cache = self.engine.new_cache()
        for first in range(0, len(ids), PREFILL_ROWS):
            chunk = ids[first : first + PREFILL_ROWS].astype(np.int32)
            here = [(place, at - first) for place, at in wanted if first <= at < first + len(chunk)]
            asked = sorted({at for _, at in here})
            output = self.engine.forward(
                Batch(
                    [cache],
                    [len(chunk)],
                    chunk,
                    np.arange(-1, len(chunk) - 1, dtype=np.int32),
                    np.array(asked, np.int32),
                    logits=True,
                )
            )
            cache.keep(list(range(len(chunk))))
            if here:
                assert output.logits is not None
                answers = torch.from_numpy(output.logits)
                out[[place for place, _ in here]] = answers[[asked.index(at) for _, at in here]]

    # ---- saving ----------------------------------------------------------------------------------------------------

    def save_low_bit(self, folder: str | PathLike[str], **kwargs: Any) -> Path:
        """Write the packed weights, config, tokenizer and licence, so that ``load_low_bit`` need not quantise again.

        Args:
            folder: where to; see :func:`ipex_lookahead.checkpoints.low_bit_save.save` for what is refused.
            **kwargs: ``overwrite`` and ``progress`` of that function.
        """
        from ipex_lookahead.checkpoints.low_bit_save import save

        weights = getattr(self.engine, "weights", None)
        if weights is None:
            raise InputError(f"the {self.engine.name} engine cannot give its weights back; save from another engine")
        packed = {name: (TensorInfo(w.shape, w.format, w.group_size)) for name, w in weights()}
        config = self._checkpoint_config or self.config.to_dict()
        if config.get("tie_word_embeddings") and {"lm_head.weight", "model.embed_tokens.weight"} <= packed.keys():
            config = {**config, "tie_word_embeddings": False}  # packed apart from the embedding, so they are two
        groups = {info.group_size for info in packed.values() if info.group_size}
        head = packed.get("lm_head.weight", packed.get("model.embed_tokens.weight"))
        mixed = head is not None and head.format != self.low_bit and head.format == "sym_int8"
        return save(
            folder,
            config=config,
            generation_config=self.generation_config.to_diff_dict(),
            infos=packed,
            weights=weights(),
            low_bit={"low_bit": self.low_bit, "group_size": max(groups, default=0), "mixed_precision": mixed},
            tokenizer=self.tokenizer,
            source=self.source,
            **kwargs,
        )

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Refused: there are no torch parameters to save."""
        raise InputError("save_pretrained would write no weights; use model.save_low_bit(folder)")

    # ---- what torch and transformers ask of a model ----------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the engine runs."""
        return torch.device(getattr(self.engine, "device", "cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """What the engine computes activations in."""
        return getattr(self.engine, "dtype", torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> LookaheadModelForCausalLM:
        """A dtype or the engine's own device changes nothing; another device raises InputError."""
        for value in (*args, *kwargs.values()):
            if not isinstance(value, (str, torch.device)):
                continue
            device = torch.device(value)
            if device.type != self.device.type or device.index not in (None, self.device.index):
                here = "the CPU" if self.device.type == "cpu" else str(self.device)
                raise InputError(
                    f"the model runs on {here} and cannot move to {value}; leave .to({str(value)!r}) out, or load it"
                    f" with device={str(value)!r}"
                )
        return self

    def cuda(self, device: Any = None) -> LookaheadModelForCausalLM:
        """As ``to("cuda")``."""
        return self.to("cuda")

    def xpu(self, device: Any = None) -> LookaheadModelForCausalLM:
        """As ``to("xpu")``."""
        return self.to("xpu")

    def half(self, *args: Any) -> LookaheadModelForCausalLM:
        """Nothing to convert."""
        return self

    float = bfloat16 = double = half

    def extra_repr(self) -> str:
        """Engine and format."""
        return f"engine={self.engine.name}, low_bit={self.low_bit}, vocab_size={self.engine.vocab_size}"

    # ---- ipex-llm's names for the last generation's statistics -------------------------------------------------------

    @property
    def first_token_time(self) -> Any:
        """Seconds to the first token."""
        return self.stats.first_token_seconds if self.stats else 0.0

    @property
    def n_token_generated(self) -> int:
        """Tokens emitted."""
        return self.stats.tokens if self.stats else 0

    @property
    def n_drafted(self) -> int:
        """Draft tokens verified."""
        return self.stats.drafted if self.stats else 0

    @property
    def n_matched(self) -> int:
        """Draft tokens accepted."""
        return self.stats.accepted if self.stats else 0

    @property
    def draft_num(self) -> list[int]:
        """For each step the tokens drafted."""
        return [step[0] for step in self.stats.per_step] if self.stats else []

    @property
    def accept_num(self) -> list[int]:
        """For each step the draft tokens accepted."""
        return [step[1] for step in self.stats.per_step] if self.stats else []

    @property
    def accept_rate(self) -> list[Any]:
        """For each step the share of the draft that was accepted; 0 where nothing was drafted."""
        return [step[1] / step[0] if step[0] else 0.0 for step in self.stats.per_step] if self.stats else []

    @property
    def draft_time(self) -> list[Any]:
        """For each step the seconds that drafting took."""
        return [step[2] for step in self.stats.per_step] if self.stats else []

    @property
    def verify_time(self) -> list[Any]:
        """For each step the seconds that the target's forward took."""
        return [step[3] for step in self.stats.per_step] if self.stats else []

    @property
    def generate_time(self) -> list[Any]:
        """For each step the seconds of drafting and forward together."""
        return [step[2] + step[3] for step in self.stats.per_step] if self.stats else []

    @property
    def e2e_time_without_first(self) -> Any:
        """Seconds from the first token to the last."""
        return self.stats.decode_seconds if self.stats else 0.0


def _without_kernels(config: Any) -> Any:
    """A copy of a config that asks transformers for no attention or expert kernels: the engine has its own."""
    config = copy.deepcopy(config)
    for name in ("_attn_implementation", "_experts_implementation"):
        if hasattr(config, name):
            setattr(config, name, "eager")
    return config


def _note(sentence: str) -> None:
    """Say what is being waited for, to people only."""
    if sys.stderr.isatty():
        print(sentence, file=sys.stderr)


def _spans(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[tuple[int, int]]:
    """For each row where its tokens begin and end."""
    rows, length = input_ids.shape
    if attention_mask is None:
        return [(0, length)] * rows
    if attention_mask.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {tuple(input_ids.shape)};"
            " they must be equal"
        )
    spans = []
    for number, row in enumerate(attention_mask.cpu() != 0):
        count = int(row.sum())
        start = int(row.to(torch.int8).argmax())
        if not count or not row[start : start + count].all():
            raise InputError(
                f"row {number} of attention_mask must be one run of ones, with zeros before or after it only"
            )
        spans.append((start, start + count))
    return spans


# transformers' pipelines complain about model classes that they do not know; this is its public way of telling them.
AutoModelForCausalLM.register(LookaheadLlamaConfig, LookaheadModelForCausalLM, exist_ok=True)
