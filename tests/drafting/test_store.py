from __future__ import annotations

import errno
import hashlib
import os
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.drafting.partial_matching import auto, suffix
from ipex_lookahead.drafting.store import (
    MAX_MEMORY_STORES,
    MEMORY_CAPACITY,
    MEMORY_IN_ALL,
    Store,
    Stores,
    vocabulary_digest,
)
from ipex_lookahead.drafting.store_file import Appender, Owner
from ipex_lookahead.errors import InputError, SaveError

DIGEST = vocabulary_digest({"a": 0, "b": 1})


def filled(*texts: list[int]) -> Store:
    store = Store(100, DIGEST)
    for text in texts:
        store.add(text)
    return store


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "outputs.store"
    filled([5, 6, 7], [1, 2, 3, 99], [0]).save(file)
    return file


def sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def test_later_generations_look_into_it() -> None:
    store = filled([5, 6, 7])
    for proposer in (suffix(store.suffixes), auto(store.suffixes)):
        proposer.begin([9, 5, 6])
        draft = proposer.propose(4)
        assert list(draft.tokens) == [7]
        assert list(draft.sources) == ["store"]


def test_texts_do_not_run_into_each_other() -> None:
    proposer = suffix(filled([1, 2], [3, 4]).suffixes)
    proposer.begin([2])
    assert len(proposer.propose(4)) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=9))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]]) -> None:
    file = tmp_path_factory.mktemp("store") / "x"
    filled(*texts).save(file)
    back = Store.open(file, 100, DIGEST)
    assert back.texts() == [text for text in texts if text]
    assert len(back) == sum(map(len, texts))
    assert len(back.suffixes) == len(filled(*texts).suffixes)
    again = file.with_name("y")
    back.save(again)
    assert again.read_bytes() == file.read_bytes()


def test_memories_are_bounded_together_and_the_least_recently_used_go() -> None:
    stores = Stores(100)
    full = list(range(100)) * (MEMORY_CAPACITY // 200)
    for number in range(40):
        stores.add(f"memory:{number}", [full])
        stores.get("memory:0")
    kept = [name for name in stores._open if len(stores._open[name])]
    assert "memory:0" in kept
    assert "memory:39" in kept
    assert "memory:1" not in kept
    assert sum(len(store) for store in stores._open.values()) <= MEMORY_IN_ALL
    for number in range(3 * MAX_MEMORY_STORES):
        stores.get(f"memory:small {number}")
    assert len(stores._open) <= MAX_MEMORY_STORES


def test_where_there_is_no_file_a_store_begins(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none", 100)
    assert len(store) == 0
    assert not (tmp_path / "none").exists()


def test_the_oldest_go_where_it_is_full() -> None:
    store = Store(100, capacity=20)
    old = store.suffixes
    store.add(list(range(50, 55)))
    proposer = suffix(old)
    proposer.begin([50])
    for start in (10, 20, 30, 40):
        store.add(list(range(start, start + 5)))
    assert store.texts() == [list(range(start, start + 5)) for start in (20, 30, 40)]
    assert store.suffixes is not old
    assert list(proposer.propose(1).tokens) == [51]  # a generation under way keeps its index
    late = suffix(store.suffixes)
    late.begin([50])
    assert len(late.propose(1)) == 0
    store.add(list(range(60, 95)))
    assert store.texts() == [list(range(75, 95))]  # of a text longer than the store the end


def test_a_smaller_capacity_takes_the_newest(saved: Path) -> None:
    assert Store.open(saved, 100, DIGEST, capacity=5).texts() == [[1, 2, 3, 99], [0]]


def test_every_damaged_byte_is_noticed(saved: Path) -> None:
    good = saved.read_bytes()
    for at in range(len(good)):
        for flip in (1, 0x80):
            bad = bytearray(good)
            bad[at] ^= flip
            saved.write_bytes(bad)
            with pytest.raises(InputError, match="store"):
                Store.open(saved, 100, DIGEST)


def test_every_length_but_the_right_one_is_noticed(saved: Path) -> None:
    good = saved.read_bytes()
    for size in range(len(good)):
        saved.write_bytes(good[:size])
        with pytest.raises(InputError, match="not a lookahead store" if size < 16 else "is damaged"):
            Store.open(saved, 100, DIGEST)


def appended(file: Path, *texts: list[int], capacity: int = 1000) -> None:
    arrays = [np.array(text, np.int32) for text in texts]
    Appender(file, Owner(100, DIGEST), capacity).append(arrays, arrays)


def opened(file: Path) -> list[list[int]]:
    return Store.open(file, 100, DIGEST).texts()


def test_a_torn_frame_is_ignored_and_cut_and_damage_elsewhere_is_an_error(saved: Path) -> None:
    base = saved.read_bytes()
    appended(saved, [8, 9], [7])
    middle, first = len(saved.read_bytes()), opened(saved)
    assert first == [[5, 6, 7], [1, 2, 3, 99], [0], [8, 9], [7]]
    appended(saved, [4, 4, 4])
    whole = saved.read_bytes()
    assert whole.startswith(base), "the file is appended to"
    for size in range(len(base), len(whole)):
        for zeros in (0, 50):
            saved.write_bytes(whole[:size] + bytes(zeros))
            before = first[:3] if size < middle else first
            assert opened(saved) == before
            appended(saved, [3])
            assert opened(saved) == [*before, [3]]
    for at in range(len(base), len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 0x80
        saved.write_bytes(bad)
        if at < middle + 12:  # the head of a frame has a checksum of its own
            with pytest.raises(InputError, match="is damaged"):
                opened(saved)
            with pytest.raises(InputError, match="is damaged"):
                appended(saved, [3])
            assert saved.read_bytes() == bad
        else:
            assert opened(saved) == first


def test_a_file_of_version_1_is_read_and_becomes_one_of_version_2(tmp_path: Path) -> None:
    old = sealed(head(2, 3) + np.array([1, 2, 7, 8, 9], "<u4").tobytes())
    file = tmp_path / "x"
    for wrong in (old + b"\0", old[:-1]):
        file.write_bytes(wrong)
        with pytest.raises(InputError, match="is damaged"):
            opened(file)
    file.write_bytes(old)
    assert opened(file) == [[7], [8, 9]]
    appended(file, [5])
    assert opened(file) == [[7], [8, 9], [5]]
    assert file.read_bytes()[16] == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=9), max_size=30), st.integers(1, 40))
