"""Any torch model with its linear layers in our formats, as ``ipex_llm.optimize`` has it: changed in place.

The model stays what it was, with its own ``generate``; :func:`ipex_lookahead.wrap` puts lookahead on a causal one.
"""

from __future__ import annotations

import difflib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ipex_lookahead.checkpoints import Checkpoint, IpexLlmCheckpoint, LowBitCheckpoint, kind_of, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.engines.hf_config import config_to_save
from ipex_lookahead.engines.torch.linear_backends import LinearBackends
from ipex_lookahead.engines.torch.load import DTYPES, ParametersOnMeta, for_inference
from ipex_lookahead.engines.torch.low_bit_linear import (
    float_dtype_of,
    format_of,
    load_packed,
    module_weights,
    replace_linears,
)
from ipex_lookahead.engines.weights import WeightPlan, check_low_bit, not_converted
from ipex_lookahead.errors import InputError, LowBitFormatError
from ipex_lookahead.files.paths import given_path
from ipex_lookahead.formats import FLOATS
from ipex_lookahead.hf.model import LookaheadModelForCausalLM

__all__ = ["load_low_bit", "low_memory_init", "optimize_model", "save_low_bit"]

log = logging.getLogger("ipex_lookahead")


def optimize_model(
    model: Any,
    low_bit: str | None = "sym_int4",
    optimize_llm: bool = True,
    modules_to_not_convert: Sequence[str] | None = None,
    cpu_embedding: bool = False,
    *,
    group_size: int = 32,
    threads: int | None = None,
    **others: Any,
) -> Any:
    """Replace the linear layers of a model by packed ones, in place, and add a ``save_low_bit`` method.

    Args:
        model: any torch module with loaded weights, on the device where it runs.
        low_bit: a key of ``FORMATS``. A float format converts the whole model to that dtype; None changes no weight.
        optimize_llm: no effect.
        modules_to_not_convert: parts of module names; matching layers are not packed.
        cpu_embedding: no effect.
        group_size: number of weights that share a scale, 32 or 64 (64 as in ipex-llm).
        threads: number of threads of the packed layers; None = torch's number.
        **others: ``torch_dtype``, the dtype of the layers that are not packed, and arguments of ipex-llm that have no
            effect or must be at their default.

    Returns:
        The same object.

    Raises:
        InputError: not a torch module, a model of this package, a model without a layer to pack, or an invalid
            argument.
        LowBitFormatError: an unknown format, or weights that do not fit it; the message names the layer.
    """
    if isinstance(model, LookaheadModelForCausalLM):
        raise InputError(
            f"this model's weights were packed when it was loaded ({model.low_bit})",
            hint="pass load_in_low_bit to from_pretrained, and leave optimize_model out",
        )
    if not isinstance(model, nn.Module):
        found = [name for name, value in getattr(model, "__dict__", {}).items() if isinstance(value, nn.Module)]
        raise InputError(
            f"optimize_model takes a torch module, not a {type(model).__name__}",
            hint=f"optimize its parts: optimize_model(model.{found[0]})" if found else "",
        )
    _check_others(others)
    parts = not_converted(modules_to_not_convert)
    if low_bit is None:
        return with_save_low_bit(model)
    label = check_low_bit(low_bit)
    if label in FLOATS:
        _convert(model, DTYPES[label])
        return with_save_low_bit(model)
    dtype = others.get("dtype", others.get("torch_dtype"))
    if dtype not in (None, "auto"):
        _convert(model, _dtype(dtype))
    pack_linears(model, WeightPlan(label, group_size, not_converted=parts), threads)
    return with_save_low_bit(model)


def pack_linears(model: nn.Module, plan: WeightPlan, threads: int | None, progress: Any = None) -> None:
    """``replace_linears`` on the model's device, and an error for a model in which it finds nothing to pack."""
    first = next(model.parameters(), None)
    if first is None:
        raise InputError(f"{type(model).__name__} has no parameters")
    if first.device.type == "meta":
        raise InputError("the model has no weights yet (meta device)", hint="load_low_bit(model, folder) puts them in")
    backends = LinearBackends(first.device, threads=threads, dtype=float_dtype_of(model))
    report = replace_linears(model, plan, backends=backends, progress=progress)
    if not report.converted:
        why = next((f"{name}: {reason}" for name, reason in report.left.items()), "it has no linear layers")
        raise InputError(f"no layer of this {type(model).__name__} can be packed ({why})")
    log.info("%d linear layers in %s, %d left as they were", len(report.converted), plan.name, len(report.left))
    for_inference(model)


