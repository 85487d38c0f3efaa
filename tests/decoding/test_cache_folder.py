"""A folder of cache files: the budget over all processes, what is deleted first, and what a killed process leaves."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.decoding import cache_folder
from ipex_lookahead.decoding.cache_chunks import Record
from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.errors import CacheFileError, InputError

KEY = bytes(range(32))


def name(number: int, length: int = 0) -> str:
    key = f"{number * 2654435761 % 2**32:08x}" * 4
    return f"{'ab' * 8}-{key}" + (f"-{'cd' * 16}-{length}" if length else "")


def record(size: int = 1000) -> list[Record]:
    return [Record("pages", 0, 64, np.zeros(size, np.uint8))]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*.kv"))


def test_modes_and_names(tmp_path):
    folder = CacheFolder(tmp_path / "a" / "b", 10**6)
    assert folder.write(name(1), KEY, record())
    assert [r.data.nbytes for r in folder.read(name(1), KEY)] == [1000]
    everything = [folder.folder, *folder.folder.rglob("*")]
    for path in everything:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert len(everything) == 5  # the folder, its secret and lock, a subfolder and a file
    assert folder.total_bytes == files(folder.folder)[0].stat().st_size == folder.size(name(1))
    assert CacheFolder(folder.folder, 1).secret == folder.secret


def test_the_least_recently_used_files_are_deleted_first(tmp_path):
    folder = CacheFolder(tmp_path, 10_000)
    for number in range(7):
        assert folder.write(name(number), KEY, record())
    folder.touch([name(0), name(1)])
    for number in range(7, 12):
        assert folder.write(name(number), KEY, record())
        assert sum(file.stat().st_size for file in files(tmp_path)) == folder.total_bytes <= 10_000
    assert folder.size(name(0))
    assert not folder.size(name(2))
    assert all(folder.size(name(number)) for number in range(9, 12))
    assert not folder.write(name(20), KEY, record(20_000))
    assert folder.dropped == 1
    assert folder.size(name(0)), "a file that can never fit makes no room"


def test_of_one_text_the_last_chunks_are_deleted_first(tmp_path):
    folder = CacheFolder(tmp_path, 10_000)
    text = [name(number) for number in range(6)]
    for one in text:
        folder.write(one, KEY, record())
    folder.touch(text)
    for number in range(10, 14):
        folder.write(name(number), KEY, record())
    left = [bool(folder.size(one)) for one in text]
    assert left == sorted(left, reverse=True)
    assert 0 < sum(left) < 6


def test_two_processes_see_each_others_files_and_share_the_budget(tmp_path):
    one, other = CacheFolder(tmp_path, 10_000), CacheFolder(tmp_path, 10_000)
    assert one.secret == other.secret
    for number in range(30):
        (one, other)[number % 2].write(name(number, 100 + number), KEY, record())
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 10_000
    one.refresh()
    other.refresh()
    assert one.total_bytes == other.total_bytes
    assert one.size(name(28, 128)) == other.size(name(28, 128)) > 0
    assert list(other.behind(name(28))) == [name(28, 128)]
    assert list(other.behind(name(1))) == []
    other.touch([name(28, 128)])  # the other process knows nothing of it, and asks the file
    time.sleep(0.01)
    for number in range(40, 44):
        one.write(name(number), KEY, record())
    assert one.size(name(28, 128))


def test_a_file_that_another_process_deleted_is_not_found_and_no_warning(tmp_path, caplog):
    one, other = CacheFolder(tmp_path, 10_000), CacheFolder(tmp_path, 10_000)
    one.write(name(1), KEY, record())
    other.refresh()
    one.delete([name(1)])
    with pytest.raises(CacheFileError):
        list(other.read(name(1), KEY))
    assert other.size(name(1)) == 0
    assert other.total_bytes == 0
    assert not caplog.records


def test_a_damaged_file_is_deleted_with_one_warning(tmp_path, caplog):
    folder = CacheFolder(tmp_path, 10_000)
    folder.write(name(1), KEY, record())
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    for _ in range(2):
        with pytest.raises(CacheFileError):
            list(folder.read(name(1), KEY))
    assert [line.levelno for line in caplog.records] == [logging.WARNING]
    assert str(file) in caplog.text
    assert not files(tmp_path)
    assert folder.total_bytes == 0


def test_other_files_are_neither_counted_nor_deleted(tmp_path):
    (tmp_path / "notes.txt").write_bytes(bytes(50_000))
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "notes.kv").write_bytes(bytes(50_000))
    folder = CacheFolder(tmp_path, 10_000)
    for number in range(20):
        folder.write(name(number), KEY, record())
    assert folder.total_bytes <= 10_000
    assert (tmp_path / "notes.txt").stat().st_size == (tmp_path / "ab" / "notes.kv").stat().st_size == 50_000


def test_what_a_killed_process_leaves_is_removed(tmp_path):
    code = f"""
