"""Models other than text decoders, as ipex-llm's other Auto classes load them: encoders, translators, speech.

transformers builds and runs them; their linear layers are packed in our formats as they are read. They keep
transformers' own ``generate`` and ``forward``, and are saved by ``model.save_low_bit(folder)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ipex_lookahead.checkpoints import LowBitCheckpoint, low_bit_folder
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.low_bit import MARKER
from ipex_lookahead.engines.foreign import Extent, foreign_config
from ipex_lookahead.engines.weights import WeightPlan, check_low_bit, not_converted
from ipex_lookahead.errors import InputError
from ipex_lookahead.formats import FLOATS
from ipex_lookahead.hf.auto import AutoModelForCausalLM
from ipex_lookahead.hf.ipex_llm_names.arguments import (
    HUB_ARGUMENTS,
    check_config,
    own_arguments,
    shared_arguments,
    wanted_format,
)
from ipex_lookahead.hub import resolve_model
from ipex_lookahead.runtime.loading import progress_bar
from ipex_lookahead.system.extras import need_torch

__all__ = [
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForTokenClassification",
]

_OF_DECODERS: dict[str, Any] = {"engine": "auto", "deterministic": None, "ipex": False, "kv_cache": "fp16",
                                "max_context": None, "speculative": False, "mixed_precision": False,
                                "embedding_qtype": None}  # fmt: skip
"""Arguments of ``AutoModelForCausalLM`` alone, and their defaults."""

_WRITERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Names of classes that write text; a checkpoint's ``auto_map`` may have ``AutoModel`` mean one of them."""


