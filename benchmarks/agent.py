"""Time to first token in the turns of a coding agent's conversation, for ours and for llama-server.

python -m benchmarks.agent --model model.gguf --llama-server PROGRAM --prompt-tokens 16000

Both programs get the same requests (``ipex-lookahead bench agent``). llama-server runs with its own caching: one slot,
which is saved to a file before each restart and restored after it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.peers import OURS
from benchmarks.peers.llama_server import Server, version_of
from ipex_lookahead import __version__
from ipex_lookahead.bench.agent import Lengths, OwnServers, measure, print_report
from ipex_lookahead.bench.chat_client import ChatServer, find_server
from ipex_lookahead.bench.options import json_option
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import model_option, threads_option
from ipex_lookahead.cli.names import option_of
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.running import run_command
from ipex_lookahead.errors import InputError

REUSE = 256
"""``--cache-reuse``: least number of tokens of a chunk that llama-server moves in its cache."""
SLOT = "slot.bin"
"""File of the saved slot."""


class LlamaServers:
    """llama-server on a GGUF file, with one slot that is saved by :meth:`stop` and restored by :meth:`start`.

    Args:
        program: Its name or path.
        model: The GGUF file.
        threads: Number of threads.
        context: Tokens of the slot.
        folder: Existing folder for the slot's file.
        timeout: Seconds without data before a request fails.
    """

    restarts = True

    def __init__(self, program: str, model: str, threads: int, context: int, folder: Path, timeout: float) -> None:
        self._command = [program, "-m", model, "-t", str(threads), "-tb", str(threads), "-c", str(context), "-np", "1"]
        self._command += ["--cache-reuse", str(REUSE), "--slot-save-path", str(folder)]
        self._file, self._timeout = folder / SLOT, timeout
        self._server: Server | None = None

    def start(self) -> ChatServer:
        """Raises InputError if the server does not start, or does not read its file."""
        try:
            self._server = Server(self._command)
            if self._file.exists():
                self._server.post("/slots/0?action=restore", {"filename": SLOT})
        except RuntimeError as error:
            raise InputError(f"{self._command[0]}: {error}") from error
        return find_server(self._server.url, timeout=self._timeout)

    def stop(self) -> None:
        """Raises InputError if the slot cannot be saved."""
        if self._server is None:
            return
        server, self._server = self._server, None
        with server:
            try:
                server.post("/slots/0?action=save", {"filename": SLOT})
            except RuntimeError as error:
                raise InputError(f"{self._command[0]}: {error}") from error


@command("python -m benchmarks.agent --model model.gguf --llama-server PROGRAM --prompt-tokens 16000")
def agent(
    lengths: Lengths,
    model: str = model_option,
    threads: int | None = threads_option,
    context: int = option("Context of llama-server's slot in tokens.", 32768, low=1),
    program: str | None = option("llama.cpp's server; only ours runs without it.", None, "--llama-server"),
    as_json: bool = json_option,
) -> None:
    """Measure the time to first token by turn, cold, warm and after a restart, of both servers."""
    from ipex_lookahead.bench.facts import where_and_when
    from ipex_lookahead.engines.machine import default_threads
    from ipex_lookahead.hub import resolve_model

    file, count = str(resolve_model(model)), threads or default_threads()
    if program is not None and not file.endswith(".gguf"):
        raise InputError(f"llama-server reads GGUF files, and --model is {model}", hint="give a .gguf file")
    report: dict[str, Any] = {**where_and_when(), "model": model, "threads": count, "programs": []}
    for name, found in measured(file, count, context, program, lengths):
        print_report(found, to_stderr=as_json)
        report["programs"].append({"program": name, **found})
    if as_json:
        click.echo(json.dumps(report))


def measured(
    file: str, threads: int, context: int, program: str | None, lengths: Lengths
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the report of each program."""
    with TemporaryDirectory() as folder:
        words = ["--model", file, "--threads", str(threads), "--cache-dir", folder]
        found = measure(OwnServers(words, lengths.timeout), lengths)
    yield OURS, {"version": __version__, **found}
    if program is not None:
        with TemporaryDirectory() as folder:
            theirs = LlamaServers(program, file, threads, context, Path(folder), lengths.timeout)
            found = measure(theirs, lengths)
        yield "llama-server", {"version": version_of(program), **found}


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status: 0 done, 1 an error, 2 wrong usage."""
    return run_command(agent, arguments, name="benchmarks.agent", debug=False, spell=option_of)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
