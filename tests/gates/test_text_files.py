"""Untrusted text files: a tokenizer that works, or an error of ours; never a signal, a hang, or a full memory.

Children of this process try them, hundreds one after the other, under limits of the kernel's: 5 s of processor time for
each and 512 MiB more than the process has. One that dies is known by the last number it spoke.
"""

from __future__ import annotations

import collections
import os
import resource
import signal
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.gates import cases, seed
from tests.support import mutated
from tests.support.mutated.sound import byte_pair, pieces

CASES = cases(500, 60_000)
BATCH = 250
SECONDS = 5.0
MEMORY = 512 << 20


def bound() -> int:
    """Bytes of address space that this process may come to."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize() + MEMORY


def child(numbers: range, folder: Path, out: int) -> None:
    """Try each; a line for each: its number before, what became of it after."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    most, hard = bound(), resource.getrlimit(resource.RLIMIT_AS)[1]
    for number in numbers:
        os.write(out, f"{number} ".encode())
        try:
            made = mutated.case(number, seed())
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))  # of who reads it, not of who makes it
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            outcome = f"{made.kind} {mutated.attempt(made, folder)}"
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{error!r}"[:400].replace("\n", " ") + f" at {where.filename}:{where.lineno}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        os.write(out, (outcome + "\n").encode("utf-8", "replace"))


def tried(numbers: range, folder: Path) -> list[tuple[int, str]]:
    """What became of each; after a death the next child goes on behind it."""
    found: list[tuple[int, str]] = []
    while numbers:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks of a process with threads
            process = os.fork()
        if process == 0:
            try:
                os.close(reader)
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)  # what the library says of its panics
                child(numbers, folder, writer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as lines:
            said = lines.read().split("\n")
        _, status = os.waitpid(process, 0)
        for line in said[:-1]:
            number, _, outcome = line.partition(" ")
            found.append((int(number), outcome))
        done = len(said) - 1
        if said[-1]:
            found.append((int(said[-1]), f"death by {signal.Signals(status & 127).name if status & 127 else status}"))
            done += 1
        elif done != len(numbers):
            raise AssertionError(f"the child ended after {done} of {numbers} with status {status}")
        numbers = numbers[done:]
    return found


def test_any_file_of_text_is_a_load_or_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    byte_pair()
    for kind in ("bpe", "unigram", "rules"):
        pieces(kind)
    pytest.importorskip("transformers")
    import ipex_lookahead.engines.torch.load
    import ipex_lookahead.tokenization.tokenizers  # noqa: F401  (once, not in every child)

    start = time.monotonic()
    seen: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    first = int(os.environ.get("IPEX_LOOKAHEAD_GATE_FIRST", "0"))
    for begin in range(first, first + CASES, BATCH):
        for number, outcome in tried(range(begin, min(begin + BATCH, first + CASES)), tmp_path):
            if outcome.endswith((" loaded", " refused")):
                seen[outcome] += 1
            else:
                faults.append(f"{mutated.case(number, seed())}: {outcome}")
    print(f"{CASES} files in {time.monotonic() - start:.0f} s: {dict(sorted(seen.items()))}, {len(faults)} faults")
    assert not faults, f"{len(faults)} of {CASES}:\n" + "\n".join(faults[:40])
    for kind in mutated.KINDS:
        of_it: Any = {ending: seen[f"{kind} {ending}"] for ending in ("loaded", "refused")}
        assert min(of_it.values()) > sum(of_it.values()) // 10, (kind, of_it)
