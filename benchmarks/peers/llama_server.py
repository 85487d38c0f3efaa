"""llama.cpp's server: GGUF files, its speculation by type. Each kind is a server of its own, on this machine only."""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from time import monotonic, perf_counter, sleep
from typing import Any

DISTRIBUTION = "llama-server"
DRAFT = "draft model"
HEAD_BYTES = 1 << 20
"""Bytes at the start of a GGUF file that are searched for a key; a model's sizes come before its vocabulary."""
START_SECONDS, END_SECONDS = 300.0, 10.0
"""Maximum time until a server answers, and from its end signal until it is killed."""


class Server:
    """A server in a process of its own on a free port of this machine; a context manager ends it.

    Args:
        command: Program and options, without host and port.
        environment: Environment variables; those of this process if None.
    """

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        whole = [*command, "--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(whole, stdout=self._said, stderr=subprocess.STDOUT, env=environment)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait(self) -> None:
        until = monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except urllib.error.HTTPError:
                pass  # 503: it loads the model
            except OSError:
                if self._process.poll() is not None:
                    self._said.seek(0)
                    last = self._said.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
                    raise RuntimeError(f"the server ended: {last[-1] if last else 'without a word'}") from None
            if monotonic() > until:
                raise RuntimeError(f"the server was not ready after {START_SECONDS:.0f} s")
            sleep(0.1)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a JSON object and return the JSON object that comes back."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=900) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"HTTP {error.code}: {error.read()[:300].decode('utf-8', 'replace')}") from None
        return found

    def close(self) -> None:
        """End the server and wait for that."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


def options(model: str, threads: int, slots: int, context: int) -> list[str]:
    """Return the options for a model with ``context`` tokens in each slot.

    Prompts are not cached, so that an answer never depends on an earlier request.
    """
    found = ["-m", model, "-t", str(threads), "-tb", str(threads), "-np", str(slots), "-c", str(slots * context)]
    return [*found, "--no-cache-prompt", "--cache-ram", "0"]


def version_of(program: str) -> str:
    """Return the build number that the program prints, "?" if it prints none."""
    said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    found = re.search(r"version: (\S+)", said.stdout.decode("utf-8", "replace"))
    return found[1] if found else "?"


def has_drafting_block(model: str) -> bool:
    """Return True if the head of a GGUF file names a block for drafting (MTP)."""
    with open(model, "rb") as file:
        return b".nextn_predict_layers" in file.read(HEAD_BYTES)


class LlamaServer:
    """Servers of one file: without speculation, and with each kind when it is first used."""

    def __init__(self, request: dict[str, Any]) -> None:
        program, model, most = request["llama_server"], request["model"], request["lookahead"]
        if program is None:
            raise ValueError("name the program: --llama-server PROGRAM")
        if not model.endswith(".gguf"):
            raise ValueError("llama-server reads GGUF files: make one with llama.cpp's convert_hf_to_gguf.py")
        self.version = version_of(program)
        self.weights = f"{os.path.basename(model)} as it is"
        self._command = [program, *options(model, request["threads"], 1, request["context"])]
        chain = ("--spec-draft-n-max", str(most), "--spec-draft-p-min", "0")
        size, drafted = ("--spec-ngram-simple-size-n", "3"), ("--spec-ngram-simple-size-m", str(most))
        self._options = {
            "plain": (),
            "lookahead": ("--spec-type", "ngram-simple", *size, *drafted),
            DRAFT: ("--spec-type", "draft-simple", "--spec-draft-model", model, *chain),
            "MTP": ("--spec-type", "draft-mtp", *chain),
        }
        self.modes = {
            "lookahead": f"ngram-simple, {most} tokens, n-grams of 3",
            DRAFT: f"the same file, {most} tokens",
        }
        if has_drafting_block(model):
            self.modes["MTP"] = f"draft-mtp, {most} tokens"
        self._servers: dict[str, Server] = {}
        atexit.register(self.close)

    def answer(
        self, prompt: list[int], max_new_tokens: int, end: list[int], mode: str, sampling: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As ``child.Loaded``. The file's own tokens end an answer, and are not part of it."""
        if mode not in self._servers:
            self._servers[mode] = Server([*self._command, *self._options[mode]])
        body: dict[str, Any] = {"prompt": prompt, "n_predict": max_new_tokens, "return_tokens": True}
        body |= {"temperature": 0.0} if sampling is None else {**sampling, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        start = perf_counter()
        found = self._servers[mode].post("/completion", body)
        seconds, first = perf_counter() - start, found["timings"]["prompt_ms"] / 1e3
        return {"tokens": found["tokens"], "first_tokens": 1, "first_seconds": first, "seconds": seconds}

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.close()


load = LlamaServer
