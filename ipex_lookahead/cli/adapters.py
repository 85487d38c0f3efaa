"""LoRA adapters on the command line: the option ``--lora``, and facts for ``info`` and ``pull``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.options import option
from ipex_lookahead.errors import ModelFormatError, UnsupportedModelError
from ipex_lookahead.files.paths import given_path

if TYPE_CHECKING:
    from ipex_lookahead.runtime.text_model import TextModel


@dataclass
class AdapterOptions:
    """The adapters of a model."""

    lora: tuple[str, ...] = option(
        "LoRA adapter: PEFT folder, .gguf file or hub id, and its name in requests. Repeatable.",
        (),
        metavar="[NAME=]PATH",
    )

    def check(self) -> Mapping[str, str]:
        """Return name -> path or hub name. Raises an error for an invalid adapter on this machine."""
        from ipex_lookahead.checkpoints.adapters import open_adapter
        from ipex_lookahead.engines.adapters import is_on_hub

        found = named_adapters(self.lora)
        for path in found.values():
            if not is_on_hub(path):
                open_adapter(path).close()
        return found

    def load(self, model: TextModel, *, progress: bool = False) -> list[str]:
        """Load the adapters into a model, and return their names."""
        found = named_adapters(self.lora)
        for name, path in found.items():
            model.runtime.adapters.load(path, name, progress=progress)
        return list(found)


def named_adapters(given: Sequence[str]) -> dict[str, str]:
    """Return name -> path of the values of ``--lora``; without a name it is the last part of the path.

    Raises UsageError for an empty name or path, for the name "none", and for two adapters with one name.
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or given_path(one).exists():
            name, path = _name_of(one), one
        if not name or not path:
            raise click.UsageError(f"--lora {one}: give NAME=PATH, or PATH alone")
        if name == "none":
            raise click.UsageError(f"--lora {one}: 'none' is the model alone; give the adapter another name, NAME=PATH")
        if name in found:
            raise click.UsageError(f"--lora: there are two adapters {name!r}; give each a name of its own, NAME=PATH")
        found[name] = path
    return found


def _name_of(path: str) -> str:
    last = given_path(path)
    return last.stem if last.suffix == ".gguf" else last.name


def adapter_facts(path: Path) -> dict[str, Any]:
    """Return kind, base model, ranks, scales and changed modules of an adapter, from its headers.

    For an adapter that cannot be used, ``problem`` has the reason and ``hint`` the remedy.
    """
    from ipex_lookahead.checkpoints.adapters import open_adapter

    try:
        file = open_adapter(path)
    except (ModelFormatError, UnsupportedModelError) as error:
        problem, hint = in_options(error)
        return {"kind": "adapter", "problem": problem, "hint": hint}
    try:
        pairs = file.pairs()
        return {
            "kind": "adapter",
            "format": file.kind,
            "base": file.base or None,
            "matrices": len(pairs),
            "ranks": sorted({pair.a[0] for pair in pairs}),
            "scales": sorted({round(pair.scale, 6) for pair in pairs}),
            "modules": sorted({pair.matrix.removesuffix(".weight").rpartition(".")[2] for pair in pairs}),
            "bytes": sum(4 * (pair.a[0] * pair.a[1] + pair.b[0] * pair.b[1]) for pair in pairs),
            "notes": list(file.notes),
            "hint": f"ipex-lookahead chat -m {file.base or 'BASE_MODEL'} --lora {path}",
        }
    finally:
        file.close()
