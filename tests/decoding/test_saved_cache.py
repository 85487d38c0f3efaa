"""A KV cache in a file: it comes back as it was, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_lookahead.decoding import saved_cache
from ipex_lookahead.decoding.cache_chunks import Record, read_records, write_records
from ipex_lookahead.decoding.saved_cache import cache_key, load_cache, save_cache
from ipex_lookahead.engines.api import Batch, OutputRequest
from ipex_lookahead.errors import CacheFileError, InputError
from tests.support.hashed_engine import HashedEngine
from tests.support.imaged_engine import ImagedEngine

PRINT = bytes(range(32))
TOKENS = np.random.default_rng(1).integers(0, 11, 200)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(saved_cache, "STEP", 64)
    monkeypatch.setattr(saved_cache, "CHUNK_BYTES", 40)
    return ImagedEngine(max_context=256)


def cache_of(engine, tokens):
    cache, chain = engine.new_cache(), np.arange(-1, len(tokens) - 1, dtype=np.int32)
    engine.forward(Batch([cache], [len(tokens)], np.asarray(tokens, np.int32), chain, OutputRequest()))
    cache.keep(range(len(tokens)))
    return cache


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_a_cache_comes_back(engine, tmp_path, count):
    cache, file, key = cache_of(engine, TOKENS[:count]), tmp_path / "a.bin", cache_key(engine, PRINT)
    size = save_cache(file, key, TOKENS, cache)
    assert (file.stat().st_size, file.stat().st_mode & 0o777) == (size, 0o600)
    tokens, found = load_cache(file, key, engine)
    assert tokens.tolist() == TOKENS[:count].tolist()
    assert (found.tokens, found.states) == (cache.tokens, cache.states)


def test_the_key_binds_a_file_to_the_model_its_layout_and_the_tenant(engine, tmp_path):
    file, key = tmp_path / "a.bin", cache_key(engine, PRINT, "a")
    save_cache(file, key, TOKENS, cache_of(engine, TOKENS))
    others = [
        cache_key(engine, PRINT),
        cache_key(engine, PRINT, "b"),
        cache_key(engine, bytes(32), "a"),
        cache_key(ImagedEngine(cache_layout="other"), PRINT, "a"),
    ]
    assert len({key, *others}) == 5
    for other in others:
        with pytest.raises(CacheFileError, match="belongs to another model"):
            load_cache(file, other, engine)


def test_what_does_not_fit_the_engine_is_refused(engine, tmp_path):
    file, key = tmp_path / "a.bin", cache_key(engine, PRINT)
    save_cache(file, key, TOKENS, cache_of(engine, TOKENS))
    with pytest.raises(CacheFileError, match="has 200 tokens; the model's context is 199"):
        load_cache(file, key, ImagedEngine(max_context=199))
    with pytest.raises(CacheFileError, match="not in the vocabulary"):
        load_cache(file, key, ImagedEngine(vocab_size=5))
    with pytest.raises(InputError, match="cannot be saved"):
        load_cache(file, key, HashedEngine())
    with pytest.raises(InputError, match="cannot be saved"):
        cache_key(HashedEngine(), PRINT)
    with pytest.raises(InputError, match="there is nothing to save"):
        save_cache(file, key, TOKENS, engine.new_cache())
    assert load_cache(file, key, engine)[1].length == 200, "the file is as it was"


def changed(records, kind, change):
    """The records with a change of the first one of a kind."""
    at = next(at for at, record in enumerate(records) if record.kind == kind)
    return [*records[:at], *change(records[at]), *records[at + 1 :]]


@pytest.mark.parametrize(
    "change",
    [
        lambda all: all[1:],
        lambda all: all[:1],
        lambda all: all[:-1],
        lambda all: [*all, all[-1]],
        lambda all: [*all, all[0]],
        lambda all: changed(all, "tokens", lambda one: [Record("tokens", 0, 200, one.data[:-1])]),
        lambda all: changed(all, "tokens", lambda one: [Record("tokens", 0, 0, one.data[:0])]),
        lambda all: changed(all, "tokens", lambda one: [Record("tokens", 0, 199, one.data[:-4])]),
        lambda all: changed(all, "tokens", lambda one: [Record("tokens", 0, 200, 0 * one.data + 255)]),
        lambda all: changed(all, "state", lambda one: []),
        lambda all: changed(all, "state", lambda one: [one, one]),
        lambda all: changed(all, "state", lambda one: [Record("state", 0, 39, one.data)]),
        lambda all: changed(all, "state", lambda one: [Record("state", 0, 40, 1 + one.data)]),
        lambda all: changed(all, "pages", lambda one: []),
        lambda all: changed(all, "pages", lambda one: [Record("pages", 0, 64, one.data[8:])]),
        lambda all: changed(all, "pages", lambda one: [Record("other", 0, 64, one.data)]),
        lambda all: [all[0], *all[-2:], *all[1:-2]],
    ],
)
def test_files_with_other_records_are_refused(engine, tmp_path, change):
    file, key = tmp_path / "a.bin", cache_key(engine, PRINT)
    save_cache(file, key, TOKENS, cache_of(engine, TOKENS))
    write_records(file, key, change(list(read_records(file))))
    with pytest.raises(CacheFileError, match=r"a\.bin is"):
        load_cache(file, key, engine)
