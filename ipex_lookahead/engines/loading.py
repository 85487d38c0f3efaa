"""The request that an engine's loader gets, the model that it returns, and the steps that loaders share."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ipex_lookahead.architectures import HEADS, ModelSpec, spec_for
from ipex_lookahead.checkpoints import Checkpoint, open_checkpoint
from ipex_lookahead.checkpoints.imatrix import read_imatrix
from ipex_lookahead.engines.hf_config import generation_defaults
from ipex_lookahead.engines.load_weights import Progress
from ipex_lookahead.engines.requantize import warn_of_requantizing
from ipex_lookahead.engines.weights import WeightPlan, label_in, log_fallbacks, matrices
from ipex_lookahead.errors import InputError, LookaheadError, UnsupportedModelError, arg
from ipex_lookahead.formats.rules import label_of
from ipex_lookahead.tokenization.text import TextTokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of ``from_pretrained`` that engines use.

    Attributes:
        path: an existing folder or GGUF file of a checkpoint.
        low_bit, group_size, mixed_precision, embedding_qtype, not_converted: as in ``WeightPlan``.
        device: "cpu", "xpu", "opencl", "cuda", or with a number, "xpu:1"; None = the engine's default.
        dtype: the dtype of activations and of float weights; a torch dtype, its name, "auto" or None.
        deterministic: see ``TorchEngine``.
        gpu_layers: number of last layers on the device, for the OpenCL engine; None: all that fit.
        n_cpu_moe: number of first layers with their routed experts on the CPU, for the OpenCL engine; None: the
            smallest number with which the model fits.
        cpu_moe: the routed experts of all layers run on the CPU.
        threads: see ``from_pretrained``.
        kv_cache: "fp16" or "int8", for the native engine.
        max_context: most positions of a sequence, for the native engine; None: see ``architectures.spec_for``.
        check_label: raises if the model's format does not suit, before weights are read.
        imatrix: the file of an importance matrix, which weights quantization errors.
        others: further arguments of ipex-llm's: ``optimize_model``, ``cpu_embedding``.
        ipex: apply intel-extension-for-pytorch's ``ipex.llm.optimize``.
        drafter: a folder or GGUF file with a drafting head, for the native and the OpenCL engine; None: the head in the
            model's own files or next to them.
        draft_vocab: number of tokens that a head may draft, or a file that lists them; 0: all; None:
            ``config.DRAFT_VOCAB``.
        drafter_low_bit: the format of a head; None: ``low_bit`` if that has 6 bits or more, else sym_int8.
        progress: see :data:`Progress`; before weights are read, progress(0, 0, description of the step).
        text: whether the model is used with text, which needs a tokenizer.
    """

    path: Path
    low_bit: str | None = None
    group_size: int = 32
    mixed_precision: bool = False
    embedding_qtype: str | None = None
    not_converted: tuple[str, ...] = ()
    device: Any = None
    dtype: Any = None
    deterministic: bool | None = None
    gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    cpu_moe: bool = False
    threads: int | None = None
    kv_cache: str = "fp16"
    max_context: int | None = None
    check_label: Callable[[str], None] | None = None
    imatrix: Path | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    ipex: bool = False
    drafter: Path | None = None
    draft_vocab: int | Path | None = None
    drafter_low_bit: str | None = None
    progress: Progress | None = None
    text: bool = False

    @property
    def label(self) -> str | None:
        """The name of ``low_bit``; None: the file's format."""
        return None if self.low_bit is None else label_of(self.low_bit)

    def placement(self) -> dict[str, Any]:
        """Return the arguments that divide a model between a device and the CPU, which one engine supports."""
        return {"gpu_layers": self.gpu_layers, "n_cpu_moe": self.n_cpu_moe, "cpu_moe": self.cpu_moe}

    def plan(self, label: str, head: str = "") -> WeightPlan:
        """Return the plan of formats for a model with the lm_head in the tensor ``head``."""
        return WeightPlan(
            self.low_bit,
            self.group_size,
            self.mixed_precision,
            self.not_converted,
            head,
            label,
            embedding_qtype=self.embedding_qtype,
            imatrix=None if self.imatrix is None else read_imatrix(self.imatrix),
        )

    def planned(self, checkpoint: Checkpoint, spec: ModelSpec) -> tuple[str, WeightPlan, str | None]:
        """Return the name of the format to load, the plan, and the low-bit format that the plan rounds again, or None.

        Requantization and fallbacks are logged. Raises as ``check_label`` and ``WeightPlan.of_spec``.
        """
        label = self.label or label_in(checkpoint, spec)
        if self.check_label is not None:
            self.check_label(label)
        plan = self.plan(label).of_spec(spec)
        rounded_from = warn_of_requantizing(checkpoint, plan, kept=spec.kept())
        if rounded_from is None:  # else a warning was logged, and one is enough
            log_fallbacks(plan, matrices(spec))
        return label, plan, rounded_from

    def tokenizer(self, read: Callable[[], TextTokenizer | None]) -> tuple[TextTokenizer | None, str]:
        """Return the tokenizer that ``read`` makes, or None and the reason why it cannot be used.

        A model runs without a tokenizer, so a tokenizer that cannot be read is a warning.

        Raises:
            LookaheadError: with ``text``, the tokenizer is missing or cannot be read.
        """
        if self.progress is not None:
            self.progress(0, 0, "reading the tokenizer")
        try:
            made = read()
        except LookaheadError as error:
            if self.text:
                raise
            log.warning("the model has no tokenizer, since %s. It takes and gives token ids", error)
            return None, str(error)
        if made is None and self.text:
            raise InputError(
                f"{self.path} carries no tokenizer, so text cannot be turned into tokens",
                hint="put its tokenizer.json or tokenizer.model into the folder",
            )
        return made, ""


