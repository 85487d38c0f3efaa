"""Linear layers of a torch model in our low-bit formats: the module, and the replacement of float layers by it.

``replace_linears`` packs the weights of a loaded model, ``load_packed`` fills a model (one on the meta device, say)
from a checkpoint's tensors, and ``module_weights`` gives them back for ``save_low_bit``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from ipex_lookahead.engines.torch.linear_backends import LinearBackends
from ipex_lookahead.engines.torch.linear_kernels import FLOAT_DTYPES
from ipex_lookahead.engines.weights import WeightPlan, log_fallbacks, quantize_best
from ipex_lookahead.errors import InputError, LowBitFormatError
from ipex_lookahead.formats import FORMATS, dequantize
from ipex_lookahead.formats.base import PackedWeight
from ipex_lookahead.formats.rules import Formats

__all__ = [
    "LinearBackends",
    "LowBitLinear",
    "Replacement",
    "format_of",
    "is_plain_linear",
    "load_packed",
    "module_weights",
    "packed_from_torch",
    "replace_linears",
]

Progress = Callable[[int, int, str], None]
"""Called as progress(layers done, layers in total, name of the current layer)."""

ROUTERS = ("router", "gate", "shared_expert_gate")
"""Names of layers that choose experts. They stay in floats: they are small, and a wrong choice costs quality."""

_CONV1D = ("transformers", "Conv1D")
_PLAIN = (("transformers", "FalconLinear"), ("whisper", "Linear"))
"""Package and class of linear layers with other class names."""


class LowBitLinear(nn.Module):
    """y = x W^T + b with W in one of our formats. For inference only: it has no gradient.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], or None.
        backends: chooses the kernel; None: the CPU's backends.
        dtype: the value of ``weight.dtype``, which model code may read.
    """

    def __init__(
        self,
        weight: PackedWeight,
        bias: torch.Tensor | None = None,
        *,
        backends: LinearBackends | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if len(weight.shape) != 2:
            raise InputError(f"a linear layer needs a weight [out, in], got shape {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        self.low_bit = weight.format
        self.group_size = weight.group_size
        self.kernel: Any = (backends or LinearBackends()).kernel(replace(weight, order=None))
        order = None if weight.order is None else torch.from_numpy(weight.order.astype(np.int64)).to(self.kernel.device)
        self.order: torch.Tensor | None
        self.register_buffer("order", order, persistent=False)
        self._run = self.kernel.run  # the lookup of a submodule takes longer than a small layer's product
        # Empty: model code reads weight.dtype and weight.device, and transformers ties parameters named weight.
        self.weight = nn.Parameter(torch.empty(0, dtype=dtype, device=self.kernel.device), requires_grad=False)
        self.bias: nn.Parameter | None
        self.register_parameter("bias", None)
        if bias is not None:
            self.set_bias(bias)

    @property
    def backend(self) -> str:
        """The name of the layer's kernel."""
        return str(self.kernel.name)

    def set_bias(self, bias: torch.Tensor) -> None:
        """Set the bias, [out_features]. Raises InputError for another shape."""
        if tuple(bias.shape) != (self.out_features,):
            raise InputError(f"the bias has shape {list(bias.shape)}; the layer has {self.out_features} outputs")
        self.bias = nn.Parameter(bias.detach().to(self.kernel.device), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., in_features] float32, float16 or bfloat16 to [..., out_features] of the same dtype.

        Raises:
            InputError: another last dimension.
            EngineError: the input is on another device than the weight.
        """
        if x.shape[-1] != self.in_features:
            raise InputError(f"the layer takes [..., {self.in_features}], got {list(x.shape)}")
        order = self._buffers["order"]
        y: torch.Tensor = self._run(x if order is None else x[..., order])
        bias = self._parameters["bias"]
        if bias is not None:
            y += bias
        return y

    def packed(self) -> PackedWeight:
        """Return the weight in plain layout, bit for bit as it was given."""
        weight: PackedWeight = self.kernel.weight()
        if self.order is None:
            return weight
        return replace(weight, order=self.order.cpu().numpy().astype(np.int32))

    def _save_to_state_dict(self, *_: Any, **__: Any) -> None:
        raise InputError(
            "a packed layer has no float weight for state_dict or save_pretrained to write",
            hint="module_weights gives every tensor as it is; save_low_bit writes them",
        )

    def extra_repr(self) -> str:
        """Return shape, format and backend for ``print(model)``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"low_bit={self.low_bit}, backend={self.backend}"
        )


