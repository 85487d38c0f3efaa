"""A model of the hub onto this machine: in the hub library's own cache, and so that an interrupted download goes on.

HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what they always do. Files are fetched here, into the very
places where the hub's library keeps them: its newer releases begin an interrupted file from the start, and it checks
sizes, not contents. And HF_ENDPOINT may be anybody's: the library makes paths of the checksums and commits in an
answer, whatever they are, where here everything in a listing is checked first. Only the largest files are the
library's.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ipex_lookahead.errors import DownloadError, LookaheadError, arg
from ipex_lookahead.hub.choosing import Choice, choose
from ipex_lookahead.hub.folders import hub_cache_folder, reported_disk_faults, require_space
from ipex_lookahead.hub.names import HubName, HubOptions
from ipex_lookahead.system.terminal import bar, note

PARTIAL = ".partial"
"""Ends the name of a large file that is being fetched."""
LIBRARY_ONLY = 50_000_000_000
"""Bytes; larger files are not to be had by plain HTTP, so the hub's library fetches them by its own means."""
TRIES = 3
"""How often a connection that breaks is made again; newer releases of the library try by themselves too."""
_CHUNK = 1 << 22

_BROKEN = {"ChunkedEncodingError", "ProtocolError", "RemoteProtocolError", "ReadError"}
_UNREACHABLE = {"ConnectError", "ConnectionError", "TimeoutException", "Timeout", "TransportError"}
"""Classes, by name, of the HTTP libraries that the hub's has used (requests, httpx), none of which is imported here."""


_COMMIT, _SHA1, _SHA256 = (re.compile(rf"[0-9a-f]{{{digits}}}") for digits in (40, 40, 64))


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        size: in bytes.
        sha256: the checksum that large ones have.
        blob: git's name of a small one, which is a checksum too.
    """

    size: int | None
    sha256: str | None = None
    blob: str | None = None

    @property
    def name(self) -> str | None:
        """What the cache calls its contents; None where the hub tells no checksum."""
        return self.sha256 or self.blob

    def hasher(self) -> Any:
        """What its name is made with."""
        return hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % (self.size or 0))  # git's way


def fetch_repository(name: HubName, options: HubOptions, *, progress: bool = True) -> Path:
    """The folder or GGUF file of a hub model, fetched where it is not in the cache yet.

    Where the hub cannot be reached, what is in the cache serves, if it is complete.

    Raises:
        InputError: there is no folder to keep it in.
        DownloadError: it could not be fetched, or is not what the hub says it is.
        InputError: no such file in the repository.
        UnsupportedModelError: the repository holds nothing that this package reads.
    """
    from huggingface_hub import snapshot_download

    hub_cache_folder(options.cache_dir)  # without one there is nothing to begin
    with _sentences(name):
        try:
            if options.local_files_only:
                return _from_cache(name, options, None)
            note(progress, f"looking for {name.repo} on the hub")
            commit, files = _listing(name, options)
        except Exception as error:
            if not _is_unreachable(error):
                raise
            return _from_cache(name, options, error)
        choice = choose(name, {path: file.size for path, file in files.items()})
        note(progress and bool(choice.said), choice.said)
        chosen = {path: files[path] for path in choice.files}
        ours = {path: f for path, f in chosen.items() if f.name and f.size is not None and f.size < LIBRARY_ONLY}
        _fetch_all(name, options, commit, ours, progress=progress)
        folder = repository_folder(name.repo, options)
        if others := [glob.escape(path) for path in chosen if path not in ours]:
            given = {key: getattr(options, key) for key in ("cache_dir", "endpoint", "token", "force_download")}
            with _quiet_library():
                snapshot_download(name.repo, revision=commit, allow_patterns=others, **given)
        _link(folder, commit, name.revision or "main", ours)
        return folder / "snapshots" / commit / choice.entry


def repository_folder(repo: str, options: HubOptions) -> Path:
    """Where the cache keeps a repository, whether or not it is there."""
    return hub_cache_folder(options.cache_dir) / f"models--{repo.replace('/', '--')}"


def _listing(name: HubName, options: HubOptions) -> tuple[str, dict[str, RemoteFile]]:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=options.endpoint, token=options.token)
    info = api.model_info(name.repo, revision=name.revision, files_metadata=True)
    files = {}
    for found in info.siblings or ():
        lfs: Any = found.lfs
        checksum = lfs.get("sha256") if isinstance(lfs, Mapping) else getattr(lfs, "sha256", None)
        files[found.rfilename] = RemoteFile(found.size, checksum, None if checksum else found.blob_id)
    _check_listing(name, info.sha, files)
    return str(info.sha), files


def _check_listing(name: HubName, commit: Any, files: Mapping[str, RemoteFile]) -> None:
    """Raise DownloadError where a hub's answer would lead out of the cache, or is none."""
    wrong = None
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        wrong = f"the commit {str(commit)[:80]!r}"
    for path, file in files.items():
        parts = path.split("/")
        if path.startswith("/") or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
            wrong = f"a file named {path[:80]!r}"
        elif file.sha256 is not None and not _SHA256.fullmatch(str(file.sha256)):
            wrong = f"the checksum {str(file.sha256)[:80]!r} of {path[:80]!r}"
        elif file.blob is not None and not _SHA1.fullmatch(str(file.blob)):
            wrong = f"the name {str(file.blob)[:80]!r} for the contents of {path[:80]!r}"
        elif file.size is not None and (type(file.size) is not int or file.size < 0):
            wrong = f"the size {str(file.size)[:80]!r} of {path[:80]!r}"
    if wrong is not None:
        raise DownloadError(
            f"the hub tells {wrong}, which it cannot be; nothing of {name.repo} was fetched",
            hint="check HF_ENDPOINT: what answers there is not the hub",
        )


