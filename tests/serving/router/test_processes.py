"""ipex-lookahead serve with several models as people run it: its processes begin, end and die."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chat_tokenizer import write_chat_llama

pytestmark = pytest.mark.programs

PATIENCE = 120.0
post = partial(httpx.post, timeout=PATIENCE)
BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
CHAT = "/v1/chat/completions"


def wait_until(is_true: Callable[[], Any]) -> None:
    ends = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def workers_of(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(one) for one in found if b"--worker" in Path(f"/proc/{one}/cmdline").read_bytes()]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_models_are_swapped_die_and_end_with_their_server(tmp_path):
    for seed, name in enumerate(("alpha", "beta")):
        write_chat_llama(tmp_path / "models" / name, context=2048, seed=seed)
    options = ["--models-dir", str(tmp_path / "models"), "--models-memory", "600M", "--cache-memory", "64M"]
    command = [sys.executable, "-m", "ipex_lookahead", "serve", "--port", "0", "--threads", "1", *options]
    temporary = tempfile.mkdtemp(dir="/tmp")  # short, as the path of a Unix socket has to be
    environment = {**os.environ, "TMPDIR": temporary}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stderr is not None
        found = re.search(r"serving alpha, beta at (http://[\d.:]+)", process.stderr.readline())
        assert found
        url = found[1]

        def asked(name: str) -> tuple[str, str]:
            answer = post(url + CHAT, json={**BODY, "model": name}).json()
            return answer["choices"][0]["message"]["content"], answer["system_fingerprint"]

        def state(name: str) -> str:
            return httpx.get(f"{url}/v1/models/{name}", timeout=PATIENCE).json()["state"]

        assert workers_of(process.pid) == []
        first = asked("alpha")
        (alpha,) = workers_of(process.pid)
        (folder,) = Path(temporary).glob("ipex-lookahead-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        (address,) = folder.iterdir()
        assert address.stat().st_mode & 0o777 == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(address)), timeout=PATIENCE) as direct:
            assert direct.post(f"http://worker{CHAT}", json=BODY).status_code == 403, "its secret is missing"

        second = asked("beta")  # both need more than the budget
        assert second != first
        assert (state("alpha"), state("beta")) == ("unloaded", "ready")
        assert not runs(alpha)
        assert asked("alpha") == first

        (alpha,) = workers_of(process.pid)
        long = {**BODY, "model": "alpha", "stream": True, "max_tokens": 2000, "n": 8}
        with httpx.stream("POST", url + CHAT, json=long, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(alpha, signal.SIGKILL)
            assert "worker_lost" in [line for line in lines if line][-1]
        wait_until(lambda: state("alpha") == "ready")
        assert asked("alpha") == first

        (alpha,) = workers_of(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not runs(alpha))
        assert not folder.exists()
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(temporary)


def test_sigterm_lets_answers_finish(tmp_path):
    write_chat_llama(tmp_path / "alpha", context=2048)
    command = [sys.executable, "-m", "ipex_lookahead", "serve", "--port", "0", "--threads", "1", "--idle-unload", "900"]
    command += ["-m", str(tmp_path / "alpha")]
    temporary = tempfile.mkdtemp(dir="/tmp")
    environment = {**os.environ, "TMPDIR": temporary}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stderr is not None
        found = re.search(r"serving alpha at (http://[\d.:]+)", process.stderr.readline())
        assert found
        long = {**BODY, "stream": True, "max_tokens": 1500}
        with httpx.stream("POST", found[1] + CHAT, json=long, timeout=PATIENCE) as answer:
            lines = answer.iter_lines()
            next(lines)
            (worker,) = workers_of(process.pid)
            (folder,) = Path(temporary).glob("ipex-lookahead-*")
            process.send_signal(signal.SIGTERM)
            said = [line for line in lines if line]
        assert said[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in said[-2]
        process.communicate(timeout=PATIENCE)
        assert not runs(worker)
        assert not folder.exists()
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(temporary)
    assert process.returncode == -signal.SIGTERM