@dataclass(slots=True)
class Replacement:
    """The result of a replacement.

    Attributes:
        converted: layer -> its format.
        left: layer, or parameter of another module -> the reason why it was not converted.
        packed_bytes: bytes of the converted weights.
        missing: parameters for which ``load_packed`` got no tensor.
    """

    converted: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    packed_bytes: int = 0
    missing: list[str] = field(default_factory=list)


def is_plain_linear(module: nn.Module) -> bool:
    """Return True if a module computes x W^T + b only.

    These are ``nn.Linear``, transformers' ``Conv1D`` and ``FalconLinear``, and the ``Linear`` of OpenAI's whisper.
    Other subclasses of ``nn.Linear`` may compute something else, or their parent may read their weight.
    """
    kind = type(module)
    return kind is nn.Linear or any(_is(kind, *known) for known in (*_PLAIN, _CONV1D))


def is_conv1d(module: nn.Module) -> bool:
    """Return True for transformers' ``Conv1D``: a linear layer with a weight [in, out] (GPT-2's family)."""
    return _is(type(module), *_CONV1D)


def _is(kind: type, package: str, name: str) -> bool:
    return kind.__name__ == name and kind.__module__.partition(".")[0] == package


def format_of(model: nn.Module) -> str:
    """Return the most frequent format of a model's packed layers; "" without packed layers."""
    formats = Counter(module.low_bit for module in model.modules() if isinstance(module, LowBitLinear))
    return formats.most_common(1)[0][0] if formats else ""


def replace_linears(
    model: nn.Module,
    plan: WeightPlan,
    *,
    device: torch.device | str = "cpu",
    not_converted: Sequence[str] = (),
    backends: LinearBackends | None = None,
    progress: Progress | None = None,
) -> Replacement:
    """Replace each plain linear layer that the plan gives a format by a ``LowBitLinear``.

    Layers are replaced one at a time: at most one float weight and its packed form are in memory in addition to the
    model. Embeddings are not converted; an lm_head that shares the embedding's weight gets a packed copy of it. Other
    modules (experts in one tensor, convolutions, hooked or parametrized layers, routers) are not converted, and the
    report has the reasons.

    Args:
        model: any module with loaded weights; changed in place.
        plan: formats by name, ``<layer>.weight``.
        device: the packed layers' device; ignored if ``backends`` is given.
        not_converted: name parts in addition to the plan's.
        backends: kernels to use, shared by all layers.
        progress: called before each layer and once at the end.

    Raises:
        LowBitFormatError: a weight has NaN or infinity, or values beyond the format; the message names the layer.
        InputError: a weight is on the meta device; use ``load_packed``.
        EngineError: no kernel for the format passes its self-test on this device.
    """
    report = Replacement()
    backends = backends or LinearBackends(device, dtype=float_dtype_of(model))
    found = _found(model, plan, not_converted, report.left)
    for done, (names, module, target) in enumerate(found):
        if progress is not None:
            progress(done, len(found), names[0])
        layer = _convert(names[0], module, target, plan.group_size, backends)
        report.converted[names[0]] = layer.low_bit
        report.packed_bytes += packed_bytes(layer)
        for name in names:
            _put(model, name, layer)
        found[done] = ([], layer, ())  # releases the float layer now, not after the last one
    if progress is not None:
        progress(len(found), len(found), "")
    return report


def _found(
    model: nn.Module, plan: WeightPlan, not_converted: Sequence[str], left: dict[str, str]
) -> list[tuple[list[str], nn.Module, Formats]]:
    """Return the layers to convert and their formats; ``left`` receives the reasons for the others."""
    linears: list[tuple[list[str], nn.Module]] = []
    for names, module in _modules(model):
        reason = _left(names[0], module, plan, not_converted)
        if reason is None:
            linears.append((names, module))
        elif reason:
            left[names[0]] = reason
    shapes = {f"{names[0]}.weight": _shape(module) for names, module in linears}
    plan = plan.over(shapes)
    log_fallbacks(plan, shapes)
    found = []
    for names, module in linears:
        if target := plan.target(f"{names[0]}.weight", _shape(module)):
            found.append((names, module, target))
        else:
            left[names[0]] = "the plan keeps it as it is"
    return found