def _from_cache(name: HubName, options: HubOptions, problem: Exception | None) -> Path:
    """The model in the cache, if all its files are there."""
    folder = repository_folder(name.repo, options)
    try:
        reference = folder / "refs" / (name.revision or "main")
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else name.revision or ""
        snapshot = folder / "snapshots" / commit
        files = {
            path.relative_to(snapshot).as_posix(): path.stat().st_size
            for path in snapshot.rglob("*")
            if commit and path.is_file()
        }
    except OSError:
        files = {}
    try:
        choice = choose(name, files) if files else None
    except LookaheadError:
        choice = None
    if choice is not None and _has_all_shards(snapshot, choice):
        return snapshot / choice.entry
    raise _not_here(name, options, partly=bool(files)) from problem


def _has_all_shards(snapshot: Path, choice: Choice) -> bool:
    """Whether a folder's index names no file that is missing: a fetch may have been interrupted between two."""
    from ipex_lookahead.files.safe_json import load_object

    index = snapshot / choice.entry / "model.safetensors.index.json"
    if not any(path.endswith(index.name) for path in choice.files):
        return True
    shards = load_object(index, 64 << 20).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else set()
    return all(isinstance(shard, str) and (index.parent / shard).is_file() for shard in names)


def _not_here(name: HubName, options: HubOptions, *, partly: bool) -> DownloadError:
    here = f"{name} is only partly on this machine" if partly else f"{name} is not on this machine"
    if options.local_files_only:
        return DownloadError(
            f"{here}, and the hub was not asked: {arg('local_files_only', True)}", hint="leave that out"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return DownloadError(f"{here}, and the hub was not asked: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    return DownloadError(
        f"{here}, and the hub cannot be reached",
        hint="connect to the network (behind a proxy set HTTPS_PROXY), or give a local folder or .gguf file",
    )


# --- files --------------------------------------------------------------------------------------------------------


def _fetch_all(
    name: HubName, options: HubOptions, commit: str, files: Mapping[str, RemoteFile], *, progress: bool
) -> None:
    """Put files among the cache's blobs, each going on where an earlier fetch stopped."""
    blobs = repository_folder(name.repo, options) / "blobs"
    wanted = {path: f for path, f in files.items() if options.force_download or not (blobs / str(f.name)).exists()}
    if not wanted:
        return
    with reported_disk_faults(
        blobs, "the hub's cache folder", "free some space, or set HF_HOME to a folder that you may write"
    ):
        blobs.mkdir(parents=True, exist_ok=True)
        missing = sum((f.size or 0) - _size_of(blobs / f"{f.name}{PARTIAL}") for f in wanted.values())
        hint = "free some space (ipex-lookahead list shows what is kept), or set HF_HOME to another disk"
        require_space(blobs, missing, hint)
        for path, file in wanted.items():
            shown = progress and file.sha256 is not None
            with _locked(blobs / f"{file.name}{PARTIAL}", path, shown) as partial:
                # Another process may have fetched it meanwhile.
                if options.force_download or not (blobs / str(file.name)).exists():
                    _fetch(name, options, commit, path, file.size or 0, partial, progress=shown)
                    _check(partial, path, file, progress=shown)
                    os.replace(partial, blobs / str(file.name))


def _link(folder: Path, commit: str, revision: str, files: Mapping[str, RemoteFile]) -> None:
    """Lay files where the library looks for them: a snapshot's links to the blobs, and what a branch stands for."""
    with reported_disk_faults(folder, "the hub's cache folder", "set HF_HOME to a folder that you may write"):
        for path, file in files.items():
            place, blob = folder / "snapshots" / commit / path, folder / "blobs" / str(file.name)
            if place.exists() and place.samefile(blob):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            try:
                place.symlink_to(os.path.relpath(blob, place.parent))
            except OSError:  # a file system without links
                shutil.copyfile(blob, place)
        if revision != commit:
            reference = folder / "refs" / revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(commit, encoding="utf-8")


class _Bounded:
    """A file that takes no more than so many bytes: a server may send for ever."""

    def __init__(self, file: BinaryIO, most: int, path: str) -> None:
        self._file, self._most, self._path = file, most, path

    def write(self, content: bytes) -> int:
        """Raises DownloadError where it would be longer than it may."""
        if self._file.tell() + len(content) > self._most:
            raise DownloadError(
                f"{self._path} is longer than the {self._most:,} bytes that the hub's list says",
                hint="run the same command again; if it happens twice, what answers is not the hub",
            )
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _fetch(
    name: HubName, options: HubOptions, commit: str, path: str, size: int, partial: Path, *, progress: bool
) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    done = _size_of(partial)
    if done > size:
        partial.unlink()
        done = 0
    note(progress and done > 0, f"going on with {path} at {done / 1e6:,.0f} of {size / 1e6:,.0f} MB")
    note(progress and not done, f"fetching {path}, {size / 1e6:,.0f} MB")
    url = hf_hub_url(name.repo, path, revision=commit, endpoint=options.endpoint)
    headers = build_hf_headers(token=options.token)
    with partial.open("ab") as out, _quiet_library(), _watched(partial, path, size, progress):
        for left in reversed(range(TRIES)):
            try:
                bounded: Any = _Bounded(out, size, path)
                http_get(url, bounded, resume_size=_size_of(partial), headers=headers, expected_size=size)
                break
            except Exception as error:  # whatever the HTTP library calls a connection that broke
                if not left or not _is_broken(error):
                    raise
                out.flush()
                time.sleep(1)
        out.flush()
        os.fsync(out.fileno())


def _check(partial: Path, path: str, file: RemoteFile, *, progress: bool) -> None:
    total, done = file.hasher(), 0
    size = _size_of(partial)
    with partial.open("rb") as source, bar(f"checking {path}", size, of="bytes", shown=progress) as advance:
        while block := source.read(_CHUNK):
            total.update(block)
            done += len(block)
            advance(done)
    if total.hexdigest() != file.name:
        partial.unlink()
        kind = "sha256" if file.sha256 else "git's sha1"
        raise DownloadError(
            f"{path} has a wrong checksum: {kind} {total.hexdigest()}; expected {file.name}. It was deleted",
            hint="run the same command again; if it happens twice, something on the way changes files",
        )


@contextmanager
def _watched(partial: Path, path: str, size: int, progress: bool) -> Iterator[None]:
    """A bar that follows the growth of a file."""
    with bar(path.rpartition("/")[2], size, of="bytes", shown=progress) as advance:
        ended = threading.Event()

        def follow() -> None:
            while not ended.wait(0.1):
                advance(_size_of(partial))

        watcher = threading.Thread(target=follow, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


@contextmanager
def _locked(partial: Path, path: str, progress: bool) -> Iterator[Path]:
    """One process at a time writes a file; others wait. The lock goes with the process, so none is left behind."""
    lock = partial.with_name(f"{partial.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note(progress, f"another process is fetching {path}; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield partial
        lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


# --- errors -------------------------------------------------------------------------------------------------------


@contextmanager
def _quiet_library() -> Iterator[None]:
    """Without the hub library's own progress bars: its small files need none, and the large ones have ours."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


@contextmanager
def _sentences(name: HubName) -> Iterator[None]:
    """Whatever the hub's library raises becomes a DownloadError with what to do."""
    try:
        yield
    except LookaheadError:
        raise
    except Exception as error:  # the library's errors, and those of the HTTP library that it happens to use
        raise _sentence(name, error) from error


def _sentence(name: HubName, error: Exception) -> LookaheadError:
    from huggingface_hub import errors

    status = _status(error)
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return DownloadError(
            f"{name.repo} asks for its licence to be accepted, or for a token",
            hint=f"accept it on the page of {name.repo}, then: hf auth login (or set HF_TOKEN)",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(
            f"{name.repo} has no revision {name.revision!r}", hint="give a branch, tag or commit of its page's history"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return DownloadError(
            f"the hub has no model {name.repo!r}, or not for you",
            hint="check the name; for a private one: hf auth login (or set HF_TOKEN)",
        )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return DownloadError(
        f"{name} could not be fetched: {said}",
        hint="check the network and the free space, then run the same command again: it goes on where it stopped",
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error is about, if it is about one."""
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _is_unreachable(error: Exception) -> bool:
    """Whether nobody answered: no network, offline by wish, or a hub that is down."""
    from huggingface_hub import errors

    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return True
    status = _status(error)
    return (status is not None and status >= 500) or bool(_kinds(error) & _UNREACHABLE)


def _is_broken(error: Exception) -> bool:
    """Whether a connection broke, so that the rest may be had by another."""
    return _status(error) is None and bool(_kinds(error) & (_BROKEN | _UNREACHABLE))


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
