"""The prefix cache on disk: an answer's bytes are those without a cache, for every family and kind of KV cache, and
whatever happens to processes, disks and files."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")

from ipex_lookahead.architectures import model_types
from ipex_lookahead.decoding import cache_chunks, cache_folder, disk_cache
from ipex_lookahead.decoding.cache_budget import memory_for
from ipex_lookahead.decoding.cache_chunks import read_records
from ipex_lookahead.decoding.cache_folder import CacheFolder
from ipex_lookahead.decoding.disk_cache import DiskCache
from ipex_lookahead.decoding.prefix_cache import PrefixCache
from ipex_lookahead.decoding.scheduler import Scheduler
from ipex_lookahead.engines.api import Engine, state_bytes
from ipex_lookahead.engines.fingerprint import fingerprint
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.runtime.service import Service
from tests.gates import cases, seed
from tests.support.exporting_engine import ExportingEngine
from tests.support.sequence_groups import Answer, Submission, alone, group_of

KILLS = cases(8, 200)
SECONDS = cases(2, 60)
CHANCES = cases(25, 1_000)
SMALL_BUDGET = 60_000


@pytest.fixture(autouse=True)
def small_chunks_and_slow_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is a page, and reading always pays: tiny models compute faster than a disk reads."""
    monkeypatch.setattr(disk_cache, "CHUNK_GOAL", 1)
    monkeypatch.setattr(disk_cache, "FILE_SECONDS", 0.0)
    monkeypatch.setattr(PrefixCache, "computed", lambda *_: None)


def memory_on(folder: Path, engine: Engine, print_: bytes, budget: int = 10**8) -> PrefixCache:
    memory = memory_for(engine, [engine.max_context] * 3, kept=12)
    memory.disk = DiskCache(CacheFolder(folder, budget), engine, print_)
    return memory


def run(engine: Engine, memory: PrefixCache, *wanted: Submission) -> tuple[list[Answer], list[int]]:
    """All at once; the answers, and the numbers of cached prompt tokens."""
    scheduler = Scheduler(engine, memory=memory, slots=3)
    groups = [group_of(engine, submission, number) for number, submission in enumerate(wanted)]
    for group, _ in groups:
        scheduler.submit(group)
    while scheduler.busy:
        scheduler.step()
    assert all(group.error is None for group, _ in groups)
    assert memory.used <= memory.budget
    return [answer for _, answer in groups], [group.stats.cached_tokens for group, _ in groups]


def end(memory: PrefixCache) -> None:
    assert memory.disk is not None
    memory.flush()
    memory.disk.close()


# ---- families ------------------------------------------------------------------------------------------------------