def _shape(module: Any) -> tuple[int, int]:
    """Return a linear layer's [n_out, n_in]."""
    rows, columns = module.weight.shape
    return (columns, rows) if is_conv1d(module) else (rows, columns)


def _convert(name: str, module: Any, target: Formats, group_size: int, backends: LinearBackends) -> LowBitLinear:
    weight = module.weight
    if weight.device.type == "meta":
        raise InputError(f"{name}.weight has no values yet (meta device)", hint="load_packed puts them in")
    try:
        values = packed_from_torch(weight.t() if is_conv1d(module) else weight)
        packed = quantize_best(values, target, group_size, backends.threads)
    except LowBitFormatError as error:
        raise LowBitFormatError(
            f"{name}.weight: {error}", hint=error.hint or f"modules_to_not_convert=[{name!r}] leaves it as it is"
        ) from None
    layer = LowBitLinear(packed, module.bias, backends=backends, dtype=weight.dtype)
    layer.train(module.training)
    return layer


def _left(name: str, module: Any, plan: WeightPlan, not_converted: Sequence[str]) -> str | None:
    """Return why a module is not converted; None if it is, "" if there is nothing to report."""
    if not is_plain_linear(module):
        if isinstance(module, nn.Linear):
            return f"{type(module).__name__} is a linear layer of its own kind"
        own = [key for key, value in module.named_parameters(recurse=False) if value.dim() > 1]
        if not own or isinstance(module, nn.Embedding | LowBitLinear):
            return ""
        return f"{type(module).__name__} holds {', '.join(own)} itself"
    parts = (*plan.not_converted, *not_converted)
    if any(part in f"{name}.weight" for part in parts):
        return "named in modules_to_not_convert"
    if name.rpartition(".")[2] in ROUTERS and module.weight.shape[0] < 1024:
        return "it chooses experts"
    if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook"):
        return "it has hooks"
    if module.weight.dtype not in FLOAT_DTYPES.values():
        return f"its weight is {module.weight.dtype}"
    return None


def load_packed(
    model: nn.Module,
    tensors: Iterable[tuple[str, PackedWeight]],
    *,
    device: torch.device | str = "cpu",
    backends: LinearBackends | None = None,
    dtype: torch.dtype = torch.float32,
) -> Replacement:
    """Fill a model (on any device, meta included) from a checkpoint's tensors, one at a time.

    A matrix in an integer format becomes a ``LowBitLinear``; other tensors become parameters or buffers of ``dtype``.

    Args:
        model: changed in place.
        tensors: (name in the model, weight); a ``Conv1D``'s weight is [out, in] like any other.
        device: the device of all tensors; ignored for packed layers if ``backends`` is given.
        backends: kernels to use, shared by all layers.
        dtype: the dtype of float tensors.

    Raises:
        InputError: a name that the model lacks, another shape than the model's, or an integer format where the model
            has no plain linear layer.
        EngineError: no kernel for a format passes its self-test on this device.
    """
    report = Replacement()
    backends = backends or LinearBackends(device, dtype=dtype)
    tied = _tied(model)
    for name, weight in tensors:
        owner, _, attribute = name.rpartition(".")
        module = _module(model, owner, name)
        old = getattr(module, attribute, None)
        if not isinstance(old, torch.Tensor):
            raise InputError(f"the model has no tensor {name}")
        conv = attribute == "weight" and is_conv1d(module)
        if tuple(weight.shape) != tuple(reversed(old.shape) if conv else old.shape):
            raise InputError(f"{name} has shape {list(weight.shape)}, but the model's is {list(old.shape)}")
        shared, places = tied.get(id(old), (None, []))
        sharers = [place for place in places if place != (owner, attribute)] if shared is old else []
        if weight.format in FLOAT_DTYPES or isinstance(module, nn.Embedding):
            values = torch.from_numpy(dequantize(weight))
            new = _fill(module, attribute, values.t() if conv else values, torch.device(device), dtype)
            for other, key in sharers if weight.format in FLOAT_DTYPES else ():
                setattr(_module(model, other, name), key, new)
        elif not (attribute == "weight" and is_plain_linear(module)):
            raise InputError(f"{name} is in {weight.format}, but the model has no linear layer there")
        if weight.format in FLOAT_DTYPES:
            continue
        for layer_name in (owner, *(other for other, _ in sharers)):
            layer = _module(model, layer_name, name)
            if is_plain_linear(layer):
                _put(model, layer_name, _packed_layer(layer, weight, backends, dtype))
                report.converted[layer_name] = weight.format
                report.packed_bytes += weight.nbytes
    report.missing = [name for name, value in model.named_parameters() if value.device.type == "meta"]
    return report


