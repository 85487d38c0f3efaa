"""Download of a hub model into the hub library's cache, with resumption of interrupted downloads.

HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE have their usual meaning. Files are written directly to the locations
that the hub library uses, because its recent releases restart interrupted downloads, and check sizes but not contents.
Moreover, HF_ENDPOINT may be untrusted: the library builds paths from any checksum or commit in a response, whereas a
listing is fully validated here. Only the largest files are left to the library.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ipex_lookahead.errors import DownloadError, LookaheadError, arg
from ipex_lookahead.hub.choosing import Choice, choose
from ipex_lookahead.hub.folders import hub_cache_folder, reported_disk_faults, require_space
from ipex_lookahead.hub.names import HubName, HubOptions
from ipex_lookahead.hub.progress import Observe, Progress, unobserved
from ipex_lookahead.system.terminal import bar, note

PARTIAL = ".partial"
"""Suffix of a large file that is being downloaded."""
LIBRARY_ONLY = 50_000_000_000
"""Bytes; larger files are not available by plain HTTP and are left to the hub library."""
TRIES = 3
"""Number of connection attempts; recent releases of the library retry on their own as well."""
_CHUNK = 1 << 22

_BROKEN = {"ChunkedEncodingError", "ProtocolError", "RemoteProtocolError", "ReadError"}
_UNREACHABLE = {"ConnectError", "ConnectionError", "TimeoutException", "Timeout", "TransportError"}
"""Names of exception classes of the hub library's HTTP libraries (requests, httpx), which are not imported here."""


_COMMIT, _SHA1, _SHA256 = (re.compile(rf"[0-9a-f]{{{digits}}}") for digits in (40, 40, 64))


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        size: size in bytes.
        sha256: checksum of large files.
        blob: git's object name of small files, which is a checksum as well.
    """

    size: int | None
    sha256: str | None = None
    blob: str | None = None

    @property
    def name(self) -> str | None:
        """Name of the content in the cache; None if the hub provides no checksum."""
        return self.sha256 or self.blob

    @property
    def digest(self) -> str:
        """The checksum with its algorithm."""
        return f"sha256:{self.sha256}" if self.sha256 else f"sha1:{self.blob}"

    def hasher(self) -> Any:
        """Return the hash object that computes ``name``."""
        return hashlib.sha256() if self.sha256 else hashlib.sha1(b"blob %d\0" % (self.size or 0))  # as git does


def fetch_repository(
    name: HubName,
    options: HubOptions,
    *,
    progress: bool = True,
    observe: Observe = unobserved,
    choosing: Callable[[HubName, Mapping[str, int | None]], Choice] = choose,
) -> Path:
    """Return the folder or GGUF file of a hub model, downloading what is not cached yet.

    If the hub is unreachable, a complete model in the cache is used. ``choosing`` is :func:`choose`, or
    :func:`choose_vision` for the file with the model's vision part.

    Raises:
        InputError: if there is no cache folder, or no such file in the repository.
        DownloadError: if a file could not be downloaded, or its checksum is wrong.
        UnsupportedModelError: if the repository has no supported files.
    """
    from huggingface_hub import snapshot_download

    hub_cache_folder(options.cache_dir)  # raises if there is none
    with _sentences(name):
        try:
            if options.local_files_only:
                return _from_cache(name, options, None, choosing)
            note(progress, f"looking for {name.repo} on the hub")
            observe(Progress("listing"))
            commit, files = _listing(name, options)
        except Exception as error:
            if not _is_unreachable(error):
                raise
            return _from_cache(name, options, error, choosing)
        choice = choosing(name, {path: file.size for path, file in files.items()})
        note(progress and bool(choice.said), choice.said)
        chosen = {path: files[path] for path in choice.files}
        ours = {path: f for path, f in chosen.items() if f.name and f.size is not None and f.size < LIBRARY_ONLY}
        _fetch_all(name, options, commit, ours, progress=progress, observe=observe)
        folder = repository_folder(name.repo, options)
        if others := [glob.escape(path) for path in chosen if path not in ours]:
            given = {key: getattr(options, key) for key in ("cache_dir", "endpoint", "token", "force_download")}
            with _quiet_library():
                snapshot_download(name.repo, revision=commit, allow_patterns=others, **given)
        _link(folder, commit, name.revision or "main", ours)
        return folder / "snapshots" / commit / choice.entry


def repository_folder(repo: str, options: HubOptions) -> Path:
    """Return the cache location of a repository; it need not exist."""
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
    """Raise DownloadError if a listing is invalid or contains paths outside the cache."""
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
            f"the hub returned {wrong}, which is invalid; nothing of {name.repo} was downloaded",
            hint="check HF_ENDPOINT: the server is not the hub",
        )


def _from_cache(
    name: HubName,
    options: HubOptions,
    problem: Exception | None,
    choosing: Callable[[HubName, Mapping[str, int | None]], Choice],
) -> Path:
    """Return the model in the cache if all its files are present."""
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
        choice = choosing(name, files) if files else None
    except LookaheadError:
        choice = None
    if choice is not None and _has_all_shards(snapshot, choice):
        return snapshot / choice.entry
    raise _not_cached(name, options, partly=bool(files)) from problem


def _has_all_shards(snapshot: Path, choice: Choice) -> bool:
    """Return True if all files in a folder's index are present; a download may have been interrupted between files."""
    from ipex_lookahead.files.safe_json import load_object

    index = snapshot / choice.entry / "model.safetensors.index.json"
    if not any(path.endswith(index.name) for path in choice.files):
        return True
    shards = load_object(index, 64 << 20).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else set()
    return all(isinstance(shard, str) and (index.parent / shard).is_file() for shard in names)


