"""Killed at any moment, or out of disk: what was there is there, whole; nothing is left over; the next run goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
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
from tests.support.tiny import TinyLlama

KILLS = cases(25, 400)
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
    for number in range(KILLS):
        started = float(10 * (number + 1))
        assert killed(lambda value=started: save_model(target, value), chance.uniform(0.0005, 0.03))
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
            with pytest.raises(SaveError, match="nothing that was there has been changed"):
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