def test_a_file_holds_what_a_store_of_its_capacity_holds(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], capacity: int
) -> None:
    file, store = tmp_path_factory.mktemp("store") / "x", Store(100, DIGEST, capacity=capacity)
    for text in texts:
        store.add(text)
        appended(file, text, capacity=capacity)
    if texts:
        assert Store.open(file, 100, DIGEST, capacity=capacity).texts() == store.texts()
        assert file.stat().st_size < 700 + 8 * capacity + 4 * len(texts), "it is compacted"


def test_several_writers_lose_nothing(saved: Path) -> None:
    vocabulary = {"a": 0, "b": 1}
    one, other = Stores(100, lambda: vocabulary), Stores(100, lambda: vocabulary)
    for number in range(20):
        for stores in (one, other):
            stores.add(str(saved), [[number]])
        if number % 5 == 0:
            one.flush()
    one.close()
    other.close()
    assert sorted(opened(saved)[3:]) == sorted([[number] for number in range(20)] * 2)
    saved.unlink()
    one.add(str(saved), [[42]])
    one.close()
    assert opened(saved) == one.get(str(saved)).texts(), "a file that was removed is written anew"
    saved.write_bytes(b"notes of mine")
    one.add(str(saved), [[43]])
    one.close()
    assert saved.read_bytes() == b"notes of mine"


def test_an_index_is_made_in_the_background_and_holds_what_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    going, reached, make = threading.Event(), threading.Event(), Store.make_index
    callers = set()

    def slow(self: Store, texts: Sequence[Any]) -> Any:
        callers.add(threading.current_thread())
        made = make(self, texts)
        reached.set()
        assert going.wait(60)
        return made

    stores = Stores(MEMORY_CAPACITY)
    store = stores.get("memory")
    monkeypatch.setattr(Store, "make_index", slow)
    stores.add("memory", [range(3000)])  # too long to be indexed at once
    assert reached.wait(60)
    stores.add("memory", [[5, 7000, 7001]])
    old = store.suffixes
    assert old.followers(np.array([7000], np.int32)) == [(7001, 1)]
    going.set()
    stores.flush()
    assert threading.current_thread() not in callers
    assert store.suffixes is not old
    expected = Store(MEMORY_CAPACITY)
    for text in store.texts():
        expected.add(text)
    for token in (5, 7000, 2999):
        context = np.array([token], np.int32)
        assert store.suffixes.followers(context) == expected.suffixes.followers(context)
    stores.close()


def test_a_forked_process_neither_waits_nor_writes_what_its_parent_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, reached, append = threading.Event(), threading.Event(), Appender.append

    def slow(self: Appender, *arguments: Any) -> None:
        reached.set()
        assert going.wait(60)
        append(self, *arguments)

    monkeypatch.setattr(Appender, "append", slow)
    stores, file = Stores(100, lambda: {"a": 0, "b": 1}), tmp_path / "x"
    stores.add(str(file), [[1]])
    assert reached.wait(60)
    stores.add(str(file), [[2]])
    with stores._lock:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                Appender.append = append  # type: ignore[method-assign]
                stores.flush()
                file.with_name("y").touch()
                stores.add("memory", [[3]])
                stores.close()
                status = 0
            finally:
                os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    going.set()
    stores.close()
    assert opened(file) == [[1], [2]]


