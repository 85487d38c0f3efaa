"""Load checkpoints onto the torch engine: known families by our readers, other families by transformers.

No pickle is opened and no code of a checkpoint is run: weights come from safetensors (or GGUF) only, and a config's
``auto_map`` and similar keys are dropped before transformers reads it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from ipex_lookahead.architectures import ModelSpec, model_types
from ipex_lookahead.architectures import family as family_of_type
from ipex_lookahead.architectures.spec import Attention, Tensor
from ipex_lookahead.checkpoints import Checkpoint, LowBitCheckpoint, family_of, open_checkpoint
from ipex_lookahead.checkpoints.config_json import read_json
from ipex_lookahead.checkpoints.generation_config import read_generation_config
from ipex_lookahead.checkpoints.ipex_llm import is_ipex_llm
from ipex_lookahead.checkpoints.low_bit import MARKER
from ipex_lookahead.checkpoints.placed import with_offset
from ipex_lookahead.checkpoints.safetensors import SafetensorsCheckpoint
from ipex_lookahead.engines.foreign import Extent, foreign_config, said
from ipex_lookahead.engines.hf_config import generation_defaults, transformers_config
from ipex_lookahead.engines.loading import LoadedModel, LoadRequest, refuse_options
from ipex_lookahead.engines.requantize import warn_of_requantizing
from ipex_lookahead.engines.torch.device import check_device
from ipex_lookahead.engines.torch.engine import TorchEngine
from ipex_lookahead.engines.torch.fitness import refuse_unfit
from ipex_lookahead.engines.torch.ipex import apply_ipex, check_ipex
from ipex_lookahead.engines.torch.linear_backends import LinearBackends
from ipex_lookahead.engines.torch.low_bit_linear import Replacement, load_packed, replace_linears
from ipex_lookahead.engines.weights import WeightPlan, check_shape, label_in, log_fallbacks, matrices, read_matrix
from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError, UnsupportedModelError, arg
from ipex_lookahead.formats import FLOATS, FORMATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.system.compat import dtype_argument

DTYPES = {
    "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip


def load(request: LoadRequest) -> LoadedModel:
    """Load a checkpoint onto the torch engine.

    Raises:
        InputError, EngineError: an unknown or missing device, or an unknown dtype.
        ModelFormatError: the checkpoint is damaged, or a tensor is missing.
        UnsupportedModelError: a family that transformers or this engine does not support.
    """
    refuse_options(
        "torch",
        "that is the native engine's, or the OpenCL engine's",
        kv_cache=request.kv_cache if request.kv_cache != "fp16" else None,
        max_context=request.max_context,
        **request.placement(),
    )
    device = check_device("cpu" if request.device is None else request.device)
    family = family_of(request.path)
    if family is not None and not _is_read_here(family, request.path):
        return _load_foreign(request, device, family)
    checkpoint = open_checkpoint(request.path)
    try:
        if family is None or not (isinstance(checkpoint, LowBitCheckpoint) and checkpoint.experts_in_one):
            return _load_known(checkpoint, request, device)
    finally:
        checkpoint.close()
    return _load_foreign(request, device, family)


def compute_dtype(wanted: Any, label: str, device: torch.device, in_file: str = "") -> torch.dtype:
    """Return the dtype of activations: the requested one, else a fast one that keeps the weights' precision.

    Args:
        wanted: a torch dtype, its name, "auto" or None.
        label: the weights' format.
        device: the model's device.
        in_file: the checkpoint's own dtype.
    """
    if wanted not in (None, "auto"):
        found = wanted if isinstance(wanted, torch.dtype) else DTYPES.get(str(wanted).removeprefix("torch."))
        if found is None or found not in DTYPES.values():
            raise InputError(f"dtype is {wanted!r}; it must be float32, float16 or bfloat16")
        return found
    if label in FLOATS:
        half_on_cpu = device.type == "cpu" and label == "fp16"  # few CPUs multiply float16; float32 holds it exactly
        return torch.float32 if half_on_cpu else DTYPES[label]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if in_file == "bfloat16" else torch.float16


# ---- families of our own ---------------------------------------------------------------------------------------------


def _load_known(checkpoint: Checkpoint, request: LoadRequest, device: torch.device) -> LoadedModel:
    spec = checkpoint.spec
    if spec.mixtures:
        raise UnsupportedModelError(
            f"{checkpoint.path}: a mixture of experts in no folder of transformers' does not run on the torch engine",
            hint=f"use {arg('engine', 'native')}",
        )
    label = request.label or label_in(checkpoint, spec)
    plan = request.plan(label).of_spec(spec)
    log_fallbacks(plan, matrices(spec))
    dtype = compute_dtype(request.dtype, label, device, checkpoint.config.get("dtype", ""))
    if request.ipex:
        check_ipex(label, dtype, device)
    rounded_from = warn_of_requantizing(checkpoint, plan, kept=spec.kept())
    tokenizer, why_none = request.tokenizer(checkpoint.text_tokenizer)
    config = transformers_config(checkpoint.config, checkpoint.path)
    with sentences(checkpoint.path, config.model_type):
        model = _skeleton(config, checkpoint.path, Extent.of(checkpoint))
    backends = LinearBackends(device, threads=request.threads, dtype=dtype)
    report = load_packed(
        model, _tensors(checkpoint, spec, plan, request), device=device, backends=backends, dtype=dtype
    )
    _finish(model, report, device, checkpoint.path)
    _set_rope(model, spec, checkpoint.config)
    engine = _engine(model, request, device, label, backends, report)
    if rounded_from is not None:
        engine.facts["requantized_from"] = rounded_from
    return LoadedModel(
        engine,
        label,
        dict(checkpoint.config),
        generation_defaults(checkpoint),
        tokenizer,
        config,
        why_none,
    )


def _tensors(
    checkpoint: Checkpoint, spec: ModelSpec, plan: WeightPlan, request: LoadRequest
) -> Iterator[tuple[str, PackedWeight]]:
    """Yield all tensors under transformers' names, one at a time, in the plan's formats."""
    total, kept = sum(tensor.is_matrix for tensor in spec.tensors()) + spec.tied, spec.kept()
    done = 0

    def weight(tensor: Tensor, *, keep: bool = False) -> PackedWeight:
        nonlocal done
        check_shape(checkpoint, tensor)
        if not tensor.is_matrix:
            return with_offset(checkpoint.read(tensor.name), -tensor.hf.offset)
        if request.progress is not None:
            request.progress(done, total, tensor.name)
        done += 1
        return read_matrix(checkpoint, tensor, plan, keep=keep, threads=request.threads)

    table = spec.embedding.shape
    embedding = weight(spec.embedding, keep=spec.embedding.name != plan.embedding)
    if embedding.format not in FLOATS:  # torch has no packed embeddings
        embedding = PackedWeight("fp32", table, dequantize(embedding))
    yield spec.embedding.name, embedding
    head = weight(spec.head_weight)
    if not spec.tied or head.format not in FLOATS:
        yield "lm_head.weight", head
    del embedding, head
    done_already = {spec.embedding.name, spec.head_weight.name}
    rest = [one for one in spec.tensors() if one.name not in done_already and one.constant is None]
    for name, parts in itertools.groupby(rest, key=_module):  # parts of one follow each other
        yield name, _joined([weight(tensor, keep=tensor.name in kept) for tensor in parts])
    if request.progress is not None:
        request.progress(total, total, "")


def _module(tensor: Tensor) -> str:
    return tensor.hf.name


def _joined(parts: list[PackedWeight]) -> PackedWeight:
    """Concatenate the parts of a tensor; parts of several formats as float32."""
    if len(parts) == 1:
        return parts[0]
    orders = {None if part.order is None else part.order.tobytes() for part in parts}
    if len({(part.format, part.group_size) for part in parts}) > 1 or len(orders) > 1:
        parts = [PackedWeight("fp32", part.shape, dequantize(part)) for part in parts]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    streams = FORMATS[parts[0].format].streams
    arrays = {stream.name: np.concatenate([getattr(part, stream.name) for part in parts]) for stream in streams}
    return PackedWeight(parts[0].format, shape, group_size=parts[0].group_size, order=parts[0].order, **arrays)


def _is_read_here(model_type: str, path: Path) -> bool:
    """Return True if this package's reader opens a folder, and not transformers.

    It opens Llamas, text parts of vision models (transformers has no class for them), and folders that were saved with
    the weights of a spec.
    """
    return model_type in model_types() and (
        model_type == "llama" or bool(family_of_type(model_type).KEYS.inside) or _is_ours(path)
    )


def _is_ours(path: Path) -> bool:
    """Return True if ``save_low_bit``, ours or ipex-llm's, wrote a folder with the weights of a spec."""
    config = read_json(path / "config.json")
    return MARKER in config or is_ipex_llm(path, config)