@dataclass(slots=True)
class LoadedModel:
    """A loaded model.

    Attributes:
        engine: its engine. The caller may add to ``engine.facts``, which are entries of ``describe()``.
        low_bit: name of its format.
        checkpoint_config: the config to save.
        generation_config: the checkpoint's defaults for ``generate``, by transformers' names.
        tokenizer: the tokenizer, or None.
        no_tokenizer: the reason why the checkpoint's tokenizer cannot be used.
        source: the folder or GGUF file that it was loaded from, or None.
        config: the transformers config if loading made one; None: it is made of ``checkpoint_config`` on demand.
    """

    engine: Any
    low_bit: str
    checkpoint_config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    tokenizer: TextTokenizer | None = None
    config: Any = None
    no_tokenizer: str = ""
    source: Path | None = None


def load_by_spec(
    request: LoadRequest,
    load: Callable[[Checkpoint, ModelSpec, WeightPlan], Any],
    check: Callable[[ModelSpec], None] = lambda spec: None,
) -> LoadedModel:
    """Load a checkpoint onto an engine that runs specs.

    ``load`` makes the engine; ``check`` raises for a model that the engine does not support.
    """
    checkpoint = open_checkpoint(request.path)
    try:
        spec = spec_for(checkpoint.config, request.max_context)
        refuse_head(request.path, spec.model_type)
        if checkpoint.spec.mtp is None:
            spec = replace(spec, mtp=None)
        check(spec)
        label, plan, rounded_from = request.planned(checkpoint, spec)
        tokenizer, why_none = request.tokenizer(checkpoint.text_tokenizer)
        engine = load(checkpoint, spec, plan)
        if rounded_from is not None:
            engine.facts["requantized_from"] = rounded_from
        defaults = generation_defaults(checkpoint)
        return LoadedModel(engine, label, dict(checkpoint.config), defaults, tokenizer, no_tokenizer=why_none)
    finally:
        checkpoint.close()


def refuse_head(path: Path, family: str | None) -> None:
    """Raise UnsupportedModelError if the model to load is a drafting head."""
    if family in HEADS:
        raise UnsupportedModelError(
            f"{path}: is a {family}, which drafts for another model and answers nothing by itself",
            hint=f"load the model that it is named after, with {arg('drafter', str(path))}",
        )


@contextmanager
def cycles_left_alone() -> Iterator[None]:
    """Disable the search for cyclic garbage inside the context.

    A tokenizer has some hundred thousand strings and pairs without cycles. While they are made, the collector would
    visit all objects of torch and transformers several times, which doubles the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def refuse_options(engine: str, why: str, **given: Any) -> None:
    """Raise InputError for the first given option that is set, as one that the engine does not support."""
    for name, value in given.items():
        if value:
            raise InputError(f"{arg(name, value)} is not for the {engine} engine: {why}; leave it out")
