"""Killed at any moment, or out of disk: what was there is there, whole; nothing is left over; the next run goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipex_lookahead.checkpoints import LowBitCheckpoint, save
from ipex_lookahead.checkpoints.base import TensorInfo
from ipex_lookahead.errors import SaveError
from ipex_lookahead.formats.base import PackedWeight
from tests.gates import cases, seed
from tests.support.tiny import TinyLlama, write_tiny_llama

KILLS = cases(12, 400)
CONFIG = {key: value for key, value in TinyLlama().config("float32").items() if key != "torch_dtype"}


def save_model(folder: Path, value: float, megabytes: float = 1.0) -> Path:
    """A folder whose weights all have one value, so that a mixture of two saves shows."""
    shape = (int(megabytes * 1e6) // (4 * 256), 64)
    weights = {f"w{n}.weight": PackedWeight("fp32", shape, np.full(shape, value + n, np.float32)) for n in range(4)}
    infos = {name: TensorInfo(w.shape, w.format, w.group_size) for name, w in weights.items()}
    low_bit = {"low_bit": "fp32", "group_size": 0, "mixed_precision": False}
    return save(
        folder,
        config=CONFIG,
        generation_config={},
        infos=infos,
        weights=weights.items(),
        low_bit=low_bit,
        overwrite=True,
    )


def value_of(folder: Path) -> float:
    """The one value of the folder's weights; an error where it is not whole."""
    checkpoint = LowBitCheckpoint(folder)
    try:
        found = {float(v) - n for n in range(4) for v in np.unique(np.asarray(checkpoint.read(f"w{n}.weight").codes))}
    finally:
        checkpoint.close()
    assert len(found) == 1, found
    return found.pop()


