"""Low-rank adapters of a transformers model: hooks that add scale * B (A x) to the outputs of its linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ipex_lookahead.architectures import spec_for
from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter, LowRank, check_adapter
from ipex_lookahead.architectures.spec import ModelSpec, Tensor
from ipex_lookahead.checkpoints.config_json import checked_config
from ipex_lookahead.checkpoints.placed import run_of
from ipex_lookahead.errors import InputError, LookaheadError, UnsupportedModelError, arg
from ipex_lookahead.files.safe_json import parse


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change of some outputs of a module; ``rows``: int64 indices of these outputs, None = all in order."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float
    rows: torch.Tensor | None


class ModelAdapters:
    """The adapters of a transformers model, and the one that its forwards use.

    Args:
        model: the model.
        device: where the products are computed, in float32.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._loaded: dict[str, tuple[Adapter, dict[torch.nn.Module, list[_Change]]]] = {}
        self._hooks: dict[torch.nn.Module, Any] = {}
        self._applied: AppliedAdapter | None = None

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def nbytes(self) -> int:
        """Bytes of all A and B."""
        return sum(adapter.nbytes for adapter, _ in self._loaded.values())

    def load(self, adapter: Adapter, spec: ModelSpec) -> None:
        """Load an adapter. Raises as ``TakesAdapters.load_adapter``."""
        if adapter.digest in self._loaded:
            return
        check_adapter(adapter, spec)
        tensors = {one.name: one for one in spec.tensors()}
        modules = dict(self._model.named_modules())
        changes: dict[torch.nn.Module, list[_Change]] = {}
        for name, one in adapter.matrices.items():
            module = _module(modules, tensors[name].hf.name.removesuffix(".weight"))
            changes.setdefault(module, []).append(self._change(one, tensors[name]))
        self._loaded[adapter.digest] = adapter, changes
        for module in changes:
            if module not in self._hooks:
                self._hooks[module] = module.register_forward_hook(self._add)

    def unload(self, adapter: Adapter) -> None:
        """Release an adapter, and the hooks that no other one needs."""
        self._loaded.pop(adapter.digest, None)
        needed = {module for _, changes in self._loaded.values() for module in changes}
        for module in self._hooks.keys() - needed:
            self._hooks.pop(module).remove()

    @contextmanager
    def applied(self, adapter: AppliedAdapter | None) -> Iterator[None]:
        """Use an adapter in the model's forwards. Raises InputError for one that is not loaded."""
        if adapter is not None and adapter.adapter.digest not in self._loaded:
            raise InputError(f"adapter {adapter.adapter.name} is not loaded", hint="call load_adapter first")
        self._applied = adapter
        try:
            yield
        finally:
            self._applied = None

    def _change(self, one: LowRank, tensor: Tensor) -> _Change:
        rows = None
        if tensor.hf.rows is not None:
            run = run_of(tensor, tensor.hf)
            rows = torch.from_numpy(np.arange(tensor.hf.shape[0])[run.first : run.first + run.span][run.rows])
        a, b = (torch.from_numpy(np.ascontiguousarray(values)).to(self._device) for values in (one.a, one.b))
        return _Change(a, b, one.scale, None if rows is None else rows.to(self._device))

    def _add(self, module: torch.nn.Module, given: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        """Return the output with the changes of the adapter in use; None: unchanged."""
        if self._applied is None:
            return None
        changes = self._loaded[self._applied.adapter.digest][1].get(module)
        if changes is None:
            return None
        x, found = given[0].float(), output.float()
        for one in changes:
            delta = (x @ one.a.T) @ one.b.T * (one.scale * self._applied.scale)
            found = found + delta if one.rows is None else found.index_add(-1, one.rows, delta)
        return found.to(output.dtype)


def spec_of(model: Any) -> ModelSpec:
    """Return the description of a transformers model. Raises UnsupportedModelError for a family without one."""
    config = model.config
    kind, text = getattr(config, "model_type", type(model).__name__), config.to_json_string(use_diff=False).encode()
    try:
        return spec_for(checked_config(parse(text, kind, any_float=True), kind))
    except LookaheadError as error:
        raise UnsupportedModelError(
            f"the torch engine takes no adapters for this {kind} model: {error}",
            hint=f"use {arg('engine', 'native')}, or merge the adapter with peft's merge_and_unload",
        ) from None


def _module(modules: dict[str, torch.nn.Module], name: str) -> torch.nn.Module:
    """Return the module of a tensor of the checkpoint; names inside a multimodal model have another beginning."""
    if name in modules:
        return modules[name]
    inner = name[name.find("layers.") :]
    found = [module for key, module in modules.items() if key.endswith(f".{inner}")]
    if len(found) != 1:
        raise UnsupportedModelError(f"the model has no module {name}, which the adapter changes")
    return found[0]