def _set_rope(model: Any, spec: ModelSpec, config: dict[str, Any]) -> None:
    """Set rope frequencies that no transformers config expresses: a GGUF file's own divisors."""
    if (config.get("rope_scaling") or {}).get("rope_type") != "freq_factors":
        return
    rotary = getattr(model.model, "rotary_emb", None)
    if rotary is None or not hasattr(rotary, "inv_freq"):
        raise UnsupportedModelError(
            "this GGUF file has rope frequencies of its own, which this release of transformers cannot take",
            hint=f"use {arg('engine', 'native')}",
        )
    ropes = (block.mixer.rope for block in spec.layers if isinstance(block.mixer, Attention))
    turn = next(rope for rope in ropes if rope is not None)  # freq_factors is one
    rotary.inv_freq = torch.from_numpy(turn.frequencies).to(rotary.inv_freq.device)


# ---- any other family ------------------------------------------------------------------------------------------------


def _load_foreign(request: LoadRequest, device: torch.device, family: str) -> LoadedModel:

    from ipex_lookahead.tokenization.folder import text_from_folder

    path = request.path
    refuse_options("torch", "torch has no packed embeddings", embedding_qtype=request.embedding_qtype)
    raw = read_json(path / "config.json")
    in_file = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    packed = LowBitCheckpoint(path, other_family=True) if MARKER in raw else None
    checkpoint: Checkpoint = packed or SafetensorsCheckpoint(path, other_family=True)  # checks the headers
    try:
        extent = Extent.of(checkpoint)
        config, plain = foreign_config(raw, path, extent)
        label = request.label or (packed.low_bit["low_bit"] if packed else _label(in_file))
        dtype = compute_dtype(request.dtype, label, device, in_file)
        if request.ipex:
            check_ipex(label, dtype, device)
        tokenizer, why_none = request.tokenizer(lambda: text_from_folder(path, plain))
        backends = LinearBackends(device, threads=request.threads, dtype=dtype)
        with sentences(path, family):
            if packed is None:
                model, report = _float_model(request, config, extent, label, dtype, backends)
            else:
                model, report = _packed_model(packed, request, config, extent, dtype, backends)
        _finish(model, report, device, path)
    finally:
        checkpoint.close()
    engine = _engine(model, request, device, label, backends, report)
    settings = path / "generation_config.json"
    if settings.exists():
        defaults = read_generation_config(settings, engine.vocab_size)
    else:
        defaults = model.generation_config.to_diff_dict()
    return LoadedModel(
        engine,
        label,
        plain,
        defaults,
        tokenizer,
        config,
        why_none,
    )


