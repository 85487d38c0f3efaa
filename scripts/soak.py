"""Random requests to our own servers for a long while: no lost or mixed answer, equal shares, level memory and disk.

python scripts/soak.py [SECONDS] [MODEL]

Called by ``make soak``. The servers are processes of their own on 127.0.0.1, with a prefix cache on disk that is too
small for all prompts. Each answer, plain or with calls of tools, must be the same as that of the request alone, whole
or streamed, read slowly or quickly, under any key and salt, while a fifth of the clients leave in the middle and others
send malformed requests. Exit status 1 on a fault. Two thirds of the time:

- One model: three keys want more than there is, one of them several times what another does, and each must have had the
  same rows.
- Two models on the same folder, with memory for one: MODEL and a hybrid model with random weights that thinks, up to
  the budget of each request. Every request may need the other model. The answers of MODEL are those of the first part.
"""

import json
import os
import random
import re
import secrets
import signal
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

from random_gguf import write_random_gguf

from ipex_lookahead.bench.chat_client import RequestFailed, find_server, text_in
from ipex_lookahead.bench.options import PACKAGED_PROMPTS
from ipex_lookahead.cli.prompts import read_prompts
from ipex_lookahead.hub import resolve_model

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


CACHE_MEMORY, CACHE_DISK = "64M", 96 << 20
"""Of each model, and of the folder."""
MODELS_MEMORY = "600M"
"""More than either model needs, and less than both."""
BUDGETS = (None, 0, 4, 12)
"""Tokens of thought of the requests to the model that thinks."""
FORCED = 4
"""Most tokens that end a thought."""
CHUNK = 16
"""Most MiB of one file of the disk cache."""
SWAPS = 3
"""Least number of loaded models in the second part."""
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}{# the thought ends with </think> #}"
)
"""Chat template of a model that thinks in every answer."""


def start(options, keys, folder):
    """The server's process and its address; ``keys`` is a file, ``folder`` the disk cache."""
    given = ["--port", "0", "--slots", str(SLOTS), "--cache-memory", CACHE_MEMORY, "--threads", "2"]
    given += ["--cache-dir", folder, "--cache-disk", str(CACHE_DISK), "--api-key-file", keys]
    command = [sys.executable, "-m", "ipex_lookahead.cli.main", "serve", *options, *given]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace")
    for line in process.stderr:
        if found := re.search(r"(?:is ready|^serving .*?) at (http://\S+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would hold the server
            return process, found[1]
        print(line, end="", flush=True)
    raise SystemExit(f"error: the server ended with {process.wait()}")


def two_models(model, folder):
    """The options of a server with MODEL and a model that thinks, which are named "first" and "second"."""
    second, listed = Path(folder, "thinks.gguf"), Path(folder, "models.yaml")
    write_random_gguf("qwen3.5-0.8b", second, 4, vocabulary=resolve_model("default"), template=THINKING)
    listed.write_text(json.dumps({"first": {"model": model}, "second": {"model": str(second)}}))
    return ["--models", str(listed), "--models-memory", MODELS_MEMORY]


def figures(server):
    """The server's own figures, summed over models."""
    with server.open("GET", "/metrics") as answer:
        text = answer.read().decode()
    found = Counter()
    for name, value in re.findall(r'^ipex_lookahead_(\w+)(?:{model="\w+"})? (\S+)$', text, re.M):
        found[name] += float(value)
    return found


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}},
    },
}


def cases(draw):
    """Deterministic requests; a third begins with a long text, so that its cache on disk pays."""
    prompts = [prompt.text for prompt in read_prompts([PACKAGED_PROMPTS])]
    for number in range(CASES):
        long = [{"role": "system", "content": f"{number} " + " ".join(prompts)}] if number % 3 == 2 else []
        body = {
            "messages": [*long, {"role": "user", "content": draw.choice(prompts)}],
            "max_tokens": draw.choice([1, 5, 16, 48]),
            "lookahead": draw.choice([0, 3, 8]),
            "temperature": 0,
        }
        if number % 4 == 1:
            body |= {"tools": [TOOL], "tool_choice": draw.choice(["auto", "required"])}
            body |= {"parallel_tool_calls": draw.choice([True, False])}
        yield body | ({"temperature": 1.0, "seed": number} if number % 3 == 0 else {})


def thinking(bodies):
    """The requests of the model that thinks, each with a budget or none."""
    for number, body in enumerate(bodies):
        budget = BUDGETS[number % len(BUDGETS)]
        yield {**body, "model": "second", **({} if budget is None else {"thinking_budget": budget})}


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

    def __init__(self, servers, bodies):
        self.server, self.servers = servers[0], servers
        self.bodies = bodies
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
                    print(f"fault: {fault[:300]}", file=sys.stderr, flush=True)

    def request(self, draw, server):
        """(what kind it was, what was wrong or None, the rows that it took)."""
        if draw.random() < BROKEN:
            body, wanted = draw.choice(WRONG)
            with server.open("POST", "/v1/chat/completions", body) as answer:
                answer.read()
                wrong = None if answer.status == wanted else f"{body[:60]!r} was answered with {answer.status}"
                return "malformed", wrong, 0
        number, way = draw.randrange(len(self.bodies)), draw.random()
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


