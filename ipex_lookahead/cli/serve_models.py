"""The models of ``serve`` with several: from ``-m``, ``--models-dir`` and ``--models``, with their worker's options."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ipex_lookahead.cli.adapters import named_adapters
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.types import Refused, Size, nearest
from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.files.paths import given_path, given_preset
from ipex_lookahead.files.safe_yaml import load_yaml

if TYPE_CHECKING:
    from ipex_lookahead.serving.router.entries import ModelEntry

log = logging.getLogger("ipex_lookahead")
OF_SERVER = frozenset(
    "models models_dir models_memory idle_unload worker host port api_key_file admin_key_file allowed_hosts origins "
    "tls_cert tls_key model names drain_seconds no_page quiet verbose config".split()
)
"""Parameters of ``serve`` that concern the server in front of the workers, not one model."""
PRESET = "models"
"""Folder of presets for ``--models``."""


@dataclass
class SeveralModels:
    """Several models behind one server."""

    models: str | None = option("YAML file of models with their options.", metavar="FILE", type=click.Path())
    models_dir: str | None = option(
        "Serve every model in this folder: .gguf files and model folders.", metavar="DIR", type=click.Path()
    )
    models_memory: int | None = option(
        "Memory for all loaded models; the least recently used are unloaded. Default: 80 % of the machine's.",
        type=Size(),
    )
    idle_unload: float | None = option(
        "Unload a model after this number of seconds without a request. Default: never.", low=0, metavar="SECONDS"
    )
    worker: bool = option("For the processes that this server starts.", False, hidden=True)

    def wanted(self, models: Sequence[str]) -> bool:
        """Return True if there are several models, or an option for several."""
        given = (self.models, self.models_dir, self.models_memory, self.idle_unload)
        return not self.worker and (len(models) > 1 or any(one is not None for one in given))


class ServedModels:
    """Makes the entries of the table.

    Args:
        several: the options.
        ctx: the context of ``serve``; its other options apply to every model that does not set them itself.
    """

    def __init__(self, several: SeveralModels, ctx: click.Context) -> None:
        self._several, self._ctx = several, ctx
        self._common = options_of(ctx)

    def entries(self) -> list[ModelEntry]:
        """Return the models, those of the command line first.

        Raises:
            Refused: an unknown option in the file.
            InputError: an invalid file, or a folder without models.
        """
        given, several = self._ctx.params, self._several
        made: list[ModelEntry] = []
        others = several.models is not None or several.models_dir is not None
        if not others or self._ctx.get_parameter_source("model") is not ParameterSource.DEFAULT:
            made += [self.entry(name_of(model), model) for model in given["model"]]
        if several.models is not None:
            made += self._of_file(several.models)
        if several.models_dir is not None:
            made += self._in_folder(several.models_dir)
        if given["admin_key_file"] is not None:
            made += self._pulled({name for entry in made for name in (entry.name, *entry.aliases)})
        return made

    def _pulled(self, known: set[str]) -> Iterator[ModelEntry]:
        """Models that earlier servers downloaded on request."""
        from ipex_lookahead.hub.pulled import pulled_models

        for name in pulled_models():
            if name not in known:
                try:
                    yield self.entry(name, name)
                except LookaheadError as error:
                    log.warning("%s is not served: %s", name, in_options(error)[0])

    def _in_folder(self, folder: str) -> Iterator[ModelEntry]:
        for path in models_in(folder):
            try:
                yield self.entry(name_of(str(path)), str(path))
            except LookaheadError as error:
                log.warning("%s is not served: %s", path, in_options(error)[0])

    def entry(self, name: str, source: str, options: Sequence[str] = (), aliases: Sequence[str] = ()) -> ModelEntry:
        """Return the entry of a model; its own options come after those of the command line, which they override."""
        from ipex_lookahead.cli.model_memory import memory_if_here
        from ipex_lookahead.cli.serve_embedding import purpose_of_source
        from ipex_lookahead.runtime.places import Places
        from ipex_lookahead.serving.router.entries import ModelEntry

        names = [part for one in (name, *aliases) for part in ("--served-model-name", one)]
        line = [*self._common, *options, "--model", source, *names]
        params = self._params(line)
        adapters = tuple(named_adapters(params["lora"]))
        if both := [one for one in adapters if one in (name, *aliases)]:
            raise InputError(f"lora: {both[0]!r} is the model's name", hint="give the adapter another one, NAME=PATH")
        limits = (params[one] for one in ("slots", "queue", "running_per_key", "queued_per_key"))
        memory = memory_if_here(source, params)
        idle = self._several.idle_unload
        unload = math.inf if idle is None else idle
        purpose = purpose_of_source(source)
        return ModelEntry(
            name, source, memory, line, aliases, Places(*limits), unload, adapters=adapters, purpose=purpose
        )

    def locate(self, entry: ModelEntry) -> int:
        """Download a model if necessary, and return its memory in bytes."""
        from ipex_lookahead.cli.model_memory import memory_of
        from ipex_lookahead.embedding.purpose import purpose_of
        from ipex_lookahead.hub import resolve_model

        path = resolve_model(entry.source, progress=False)
        entry.purpose = purpose_of(path)
        return memory_of(path, self._params(entry.options))

    def _params(self, line: Sequence[str]) -> dict[str, Any]:
        ctx = self._ctx
        return ctx.command.make_context(ctx.info_name, [*line], parent=ctx.parent).params

    def _of_file(self, file: str) -> Iterator[ModelEntry]:
        loaded = load_yaml(given_preset(file, PRESET), error=InputError)
        if not isinstance(loaded, dict) or not loaded:
            raise InputError(f"--models: {file} must be a mapping of model names", hint="see docs/serving.md")
        known = {max(param.opts, key=len)[2:]: param for param in self._ctx.command.params}
        known = {key: param for key, param in known.items() if param.name not in OF_SERVER - {"model", "names"}}
        for name, options in loaded.items():
            where = f"--models: {file}: {name!r:.60}"
            if not isinstance(options, dict) or not isinstance(name, str):
                raise Refused(f"{where} must be a name with a mapping of options", hint="NAME: {model: default}")
            given: dict[str, list[str]] = {}
            for key, value in options.items():
                spelled = str(key).lstrip("-").replace("_", "-")
                if spelled not in known:
                    near = nearest(spelled, known)
                    hint = f"did you mean {near}?" if near else "a model has the options of ipex-lookahead serve"
                    raise Refused(f"{where} has an unknown option {str(key)!r:.60}", hint=hint)
                if any(isinstance(one, dict | list) for one in (value if isinstance(value, list) else [value])):
                    raise Refused(f"{where}: {spelled} is {value!r:.60}; it must be a value or a list of values")
                if getattr(known[spelled], "is_flag", False) and not isinstance(value, bool):
                    raise Refused(f"{where}: {spelled} is {value!r:.60}; it must be true or false")
                given[spelled] = spelled_option(known[spelled], value)
            source, names = given.pop("model", [])[1::2], given.pop("served-model-name", [])[1::2]
            if len(source) != 1:
                raise Refused(f"{where} must have one model", hint="model: PATH, a short name or a hub id")
            try:
                yield self.entry(name, source[0], [part for one in given.values() for part in one], names)
            except click.UsageError as error:
                raise Refused(f"{where}: {error.format_message()}", hint=getattr(error, "hint", "")) from None


def options_of(ctx: click.Context) -> list[str]:
    """Return the options of a command line, its environment and its ``--config`` that concern a model."""
    found: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if name not in OF_SERVER and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            found += spelled_option(param, ctx.params.get(name))
    return found


def spelled_option(param: click.Parameter, value: Any) -> list[str]:
    """Return an option with its value as words of a command line; none for None."""
    flag = max(param.opts, key=len)
    if value is None:
        return []
    if isinstance(param, click.Option) and param.is_flag and isinstance(value, bool):
        return [flag] if value else list(param.secondary_opts[:1])
    values = value if isinstance(value, tuple | list) else [value]
    return [part for one in values for part in (flag, str(one))]


def models_in(folder: str) -> list[Path]:
    """Return the models of a folder: its .gguf files, of several parts the first, and its folders with a model.

    Raises InputError if there are none.
    """
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.checkpoints.adapters import is_adapter
    from ipex_lookahead.hub.choosing import is_vision_part

    found = []
    try:
        inside = sorted(given_path(folder).iterdir())
    except OSError as error:
        raise InputError(f"--models-dir: {folder}: {(error.strerror or str(error)).lower()}") from None
    for one in inside:
        later = "-of-" in one.stem and not one.stem.rpartition("-of-")[0].endswith("-00001")
        if is_adapter(one):
            log.warning("%s is an adapter and is not served as a model; in --models FILE: lora: [NAME=PATH]", one)
            continue
        if one.name.startswith(".") or later or is_vision_part(one.name) or (one.is_file() and one.suffix != ".gguf"):
            continue
        try:
            kind_of(one)
        except LookaheadError:
            continue
        found.append(one)
    if not found:
        hint = "it needs .gguf files, or folders with a config.json"
        raise InputError(f"--models-dir: {folder} has no models", hint=hint)
    return found


def name_of(model: str) -> str:
    """Return the default name of a model: the last part of its path, or its name on the hub."""
    path = given_path(model)
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name if path.exists() else model


def check_path(model: str | None) -> None:
    """Raise InputError for an invalid name or a missing path, before the server listens."""
    from ipex_lookahead.checkpoints import kind_of
    from ipex_lookahead.hub import parse_name

    if model is not None and isinstance(found := parse_name(model), Path):
        kind_of(found)
