"""The low-rank adapters of a loaded model, by the names that requests use."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ipex_lookahead.architectures.adapter import Adapter, AppliedAdapter
from ipex_lookahead.engines.api import Engine, TakesAdapters
from ipex_lookahead.errors import InputError, UnsupportedModelError, arg
from ipex_lookahead.files.paths import given_path

MAX_SCALE = 100
"""Largest factor on the changes of an adapter."""


class Adapters(Mapping[str, Adapter]):
    """Adapters that are loaded into an engine. Any thread may use it.

    Args:
        engine: the engine of the base model.

    Attributes:
        base: the base model's path, for errors; "" if there is none.
    """

    def __init__(self, engine: Engine) -> None:
        self.base = ""
        self._engine = engine
        self._named: Mapping[str, Adapter] = MappingProxyType({})
        self._changing = threading.Lock()

    def __getitem__(self, name: str) -> Adapter:
        return self._named[name]

    def __iter__(self) -> Any:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def load(
        self, adapter: Adapter | str | PathLike[str], name: str | None = None, *, progress: bool = True
    ) -> Adapter:
        """Load an adapter into the engine and return it. An adapter of the same name is replaced for later requests.

        Args:
            adapter: an adapter, a PEFT folder, a GGUF adapter, or a repository of one on the hub.
            name: name that requests use; None: the adapter's own, or the file's name without its suffix.
            progress: show progress of a download on standard error.

        Raises:
            UnsupportedModelError: the engine takes no adapters, or the adapter changes what no adapter may change.
            InputError: there is no adapter at the path, or it is for another model.
            ModelFormatError: the adapter is invalid.
        """
        engine = self._engine
        if not isinstance(engine, TakesAdapters):
            raise UnsupportedModelError(
                f"the {engine.name} engine takes no adapters",
                hint=f"use {arg('engine', 'native')}, or merge the adapter into the model's weights",
            )
        if isinstance(adapter, Adapter):
            made = _named(adapter, name)
        else:
            made = _read(engine, _here(adapter, progress=progress), name, self.base)
        with self._changing:
            engine.load_adapter(made)
            replaced = self._named.get(made.name)
            self._named = MappingProxyType({**self._named, made.name: made})
            self._release(replaced)
        return made

    def unload(self, name: str) -> None:
        """Remove an adapter. Requests that use it end with an error. Raises InputError for an unknown name."""
        with self._changing:
            removed = self.named(name)
            self._named = MappingProxyType({key: one for key, one in self._named.items() if key != name})
            self._release(removed)

    def named(self, name: str) -> Adapter:
        """Return the adapter of that name. Raises InputError if there is none."""
        if not isinstance(name, str) or (found := self._named.get(name)) is None:
            known = ", ".join(sorted(self._named)) or "none"
            raise InputError(f"there is no adapter {name!r}; loaded adapters: {known}", hint="load it first")
        return found

    def applied(self, name: str | None, scale: float = 1.0) -> AppliedAdapter | None:
        """Return what a request uses: None for no name, and for a scale of 0.

        Raises InputError for an unknown name, or a scale that is not a number from -100 to 100.
        """
        if name is None:
            return None
        adapter = self.named(name)
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not -MAX_SCALE <= scale <= MAX_SCALE:
            raise InputError(argument="scale", got=scale, allowed=f"a number from -{MAX_SCALE} to {MAX_SCALE}")
        return AppliedAdapter(adapter, float(scale)) if scale else None

    def check(self, applied: AppliedAdapter | None) -> None:
        """Raise InputError for an adapter that is not loaded, or was unloaded."""
        if applied is not None and all(one.digest != applied.adapter.digest for one in self._named.values()):
            raise InputError(f"adapter {applied.adapter.name} is not loaded", hint="load it first")

    def _release(self, adapter: Adapter | None) -> None:
        """Release an adapter's memory unless another name has the same contents."""
        if adapter is not None and all(one.digest != adapter.digest for one in self._named.values()):
            assert isinstance(self._engine, TakesAdapters)
            self._engine.unload_adapter(adapter)


def is_on_hub(path: str | PathLike[str]) -> bool:
    """Return True for an adapter's name or address on the hub, False for a path, which may not exist.

    Short names of recommended models are paths: none of them is an adapter.
    Raises InputError for an invalid path or address.
    """
    from ipex_lookahead.hub import HubName, parse_name

    found, name = given_path(path), str(path)
    if "/" not in name or found.is_absolute() or found.exists():
        return False
    try:
        return isinstance(parse_name(name), HubName)
    except InputError:
        if "://" in name:
            raise
        return False


def _read(engine: TakesAdapters, path: Path, name: str | None, base: str) -> Adapter:
    from ipex_lookahead.checkpoints.adapters import read_adapter

    return _named(read_adapter(path, engine.adapter_spec, name or _stem(path), model=base), name)


def _here(path: str | PathLike[str], *, progress: bool) -> Path:
    """Return the path of an adapter; one of the hub is downloaded if necessary."""
    from ipex_lookahead.hub import resolve_model

    return resolve_model(str(path), progress=progress) if is_on_hub(path) else given_path(path)


def _stem(found: Path) -> str:
    return found.stem if found.suffix == ".gguf" else found.name


def _named(adapter: Adapter, name: str | None) -> Adapter:
    """Return the adapter under a name. Raises InputError for a name that is not a text of 1 to 200 characters."""
    name = adapter.name if name is None else name
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise InputError(argument="name", got=name, allowed="1 to 200 printable characters")
    return adapter if adapter.name == name else Adapter(name, adapter.matrices, adapter.source)
