"""Random requests to our own server for a long while: no lost or mixed answer, equal shares, a level memory.

python scripts/soak.py [SECONDS] [MODEL]

Called by ``make soak``. The server is a process of its own on 127.0.0.1. Each answer, plain or with calls of tools,
must be the same as that of the request alone, whole or streamed, read slowly or quickly, under any key and salt, while
a fifth of the clients leave in the middle and others send malformed requests. Three keys want more than there is, one
of them several times what another does, and each must have had the same rows. Exit status 1 on a fault.
"""

import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ipex_lookahead.bench.chat_client import RequestFailed, find_server, text_in
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.cli.prompts import read_prompts

SLOTS = 8
GREED = (6, 9, 16)
"""Clients of each key: each wants more than its third of the slots."""
SHARE = 0.2
"""Allowed deviation from an equal share of all rows for a key."""
SALTS = ("", "one", "two")
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
    (b'{"messages": [{"role": "user"}], "max_tokens": -2}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', 400),
    (b'{"messages": [{"role": "user", "content": "a"}], "model": "another"}', 404),
    (b'{"messages": ' + b"[" * 100_000, 400),
)
"""Invalid bodies, and the expected status."""


def start(model, keys):
    """The server's process and its address; ``keys`` is a file."""
    given = ["--model", model, "--port", "0", "--slots", str(SLOTS), "--cache-memory", "256M", "--threads", "2"]
    given += ["--api-key-file", keys]
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


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}},
    },
}


def cases(draw):
    """Deterministic requests."""
    prompts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS])]
    for number in range(CASES):
        body = {
            "messages": [{"role": "user", "content": draw.choice(prompts)}],
            "max_tokens": draw.choice([1, 5, 16, 48]),
            "lookahead": draw.choice([0, 3, 8]),
            "temperature": 0,
        }
        if number % 4 == 1:
            body |= {"tools": [TOOL], "tool_choice": draw.choice(["auto", "required"])}
            body |= {"parallel_tool_calls": draw.choice([True, False])}
        yield body | ({"temperature": 1.0, "seed": number} if number % 3 == 0 else {})


def answer_of(server, body, *, whole=False, pause=0.0, leave_after=None):
    """(the text, then each call's name and arguments; the rows that it took as far as is known).

    The first is None for a client that left before it ended.
    """
    if whole:
        with server.open(
            "POST", "/v1/chat/completions", json.dumps({"model": server.model, **body}).encode()
        ) as answer:
            if answer.status != 200:
                raise RequestFailed(f"HTTP {answer.status}")
            found = json.loads(answer.read())
            message = found["choices"][0]["message"]
            calls = [one["function"] for one in message.get("tool_calls") or ()]
            said = [(message.get("reasoning_content") or "") + (message["content"] or "")]
            return said + [(one["name"], one["arguments"]) for one in calls], rows_of(found["timings"])
    pieces, calls, rows = [], [], 0
    with closing(server.stream(body)) as chunks:
        for number, chunk in enumerate(chunks):
            pieces.append(text_in(chunk))
            for choice in chunk["choices"]:
                for part in choice["delta"].get("tool_calls") or ():
                    if "name" in part["function"]:
                        calls.append((part["function"]["name"], ""))
                    name, arguments = calls[-1]
                    calls[-1] = name, arguments + part["function"].get("arguments", "")
            if "timings" in chunk:
                rows = rows_of(chunk["timings"])
            if leave_after is not None and number >= leave_after:
                return None, number
            time.sleep(pause)
    return ["".join(pieces), *calls], rows


def rows_of(timings):
    """Rows that an answer took: of its prompt, and of its tokens and drafts."""
    return timings["prompt_n"] + timings["predicted_n"] + timings["draft_n"] - timings["draft_n_accepted"]


class Soak:
    """Clients of one server, what they count, and what they find wrong. ``servers``: the same one by each key."""

    def __init__(self, servers, draw):
        self.server, self.servers = servers[0], servers
        self.bodies = list(cases(draw))
        self.alone = [answer_of(self.server, body)[0] for body in self.bodies]
        self.counts, self.faults = Counter(), []
        self.rows = [0] * len(servers)
        self.lock = threading.Lock()

    def round(self, seed, seconds):
        """Run the load for a given time; all clients end before it returns."""
        until = time.monotonic() + seconds
        clients = [
            threading.Thread(
                target=self.client, args=(random.Random(f"{seed} {key} {number}"), key, until), daemon=True
            )
            for key, most in enumerate(GREED)
            for number in range(most)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    def client(self, draw, key, until):
        """One request after the other."""
        while time.monotonic() < until:
            try:
                kind, fault, rows = self.request(draw, self.servers[key])
            except Exception as error:  # whatever a client meets is a finding
                kind, fault, rows = "failed", f"{type(error).__name__}: {error}", 0
            with self.lock:
                self.counts[kind] += 1
                if time.monotonic() < until:  # while all have work
                    self.rows[key] += rows
                if fault:
                    self.faults.append(fault)

    def request(self, draw, server):
        """(what kind it was, what was wrong or None, the rows that it took)."""
        if draw.random() < BROKEN:
            body, wanted = draw.choice(WRONG)
            with server.open("POST", "/v1/chat/completions", body) as answer:
                answer.read()
                wrong = None if answer.status == wanted else f"{body[:60]!r} was answered with {answer.status}"
                return "malformed", wrong, 0
        number, way = draw.randrange(CASES), draw.random()
        body = self.bodies[number]
        if salt := draw.choice(SALTS):
            body = {**body, "cache_salt": salt}
        if way < LEAVING:
            _, rows = answer_of(server, {**body, "max_tokens": 200}, leave_after=draw.choice([0, 1, 5]))
            return "left", None, rows
        slow, whole = way < LEAVING + SLOW, way > 1 - WHOLE
        found, rows = answer_of(server, body, whole=whole, pause=0.05 if slow else 0.0)
        kind = "slow" if slow else "whole" if whole else "streamed"
        same = found == self.alone[number]
        return kind, None if same else f"request {number}: {found!r}, and alone {self.alone[number]!r}", rows

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


def run(process, address, seconds, keys):
    """The faults."""
    server = find_server(address, timeout=PATIENCE, key=keys[0])
    soak = Soak([replace(server, key=key) for key in keys], random.Random(0))
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
    shares = [rows / max(1, sum(soak.rows)) for rows in soak.rows]
    print(f"shares of {sum(soak.rows)} rows: " + ", ".join(f"{share:.3f}" for share in shares))
    if any(abs(share * len(keys) - 1) > SHARE for share in shares):
        soak.faults.append(f"keys with {GREED} clients had {shares} of the rows, which is not equal within {SHARE:.0%}")
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
    keys = [secrets.token_hex(16) for _ in GREED]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys")
        file.write_text("\n".join(keys))
        process, address = start(model, str(file))
        try:
            faults = run(process, address, seconds, keys)
        finally:
            process.terminate()
            process.wait(60)
    for fault, count in Counter(faults).most_common(20):
        print(f"fault ({count} times): {fault}", file=sys.stderr)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