@contextmanager
def sentences(path: Path, family: str) -> Iterator[None]:
    """Raise transformers' exceptions about a checkpoint as UnsupportedModelError with their first line."""
    try:
        yield
    except LookaheadError:
        raise
    except Exception as error:  # the code of any family, on unchecked values
        raise UnsupportedModelError(f"{path}: transformers cannot load this {family} model: {said(error)}") from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Disable transformers' progress bars, which would overwrite ours."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _skeleton(config: Any, path: Path, extent: Extent) -> Any:
    """Build the model without weights. Raises UnsupportedModelError for a model that the engine cannot run."""
    from transformers import AutoModelForCausalLM

    with ParametersOnMeta(path, extent):
        model = AutoModelForCausalLM.from_config(config)
    refuse_unfit(model)
    return model


def _float_model(
    request: LoadRequest, config: Any, extent: Extent, label: str, dtype: torch.dtype, backends: LinearBackends
) -> tuple[Any, Replacement]:
    """Load the weights by transformers, which knows each family's names, and pack them layer by layer."""
    refuse_options(
        "torch", "matrices of this family have no names that an importance matrix knows", imatrix=request.imatrix
    )
    _refuse_without_text(config, request.path)
    _skeleton(config, request.path, extent)
    if request.progress is not None:
        request.progress(0, 0, "reading the weights")
    model = read_floats(request.path, config, "AutoModelForCausalLM", dtype)
    if request.low_bit is None:
        return model, Replacement()
    plan = request.plan(label, f"{_name_of(model, model.get_output_embeddings())}.weight")
    return model, replace_linears(model, plan, backends=backends, progress=request.progress)


