"""Random requests to our own server for a long while: no lost or mixed answer, a level memory, cancelled rows gone.

python scripts/soak.py [SECONDS] [MODEL]

Called by ``make soak``. The server is a process of its own on 127.0.0.1. Each answer must be the text of the same
request alone, whole or streamed, read slowly or quickly, while a fifth of the clients
leave in the middle and others send what is no request. Exit status 1 on a fault.
"""

import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from ipex_lookahead.bench.chat_client import RequestFailed, find_server, said_in
from ipex_lookahead.bench.prompts import PACKAGED_PROMPTS, read_prompts

CLIENTS = 10
"""More than slots, so that some wait."""
SLOTS = 8
CASES = 24
LEAVING, BROKEN, SLOW, WHOLE = 0.2, 0.1, 0.1, 0.3
ROUND = 10.0
"""Seconds of load between two looks at the server at rest."""
MOST_STEPS = 100
"""Forwards that may pass until a client's leaving is seen; the answer that it leaves would take several times more."""
MORE_MEMORY = 1.05
"""Median of the last third of the looks over that of the second, keys and values that came since apart: --cache-memory
bounds those. The first third is warm-up."""
PATIENCE = 120.0
WRONG = (
    (b"", 400),
    (b"{", 400),
    (b"[1]", 400),
    (b"\xff\xfe", 400),
    (b'{"messages": 3}', 400),
    (b'{"messages": [{"role": "user"}], "max_tokens": -1}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "model": "another"}', 404),
    (b'{"messages": ' + b"[" * 100_000, 400),
)
"""Bodies that are no request, and the status that says so."""


def start(model):
    """The server's process and its address."""
    given = ["--model", model, "--port", "0", "--slots", str(SLOTS), "--cache-memory", "256M", "--threads", "2"]
    command = [sys.executable, "-m", "ipex_lookahead.cli.main", "serve", *given]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    for line in process.stderr:
        if found := re.search(r"is ready at (http://\S+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would hold the server
            return process, found[1]
        print(line, end="", flush=True)
    raise SystemExit(f"error: the server ended with {process.wait()}")


def figures(server):
    """The server's own figures."""
    with server.open("GET", "/metrics") as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^ipex_lookahead_(\w+) (\S+)$", text, re.M)}


def cases(draw):
    """Requests whose answers are a function of the request."""
    prompts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS])]
    for number in range(CASES):
        body = {
            "messages": [{"role": "user", "content": draw.choice(prompts)}],
            "max_tokens": draw.choice([1, 5, 16, 48]),
            "lookahead": draw.choice([0, 3, 8]),
            "temperature": 0,
        }
        yield body | ({"temperature": 1.0, "seed": number} if number % 3 == 0 else {})


def text_of(server, body, *, whole=False, pause=0.0, leave_after=None):
    """The answer's text; None for a client that left before it ended."""
    if whole:
        with server.open(
            "POST", "/v1/chat/completions", json.dumps({"model": server.model, **body}).encode()
        ) as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}")
            return json.loads(answer.read())["choices"][0]["message"]["content"]
    pieces = []
    with closing(server.stream(body)) as chunks:
        for number, chunk in enumerate(chunks):
            pieces.append(said_in(chunk))
            if leave_after is not None and number >= leave_after:
                return None
            time.sleep(pause)
    return "".join(pieces)


