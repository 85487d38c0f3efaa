"""What an engine's loader gets, and what it returns."""

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
from ipex_lookahead.engines.requantize import warn_of_requantizing
from ipex_lookahead.engines.weights import WeightPlan, label_in, log_fallbacks, matrices
from ipex_lookahead.errors import InputError, LookaheadError, UnsupportedModelError, arg
from ipex_lookahead.formats.rules import label_of
from ipex_lookahead.tokenization.text import TextTokenizer

log = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""Called as progress(tensors done, tensors in all, name of the tensor in hand); before there are tensors as progress(0,
0, what is being done)."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """The arguments of ``from_pretrained`` that engines look at.

    Attributes:
        path: a checkpoint's folder or GGUF file, which exists.
        low_bit, group_size, mixed_precision, embedding_qtype, not_converted: as in ``WeightPlan``.
        device: "cpu", "xpu", "cuda", or with a number, "xpu:1"; None = the engine's default.
        dtype: of activations and of weights in no low-bit format; a torch dtype, its name, "auto" or None.
        deterministic: see ``TorchEngine``.
        gpu_layers: of the last layers how many are on the device, for the OpenCL engine; None: as many as fit.
        threads: see ``from_pretrained``.
        kv_cache: "fp16" or "int8", for the native engine.
        max_context: positions that a sequence may have, for the native engine; None: see ``architectures.spec_for``.
        check_label: raises where the model's format is not what is wanted, before weights are read.
        imatrix: an importance matrix's file, whose weights quantised errors have.
        others: further arguments of ipex-llm's: ``optimize_model``, ``cpu_embedding``.
        ipex: apply intel-extension-for-pytorch's ``ipex.llm.optimize``.
        drafter: a folder or GGUF file with a head that drafts, for the native engine; None: the one that the model's
            own files bring, or that lies beside them.
        draft_vocab: tokens of the vocabulary that a head may draft, or a file that names them; 0: all; None:
            ``config.DRAFT_VOCAB``.
        drafter_low_bit: as ``low_bit``, of a head; None: ``low_bit``'s where that has 6 bits or more, else sym_int8.
        progress: see :data:`Progress`.
        text: text is to go in and come out, so that a tokenizer is needed.
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
        """What a model in ``low_bit`` is called; None: it is as in the file."""
        return None if self.low_bit is None else label_of(self.low_bit)

    def plan(self, label: str, head: str = "") -> WeightPlan:
        """The formats of a model whose lm_head is the tensor ``head``."""
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
        """The name of the format that ``checkpoint`` is loaded in, the plan, and the format whose weights it rounds.

        What becomes of the weights is said through logging. Raises as ``check_label`` and ``WeightPlan.of_spec``.
        """
        label = self.label or label_in(checkpoint, spec)
        if self.check_label is not None:
            self.check_label(label)
        plan = self.plan(label).of_spec(spec)
        rounded_from = warn_of_requantizing(checkpoint, plan, kept=spec.kept())
        if rounded_from is None:  # else what becomes of it was said, and one sentence is enough
            log_fallbacks(plan, matrices(spec))
        return label, plan, rounded_from

    def tokenizer(self, read: Callable[[], TextTokenizer | None]) -> tuple[TextTokenizer | None, str]:
        """The checkpoint's tokenizer, which ``read`` makes, or None and why it cannot be used; before weights are read.

        A model needs none to run: a tokenizer that cannot be read is a warning, and the model has none.

        Raises:
            LookaheadError: with ``text``, what is wrong with it, or that there is none.
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
    """A running model, and what goes with it.

    Attributes:
        engine: where it runs; its ``facts`` are entries of ``describe()`` that the caller may add to.
        low_bit: name of its format.
        checkpoint_config: the config as it is saved.
        generation_config: the checkpoint's defaults for ``generate``, by transformers' names.
        tokenizer: or None.
        no_tokenizer: why there is none where the checkpoint's cannot be used.
        config: its transformers config where loading made one; None: it is to be made of ``checkpoint_config``.
    """

    engine: Any
    low_bit: str
    checkpoint_config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    tokenizer: TextTokenizer | None = None
    config: Any = None
    no_tokenizer: str = ""


def load_by_spec(
    request: LoadRequest,
    load: Callable[[Checkpoint, ModelSpec, WeightPlan], Any],
    check: Callable[[ModelSpec], None] = lambda spec: None,
) -> LoadedModel:
    """Load a checkpoint onto an engine that runs specs: ``load`` makes it, ``check`` refuses what it cannot run."""
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
    """Raise UnsupportedModelError where what is to be loaded as a model is a head that drafts for one."""
    if family in HEADS:
        raise UnsupportedModelError(
            f"{path}: is a {family}, which drafts for another model and answers nothing by itself",
            hint=f"load the model that it is named after, with {arg('drafter', str(path))}",
        )


@contextmanager
def cycles_left_alone() -> Iterator[None]:
    """No search for garbage in cycles meanwhile.

    A tokenizer is some hundred thousand strings and pairs, no cycle among them; Python's collector would go through all
    objects of torch and transformers several times while they are made, which takes as long as all the rest.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def refuse_options(engine: str, why: str, **given: Any) -> None:
    """Raise InputError for the first option that is set and that the engine has not."""
    for name, value in given.items():
        if value:
            raise InputError(f"{arg(name, value)} is not for the {engine} engine: {why}; leave it out")