@pytest.mark.rotating(12)
@pytest.mark.parametrize("sampled", [None, 5], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kv_cache", ["fp16", "int8"])
@pytest.mark.parametrize("model_type", model_types())
def test_turns_after_restarts_have_the_bytes_of_a_run_without_a_cache(
    tmp_path: Path, model_type: str, kv_cache: str, sampled: int | None
) -> None:
    pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")
    from tests.support.family_engines import load
    from tests.support.family_table import variants
    from tests.support.tiny_families import build, write_folder

    write_folder(tmp_path / "model", build(model_type, variants(model_type)[0]))
    engine = load(tmp_path / "model", "sym_int4", kv_cache=kv_cache)
    rng = np.random.default_rng(seed())
    print_, folder = fingerprint(engine, tmp_path / "model"), tmp_path / "cache"

    def asked(*parts: list[int]) -> Submission:
        return Submission(tuple(token for part in parts for token in part), 6, sampled)

    system, said = (rng.integers(3, engine.vocab_size, count).tolist() for count in (140, 20))
    first = asked(system)
    plain = alone(engine, first)
    memory = memory_on(folder, engine, print_)
    assert run(engine, memory, first)[0] == [plain]
    end(memory)
    other = rng.integers(3, engine.vocab_size, 30).tolist()
    turns = [asked(system, plain.tokens, said), asked(system, other)]
    wanted = [alone(engine, turn) for turn in turns]
    for _ in range(2):  # the second time all is on disk
        memory = memory_on(folder, engine, print_)
        answers, cached = run(engine, memory, *turns)
        assert answers == wanted
        assert cached[0] >= len(system) + len(plain.tokens) - 1
        assert memory.disk is not None
        assert memory.disk.hits > 0
        end(memory)
    if not state_bytes(engine):
        assert cached[1] >= 128, "the pages that both begin with"
    flip(folder, random.Random(seed()))
    memory = memory_on(folder, engine, print_)
    assert run(engine, memory, *turns)[0] == wanted
    end(memory)


def flip(folder: Path, chance: random.Random) -> None:
    """Change a bit of a file."""
    file = chance.choice(sorted(folder.glob("??/*.kv")))
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["mtp", "eagle3", "eagle3 with a window", "gemma4_assistant"])
def test_heads_draft_after_a_restart_and_the_answer_is_the_same(tmp_path: Path, name: str) -> None:
    pytest.importorskip("transformers", minversion="5", reason="the models are made of transformers 5's layers")
    from tests.support.heads import opened, write
    from tests.support.letters import text_model, tokens_of

    paths = write(name, tmp_path)
    rng = np.random.default_rng(seed())
    prompt = rng.integers(3, 90, 300).tolist()
    options: dict[str, Any] = {"lookahead": "head", "adaptive": False}
    for params in (SamplingParams(30), SamplingParams(30, temperature=0.9, seed=4)):
        with closing(Service(text_model(opened(paths, threads=1)))) as service:
            first = tokens_of(list(service.stream(prompt, params)))
            text = [*prompt, *first, *prompt[:40]]
            plain = tokens_of(list(service.stream(text, params)))
        for asked, answer in ((prompt, first), (text, plain)):
            model = text_model(opened(paths, threads=1))
            model.use_cache_folder(tmp_path / f"cache {params.seed}")
            with closing(Service(model)) as service:
                events = list(service.stream(asked, params, **options))
                assert tokens_of(events) == answer
                assert service.disk is not None
                assert (service.disk.hits > 0) == (asked is text)
                assert events[-1].stats is not None
                assert events[-1].stats.drafted > 0


# ---- processes -----------------------------------------------------------------------------------------------------


def conversation(memory: PrefixCache, engine: ExportingEngine, number: int) -> None:
    """Three turns of one of five conversations, each checked."""
    text = tuple(np.random.default_rng(number % 5).integers(0, 11, 300 + 40 * (number % 5)).tolist())
    for turn in range(3):
        asked = Submission(text, 12, 3 if number % 2 else None)
        answers, _ = run(engine, memory, asked)
        assert answers == [alone(engine, asked)]
        text = (*text, *answers[0].tokens, turn, 1, 2)


def child(folder: Path, budget: int, first: int) -> int:
    """Begin a process that holds conversations until it is killed; it ends with 1 where an answer is wrong."""
    process = os.fork()
    if process:
        return process
    try:  # nothing of pytest's may run here
        engine, number = ExportingEngine(), first
        while True:
            memory = memory_on(folder, engine, b"model", budget)
            for _ in range(5):
                conversation(memory, engine, number)
                number += 1
            end(memory)
    except BaseException:
        import traceback

        (folder / "failed").write_text(traceback.format_exc())
        os._exit(1)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1]), "the child ended before it was killed"


def whole_files(folder: Path) -> int:
    """Check every file; return their number."""
    files = sorted(folder.glob("??/*.kv"))
    for file in files:
        with suppress(FileNotFoundError):
            list(read_records(file))
    return len(files)


