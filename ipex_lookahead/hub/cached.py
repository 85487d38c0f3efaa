"""Which models are kept on this machine, and removing them: in our cache folder and in the hub's, nowhere else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ipex_lookahead.errors import InputError, LookaheadError, SaveError
from ipex_lookahead.hub.choosing import PICKLES, WEIGHTS, choose, parts_of
from ipex_lookahead.hub.embedded import DEFAULT, embedded_files
from ipex_lookahead.hub.folders import hub_cache_folder
from ipex_lookahead.hub.names import HubName, HubOptions, parse_name
from ipex_lookahead.hub.repository import PARTIAL, repository_folder

_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model that is kept.

    Attributes:
        name: as ``--model`` takes it.
        path: the file or folder; None for a fetch that was interrupted.
        size: bytes on the disk.
        last_used: seconds since 1970, as far as the file system notes when files are read.
    """

    name: str
    path: Path | None
    size: int
    last_used: float


def cached_models(options: HubOptions | None = None) -> list[CachedModel]:
    """The models in the caches, the last used first."""
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
            elif path.name == "config.json":
                beside = [other for other in files if other.parent == path.parent]
                if any(other.suffix in (".safetensors", *PICKLES) for other in beside):
                    place = "" if path.parent == snapshot else path.parent.relative_to(snapshot).as_posix()
                    yield _model(HubName(repo, suffix, subfolder=place), path.parent, beside)
                    complete = True
    partial = sorted((folder / "blobs").glob(f"*{PARTIAL}"))
    if partial and not complete:
        yield CachedModel(repo, None, _size(folder.rglob("*")), _last_used(partial))


def _model(name: HubName, path: Path, files: list[Path]) -> CachedModel:
    return CachedModel(str(name), path, sum(file.stat().st_size for file in files), _last_used(files))


@dataclass(frozen=True, slots=True)
class Removal:
    """What removing a model deletes: ``paths``, files and folders of a cache below ``folder``, of ``size`` bytes."""

    folder: Path
    paths: tuple[Path, ...]
    size: int

    def execute(self) -> None:
        """Delete. Raises SaveError for what cannot be deleted."""
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
                    f"{path} cannot be deleted: {error.strerror or error}", hint="check who owns it, and its folder"
                ) from error


def removal_of(name: str, options: HubOptions | None = None) -> Removal:
    """What removing a model would delete; nothing is deleted yet.

    ``owner/repo`` stands for all of it, with every revision; ``owner/repo:file.gguf`` for one file, and for all when no
    other weights are left.

    Raises:
        InputError: a path, which is nobody's but the user's; or a model that is not kept.
    """
    options = options or HubOptions()
    try:
        wanted = parse_name(name)
    except InputError:
        raise _not_kept(name) from None
    if wanted is None:
        files = [file for file in embedded_files(DEFAULT) if file.exists()]
        if not files:
            raise _not_kept(name)
        return Removal(files[0].parent, tuple(files), _size(files))
    if isinstance(wanted, Path):
        raise InputError(
            f"{name} is a path; only models that were fetched are removed, by the names that are listed",
            hint="ipex-lookahead list shows them; remove files of your own yourself",
        )
    cache, folder = hub_cache_folder(options.cache_dir), repository_folder(wanted.repo, options)
    if not folder.is_dir() or folder.is_symlink():
        raise _not_kept(name)
    if wanted.file is None and wanted.revision is None and not wanted.subfolder:
        return _whole(cache, folder)
    return _part(cache, folder, wanted)


def _whole(cache: Path, folder: Path) -> Removal:
    locks = cache / ".locks" / folder.name
    paths = (folder, *([locks] if locks.is_dir() and not locks.is_symlink() else []))
    return Removal(cache, paths, _size(folder.rglob("*")))


def _part(cache: Path, folder: Path, wanted: HubName) -> Removal:
    """One file or one revision: its places in the snapshots, and the blobs that no other place needs."""
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
        raise _not_kept(str(wanted))
    kept = [path for path in (folder / "snapshots").rglob("*") if path.is_file() and path not in gone]
    if not any(path.suffix in (*WEIGHTS, *PICKLES) for path in kept):
        return _whole(cache, folder)
    needed = {path.resolve() for path in kept}
    blobs = {path.resolve() for path in gone if path.is_symlink()} - needed
    blobs = {blob for blob in blobs if blob.parent == (folder / "blobs").resolve()}
    freed = _size(blobs) + _size(path for path in gone if not path.is_symlink())
    return Removal(cache, (*gone, *(folder / "blobs" / blob.name for blob in blobs)), freed)


def _not_kept(name: str) -> InputError:
    return InputError(f"{name} is not kept on this machine", hint="ipex-lookahead list shows what is")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _size(paths: Iterable[Path]) -> int:
    """Bytes of the files among ``paths``, not those that links lead to."""
    total = 0
    for path in paths:
        if path.is_file() and not path.is_symlink():
            total += path.stat().st_size
    return total


def _last_used(files: list[Path]) -> float:
    return max(max(status.st_atime, status.st_mtime) for status in map(os.stat, files))