class Soak:
    """Clients of one server, what they count, and what they find wrong."""

    def __init__(self, server, draw):
        self.server = server
        self.bodies = list(cases(draw))
        self.alone = [text_of(server, body) for body in self.bodies]
        self.counts, self.faults = Counter(), []
        self.lock = threading.Lock()

    def round(self, seed, seconds):
        """Load for a while; every client has ended when this does."""
        until = time.monotonic() + seconds
        clients = [
            threading.Thread(target=self.client, args=(random.Random(f"{seed} {number}"), until), daemon=True)
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def client(self, draw, until):
        """One request after the other."""
        while time.monotonic() < until:
            try:
                kind, fault = self.request(draw)
            except Exception as error:  # whatever a client meets is a finding
                kind, fault = "failed", f"{type(error).__name__}: {error}"
            with self.lock:
                self.counts[kind] += 1
                if fault:
                    self.faults.append(fault)

    def request(self, draw):
        """(what kind it was, what was wrong or None)."""
        if draw.random() < BROKEN:
            body, wanted = draw.choice(WRONG)
            with self.server.open("POST", "/v1/chat/completions", body) as answer:
                answer.read()
                wrong = None if answer.status == wanted else f"{body[:60]!r} was answered with {answer.status}"
                return "malformed", wrong
        number, way = draw.randrange(CASES), draw.random()
        body = self.bodies[number]
        if way < LEAVING:
            text_of(self.server, {**body, "max_tokens": 200}, leave_after=draw.choice([0, 1, 5]))
            return "left", None
        slow, whole = way < LEAVING + SLOW, way > 1 - WHOLE
        text = text_of(self.server, body, whole=whole, pause=0.05 if slow else 0.0)
        kind = "slow" if slow else "whole" if whole else "streamed"
        same = text == self.alone[number]
        return kind, None if same else f"request {number}: {text!r}, and alone {self.alone[number]!r}"

    def leave(self):
        """Forwards from a client's leaving until its row is gone; the client's own way to the server included."""
        body = {"messages": [{"role": "user", "content": "Count to a thousand."}], "max_tokens": 1500}
        with closing(self.server.stream(body)) as chunks:
            for _ in range(4):
                next(chunks)
            before = figures(self.server)
        left = self.rest() - before["engine_steps_total"]
        return left if before["num_requests_running"] else None  # it had ended by itself

    def rest(self):
        """Wait until no row is left; the forwards until then."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = figures(self.server)
            if not found["num_requests_running"] and not found["num_requests_waiting"]:
                return found["engine_steps_total"]
            time.sleep(0.01)
        self.faults.append(f"a row was not gone after {PATIENCE:g} s")
        return figures(self.server)["engine_steps_total"]


def held(process):
    """(resident MiB, open files) of the server."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, len(os.listdir(f"/proc/{process.pid}/fd"))


def run(process, address, seconds):
    """The faults."""
    server = find_server(address, timeout=PATIENCE)
    soak = Soak(server, random.Random(0))
    looks, steps, began = [], [], time.monotonic()
    while (passed := time.monotonic() - began) < seconds or len(looks) < 3:
        soak.round(len(looks), min(ROUND, seconds / 6))
        soak.rest()
        if (left := soak.leave()) is not None:
            steps.append(left)
        looks.append((*held(process), figures(server)["kv_cache_bytes"] / 2**20))
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.counts.items()))
        memory, files, kept = looks[-1]
        rest = f"{memory:.0f} MiB, keys and values {kept:.0f}, {files} files; gone after {left} forwards"
        print(f"{passed:5.0f} s: {said}; {rest}", flush=True)
    third = len(looks) // 3
    memory, files, kept = map(statistics.median, zip(*looks[third : 2 * third], strict=True))
    memory_then, files_then, kept_then = map(statistics.median, zip(*looks[-third:], strict=True))
    if memory_then > MORE_MEMORY * memory + max(0.0, kept_then - kept):
        soak.faults.append(f"memory grew from {memory:.0f} to {memory_then:.0f} MiB after warm-up")
    if files_then > files + 2:
        soak.faults.append(f"open files grew from {files:g} to {files_then:g} after warm-up")
    longest = max(steps, default=None)
    if longest is None or longest > MOST_STEPS:
        soak.faults.append(
            f"a row that its client had left was there for {longest} forwards (None: it ended by itself)"
        )
    if process.poll() is not None:
        soak.faults.append(f"the server ended with {process.returncode}")
    answers = sum(soak.counts[kind] for kind in ("slow", "whole", "streamed"))
    print(
        f"{answers} answers compared with those alone, {soak.counts['left']} clients left, {soak.counts['malformed']} "
        f"malformed; memory {memory:.0f}, later {memory_then:.0f} MiB; left rows gone after at most {longest} "
        "forwards"
    )
    return soak.faults


def main():
    seconds, model = float((sys.argv[1:] or [1200])[0]), (sys.argv[2:] or ["default"])[0]
    process, address = start(model)
    try:
        faults = run(process, address, seconds)
    finally:
        process.terminate()
        process.wait(60)
    for fault, count in Counter(faults).most_common(20):
        print(f"fault ({count} times): {fault}", file=sys.stderr)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
