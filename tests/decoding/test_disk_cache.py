"""The prefix cache's second level: what is found after a restart, by whom, and that nothing waits or breaks for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ipex_lookahead.decoding import background, disk_cache
from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.decoding.disk_cache import DiskCache
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.scheduler import Scheduler
from tests.support.exporting_engine import ExportingCache, ExportingEngine
from tests.support.sequence_groups import Answer, Submission, alone, group_of

ENGINE = ExportingEngine()
LARGE = 10_000
"""Numbers in a state that is too large to be stored with every chunk."""
PRINT = b"model"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch) -> None:
    """Chunks of two pages of the engine's 16 bytes a position."""
    monkeypatch.setattr(disk_cache, "CHUNK_GOAL", 2 * 64 * 16)


def text(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 11, count).tolist())


def turn(*prompts: tuple[int, ...], new: int = 3) -> tuple[int, ...]:
    """A prompt with the answer that follows it, and more."""
    whole: tuple[int, ...] = ()
    for prompt in prompts:
        whole += prompt
        whole += tuple(alone(ENGINE, Submission(whole, new)).tokens)
    return whole


def memory_with(
    folder: Path,
    engine: ExportingEngine = ENGINE,
    *,
    print_: bytes = PRINT,
    pages: int = 200,
    budget: int = 10**8,
    always: bool = True,
) -> PrefixCache:
    memory = PrefixCache(pages)
    memory.disk = DiskCache(CacheFolder(folder, budget), engine, print_)
    if always:  # the engine computes as fast as the disk reads
        memory.computed = lambda rows, seconds: None  # type: ignore[method-assign]
    return memory


def run(memory: PrefixCache, *wanted: Submission, engine: ExportingEngine = ENGINE) -> tuple[list[Answer], list[int]]:
    """One request after the other; the answers, and the prompt tokens of each that were cached."""
    answers, cached = [], []
    scheduler = Scheduler(engine, memory=memory, slots=4)
    for number, submission in enumerate(wanted):
        group, answer = group_of(engine, submission, number)
        scheduler.submit(group)
        while scheduler.busy:
            scheduler.step()
        assert group.error is None
        answers.append(answer)
        cached.append(group.stats.cached_tokens)
    assert memory._sequences == 0
    assert memory.used <= memory.budget
    return answers, cached


def ended(memory: PrefixCache) -> None:
    """As at the end of a process."""
    assert memory.disk is not None
    memory.flush()
    memory.disk.close()


def kv_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*.kv"))


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("ballast", [0, LARGE])
def test_after_a_restart_a_text_is_found_and_the_answer_is_the_same(tmp_path, seed, ballast):
    engine = ExportingEngine(ballast=ballast)
    first = Submission(text(500), 30, seed)
    memory = memory_with(tmp_path, engine)
    answers, _ = run(memory, first, engine=engine)
    ended(memory)
    again = Submission((*first.prompt, *answers[0].tokens, *text(40, 1)), 30, seed)
    memory = memory_with(tmp_path, engine)
    got, cached = run(memory, again, engine=engine)
    assert got == [alone(engine, again)]
    assert cached == [500 + 30 - 1]
    assert memory.disk is not None
    assert memory.disk.tokens == 529


def test_texts_share_the_chunks_that_they_begin_with(tmp_path):
    system = text(300)
    one, other = Submission((*system, *text(100, 1)), 3), Submission((*system, *text(100, 2)), 3)
    memory = memory_with(tmp_path)
    run(memory, one)
    ended(memory)
    before = len(kv_files(tmp_path))
    memory = memory_with(tmp_path)
    assert run(memory, other)[1] == [256]  # whole chunks; their ends have a state
    ended(memory)
    assert len(kv_files(tmp_path)) - before == 1 + 1  # the third chunk, and the rest at the end