def held(process, folder):
    """(resident MiB, open files) of the server, and the MiB in its disk cache."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    disk = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    files = len(os.listdir(f"/proc/{process.pid}/fd"))
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024, files, disk / 2**20


def thought(server, body):
    """Tokens of thought in the answer."""
    with server.open("POST", "/v1/chat/completions", json.dumps(body).encode()) as answer:
        return json.loads(answer.read())["usage"]["completion_tokens_details"]["reasoning_tokens"]


def level(soak, process, seconds, folder, *, leaving):
    """Run rounds of load, and note what is not level. ``leaving``: also measure how long left rows stay."""
    looks, steps, began = [], [], time.monotonic()
    while (passed := time.monotonic() - began) < seconds or len(looks) < 3:
        soak.round(len(looks), min(ROUND, seconds / 6))
        soak.rest()
        if leaving and (left := soak.leave()) is not None:
            steps.append(left)
        looks.append((*held(process, folder), figures(soak.server)["kv_cache_bytes"] / 2**20))
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(soak.counts.items()))
        memory, files, disk, kept = looks[-1]
        print(
            f"{passed:5.0f} s: {said}; {memory:.0f} MiB, keys and values {kept:.0f}, disk {disk:.0f}, {files} files",
            flush=True,
        )
        if disk > CACHE_DISK / 2**20 + CHUNK:
            soak.faults.append(f"the disk cache has {disk:.0f} MiB, and may have {CACHE_DISK / 2**20:.0f}")
    third = len(looks) // 3
    memory, files, _, kept = map(statistics.median, zip(*looks[third : 2 * third], strict=True))
    memory_then, files_then, disk, kept_then = map(statistics.median, zip(*looks[-third:], strict=True))
    more = max(0.0, kept_then - kept) if leaving else 0.0  # the front of two models has no keys and values
    if memory_then > MORE_MEMORY * memory + more:
        soak.faults.append(f"memory grew from {memory:.0f} to {memory_then:.0f} MiB after warm-up")
    if files_then > files + 2:
        soak.faults.append(f"open files grew from {files:g} to {files_then:g} after warm-up")
    if process.poll() is not None:
        soak.faults.append(f"the server ended with {process.returncode}")
    longest = max(steps, default=None)
    if leaving and (longest is None or longest > MOST_STEPS):
        soak.faults.append(
            f"a row that its client had left was there for {longest} forwards (None: it ended by itself)"
        )
    answers = sum(soak.counts[kind] for kind in ("slow", "whole", "streamed"))
    print(
        f"{answers} answers compared with those alone, {soak.counts['left']} clients left, {soak.counts['malformed']} "
        f"malformed; memory {memory:.0f}, later {memory_then:.0f} MiB; disk {disk:.0f} MiB"
        + (f"; left rows gone after at most {longest} forwards" if leaving else "")
    )


def one_model(process, address, seconds, keys, folder):
    """The faults, and the answers of requests alone."""
    server = find_server(address, timeout=PATIENCE, key=keys[0])
    soak = Soak([replace(server, key=key) for key in keys], list(cases(random.Random(0))))
    level(soak, process, seconds, folder, leaving=True)
    shares = [rows / max(1, sum(soak.rows)) for rows in soak.rows]
    print(f"shares of {sum(soak.rows)} rows: " + ", ".join(f"{share:.3f}" for share in shares))
    if any(abs(share * len(keys) - 1) > SHARE for share in shares):
        soak.faults.append(f"keys with {GREED} clients had {shares} of the rows, which is not equal within {SHARE:.0%}")
    return soak.faults, soak.alone


def swapped(process, address, seconds, keys, folder, before):
    """The faults; ``before`` has the answers of the first model's requests in the server before."""
    server = find_server(address, timeout=PATIENCE, key=keys[0])
    own = list(cases(random.Random(0)))
    first, second = [{**body, "model": "first"} for body in own], list(thinking(own))
    soak = Soak([replace(server, key=key) for key in keys], [*first, *second])
    soak.faults += [
        f"after the restart request {number} has {now!r}, and had {then!r}"
        for number, (now, then) in enumerate(zip(soak.alone, before, strict=False))
        if now != then
    ]
    for body in second:
        if (budget := body.get("thinking_budget")) is not None and thought(server, body) > budget + FORCED:
            soak.faults.append(f"a thought has more than {budget} tokens: {thought(server, body)}")
    level(soak, process, seconds, folder, leaving=False)
    loads = figures(server)["model_loads_total"]
    print(f"{loads:.0f} models loaded")
    if loads < SWAPS:
        soak.faults.append(f"models were loaded {loads:.0f} times, which is less than {SWAPS}")
    return soak.faults


def served(options, keys, folder, run):
    """Start a server, return what ``run(process, address)`` returns, and end the server. Its end is a fault too."""
    process, address = start(options, keys, folder)
    try:
        found = run(process, address)
    finally:
        process.terminate()
        status = process.wait(PATIENCE)
    if status not in (0, -signal.SIGTERM):
        raise SystemExit(f"error: the server ended with {status}")
    return found


def main():
    seconds, model = float((sys.argv[1:] or [1200])[0]), (sys.argv[2:] or ["default"])[0]
    keys = [secrets.token_hex(16) for _ in GREED]
    with tempfile.TemporaryDirectory() as folder:
        file, cache = Path(folder, "keys"), Path(folder, "cache")
        file.write_text("\n".join(keys))
        given = (str(file), str(cache))
        faults, alone = served(["-m", model], *given, lambda *one: one_model(*one, 2 / 3 * seconds, keys, cache))
        several = two_models(str(resolve_model(model)), folder)
        faults += served(several, *given, lambda *one: swapped(*one, seconds / 3, keys, cache, alone))
        if left := [one.name for one in cache.rglob("*.saving-*")]:
            faults.append(f"temporary files are left: {left}")
    for fault, count in Counter(faults).most_common(20):
        print(f"fault ({count} times): {fault}", file=sys.stderr)
    print(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
