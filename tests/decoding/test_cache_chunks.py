"""Files with parts of KV caches: every damaged, truncated or foreign file raises one error that names it."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys

import numpy as np
import pytest

from ipex_lookahead.decoding import cache_chunks
from ipex_lookahead.decoding.cache_chunks import Record, read_key, read_records, write_records
from ipex_lookahead.errors import CacheFileError, SaveError

KEY, OTHER = bytes(range(32)), bytes(32)


def some(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_chunks, "CHUNK_BYTES", 100)
    return tmp_path / "one.cache"


RECORDS = [Record("pages", 0, 64, some(250)), Record("tokens", 64, 70, some(100, 1)), Record("state", 70, 70, some(0))]


def same(got, want) -> bool:
    return [(r.kind, r.first, r.last, r.data.tobytes()) for r in got] == [
        (r.kind, r.first, r.last, r.data.tobytes()) for r in want
    ]


def test_records_are_read_as_written(file):
    size = write_records(file, KEY, iter(RECORDS))
    assert size == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]
    assert same(read_records(file, KEY), RECORDS)
    assert same(read_records(file), RECORDS)
    assert read_key(file) == KEY


def test_a_chunk_has_at_most_16_mb(tmp_path):
    record = Record("pages", 0, 64, some(cache_chunks.CHUNK_BYTES + 1))
    file = tmp_path / "big.cache"
    size = write_records(file, KEY, [record])
    assert size > len(record.data) + 2 * 64  # two headers
    assert same(read_records(file, KEY), [record])


@pytest.mark.rotating(60)
@pytest.mark.parametrize("at", range(0, 860, 3))
def test_a_flipped_bit_is_found(file, at):
    size = write_records(file, KEY, RECORDS)
    content = bytearray(file.read_bytes())
    at = at * 7919 % size
    content[at] ^= 1 << at % 8
    file.write_bytes(content)
    with pytest.raises(CacheFileError, match=str(file)):
        list(read_records(file, KEY))


def test_every_truncation_is_found(file):
    size = write_records(file, KEY, RECORDS)
    content = file.read_bytes()
    for length in range(size):
        file.write_bytes(content[:length])
        with pytest.raises(CacheFileError) as error:
            list(read_records(file, KEY))
        assert error.value.file == str(file)
    file.write_bytes(content + b"x")
    with pytest.raises(CacheFileError, match="1 bytes follow"):
        list(read_records(file, KEY))


def test_chunks_of_two_files_do_not_make_one(file):
    write_records(file, KEY, RECORDS)
    first = file.read_bytes()
    write_records(file, OTHER, RECORDS)
    second = file.read_bytes()
    part = cache_chunks._HEAD_BYTES + 100
    for mixed in (first[:part] + second[part:], first[part:], first[:part] + first[:part] + first[2 * part :]):
        file.write_bytes(mixed)
        with pytest.raises(CacheFileError):
            list(read_records(file))


def test_another_key_is_an_error(file):
    write_records(file, KEY, RECORDS)
    with pytest.raises(CacheFileError, match="belongs to another model"):
        list(read_records(file, OTHER))


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "text"])
def test_what_is_not_a_cache_file_is_an_error(file, kind):
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "text":
        file.write_text("ipex-lookahead S")
    for read in (read_key, lambda name: list(read_records(name))):
        with pytest.raises(CacheFileError, match=str(file)):
            read(file)


def test_a_declared_size_is_not_allocated(file):
    """A header with a valid checksum may declare any size."""
    write_records(file, KEY, [Record("pages", 0, 1, some(10))])
    fields = cache_chunks._HEAD.pack(b"ipex-lookahead C", 1, 1, KEY, b"pages", 0, 1, 2**60, 0, 10, 0)
    check = cache_chunks._CHECK.pack(cache_chunks.zlib.crc32(fields))
    file.write_bytes(fields + check + bytes(10))
    with pytest.raises(CacheFileError, match="truncated"):
        list(read_records(file))


def test_a_failed_write_leaves_the_older_file(file):
    write_records(file, KEY, RECORDS[:1])
    code = f"""
import resource, signal, numpy as np
from pathlib import Path
from ipex_lookahead.decoding.cache_chunks import Record, write_records
from ipex_lookahead.errors import SaveError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, {resource.RLIM_INFINITY}))
try:
    write_records(Path({str(file)!r}), bytes(32), [Record("pages", 0, 1, np.zeros(5000, np.uint8))])
except SaveError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert str(file) in out
    assert "File too large" in out
    assert os.listdir(file.parent) == [file.name]
    assert same(read_records(file, KEY), RECORDS[:1])
    with pytest.raises(SaveError, match="No such file"):
        write_records(file.parent / "none" / "x", KEY, RECORDS)