def _packed_layer(module: Any, weight: PackedWeight, backends: LinearBackends, dtype: torch.dtype) -> LowBitLinear:
    layer = LowBitLinear(weight, backends=backends, dtype=dtype)
    if module.bias is not None:  # on a meta model without values, which come under its own name
        layer.bias = nn.Parameter(module.bias.detach(), requires_grad=False)
    layer.train(module.training)
    return layer


def _fill(
    module: Any, attribute: str, values: torch.Tensor, device: torch.device, dtype: torch.dtype
) -> torch.Tensor | nn.Parameter:
    new: torch.Tensor = values.to(device, dtype).contiguous()
    if attribute in module._parameters:
        new = nn.Parameter(new, requires_grad=False)
    setattr(module, attribute, new)
    return new


def _tied(model: nn.Module) -> dict[int, tuple[nn.Parameter, list[tuple[str, str]]]]:
    """Return shared parameters by id, with their (module, attribute) pairs; the reference keeps the id valid."""
    found: dict[int, tuple[nn.Parameter, list[tuple[str, str]]]] = {}
    for owner, module in model.named_modules():
        for key, value in module._parameters.items():
            if value is not None:
                found.setdefault(id(value), (value, []))[1].append((owner, key))
    return {key: entry for key, entry in found.items() if len(entry[1]) > 1}


def module_weights(model: nn.Module) -> Iterator[tuple[str, PackedWeight]]:
    """Yield all of a model's tensors under their names: packed layers unchanged, the others in their dtypes.

    Raises LowBitFormatError for a parameter of an unsupported dtype.
    """
    seen: set[int] = set()
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, LowBitLinear):
            yield f"{prefix}weight", module.packed()
            if module.bias is not None:
                yield f"{prefix}bias", packed_from_torch(module.bias)
            continue
        for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(value) in seen or key in module._non_persistent_buffers_set or not value.is_floating_point():
                continue
            seen.add(id(value))
            conv = key == "weight" and is_conv1d(module)
            yield f"{prefix}{key}", packed_from_torch(value.t() if conv else value)


def packed_from_torch(values: torch.Tensor) -> PackedWeight:
    """Return a float32, float16 or bfloat16 tensor as a float ``PackedWeight`` on the CPU."""
    values = values.detach().cpu().contiguous()
    for name, dtype in FLOAT_DTYPES.items():
        if values.dtype == dtype:
            codes = values.numpy() if dtype == torch.float32 else values.view(torch.int16).numpy().view(np.uint16)
            return PackedWeight(name, tuple(values.shape), codes)
    raise LowBitFormatError(f"values are {values.dtype}; they must be one of {', '.join(FLOAT_DTYPES)}")


def packed_bytes(layer: LowBitLinear) -> int:
    """Return the bytes of a layer's weight in a saved folder."""
    shape = (layer.out_features, layer.in_features)
    streams = sum(prod(s.shape(shape, layer.group_size)) * s.itemsize for s in FORMATS[layer.low_bit].streams)
    return streams + (0 if layer.order is None else 4 * layer.in_features)


def _modules(model: nn.Module) -> list[tuple[list[str], nn.Module]]:
    """Return every module once, with all its names."""
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if name:
            names.setdefault(id(module), []).append(name)
            modules[id(module)] = module
    return [(names[key], module) for key, module in modules.items()]


def _module(model: nn.Module, owner: str, name: str) -> Any:
    try:
        return model.get_submodule(owner)
    except AttributeError:
        raise InputError(f"the model has no tensor {name}") from None


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    model.get_submodule(parent).add_module(child, layer)


def float_dtype_of(model: nn.Module) -> torch.dtype:
    """Return the dtype of a model's first float parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