def _not_cached(name: HubName, options: HubOptions, *, partly: bool) -> DownloadError:
    here = f"{name} is only partly in the cache" if partly else f"{name} is not in the cache"
    if options.local_files_only:
        return DownloadError(
            f"{here}, and the hub was not contacted: {arg('local_files_only', True)}", hint="leave that out"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return DownloadError(
            f"{here}, and the hub was not contacted: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE"
        )
    return DownloadError(
        f"{here}, and the hub cannot be reached",
        hint="connect to the network (behind a proxy set HTTPS_PROXY), or give a local folder or .gguf file",
    )


# --- files --------------------------------------------------------------------------------------------------------


def _fetch_all(
    name: HubName,
    options: HubOptions,
    commit: str,
    files: Mapping[str, RemoteFile],
    *,
    progress: bool,
    observe: Observe,
) -> None:
    """Download files into the cache's blobs, resuming interrupted downloads."""
    blobs = repository_folder(name.repo, options) / "blobs"
    wanted = {path: f for path, f in files.items() if options.force_download or not (blobs / str(f.name)).exists()}
    for path, file in files.items():
        if path not in wanted:
            observe(Progress("downloading", path, file.digest, file.size or 0, file.size or 0))
    if not wanted:
        return
    with reported_disk_faults(blobs, "the hub's cache folder", "free some space, or set HF_HOME to a writable folder"):
        blobs.mkdir(parents=True, exist_ok=True)
        missing = sum((f.size or 0) - _size_of(blobs / f"{f.name}{PARTIAL}") for f in wanted.values())
        hint = "free some space (ipex-lookahead list shows the cached models), or set HF_HOME to another disk"
        require_space(blobs, missing, hint)
        for path, file in wanted.items():
            shown = progress and file.sha256 is not None
            with _locked(blobs / f"{file.name}{PARTIAL}", path, shown) as partial:
                # Another process may have downloaded it meanwhile.
                if options.force_download or not (blobs / str(file.name)).exists():
                    _fetch(name, options, commit, path, file, partial, progress=shown, observe=observe)
                    observe(Progress("checking", path, file.digest, 0, file.size or 0))
                    _check(partial, path, file, progress=shown)
                    os.replace(partial, blobs / str(file.name))


def _link(folder: Path, commit: str, revision: str, files: Mapping[str, RemoteFile]) -> None:
    """Create the snapshot's links to the blobs and the branch reference, as the hub library does."""
    with reported_disk_faults(folder, "the hub's cache folder", "set HF_HOME to a writable folder"):
        for path, file in files.items():
            place, blob = folder / "snapshots" / commit / path, folder / "blobs" / str(file.name)
            if place.exists() and place.samefile(blob):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            try:
                place.symlink_to(os.path.relpath(blob, place.parent))
            except OSError:  # the file system has no symbolic links
                shutil.copyfile(blob, place)
        if revision != commit:
            reference = folder / "refs" / revision
            reference.parent.mkdir(parents=True, exist_ok=True)
            reference.write_text(commit, encoding="utf-8")


class _Bounded:
    """A file with a maximum size, because a server may send any number of bytes."""

    def __init__(self, file: BinaryIO, most: int, path: str, written: Callable[[int], None]) -> None:
        self._file, self._most, self._path, self._written = file, most, path, written

    def write(self, content: bytes) -> int:
        """Write to the file; raise DownloadError beyond the maximum size."""
        if self._file.tell() + len(content) > self._most:
            raise DownloadError(
                f"{self._path} is longer than the {self._most:,} bytes in the hub's listing",
                hint="run the same command again; if it happens again, the server is not the hub",
            )
        count = self._file.write(content)
        self._written(self._file.tell())
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _fetch(
    name: HubName,
    options: HubOptions,
    commit: str,
    path: str,
    file: RemoteFile,
    partial: Path,
    *,
    progress: bool,
    observe: Observe,
) -> None:
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    done, size = _size_of(partial), file.size or 0
    if done > size:
        partial.unlink()
        done = 0
    note(progress and done > 0, f"resuming {path} at {done / 1e6:,.0f} of {size / 1e6:,.0f} MB")
    note(progress and not done, f"downloading {path}, {size / 1e6:,.0f} MB")

    def written(count: int) -> None:
        observe(Progress("downloading", path, file.digest, count, size))

    written(done)
    url = hf_hub_url(name.repo, path, revision=commit, endpoint=options.endpoint)
    headers = build_hf_headers(token=options.token)
    with partial.open("ab") as out, _quiet_library(), _watched(partial, path, size, progress):
        for left in reversed(range(TRIES)):
            try:
                bounded: Any = _Bounded(out, size, path, written)
                http_get(url, bounded, resume_size=_size_of(partial), headers=headers, expected_size=size)
                break
            except Exception as error:  # the HTTP library defines the class for broken connections
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
            hint="run the same command again; if it happens again, a proxy or the server modifies the files",
        )