def _refuse_without_text(config: Any, path: Path) -> None:
    """Raise UnsupportedModelError for a family without a text-only model in transformers.

    These are vision models with a text part of an unknown family (this package reads the others), or with layers that
    attend to images.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    part = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    between = getattr(part, "cross_attention_layers", None)
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not between:
        return
    if between:
        why = f"{len(between)} of its layers look at an image, and a text has none"
    elif part is not config:
        why = f"its text part, a {part.model_type}, is of no family here, and transformers has no class for it alone"
    else:
        why = "transformers has no class of it that continues a text"
    raise UnsupportedModelError(
        f"{path}: a {config.model_type} cannot run here: {why}",
        hint="take a model for text alone, or of a family in docs/families.md",
    )


def read_floats(path: Path, config: Any, auto: str, dtype: torch.dtype) -> Any:
    """Load a folder's float model by one of transformers' Auto classes, from safetensors and without remote code.

    Args:
        path: the folder.
        config: from ``foreign_config``.
        auto: name of the class, such as ``AutoModelForCausalLM``.
        dtype: the dtype of the weights.

    Raises:
        ModelFormatError: a file is damaged, or a tensor is missing.
    """
    import transformers

    SafetensorsCheckpoint(path, other_family=True).close()  # raises for a damaged header
    with without_bars():
        model, info = getattr(transformers, auto).from_pretrained(
            str(path),
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **dtype_argument(dtype),
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelFormatError(path, missing[0], None, "is missing from the checkpoint")
    return model


def _packed_model(
    packed: LowBitCheckpoint,
    request: LoadRequest,
    config: Any,
    extent: Extent,
    dtype: torch.dtype,
    backends: LinearBackends,
) -> tuple[Any, Replacement]:
    """Load a low-bit folder without quantizing again."""
    saved = packed.low_bit["low_bit"]
    if request.label not in (None, saved):
        raise InputError(
            f"{packed.path} was saved in {saved}, but {request.label} is requested; load the original checkpoint"
            " for that"
        )
    model = _skeleton(config, packed.path, extent)
    known = set(packed.names())
    if absent := [name for name, _ in model.named_parameters() if name not in known]:
        raise ModelFormatError(packed.path, absent[0], None, "is missing from the checkpoint")
    stored = _stored(packed, request)
    return model, load_packed(model, stored, device=backends.device, backends=backends, dtype=dtype)


def _stored(checkpoint: LowBitCheckpoint, request: LoadRequest) -> Iterator[tuple[str, PackedWeight]]:
    names = checkpoint.names()
    for done, name in enumerate(names):
        if request.progress is not None:
            request.progress(done, len(names), name)
        yield name, checkpoint.read(name)
    if request.progress is not None:
        request.progress(len(names), len(names), "")


def _label(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(dtype, "fp32")


def _name_of(model: Any, module: Any) -> str:
    return next((name for name, found in model.named_modules() if found is module), "lm_head")


# ---- both ------------------------------------------------------------------------------------------------------------


class ParametersOnMeta(TorchFunctionMode):
    """Inside the context, ``torch.empty`` and random tensors (parameters before loading) are on the meta device.

    Computed buffers (rotary frequencies, causal masks) are made normally, since checkpoints do not have them.

    Args:
        path: the checkpoint, for the error.
        extent: its size. A model with many times the number of parameters or elements, or with buffers far beyond the
            weights, raises ModelFormatError while it is built; None: no limit.
    """

    def __init__(self, path: Path | None = None, extent: Extent | None = None) -> None:
        super().__init__()
        self._path = path
        self._parameters = math.inf if extent is None else 8 * extent.tensors + 4096
        self._elements = math.inf if extent is None else 4 * extent.elements + (1 << 24)
        self._buffer_bytes = math.inf if extent is None else 2 * extent.elements + (256 << 20)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _PARAMETERS:
            kwargs["device"] = "meta"
            made = func(*args, **kwargs)
            self._parameters -= 1
            self._elements -= made.numel()
            self._check()
            return made
        if func in _BUFFERS and kwargs.get("device") is None:
            sized = func(*args, **{**kwargs, "device": "meta"})  # the shape, before the memory
            self._buffer_bytes -= sized.numel() * sized.element_size()
            self._check()
        return func(*args, **kwargs)

    def _check(self) -> None:
        if min(self._parameters, self._elements, self._buffer_bytes) < 0:
            raise ModelFormatError(
                self._path or "", "config.json", None, "describes a model many times as large as its tensors"
            )


_PARAMETERS = (torch.empty, torch.randn, torch.rand)
_BUFFERS = (torch.ones, torch.zeros, torch.full, torch.arange, torch.eye, torch.linspace)


def _finish(model: Any, report: Replacement, device: torch.device, path: Any) -> None:
    """Move the model to the device. Raises ModelFormatError for a parameter without values."""
    if report.missing:
        raise ModelFormatError(path, report.missing[0], None, "is missing from the checkpoint")
    for_inference(model.to(device))


def for_inference(model: torch.nn.Module) -> None:
    """Disable dropout and gradients, which packed layers do not support."""
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _engine(
    model: Any, request: LoadRequest, device: torch.device, label: str, backends: LinearBackends, report: Replacement
) -> TorchEngine:
    facts: dict[str, Any] = {"backends": backends.describe()} if report.converted else {}
    if report.left:
        facts["not_converted"] = report.left
    if request.ipex:
        dtype = next(model.parameters()).dtype
        model, facts["ipex"] = apply_ipex(check_ipex(label, dtype, device), model, dtype)
    with sentences(request.path, str(getattr(model.config, "model_type", "unknown"))):  # runs it on a few tokens
        return TorchEngine(
            model,
            device=device,
            deterministic=request.deterministic,
            low_bit=label,
            threads=request.threads,
            facts=facts,
        )