@pytest.mark.parametrize("content", ["", "Notes:\n- milk\n", "ipex-lookahead is a program\n" * 9])
def test_nobody_is_told_to_delete_a_file_of_their_own(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(content)
    with pytest.raises(InputError, match=r"notes\.txt is not a lookahead store; it was not changed") as caught:
        Store.open(file, 100, DIGEST)
    assert "delete" not in caught.value.hint
    assert file.read_text() == content


def test_a_store_that_is_damaged_may_be_deleted(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged") as caught:
        Store.open(saved, 100, DIGEST)
    assert caught.value.hint.startswith("delete the file")


def head(texts: int, tokens: int, *, version: int = 1, vocab: int = 100) -> bytes:
    return struct.pack("<16sII32sQQ", b"ipex-lookahead S", version, vocab, DIGEST, texts, tokens)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sealed(head(1, 2) + np.array([3, 1, 1], "<u4").tobytes()), "contradicts itself"),
        (sealed(head(1, 1) + np.array([1, 100], "<u4").tobytes()), "contradicts itself"),
        (sealed(head(2, 2) + np.array([0, 2, 1, 1], "<u4").tobytes()), "contradicts itself"),
        (sealed(head(0, 1) + np.array([1], "<u4").tobytes()), "contradicts itself"),
        (sealed(head(2**62, 2**62)), "damaged"),  # would be the right size modulo 2**64
        (sealed(head(0, 0, version=3)), "version 3; this package reads versions 1 to 2"),
        (sealed(head(0, 0, vocab=101)), r"another vocabulary \(101 tokens, this model's has 100\)"),
    ],
)
def test_what_lies_under_a_right_checksum_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        Store.open(file, 100, DIGEST)
    good = "version 3" in message or "vocabulary" in message
    assert ("delete" in caught.value.hint) != good, "nobody is told to delete a good store"


def test_another_models_store_is_refused(saved: Path) -> None:
    for vocab_size, digest in ((100, b""), (100, vocabulary_digest({"a": 1, "b": 0})), (64, DIGEST)):
        with pytest.raises(InputError, match="another vocabulary"):
            Store.open(saved, vocab_size, digest)


def test_vocabularies_differ_by_tokens_and_ids() -> None:
    several = [{"a": 0, "b": 1}, {"a": 1, "b": 0}, {"ab": 0}, {"a": 0}, {"\udcff": 0, "b": 1}]
    assert len({vocabulary_digest(v) for v in several}) == len(several)
    assert vocabulary_digest({"b": 1, "a": 0}) == DIGEST


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for text in ([100], [-1], [2**40]):
        with pytest.raises(InputError, match="from 0 to 99"):
            filled(text)


def test_a_failed_save_leaves_the_file_alone(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SaveError, match="No space left"):
        filled([1]).save(saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_places_that_are_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InputError, match="is not a regular file"):
            Store.open(place, 100)
    with pytest.raises(SaveError):
        filled([1]).save(tmp_path / "absent" / "x")
    with pytest.raises(InputError, match="at least one"):
        Store(100, capacity=0)


BROKEN = {
    "header": lambda good: b"?" + good[1:],
    "checksum": lambda good: good[:-1] + bytes([good[-1] ^ 1]),
    "body": lambda good: good[:90] + bytes([good[90] ^ 255]) + good[91:],
    "cut": lambda good: good[:-7],
    "empty": lambda good: b"",
    "other": lambda good: b"notes of mine\n",
}


@pytest.mark.parametrize("kind", [*BROKEN, "folder", "pipe", "vocabulary", "forbidden", "name"])
def test_a_store_that_cannot_be_opened_is_left_out_with_one_warning(
    saved: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = str(saved)
    if kind in BROKEN:
        saved.write_bytes(BROKEN[kind](saved.read_bytes()))
    elif kind in ("folder", "pipe"):
        saved.unlink()
        saved.mkdir() if kind == "folder" else os.mkfifo(saved)
    elif kind == "forbidden":

        def refuse(path: Path, *_: object, **__: object) -> bool:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "exists", refuse)
    elif kind == "name":
        name = str(saved.with_name("x" * 5000))
    before = saved.read_bytes() if saved.is_file() else None
    stores = Stores(100 if kind != "vocabulary" else 99, lambda: {"a": 0, "b": 1})
    assert [stores.open_or_none(name) for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    with pytest.raises(InputError):
        stores.get(name)
    if before is not None:
        assert saved.read_bytes() == before


def test_a_full_disk_is_told_once(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a name of its own for each")

    monkeypatch.setattr(os, "fsync", full)
    stores = Stores(100, lambda: {"a": 0, "b": 1})
    for name in ("one", "two", "one"):
        for _ in range(3):
            stores.add(str(saved.with_name(name)), [[1, 2]])
            stores.flush()
    assert len(caplog.records) == 1
    assert len(stores.get(str(saved.with_name("one")))) == 12, "and it is remembered"
    monkeypatch.undo()
    stores.add(str(saved.with_name("one")), [[3]])
    stores.close()
    assert opened(saved.with_name("one")) == [[1, 2]] * 6 + [[3]], "and written as soon as there is room"


def test_a_link_stays_a_link(saved: Path) -> None:
    link = saved.with_name("link")
    link.symlink_to(saved)
    filled([1]).save(link)
    assert link.is_symlink()
    assert Store.open(saved, 100, DIGEST).texts() == [[1]]
