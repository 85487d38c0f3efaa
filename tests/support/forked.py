"""Many cases in a child of this process, each within limits of time and memory: what dies there does not die here."""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import struct
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

CPU_SECONDS = 5.0
LOOKS = 120
"""How often, a second apart, the parent looks for the next case. A case that waits for ever must end all the same; a
clock would count the time in which the machine is busy with others, and both of them stand still."""
MEMORY = 512 << 20
_AT_ONCE = 400


def in_children(case: Callable[[int], str], cases: int) -> Counter[str]:
    """Run ``case(0)`` ... ``case(cases - 1)`` in forked children and count what they return.

    Each case may take 5 seconds of processor time and 512 MiB of address space. Raises AssertionError that names the
    case for an exception, a death by signal, a hang, and for more memory (a MemoryError there).
    """
    seen: Counter[str] = Counter()
    for start in range(0, cases, _AT_ONCE):
        seen += _child(case, range(start, min(cases, start + _AT_ONCE)))
    return seen


def _child(case: Callable[[int], str], numbers: range) -> Counter[str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _run(case, numbers, writer)
    os.close(writer)
    said = _heard(reader, pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    begun, result = len(said), b""
    for at in range(0, len(said) - 7, 8):
        if struct.unpack_from("<q", said, at)[0] < 0:
            begun, result = at, said[at + 8 :]
            break
    last = struct.unpack_from("<q", said, begun - 8)[0] if begun >= 8 else "none"
    if status < 0:
        name = signal.Signals(-status).name
        raise AssertionError(f"case {last} ended the process: {name} (SIGPROF: it took too long; SIGKILL: it waited)")
    assert status == 0, f"case {last}: {result.decode()}"
    return Counter(json.loads(result))


def _heard(reader: int, pid: int) -> bytes:
    """What a child writes until its end, which comes for one that writes nothing for long."""
    said, looks = b"", 0
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            if select.select([stream], [], [], 1.0)[0]:
                if not (more := stream.read(1 << 16)):
                    return said
                said, looks = said + more, 0
            elif (looks := looks + 1) == LOOKS:
                os.kill(pid, signal.SIGKILL)


def _run(case: Callable[[int], str], numbers: range, writer: int) -> None:
    """In the child: a number a case, then -1 and the counts, or what went wrong."""
    # A full collection would copy each page of the parent's objects: seconds, which the limit counts.
    gc.freeze()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    seen: Counter[str] = Counter()
    status, message = 0, b""
    try:
        for number in numbers:
            os.write(writer, struct.pack("<q", number))
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
            try:
                seen[case(number)] += 1
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        message = json.dumps(seen).encode()
    except BaseException:
        status, message = 1, traceback.format_exc().encode()
    os.write(writer, struct.pack("<q", -1) + message[-60_000:])
    os._exit(status)
