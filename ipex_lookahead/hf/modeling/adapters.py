"""Low-rank adapters under transformers' names: ``load_adapter``, ``set_adapter``, ``delete_adapter`` and the others."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from ipex_lookahead.architectures.adapter import AppliedAdapter
from ipex_lookahead.errors import InputError
from ipex_lookahead.runtime.runtime import Runtime

ACTIVE: Any = "the active adapter"
"""Default of ``adapter``, compared by identity."""


class AdapterMethods:
    """Adapters of a model. They are never merged: each call, and each row of a batch, may use another one."""

    runtime: Runtime
    _active_adapter: str | None = None
    _adapters_disabled: bool = False

    def load_adapter(self, peft_model_id: str | PathLike[str], adapter_name: str = "default") -> None:
        """Load a PEFT folder or a GGUF adapter. The first adapter becomes the active one, as in transformers.

        An adapter of the same name is replaced. Copies of the model share their adapters.

        Args:
            peft_model_id: the folder or file.
            adapter_name: name for ``set_adapter`` and ``generate(adapter=...)``.

        Raises:
            InputError: there is no adapter at the path, or it is for another model.
            ModelFormatError: the adapter is invalid.
            UnsupportedModelError: the engine takes no adapters, or the adapter changes what no adapter may change.
        """
        first = not self.runtime.adapters
        self.runtime.adapters.load(peft_model_id, adapter_name)
        if first:
            self._active_adapter = adapter_name

    def set_adapter(self, adapter_name: str | Sequence[str] | None) -> None:
        """Use an adapter in calls without ``adapter``; None: the base model.

        Raises InputError for an unknown name, and for several names: one adapter changes a row at a time.
        """
        if isinstance(adapter_name, list | tuple):
            if len(adapter_name) > 1:
                raise InputError(
                    f"set_adapter: {len(adapter_name)} adapters are given; one at a time changes a row",
                    hint="merge them with peft's add_weighted_adapter, and load the result",
                )
            adapter_name = adapter_name[0] if adapter_name else None
        if adapter_name is not None:
            self.runtime.adapters.named(str(adapter_name))
        self._active_adapter = None if adapter_name is None else str(adapter_name)
        self._adapters_disabled = False

    def active_adapters(self) -> list[str]:
        """Return the name of the active adapter in a list, which is empty for the base model."""
        return [] if self._adapters_disabled or self._active_adapter is None else [self._active_adapter]

    def disable_adapters(self) -> None:
        """Use the base model in calls without ``adapter``, until ``enable_adapters`` or ``set_adapter``."""
        self._adapters_disabled = True

    def enable_adapters(self) -> None:
        """Use the active adapter again."""
        self._adapters_disabled = False

    def delete_adapter(self, adapter_names: str | Sequence[str]) -> None:
        """Release adapters. Raises InputError for an unknown name; then nothing is released."""
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        for name in names:
            self.runtime.adapters.named(name)
        for name in names:
            self.runtime.adapters.unload(name)
            if name == self._active_adapter:
                self._active_adapter = None

    def _applied_each(
        self, adapter: str | Sequence[str | None] | None, scale: float
    ) -> AppliedAdapter | Sequence[AppliedAdapter | None] | None:
        """Return the adapter of all prompts, or of each."""
        if adapter is not ACTIVE and isinstance(adapter, list | tuple):
            return [self._applied(one, scale) for one in adapter]
        return self._applied(adapter, scale)

    def _applied(self, adapter: str | None, scale: float = 1.0) -> AppliedAdapter | None:
        """Return the adapter of a call, the active one for ``ACTIVE``. Raises InputError for an unknown name."""
        if adapter is ACTIVE:
            adapter = next(iter(self.active_adapters()), None)
        return self.runtime.adapters.applied(adapter, scale)
