"""Programs that ``bench embed`` compares: this package, sentence-transformers and llama-server, each in its process."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ipex_lookahead.errors import InputError

START_SECONDS = 300.0
"""Longest time that a peer may take to load."""
_KEPT_SECONDS = 1.0
"""Time after which a connection is opened again."""
WORKER = Path(__file__).with_name("sentence_transformers_worker.py")


class Contender(Protocol):
    """A program with a loaded model.

    Attributes:
        name: name in the report.
    """

    name: str

    def seconds(self, texts: Sequence[str]) -> float:
        """Compute the vectors of texts in one batch, and return the seconds that this took."""
        ...

    def close(self) -> None:
        """End the program."""
        ...


class Own:
    """This package in the process of the benchmark: tokenization, the model, pooling."""

    name = "ipex-lookahead"

    def __init__(self, model: Any) -> None:
        self.model = model

    def seconds(self, texts: Sequence[str]) -> float:
        began = time.perf_counter()
        self.model.vectors(self.model.inputs(texts))
        return time.perf_counter() - began

    def close(self) -> None:
        self.model.close()


class SentenceTransformers:
    """sentence-transformers in float32 in a process of its own; the time is taken there.

    Args:
        python: its Python, with sentence-transformers and torch.
        folder: the model.
        threads: number of threads; None: torch's default.

    Raises InputError if it does not start.
    """

    name = "sentence-transformers"

    def __init__(self, python: Path, folder: Path, threads: int | None) -> None:
        command = [str(python), str(WORKER), str(folder), str(threads or 0)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise InputError(f"{python} cannot be run: {error.strerror}", hint="give the path of a Python") from error
        hello = self._line()
        self.version = str(hello["version"])

    def seconds(self, texts: Sequence[str]) -> float:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: no line follows
            self._process.stdin.write(json.dumps(list(texts)) + "\n")
            self._process.stdin.flush()
        return float(self._line()["seconds"])

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise InputError(
                f"sentence-transformers ended with status {self._process.returncode}",
                hint="its Python needs sentence-transformers and torch; its messages are above",
            )
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


class HttpServer:
    """A server with ``/v1/embeddings``; the time is a request's, with base64 vectors.

    Args:
        name: name in the report.
        command: its command line, with "{port}".

    Raises InputError if it does not start.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        line = [word.replace("{port}", str(self._port)) for word in command]
        try:
            self._process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise InputError(f"{command[0]} cannot be run: {error.strerror}", hint="check its path") from error
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_SECONDS)
        self._used = time.monotonic()
        ends = self._used + START_SECONDS
        while True:
            try:
                self.seconds(["a"])
                return
            except InputError as error:
                self._connection.close()
                if self._process.poll() is not None or time.monotonic() > ends:
                    self.close()
                    raise InputError(f"{name} does not answer: {error}", hint=" ".join(line)) from None
                time.sleep(0.2)

    def seconds(self, texts: Sequence[str]) -> float:
        body = json.dumps({"input": list(texts), "encoding_format": "base64"})
        if time.monotonic() - self._used > _KEPT_SECONDS:
            self._connection.close()  # servers close connections that are idle
        began = time.perf_counter()
        try:
            self._connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            ended = self._process.poll()
            state = "it still runs" if ended is None else f"it has ended with status {ended}"
            raise InputError(f"{self.name} has closed a connection ({error}); {state}") from None
        took = time.perf_counter() - began
        self._used = time.monotonic()
        if answer.status != 200:
            raise InputError(
                f"{self.name} answers with status {answer.status}: {content[:300].decode(errors='replace')}"
            )
        if len(json.loads(content)["data"]) != len(texts):
            raise InputError(f"{self.name} returns another number of vectors")
        return took

    def close(self) -> None:
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def own_server(model: str, low_bit: str | None, threads: int | None) -> HttpServer:
    """Start ``ipex-lookahead serve``."""
    command = [sys.executable, "-m", "ipex_lookahead", "serve", "-m", model, "--port", "{port}", "--quiet"]
    command += [] if low_bit is None else ["--low-bit", low_bit]
    command += [] if threads is None else ["--threads", str(threads)]
    return HttpServer("ipex-lookahead serve", command)


def llama_server(program: Path, file: Path, threads: int | None, tokens: int) -> HttpServer:
    """Start llama-server for embeddings with batches of up to ``tokens`` tokens."""
    command = [str(program), "-m", str(file), "--embedding", "--port", "{port}", "-c", str(tokens), "--no-webui"]
    command += ["-b", str(tokens), "-ub", str(tokens), "-np", "1"]
    command += [] if threads is None else ["-t", str(threads), "-tb", str(threads)]
    return HttpServer("llama-server", command)