def test_a_large_state_is_found_where_the_text_was_stored(tmp_path):
    """At the end of a prompt in whole pages, and at the end of the answer: not in between."""
    engine = ExportingEngine(ballast=LARGE)
    prompt = text(450)
    memory = memory_with(tmp_path, engine)
    run(memory, Submission(prompt, 60), engine=engine)
    ended(memory)
    memory = memory_with(tmp_path, engine)
    again = Submission((*prompt, *text(100, 5)), 3)
    got, cached = run(memory, again, engine=engine)
    assert got == [alone(engine, again)]
    assert cached == [448]
    memory = memory_with(tmp_path, engine)
    assert run(memory, Submission(text(300), 3), engine=engine)[1] == [0]


@pytest.mark.parametrize("change", ["tenant", "model", "layout", "secret", "nothing"])
def test_another_tenant_model_layout_or_folder_finds_nothing(tmp_path, change):
    memory = memory_with(tmp_path)
    run(memory, Submission(text(400), 3))
    ended(memory)
    engine = ExportingEngine()
    if change == "layout":
        engine.cache_layout = "hashed 2"
    if change == "secret":
        (tmp_path / "secret").write_bytes(bytes(32))
    memory = memory_with(tmp_path, engine, print_=b"other" if change == "model" else PRINT)
    tenant = "x" if change == "tenant" else ""
    assert run(memory, Submission((*turn(text(400)), 1), 3, key=tenant), engine=engine)[1] == [
        402 if change == "nothing" else 0
    ]


def test_what_leaves_memory_is_found_again(tmp_path):
    memory = memory_with(tmp_path, pages=12)
    texts = [Submission(text(500, seed), 3) for seed in range(4)]
    run(memory, *texts)
    wait_for(lambda: memory.disk is not None and not memory.disk._writer.waiting)
    longer = [Submission((*turn(one.prompt), 1, 2, 3), 3) for one in texts]
    got, cached = run(memory, *longer)
    assert got == [alone(ENGINE, one) for one in longer]
    assert all(count >= 384 for count in cached)
    assert memory.disk is not None
    assert memory.disk.hits > 0
    ended(memory)