@contextmanager
def _watched(partial: Path, path: str, size: int, progress: bool) -> Iterator[None]:
    """Show a progress bar for the size of a file."""
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
    """Serialize processes that write the same file. The lock is released with the process, even if it is killed."""
    lock = partial.with_name(f"{partial.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            note(progress, f"another process is downloading {path}; waiting for it")
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
    """Disable the hub library's progress bars: small files need none, and large ones use this package's bars."""
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
    """Convert every exception of the hub library to a DownloadError with a hint."""
    try:
        yield
    except LookaheadError:
        raise
    except Exception as error:  # exceptions of the hub library and of its HTTP library
        raise _sentence(name, error) from error


def _sentence(name: HubName, error: Exception) -> LookaheadError:
    from huggingface_hub import errors

    status = _status(error)
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return DownloadError(
            f"access to {name.repo} requires accepting its license, or a token",
            hint=f"accept it on the page of {name.repo}, then: hf auth login (or set HF_TOKEN)",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return DownloadError(
            f"{name.repo} has no revision {name.revision!r}", hint="give a branch, tag or commit of its page's history"
        )
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return DownloadError(
            f"the hub has no model {name.repo!r}, or access is denied",
            hint="check the name; for a private model: hf auth login (or set HF_TOKEN)",
        )
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return DownloadError(
        f"{name} could not be downloaded: {said}",
        hint="check the network and the free disk space, then run the same command again: it resumes the download",
    )


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an exception, if it has one."""
    found = getattr(getattr(error, "response", None), "status_code", None)
    return found if isinstance(found, int) else None


def _is_unreachable(error: Exception) -> bool:
    """Return True if the hub did not respond: no network, offline mode, or a server failure."""
    from huggingface_hub import errors

    if isinstance(error, (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return True
    status = _status(error)
    return (status is not None and status >= 500) or bool(_kinds(error) & _UNREACHABLE)


def _is_broken(error: Exception) -> bool:
    """Return True if the connection broke, so that a new one may provide the rest."""
    return _status(error) is None and bool(_kinds(error) & (_BROKEN | _UNREACHABLE))


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