def save_low_bit(model: nn.Module, folder: str | PathLike[str], *, tokenizer: Any = None, **options: Any) -> Path:
    """Write a model with packed layers, so that :func:`load_low_bit` need not quantize again.

    Args:
        model: from ``optimize_model``, or one of the Auto classes for other tasks.
        folder: where to.
        tokenizer: saved in the same folder, if given.
        **options: ``overwrite`` and ``progress`` of :func:`ipex_lookahead.checkpoints.low_bit_save.save`.

    Raises:
        InputError, SaveError: as that function; also for a dtype that no format has.
    """
    infos = {name: TensorInfo.of(w) for name, w in module_weights(model)}
    label = format_of(model) or Counter(info.format for info in infos.values()).most_common(1)[0][0]
    config = getattr(model, "config", None)
    plain = json.loads(config.to_json_string(use_diff=False)) if config is not None else {}
    key = "dtype" if "dtype" in plain else "torch_dtype"
    if key in plain:  # or transformers takes the scales' dtype for the model's
        plain[key] = str(float_dtype_of(model)).removeprefix("torch.")
    generation = getattr(model, "generation_config", None)
    return save(
        folder,
        config=config_to_save(plain, infos),
        generation_config=generation.to_diff_dict() if generation is not None else {},
        infos=infos,
        weights=module_weights(model),
        low_bit={
            "low_bit": label,
            "group_size": max((info.group_size for info in infos.values()), default=0),
            "mixed_precision": False,
        },
        tokenizer=tokenizer,
        **options,
    )


def load_low_bit(model: nn.Module, model_path: str | PathLike[str], *, threads: int | None = None) -> nn.Module:
    """Load the weights of a folder written by ``save_low_bit`` into a model of the same architecture.

    Folders of ipex-llm are accepted after ``ipex-lookahead convert-ipex-llm``, for supported families.

    Args:
        model: the model, with or without weights, changed in place. Created within :func:`low_memory_init` it takes no
            memory before the call.
        model_path: the folder.
        threads: number of threads of the packed layers; None = torch's number.

    Returns:
        The same object, for inference.

    Raises:
        InputError: no such folder, or a tensor that the model lacks or has in another shape.
        ModelFormatError: another program wrote the folder, it is damaged, or it lacks a tensor of the model.
    """
    folder = given_path(model_path)
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder", hint="write one with model.save_low_bit(folder)")
    first = next((p for p in model.parameters() if p.device.type != "meta"), None)
    device = torch.device("cpu") if first is None else first.device
    theirs = kind_of(folder)[0] == "ipex_llm"
    checkpoint: Checkpoint = IpexLlmCheckpoint(folder) if theirs else LowBitCheckpoint(folder, other_family=True)
    fill_from(model, checkpoint, device, float_dtype_of(model), threads)
    with_save_low_bit(model)
    return model


def fill_from(
    model: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, threads: int | None
) -> None:
    """Put a saved folder's tensors into a model; the checkpoint is closed."""
    try:
        _check_complete(model, checkpoint)
        backends = LinearBackends(device, threads=threads, dtype=dtype)
        tensors = ((name, checkpoint.read(name)) for name in checkpoint.names())
        load_packed(model, tensors, device=device, backends=backends, dtype=dtype)
    finally:
        checkpoint.close()
    model.to(device)
    for_inference(model)


def _check_complete(model: nn.Module, checkpoint: Checkpoint) -> None:
    known = set(checkpoint.names())
    for name, _ in model.named_parameters():
        if name not in known:
            raise InputError(
                f"{checkpoint.path} has no {name}, which the model has: it was saved from another architecture"
            )


@contextmanager
def low_memory_init() -> Iterator[None]:
    """Context manager in which models are created without memory for their parameters.

    Create the model in it, for example with transformers' ``AutoModelForCausalLM.from_config(config)``, then load the
    weights with :func:`load_low_bit`.
    """
    with ParametersOnMeta():
        yield


def with_save_low_bit(model: Any) -> Any:
    """The model with a ``save_low_bit(folder)`` method of its own, as ipex-llm's users know it."""
    model.save_low_bit = partial(save_low_bit, model)  # a bound method could not be pickled with what it is bound to
    return model


def _check_others(others: dict[str, Any]) -> None:
    accepted = ("torch_dtype", "dtype", "replace_embedding", "disable_optimize_pre", "lightweight_bmm")
    own = tuple(inspect.signature(optimize_model).parameters)[1:-1]
    for name in others:
        if name not in accepted:
            near = difflib.get_close_matches(name, [*own, *accepted], 1, 0.6)
            said = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(own)}"
            raise InputError(f"optimize_model does not know {name!r}; {said}")


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters and saved buffers in a dtype; what is computed (rotary frequencies) keeps its precision."""
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, value in module.named_buffers(recurse=False):
            if value.is_floating_point() and name not in module._non_persistent_buffers_set:
                setattr(module, name, value.to(dtype))


def _dtype(wanted: Any) -> torch.dtype:
    found = wanted if isinstance(wanted, torch.dtype) else DTYPES.get(str(wanted).removeprefix("torch."))
    if found not in DTYPES.values():
        raise LowBitFormatError(f"dtype is {wanted!r}; it must be float32, float16 or bfloat16")
    assert found is not None
    return found
