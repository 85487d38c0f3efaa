"""Listing and removal of models in the local caches: this package's cache folder and the hub's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ipex_lookahead.errors import InputError, LookaheadError, SaveError
from ipex_lookahead.hub.choosing import PICKLES, WEIGHTS, choose, is_vision_part, parts_of
from ipex_lookahead.hub.embedded import DEFAULT, embedded_files
from ipex_lookahead.hub.folders import hub_cache_folder
from ipex_lookahead.hub.names import HubName, HubOptions, parse_name
from ipex_lookahead.hub.repository import PARTIAL, repository_folder

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A cached model.

    Attributes:
        name: value for ``--model``.
        path: the file or folder; None for an interrupted download.
        size: size on disk in bytes.
        last_used: seconds since 1970, as precise as the file system's access times.
    """

    name: str
    path: Path | None
    size: int
    last_used: float


def cached_models(options: HubOptions | None = None) -> list[CachedModel]:
    """Return the models in the caches, most recently used first."""
    options = options or HubOptions()
    found = []
    file, *_ = embedded_files(DEFAULT)
    if file.is_file():
        found.append(CachedModel("default", file, file.stat().st_size, _last_used([file])))
    for folder in _listed(hub_cache_folder(options.cache_dir)):
        owner, _, name = folder.name.removeprefix(_PREFIX).partition("--")
        if folder.name.startswith(_PREFIX) and folder.is_dir() and name:
            found += _models_in(folder, f"{owner}/{name}")
    return sorted(found, key=lambda model: -model.last_used)


def _models_in(folder: Path, repo: str) -> Iterator[CachedModel]:
    references = {
        reference.read_text(encoding="utf-8", errors="replace").strip(): reference.relative_to(
            folder / "refs"
        ).as_posix()
        for reference in sorted((folder / "refs").rglob("*"), key=lambda path: path.name != "main", reverse=True)
        if reference.is_file()
    }
    complete = False
    for snapshot in _listed(folder / "snapshots"):
        revision = references.get(snapshot.name, snapshot.name)
        suffix = None if revision == "main" else revision
        files = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
        for path in files:
            inside = path.relative_to(snapshot).as_posix()
            if path.suffix == ".gguf":
                parts = [snapshot / part for part in parts_of(inside)]
                if path in parts[1:] and parts[0] in files:
                    continue
                yield _model(HubName(repo, suffix, inside), path, [part for part in parts if part in files])
                complete = True
            elif path.name in ("config.json", "adapter_config.json"):
                siblings = [other for other in files if other.parent == path.parent]
                if path.name != "config.json" and path.with_name("config.json") in siblings:
                    continue
                if any(other.suffix in (".safetensors", *PICKLES) for other in siblings):
                    place = "" if path.parent == snapshot else path.parent.relative_to(snapshot).as_posix()
                    yield _model(HubName(repo, suffix, subfolder=place), path.parent, siblings)
                    complete = True
    partial = sorted((folder / "blobs").glob(f"*{PARTIAL}"))
    if partial and not complete:
        yield CachedModel(repo, None, _size(folder.rglob("*")), _last_used(partial))


def _model(name: HubName, path: Path, files: list[Path]) -> CachedModel:
    return CachedModel(str(name), path, sum(file.stat().st_size for file in files), _last_used(files))


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a model: deletion of ``paths``, which are inside ``folder`` and have ``size`` bytes."""

    folder: Path
    paths: tuple[Path, ...]
    size: int

    def execute(self) -> None:
        """Delete the paths; raise SaveError if that fails."""
        for path in self.paths:
            if not path.absolute().is_relative_to(self.folder.absolute()) or path.absolute() == self.folder.absolute():
                raise AssertionError(f"{path} is not in the cache {self.folder}")
            try:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise SaveError(
                    f"cannot delete {path}: {error.strerror or error}",
                    hint="check the permissions of its folder",
                ) from error


def removal_of(name: str, options: HubOptions | None = None) -> Removal:
    """Return what removing a model would delete, without deleting anything.

    ``owner/repo`` means all revisions; ``owner/repo:file.gguf`` means one file, or everything if no other weights
    remain.

    Raises:
        InputError: if the name is a path, or the model is not cached.
    """
    options = options or HubOptions()
    try:
        wanted = parse_name(name)
    except InputError:
        raise _not_cached(name) from None
    if wanted is None:
        files = [file for file in embedded_files(DEFAULT) if file.exists()]
        if not files:
            raise _not_cached(name)
        return Removal(files[0].parent, tuple(files), _size(files))
    if isinstance(wanted, Path):
        raise InputError(
            f"{name!r} is a local path; rm deletes downloaded models only",
            hint="ipex-lookahead list shows their names; delete other files with your shell's rm",
        )
    cache, folder = hub_cache_folder(options.cache_dir), repository_folder(wanted.repo, options)
    if not folder.is_dir() or folder.is_symlink():
        raise _not_cached(name)
    if wanted.file is None and wanted.revision is None and not wanted.subfolder:
        return _whole(cache, folder)
    return _part(cache, folder, wanted)


def _whole(cache: Path, folder: Path) -> Removal:
    locks = cache / ".locks" / folder.name
    paths = (folder, *([locks] if locks.is_dir() and not locks.is_symlink() else []))
    return Removal(cache, paths, _size(folder.rglob("*")))


def _part(cache: Path, folder: Path, wanted: HubName) -> Removal:
    """Return the entries of one file or revision in the snapshots, and the blobs that nothing else needs."""
    snapshots = _listed(folder / "snapshots")
    if wanted.revision is not None:
        reference = folder / "refs" / wanted.revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted.revision
        snapshots = [snapshot for snapshot in snapshots if snapshot.name == commit]
    gone: list[Path] = []
    for snapshot in snapshots:
        files = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if path.is_file()}
        if wanted.file is None:
            inside = f"{wanted.subfolder}/" if wanted.subfolder else ""
            gone += [path for place, path in files.items() if place.startswith(inside)]
            continue
        entry = wanted.file
        if entry not in files:
            with suppress(LookaheadError):  # no such file in this revision
                entry = choose(wanted, dict.fromkeys(files, 0)).entry
        gone += [files[part] for part in parts_of(entry) if part in files]
    if not gone:
        raise _not_cached(str(wanted))
    remaining = [path for path in (folder / "snapshots").rglob("*") if path.is_file() and path not in gone]
    weights = [path for path in remaining if path.suffix in (*WEIGHTS, *PICKLES)]
    has_models, had_models = (any(not is_vision_part(path.name) for path in some) for some in (weights, gone))
    if not weights or (had_models and not has_models):
        return _whole(cache, folder)
    needed = {path.resolve() for path in remaining}
    blobs = {path.resolve() for path in gone if path.is_symlink()} - needed
    blobs = {blob for blob in blobs if blob.parent == (folder / "blobs").resolve()}
    freed = _size(blobs) + _size(path for path in gone if not path.is_symlink())
    return Removal(cache, (*gone, *(folder / "blobs" / blob.name for blob in blobs)), freed)


def _not_cached(name: str) -> InputError:
    return InputError(f"no model named {name!r} is stored here", hint="ipex-lookahead list shows the stored models")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(paths: Iterable[Path]) -> int:
    """Return the total size of the files among ``paths`` in bytes, without symbolic links."""
    total = 0
    for path in paths:
        if path.is_file() and not path.is_symlink():
            total += path.stat().st_size
    return total


def _last_used(files: list[Path]) -> float:
    return max(max(status.st_atime, status.st_mtime) for status in map(os.stat, files))