@pytest.mark.parametrize("ballast", [0, 10_000])
def test_processes_that_are_killed_at_any_moment(tmp_path: Path, ballast: int) -> None:
    chance = random.Random(seed())
    left_over = 0
    for number in range(KILLS):
        process = child(tmp_path, 10**7, number)
        time.sleep(chance.uniform(0.02, 0.6))
        kill(process)
        left_over += len(list(tmp_path.glob("??/.*.saving-*")))
        whole_files(tmp_path)
    engine = ExportingEngine()
    memory = memory_on(tmp_path, engine, b"model")
    assert not list(tmp_path.glob("??/.*")), "leftovers of killed processes"
    for number in range(5):
        conversation(memory, engine, number)
    assert memory.disk is not None
    assert memory.disk.hits > 0, "what killed processes stored is found"
    assert memory.disk.dropped == 0
    end(memory)


def test_two_processes_on_one_folder_stay_within_its_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    processes = [child(tmp_path, SMALL_BUDGET, first) for first in range(2)]
    until, most = time.monotonic() + SECONDS, 0
    try:
        while time.monotonic() < until:
            sizes = []
            for file in tmp_path.glob("??/*.kv"):
                with suppress(FileNotFoundError):
                    sizes.append(file.stat().st_size)
            most = max(most, sum(sizes))
            time.sleep(0.01)
    finally:
        for process in processes:
            kill(process)
    assert not (tmp_path / "failed").exists(), (tmp_path / "failed").read_text()
    assert SMALL_BUDGET / 4 < most <= 1.1 * SMALL_BUDGET  # files come and go while they are counted
    assert sum(file.stat().st_size for file in tmp_path.glob("??/*.kv")) <= SMALL_BUDGET
    assert whole_files(tmp_path)
    assert not caplog.records


# ---- disks and files -----------------------------------------------------------------------------------------------


@pytest.fixture
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """A third of all writes fail, some of them in the middle."""
    chance = random.Random(seed())
    write = cache_chunks._write_record

    def failing(out: Any, *arguments: Any, **options: Any) -> int:
        if chance.random() < 0.17:
            raise OSError(28, "No space left on device")
        size = write(out, *arguments, **options)
        if chance.random() < 0.17:
            raise OSError(122, "Disk quota exceeded")
        return size

    monkeypatch.setattr(cache_chunks, "_write_record", failing)
    monkeypatch.setattr(cache_folder, "PAUSE_SECONDS", 0.0)
    return chance


def test_a_full_disk_costs_no_answer(tmp_path: Path, failing_disk: random.Random) -> None:
    engine = ExportingEngine()
    hits = dropped = 0
    for number in range(CHANCES // 5):
        memory = memory_on(tmp_path, engine, b"model")
        for turn in range(3):
            conversation(memory, engine, number + turn)
        end(memory)
        assert memory.disk is not None
        hits, dropped = hits + memory.disk.hits, dropped + memory.disk.folder.dropped
        assert not list(tmp_path.glob("??/.*"))
    assert whole_files(tmp_path)
    assert hits > 0
    assert dropped > 0


def test_files_that_are_damaged_cut_swapped_or_removed_cost_no_answer(tmp_path: Path) -> None:
    engine, chance = ExportingEngine(), random.Random(seed())
    hits = 0
    for number in range(CHANCES):
        memory = memory_on(tmp_path, engine, b"model")
        files = sorted(tmp_path.glob("??/*.kv"))
        for file in chance.sample(files, min(len(files), 3)):
            deed = chance.randrange(5)
            if deed == 0:
                flip(tmp_path, chance)
            elif deed == 1:
                os.truncate(file, chance.randrange(file.stat().st_size))
            elif deed == 2:
                file.write_bytes(chance.choice(files).read_bytes())
            elif deed == 3:
                file.unlink()
            else:
                file.write_bytes(file.read_bytes() + b"x")
        conversation(memory, engine, number)
        assert memory.disk is not None
        hits += memory.disk.hits
        end(memory)
    assert hits > 0