def wait_for(condition, seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


class SlowEngine(ExportingEngine):
    """Its imports wait for ``free``."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.reads = 0

    def import_cache(self, length, pages, state) -> ExportingCache:
        self.reads += 1
        assert self.free.wait(20)
        return super().import_cache(length, pages, state)


def stored(tmp_path: Path, *texts: tuple[int, ...]) -> None:
    memory = memory_with(tmp_path)
    run(memory, *[Submission(one, 3) for one in texts])
    ended(memory)


def test_sequences_go_on_while_another_waits_for_the_disk(tmp_path):
    stored(tmp_path, text(500))
    engine = SlowEngine()
    memory = memory_with(tmp_path, engine)
    scheduler = Scheduler(engine, memory=memory, slots=4)
    waiting, also, other = (
        Submission((*turn(text(500)), 1), 5),
        Submission((*turn(text(500)), 2), 5),
        Submission(text(80, 3), 40),
    )
    groups = [group_of(engine, one, number) for number, one in enumerate((waiting, also, other))]
    for group, _ in groups:
        scheduler.submit(group)
    while not groups[2][0].ended:
        scheduler.step()
    assert groups[2][1] == alone(engine, other)
    assert not groups[0][0].ended
    engine.free.set()
    while scheduler.busy:
        scheduler.step()
    for (group, answer), submission in zip(groups, (waiting, also, other), strict=True):
        assert answer == alone(engine, submission)
        assert group.stats.cached_tokens >= (500 if submission is not other else 0)
    assert engine.reads == 1, "one read for both"
    ended(memory)


def test_a_read_makes_way_for_running_sequences(tmp_path):
    stored(tmp_path, text(500))
    engine = SlowEngine()
    memory = memory_with(tmp_path, engine, pages=12)
    scheduler = Scheduler(engine, memory=memory, slots=4)
    waiting, other = Submission((*turn(text(500)), 1), 5), Submission(text(80, 3), 400)
    groups = [group_of(engine, one, number) for number, one in enumerate((waiting, other))]
    for group, _ in groups:
        scheduler.submit(group)
    while not groups[1][0].ended:
        scheduler.step()
    assert groups[1][1] == alone(engine, other)
    engine.free.set()
    while scheduler.busy:
        scheduler.step()
    assert groups[0][1] == alone(engine, waiting)
    assert memory._sequences == 0
    ended(memory)


def test_a_cancelled_request_leaves_its_read_behind(tmp_path):
    stored(tmp_path, text(500))
    engine = SlowEngine()
    memory = memory_with(tmp_path, engine)
    scheduler = Scheduler(engine, memory=memory, slots=4)
    group, _ = group_of(engine, Submission((*turn(text(500)), 1), 5))
    scheduler.submit(group)
    scheduler.step()
    scheduler.cancel(group.id)
    assert not scheduler.busy
    engine.free.set()
    assert run(memory, Submission((*turn(text(500)), 1), 5), engine=engine)[1] == [502]
    assert engine.reads == 1
    ended(memory)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty", "swap"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_damaged_file_costs_its_text_only(tmp_path, damage, which, caplog):
    stored(tmp_path, text(700))
    memory = memory_with(tmp_path)
    files = {len(file.stem.split("-")): [] for file in kv_files(tmp_path)}
    for file in sorted(kv_files(tmp_path), key=lambda one: int(one.stem.rpartition("-")[2])):
        files[len(file.stem.split("-"))].append(file)
    every = [file for some in files.values() for file in some]
    file = every[which]
    content = file.read_bytes()
    if damage == "flip":
        file.write_bytes(content[:-5] + bytes([content[-5] ^ 64]) + content[-4:])
    elif damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "delete":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    else:
        file.write_bytes(every[which - 1].read_bytes())
    again = Submission((*turn(text(700)), 1, 2), 20)
    got, _ = run(memory, again)
    assert got == [alone(ENGINE, again)]
    assert len(caplog.records) <= 1
    ended(memory)
    memory = memory_with(tmp_path)
    caplog.clear()
    got, cached = run(memory, again)
    assert got == [alone(ENGINE, again)]
    assert cached[0] >= 702, "written again"
    assert not caplog.records


def test_an_image_that_does_not_fit_is_deleted(tmp_path, caplog):
    stored(tmp_path, text(500))
    engine = ExportingEngine(ballast=1)  # another layout that claims to be the same
    memory = memory_with(tmp_path, engine)
    again = Submission((*turn(text(500)), 1, 2), 20)
    got, cached = run(memory, again, engine=engine)
    assert got == [alone(engine, again)]
    assert cached == [0]
    assert "do not fit the model" in caplog.text


def test_a_failing_import_is_tried_once(tmp_path, caplog):
    stored(tmp_path, text(500))
    engine = SlowEngine()
    engine.import_cache = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    memory = memory_with(tmp_path, engine)
    again = Submission((*turn(text(500)), 1, 2), 20)
    assert run(memory, again, engine=engine)[0] == [alone(engine, again)]
    assert len(caplog.records) == 1


def test_a_read_that_does_not_pay_is_left_out(tmp_path):
    stored(tmp_path, text(500))
    memory = memory_with(tmp_path, always=False)
    for _ in range(100):
        memory.computed(512, 512e-9)
    again = Submission((*turn(text(500)), 1, 2), 3)
    assert run(memory, again)[1] == [0]
    memory = memory_with(tmp_path, always=False)
    memory.computed(512, 512.0)
    assert run(memory, again)[1] == [502]
    memory = memory_with(tmp_path, always=False)
    assert memory.disk is not None
    memory.disk.rate = 1.0
    memory.computed(512, 512.0)
    assert run(memory, again)[1] == [0]


def test_memory_is_read_before_the_disk(tmp_path):
    memory = memory_with(tmp_path)
    assert run(memory, Submission(text(500), 3), Submission((*turn(text(500)), 1), 3))[1] == [0, 502]
    assert memory.disk is not None
    assert memory.disk.hits == 0
    ended(memory)


class StuckEngine(ExportingEngine):
    """Its caches export once ``free`` is set."""

    free = threading.Event()

    def new_cache(self) -> ExportingCache:
        return StuckCache()


class StuckCache(ExportingCache):
    def fork(self) -> ExportingCache:
        other = StuckCache()
        other.tokens, other.states, other._longest = self.tokens.copy(), self.states.copy(), self._longest
        return other

    def export_pages(self, first: int, last: int) -> np.ndarray:
        assert StuckEngine.free.wait(20)
        return super().export_pages(first, last)


@pytest.fixture
def stuck() -> Iterator[StuckEngine]:
    StuckEngine.free.clear()
    yield StuckEngine()
    StuckEngine.free.set()


def test_a_writer_that_cannot_keep_up_drops_texts_and_delays_none(tmp_path, stuck, monkeypatch):
    monkeypatch.setattr(disk_cache, "MAX_WRITES", 3)
    memory = memory_with(tmp_path, stuck)
    texts = [Submission(text(300, seed), 3) for seed in range(6)]
    got, _ = run(memory, *texts, engine=stuck)
    assert got == [alone(stuck, one) for one in texts]
    assert memory.disk is not None
    assert memory.disk.dropped > 0
    StuckEngine.free.set()
    ended(memory)  # what was dropped and is still in memory is written now
    memory = memory_with(tmp_path)
    assert all(count >= 256 for count in run(memory, *texts)[1])


def test_memory_of_evicted_texts_is_bounded(tmp_path, stuck, monkeypatch):
    monkeypatch.setattr(disk_cache, "HELD_BYTES", 2 * 310 * 16)
    memory = memory_with(tmp_path, stuck, pages=7)
    run(memory, *[Submission(text(300, seed), 3) for seed in range(9)], engine=stuck)
    disk = memory.disk
    assert disk is not None
    assert 0 < disk._held <= disk_cache.HELD_BYTES
    StuckEngine.free.set()
    ended(memory)
    assert disk._held == 0
    assert disk.dropped > 0


def test_close_does_not_wait_longer_than_its_limit(tmp_path, stuck, caplog):
    memory = memory_with(tmp_path, stuck)
    run(memory, Submission(text(300), 3), engine=stuck)
    assert memory.disk is not None
    began = time.monotonic()
    memory.disk.close(0.05)
    assert time.monotonic() - began < 10
    assert "not all texts were written" in caplog.text


def test_short_texts_are_not_stored(tmp_path):
    stored(tmp_path, text(100))
    assert not kv_files(tmp_path)


def test_use_in_memory_keeps_files(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "USED_SECONDS", 0.0)
    memory = memory_with(tmp_path)
    run(memory, Submission(text(300), 3))
    memory.flush()
    wait_for(lambda: len(kv_files(tmp_path)) == 3 and memory.disk is not None and not memory.disk._writer._running)
    for file in kv_files(tmp_path):
        os.utime(file, (1, 1))
    run(memory, Submission((*turn(text(300)), 1), 3))
    ended(memory)
    assert sum(file.stat().st_mtime > 1000 for file in kv_files(tmp_path)) >= 3


def test_files_of_another_process_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "IDLE_SECONDS", 0.01)
    memory = memory_with(tmp_path)
    run(memory, Submission(text(300, 9), 3))  # its writer thread runs
    stored(tmp_path, text(500))
    wait_for(lambda: memory.disk is not None and memory.disk.folder.total_bytes > 300 * 16 + 500 * 16)
    assert run(memory, Submission((*turn(text(500)), 1), 3))[1] == [502]
    ended(memory)