class _TaskModel:
    """Loads what transformers' class of the same name loads."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | PathLike[str],
        *,
        load_in_low_bit: str | None = None,
        load_in_4bit: bool = False,
        load_in_8bit: bool = False,
        group_size: int = 32,
        modules_to_not_convert: list[str] | None = None,
        threads: int | None = None,
        device: Any = None,
        progress: bool = True,
        **others: Any,
    ) -> Any:
        """Load a folder or a hub id with transformers, and pack its linear layers.

        Args:
            pretrained_model_name_or_path: where the checkpoint is.
            load_in_low_bit: a key of ``FORMATS``; None packs nothing, or is the saved folder's own.
            load_in_4bit: a synonym of ``load_in_low_bit="sym_int4"``.
            load_in_8bit: a synonym of ``load_in_low_bit="sym_int8"``.
            group_size: inputs that share a scale, 32 or 64 (ipex-llm's).
            modules_to_not_convert: parts of module names that stay as they are.
            threads: threads that packed layers compute with; None = torch's number.
            device: PyTorch's "cpu", "xpu" or "cuda"; None = the CPU.
            progress: show a progress bar while weights are packed.
            **others: as for ``AutoModelForCausalLM.from_pretrained``.

        Returns:
            transformers' model, for inference.

        Raises:
            InputError: no such checkpoint, or an argument outside what is allowed.
            ModelFormatError: the checkpoint's bytes do not match its format, or a tensor is missing.
            UnsupportedModelError: transformers has no such class for the family, or only the checkpoint's code has.
        """
        _refuse_decoders_arguments(cls.__name__, others)
        given = {name: value for name, value in others.items() if name not in _OF_DECODERS}
        shared = shared_arguments("from_pretrained", given, own_arguments(_TaskModel.from_pretrained))
        low_bit = wanted_format(load_in_low_bit, load_in_4bit=load_in_4bit, load_in_8bit=load_in_8bit)
        plan = WeightPlan(
            check_low_bit(low_bit) if low_bit else None, group_size, not_converted=not_converted(modules_to_not_convert)
        )
        path = resolve_model(str(pretrained_model_name_or_path), progress=progress, options=shared.hub)
        if not path.is_dir():
            raise InputError(
                f"{cls.__name__} reads folders, and {path} is a file", hint="AutoModelForCausalLM reads GGUF files"
            )
        check_config(shared.config, path)
        return _load(cls.__name__, path, plan, shared.dtype, device, threads, progress)

    @classmethod
    def load_low_bit(cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any) -> Any:
        """A folder written by ``model.save_low_bit``: nothing is quantized again. Raises InputError for any other."""
        return cls.from_pretrained(low_bit_folder(pretrained_model_name_or_path), **kwargs)


class AutoModel(_TaskModel):
    """A model without a head, or the generating model that the checkpoint's own code maps AutoModel to."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike[str], **kwargs: Any) -> Any:
        """As for the other classes, and ``AutoModelForCausalLM`` where the checkpoint's ``auto_map`` maps to it.

        Code from a checkpoint is never run: only what transformers itself, or this package, has of a family.
        """
        own = own_arguments(AutoModelForCausalLM.from_pretrained)
        given = {name: value for name, value in kwargs.items() if name not in own}
        shared = shared_arguments("from_pretrained", given, own)
        progress = bool(kwargs.get("progress", True))
        path = resolve_model(str(pretrained_model_name_or_path), progress=progress, options=shared.hub)
        rest = {name: value for name, value in kwargs.items() if name not in HUB_ARGUMENTS}
        if path.is_file() or _writes(read_json(path / "config.json")):
            return AutoModelForCausalLM.from_pretrained(path, **rest)
        return super().from_pretrained(path, **rest)


class AutoModelForSeq2SeqLM(_TaskModel):
    """Encoders with a decoder: translation, summaries (T5, BART)."""


class AutoModelForSpeechSeq2Seq(_TaskModel):
    """Speech to text (Whisper)."""


class AutoModelForSequenceClassification(_TaskModel):
    """A label for a text."""


class AutoModelForMaskedLM(_TaskModel):
    """Words for masked places (BERT)."""


class AutoModelForQuestionAnswering(_TaskModel):
    """Extracts an answer from a text."""


class AutoModelForNextSentencePrediction(_TaskModel):
    """Whether one sentence follows another."""


class AutoModelForMultipleChoice(_TaskModel):
    """One of several continuations."""


class AutoModelForTokenClassification(_TaskModel):
    """A label for each token."""


def _load(auto: str, path: Path, plan: WeightPlan, dtype: Any, device: Any, threads: int | None, progress: bool) -> Any:
    """A folder with transformers' class ``auto``, with its linear layers packed by the plan."""
    need_torch(auto)
    import transformers

    from ipex_lookahead.engines.torch.device import check_device
    from ipex_lookahead.engines.torch.load import ParametersOnMeta, compute_dtype, for_inference, read_floats, sentences
    from ipex_lookahead.hf.optimize import fill_from, pack_linears, with_save_low_bit

    where = check_device("cpu" if device is None else device)
    raw = read_json(path / "config.json")
    extent = Extent.of_folder(path)
    config, _ = foreign_config(raw, path, extent)
    packed = LowBitCheckpoint(path, other_family=True) if MARKER in raw else None
    in_file = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if packed is not None:
        saved = packed.low_bit["low_bit"]
        if plan.name not in (None, saved):
            packed.close()
            raise InputError(
                f"{path} was saved in {saved}, but {plan.name} is requested; load the original checkpoint for that"
            )
        with sentences(path, config.model_type), ParametersOnMeta(path, extent):
            model = getattr(transformers, auto).from_config(config)
        fill_from(model, packed, where, compute_dtype(dtype, saved, where, in_file), threads)
        return with_save_low_bit(model)
    label = plan.name or {"float16": "fp16", "bfloat16": "bf16"}.get(in_file, "fp32")
    with sentences(path, config.model_type):
        with ParametersOnMeta(path, extent):  # its size shows before memory is allocated
            getattr(transformers, auto).from_config(config)
        model = read_floats(path, config, auto, compute_dtype(dtype, label, where, in_file))
    model.to(where)
    if plan.low_bit is None or plan.low_bit in FLOATS:
        for_inference(model)
        return with_save_low_bit(model)
    with progress_bar(progress) as report:
        pack_linears(model, plan, threads, report)
    return with_save_low_bit(model)


def _refuse_decoders_arguments(kind: str, given: Mapping[str, Any]) -> None:
    for name, default in _OF_DECODERS.items():
        if given.get(name, default) != default:
            raise InputError(
                f"{kind} does not take {name}={given[name]!r}: transformers runs its models, and that is for decoders",
                hint=f"load decoders with AutoModelForCausalLM, or leave {name} out",
            )


def _writes(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's own code has ``AutoModel`` mean a model that writes text (ChatGLM's family)."""
    classes = config.get("auto_map")
    meant = classes.get("AutoModel") if isinstance(classes, Mapping) else None
    return isinstance(meant, str) and meant.endswith(_WRITERS)
