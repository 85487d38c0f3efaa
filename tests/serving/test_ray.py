"""Two replicas on a Ray of this machine: the same bytes from each, and what becomes of answers when one is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ipex_lookahead.serving.run import bind, url

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
ABORTED = re.compile(r'request_success_total\{finished_reason="abort",replica="\d+"\} 1\.0')


@contextmanager
def serving(*options: str) -> Iterator[str]:
    """The address of ``examples/ray_serve.py`` with these options, on a Ray of its own."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'ipex-lookahead[ray]'")
    with bind("127.0.0.1", 0) as bound:
        port, found = bound.getsockname()[1], url(bound)
    command = [sys.executable, str(ROOT / "examples" / "ray_serve.py"), *options, "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with subprocess.Popen(
        [*command, "--port", str(port)], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        said = ""
        for line in running.stdout:
            said += line
            if "replicas are ready" in line:
                break
        assert "replicas are ready" in said, said
        threading.Thread(target=running.stdout.read, daemon=True).start()
        yield found
        running.send_signal(signal.SIGINT)
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()


@pytest.fixture(scope="module")
def address(folder):
    with serving("-m", str(folder), "--replicas", "2") as found:
        yield found


def asked(number: int, **fields: Any) -> dict[str, Any]:
    spoken = [{"role": "user", "content": f"Number {number}"}]
    return {"messages": spoken, "max_tokens": 24, "temperature": 1.0, "seed": number, **fields}


def test_each_replica_gives_the_same_bytes_and_a_lost_one_is_told(address, client):
    path = address + "/v1/chat/completions"
    expected = [client.post("/v1/chat/completions", json=asked(n)).json()["choices"] for n in range(12)]
    by_replica: dict[str, list[int]] = {}
    with httpx.Client(timeout=SECONDS) as http:
        for number in range(12):
            answer = http.post(path, json=asked(number))
            assert answer.json()["choices"] == expected[number]
            by_replica.setdefault(answer.headers["x-replica"], []).append(number)
        assert len(by_replica) == 2, by_replica
        for replica, numbers in by_replica.items():  # turns of one conversation go where its beginning is
            more = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
            longer = asked(numbers[0]) | {"messages": [*asked(numbers[0])["messages"], *more]}
            assert http.post(path, json=longer).headers["x-replica"] == replica

        figures = http.get(address + "/metrics").text
        for replica in by_replica:
            assert f'replica="{replica}"' in figures

        with http.stream("POST", path, json=asked(0, max_tokens=1900, stream=True)) as left:
            assert next(left.iter_lines())
        deadline = time.monotonic() + SECONDS
        while not ABORTED.search(http.get(address + "/metrics").text):
            assert time.monotonic() < deadline, "the answer of a client that has left goes on"

        # Long streams on both; one replica is killed in their middle.
        killed = next(iter(by_replica))
        ends: dict[int, str] = {}
        begun = threading.Semaphore(0)

        def read(number: int) -> None:
            with httpx.stream(
                "POST", path, json=asked(number, max_tokens=1900, stream=True), timeout=SECONDS
            ) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {") and not ends.get(number):
                        ends[number] = "begun"
                        begun.release()
                    if line.startswith("data: "):
                        ends[number] = line[6:]

        numbers = [by_replica[replica][0] for replica in by_replica]
        threads = [threading.Thread(target=read, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=SECONDS)
        os.kill(int(killed), signal.SIGKILL)
        for thread in threads:
            thread.join(SECONDS)
        assert json.loads(ends[numbers[0]])["error"]["code"] == "replica_lost"
        assert ends[numbers[1]] == "[DONE]"

        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:  # Ray starts another one in its place
            answer = http.post(path, json=asked(numbers[0]))
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200:
                break
            assert answer.json()["error"]["code"] == "replica_lost"
            time.sleep(1)
        assert answer.json()["choices"] == expected[numbers[0]]


def test_requests_choose_between_two_models(folder, client, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    named = {folder.name: asked(1, model=folder.name), "other": asked(1, model="other")}
    expected = client.post("/v1/chat/completions", json=asked(1)).json()["choices"]
    with serving("-m", str(folder), "-m", str(other), "--replicas", "1") as address:
        assert [one["id"] for one in httpx.get(address + "/v1/models", timeout=SECONDS).json()["data"]] == list(named)
        answers = {
            name: httpx.post(address + "/v1/chat/completions", json=body, timeout=SECONDS)
            for name, body in named.items()
        }
        assert [answer.json()["choices"] for answer in answers.values()] == [expected] * 2
        assert len({answer.headers["x-replica"] for answer in answers.values()}) == 2
        figures = httpx.get(address + "/metrics", timeout=SECONDS).text
        assert all(f'model="{name}"' in figures for name in named)
        unknown = httpx.post(address + "/v1/chat/completions", json=asked(1, model="third"), timeout=SECONDS)
        assert unknown.json()["error"]["code"] == "model_not_found"