import os, signal
import numpy as np
from pathlib import Path
from ipex_lookahead.decoding import cache_chunks, cache_folder
folder = cache_folder.CacheFolder(Path({str(tmp_path)!r}), 10**6)
cache_chunks.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
folder.write({name(1)!r}, bytes(32), [cache_chunks.Record("pages", 0, 1, np.zeros(1000, np.uint8))])
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(tmp_path.glob("??/.*.saving-*"))
    folder = CacheFolder(tmp_path, 10**6)
    assert not list(tmp_path.glob("??/.*"))
    assert folder.total_bytes == 0
    assert folder.write(name(1), KEY, record())


def test_a_full_disk_is_one_warning_and_reading_goes_on(tmp_path, caplog, monkeypatch):
    folder = CacheFolder(tmp_path, 10**6)
    folder.write(name(1), KEY, record())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder, "PAUSE_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr("ipex_lookahead.decoding.cache_chunks._write", full)
        assert not folder.write(name(2), KEY, record())
        assert not folder.write(name(3), KEY, record())
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text
    assert list(folder.read(name(1), KEY))
    assert folder.write(name(2), KEY, record())
    assert folder.dropped == 2


def test_after_a_failed_write_there_is_a_pause(tmp_path, monkeypatch):
    folder = CacheFolder(tmp_path, 10**6)
    with monkeypatch.context() as patched:
        patched.setattr("ipex_lookahead.decoding.cache_chunks._write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            folder.write(name(2), KEY, record())
        patched.setattr("ipex_lookahead.decoding.cache_chunks._write", lambda *_: os.open("/none", os.O_RDONLY))
        assert not folder.write(name(2), KEY, record())
    assert not folder.write(name(2), KEY, record())
    monkeypatch.setattr(folder, "_paused_until", 0.0)
    assert folder.write(name(2), KEY, record())


def test_a_process_that_holds_the_lock_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_folder, "LOCK_SECONDS", 0.05)
    folder = CacheFolder(tmp_path, 10**6)
    with CacheFolder(tmp_path, 10**6)._locked():
        assert not folder.write(name(1), KEY, record())
    assert folder.write(name(1), KEY, record())


@pytest.mark.parametrize("kind", ["file", "below a file", "no permission"])
def test_a_folder_that_cannot_be_used_is_an_error(tmp_path, kind):
    path = tmp_path / "x"
    if kind == "no permission":
        if os.geteuid() == 0:
            path = Path("/proc/none")
        else:
            path.mkdir(mode=0o500)
    else:
        path.write_text("text")
        path = path if kind == "file" else path / "below"
    with pytest.raises(InputError, match=str(path)):
        CacheFolder(path, 10**6)


def test_a_damaged_secret_is_replaced(tmp_path, caplog):
    first = CacheFolder(tmp_path, 10**6).secret
    (tmp_path / "secret").write_bytes(b"short")
    second = CacheFolder(tmp_path, 10**6).secret
    assert len(second) == 32
    assert second != first
    assert "secret" in caplog.text