def killed(work: Callable[[], Any], after: float) -> bool:
    """Run ``work`` again and again in a child, killed after so many seconds. True where it was still alive then."""
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        try:
            while True:
                work()
        except BaseException:
            os._exit(1)
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_saves_that_are_killed(tmp_path: Path) -> None:
    chance = random.Random(seed())
    target = tmp_path / "deep" / "out"
    written, left_over = 0.0, 0
    for number in range(20 * KILLS):
        if number >= KILLS and left_over:
            break  # on a busy machine the first ones may all come before a save has begun
        started = float(10 * (number + 1))
        longest = 0.03 * (1 + number // KILLS)
        assert killed(lambda value=started: save_model(target, value), chance.uniform(0.0005, longest))
        if target.exists():
            found = value_of(target)
            assert found in (written, started)
            written = found
        left_over = max(left_over, len(list(tmp_path.glob("deep/.out.*"))))
    assert left_over == 1, "kills hit no save in the middle, or leftovers pile up"
    save_model(target, 7.0)
    assert value_of(target) == 7.0
    assert [p.name for p in target.parent.iterdir()] == ["out"]


def test_stores_that_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    from ipex_lookahead.drafting.store import Store

    chance = random.Random(seed())
    file = tmp_path / "outputs.store"
    for number in range(KILLS):
        texts = [[number + 1] * 2000 for _ in range(20)]

        def work(texts: list[list[int]] = texts) -> None:
            store = Store(100_000)
            for text in texts:
                store.add(text)
            store.save(file)

        assert killed(work, chance.uniform(0.0005, 0.02))
        held = {token for text in Store.open(file, 100_000).texts() for token in text}
        assert len(held) <= 1
    work()
    assert [p.name for p in tmp_path.iterdir()] == ["outputs.store"]


ANSWERS = """
import sys
from ipex_lookahead.drafting.store import Stores
stores, first, last = Stores(100_000), int(sys.argv[2]), int(sys.argv[3])
stores.get(sys.argv[1])
print("ready", flush=True)
for number in range(first, last):
    stores.add(sys.argv[1], [[number] * 50])
"""


def test_answers_are_a_prefix_after_a_kill_and_all_there_after_an_exit(tmp_path: Path) -> None:
    """Frames are appended until the file is compacted, and programs that exit normally lose none."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    from ipex_lookahead.drafting.store import CAPACITY, Store

    chance, file, started = random.Random(seed()), tmp_path / "outputs.store", 0
    for _ in range(cases(2, 60)):
        seconds, last = chance.uniform(0.0, 0.3), started + 90_000
        killed_program(ANSWERS, str(file), str(started), str(last), until=lambda after=seconds: time.sleep(after))
        numbers = [text[0] for text in Store.open(file, 100_000).texts()]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        started = numbers[-1] + 1 if numbers else 0
        if started > 80_000:
            file.unlink()
            started = 0
    file.unlink(missing_ok=True)
    programs = [
        subprocess.Popen([sys.executable, "-c", ANSWERS, str(file), str(at), str(at + 300)], stdout=subprocess.DEVNULL)
        for at in (0, 1000, 2000)
    ]
    assert [program.wait() for program in programs] == [0, 0, 0]
    numbers = [text[0] for text in Store.open(file, 100_000).texts()]
    assert sorted(numbers) == [at + number for at in (0, 1000, 2000) for number in range(300)]
    for at in (0, 1000, 2000):
        assert [number for number in numbers if at <= number < at + 300] == list(range(at, at + 300))
    assert CAPACITY > 900 * 50
    assert [p.name for p in tmp_path.iterdir()] == ["outputs.store"]


FETCH = """
import sys
from ipex_lookahead import hub
import huggingface_hub
options = hub.HubOptions(cache_dir=sys.argv[1], endpoint=sys.argv[2], token=False)
print("ready", flush=True)
hub.resolve_model("owner/model", options=options, progress=False)
"""
QUANTIZE = """
import sys
from ipex_lookahead.cli.main import run
print("ready", flush=True)
sys.exit(run(["quantize", sys.argv[1], sys.argv[2], "--low-bit", "sym_int4", "--overwrite"]))
"""


def killed_program(code: str, *arguments: str, until: Callable[[], object]) -> int:
    """Run a program of ours, killed when ``until``, called when it says that it is ready, returns; its exit status."""
    root = Path(__file__).resolve().parents[2]
    program = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        until()
        child.kill()
        return child.wait()


def test_downloads_that_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    from ipex_lookahead import hub
    from tests.support.fake_hub import fake_hub

    chance = random.Random(seed())
    weights = bytes(range(256)) * (48 << 12)  # 48 MiB: what takes a local server a tenth of a second
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": weights, "tokenizer.json": b"{}"}
    cache = tmp_path / "hub"
    with fake_hub({"owner/model": files}) as served:
        served.stall["model.safetensors"] = [len(weights) // 2]
        # The first one in the middle for certain: on a quick machine the others may be done by then, and no more to do.
        assert killed_program(FETCH, str(cache), served.endpoint, until=lambda: served.stalled.wait(200)) < 0
        for _ in range(cases(2, 60)):
            seconds = chance.uniform(0.0, 0.4)
            killed_program(FETCH, str(cache), served.endpoint, until=lambda after=seconds: time.sleep(after))
        options = hub.HubOptions(cache_dir=str(cache), endpoint=served.endpoint, token=False)
        folder = hub.resolve_model("owner/model", options=options, progress=False)
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert not [path for path in cache.rglob("*") if ".partial" in path.name or ".incomplete" in path.name]


def test_quantising_that_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    chance = random.Random(seed())
    source, target = write_tiny_llama(tmp_path / "model"), tmp_path / "made" / "out"
    for _ in range(cases(2, 60)):
        seconds = chance.uniform(0.0, 1.0)
        killed_program(QUANTIZE, str(source), str(target), until=lambda after=seconds: time.sleep(after))
        if target.exists():
            LowBitCheckpoint(target).close()
    run = subprocess.run(
        [sys.executable, "-c", QUANTIZE, str(source), str(target)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    LowBitCheckpoint(target).close()
    assert [p.name for p in target.parent.iterdir()] == ["out"]


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A filesystem in memory of that size; skips where this user may mount none."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()[:80]}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(file: Path) -> None:
    """Write until there is no room for a page."""
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(b"0" * 4096)


def test_a_disk_that_fills(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        save_model(disk / "out", 1.0, 2.0)
        for megabytes in (7.0, 9.0, 50.0):  # beside the first there is no room for it
            with pytest.raises(SaveError, match="existing files are unchanged"):
                save_model(disk / "out", 2.0, megabytes)
            assert value_of(disk / "out") == 1.0
            assert [p.name for p in disk.iterdir()] == ["out"]
        save_model(disk / "out", 3.0, 2.0)
        assert value_of(disk / "out") == 3.0
        from ipex_lookahead.drafting.store import Store

        store = Store(100_000)
        store.add([1, 2, 3])
        store.save(disk / "a.store")
        for number in range(130):
            store.add([number + 5] * 1000)
        fill(disk / "more")
        with pytest.raises(SaveError, match="cannot be written"):
            store.save(disk / "a.store")
        assert Store.open(disk / "a.store", 100_000).texts() == [[1, 2, 3]]
        assert sorted(p.name for p in disk.iterdir()) == ["a.store", "more", "out"]
        from ipex_lookahead.drafting.store import Stores

        stores = Stores(100_000)
        for number in range(3):
            stores.add(str(disk / "a.store"), [[number + 5] * 2000])
            stores.flush()
        assert Store.open(disk / "a.store", 100_000).texts() == [[1, 2, 3]]
        (disk / "more").unlink()
        stores.add(str(disk / "a.store"), [[9]])
        stores.close()
        assert [text[0] for text in Store.open(disk / "a.store", 100_000).texts()] == [1, 5, 6, 7, 9]
