"""``ipex-lookahead bench agent``: time to first token in the turns of a coding agent's conversation.

Every request of an agent repeats the whole conversation, so the time to first token depends on the part of the prompt
that the server finds in its cache. Each turn is measured cold (no part of the prompt was seen before), warm (the turns
before it were), and after a restart of the server between this turn and the one before.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TextIO

import click

from ipex_lookahead.bench.chat_client import ChatServer, RequestFailed, find_server, read_key, text_in
from ipex_lookahead.bench.conversations import Conversation, fitted
from ipex_lookahead.bench.options import Report, comma_separated
from ipex_lookahead.bench.serve import server_address
from ipex_lookahead.cli.commands import command
from ipex_lookahead.cli.loading import low_bit_option, model_option, threads_option
from ipex_lookahead.cli.options import option
from ipex_lookahead.cli.progress import progress_bar
from ipex_lookahead.cli.tables import print_facts, print_table
from ipex_lookahead.errors import InputError

STATES = ("cold", "warm", "restarted")
"""States of the cache."""
COLD_SHARE = 0.02
"""Maximum share of a cold prompt in the cache: the head of the chat template, which all prompts share."""
STOP_SECONDS = 120.0
"""Maximum time for a server to write its cache and exit."""
_READY = re.compile(r"is ready at (http://\S+)")
"""Line of ``serve``."""


@dataclass
class Lengths:
    """The conversations."""

    prompt_tokens: list[int] | None = option(
        "Tokens of the system prompt and tools; one conversation for each number. Default: 6000, or half of the "
        "context if that is less.",
        callback=comma_separated,
        metavar="N,N",
    )
    turns: int = option("Number of requests in a conversation.", 8, low=2, high=64)
    result_tokens: int | None = option(
        "Tokens of the one long tool result, in the middle turn. Default: 4000, or an eighth of the context.", low=1
    )
    cold: list[int] = option("Turns to measure cold.", "1,2,8", callback=comma_separated, metavar="N,N")
    max_new_tokens: int = option("Maximum number of tokens per answer.", 16, "-n", low=1)
    timeout: float = option("Seconds without data before a request fails.", 900.0, low=0, above=True)


class Servers(Protocol):
    """A server that can be started again on the cache that it left.

    Attributes:
        restarts: Whether :meth:`stop` ends the server and :meth:`start` starts it again.
    """

    restarts: bool

    def start(self) -> ChatServer:
        """Start the server and return it when it answers."""

    def stop(self) -> None:
        """Let the server write its cache, and end it; no effect if it does not run."""


@dataclass
class Source:
    """The server to measure."""

    model: str = model_option
    low_bit: str | None = low_bit_option
    threads: int | None = threads_option
    url: str | None = option(
        "Measure this running server instead, without restarts.", callback=server_address, metavar="URL"
    )
    name: str | None = option("With --url: model name on the server. Default: the first one listed.", metavar="NAME")
    api_key_file: Path | None = option(
        "With --url: file with API keys; the first one is used.",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
    )

    def servers(self, serve_options: Sequence[str], folder: str, timeout: float) -> Servers:
        """Return the server at ``url``, or ours with a cache in ``folder``."""
        if (url := self.url) is not None:
            key = read_key(self.api_key_file) if self.api_key_file else ""
            return Running(lambda: find_server(url, model=self.name, key=key, timeout=timeout))
        given = (("--model", self.model), ("--threads", self.threads), ("--low-bit", self.low_bit))
        words = [word for flag, value in given if value is not None for word in (flag, str(value))]
        return OwnServers([*words, "--cache-dir", folder, *serve_options], timeout)


@command(
    "ipex-lookahead bench agent -m path/to/model --prompt-tokens 6000,16000",
    "ipex-lookahead bench agent --url http://127.0.0.1:8080",
    "ipex-lookahead bench agent -m path/to/model -- --kv-cache int8",
)
@click.argument("serve_options", nargs=-1, metavar="[-- SERVE OPTIONS]")
def agent(serve_options: tuple[str, ...], source: Source, lengths: Lengths, to: Report) -> None:
    """Measure the time to first token by turn of a coding agent's conversation: cold, warm and after a restart.

    Starts `serve` with a prefix cache on disk, in a temporary folder unless --cache-dir is among SERVE OPTIONS. The
    conversations are generated: a system prompt, twelve tools, and one tool call and result per turn.
    """
    if source.url is not None and serve_options:
        raise click.UsageError(f"{serve_options[0]} is an option of the server to start; --url starts none")
    to.check()
    from ipex_lookahead.bench.plots.agent import plot_agent

    with TemporaryDirectory(prefix="ipex-lookahead-agent-") as folder:
        report = measure(source.servers(serve_options, folder, lengths.timeout), lengths)
    print_report(report, to_stderr=to.as_json)
    to.write(report, plot_agent)
    same, compared = report["identical"].split("/")
    if same != compared:
        click.echo("error: answers from a filled cache differ from those of an empty one", err=True)
        raise click.exceptions.Exit(1)


class Running:
    """A running server, which is never restarted.

    Args:
        find: Returns the server.
    """

    restarts = False

    def __init__(self, find: Callable[[], ChatServer]) -> None:
        self._find = find

    def start(self) -> ChatServer:
        """Return the server."""
        return self._find()

    def stop(self) -> None:
        """Do nothing."""


class OwnServers:
    """``ipex-lookahead serve`` in a process of its own, on a free port of this machine.

    Args:
        options: Options of ``serve``.
        timeout: Seconds without data before a request fails.
    """

    restarts = True

    def __init__(self, options: Sequence[str], timeout: float) -> None:
        self._command = [sys.executable, "-m", "ipex_lookahead.cli.main", "serve", *options, "--port", "0"]
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> ChatServer:
        """Raises InputError with the server's last line if it ends before it is ready."""
        process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, errors="replace")
        self._process, lines = process, deque[str](maxlen=8)
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.strip())
            if found := _READY.search(line):
                threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
                return find_server(found[1], timeout=self._timeout)
        process.stderr.close()
        reason = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
        raise InputError(f"serve ended with status {process.wait()}: {reason.removeprefix('error: ')}")

    def stop(self) -> None:
        """Raises InputError if the server does not end."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise InputError(f"serve did not end within {STOP_SECONDS:g} s of SIGTERM") from None
        finally:
            self._process = None


def _drain(stream: TextIO) -> None:
    """Read a stream to its end; a full pipe would block the process that writes to it."""
    with stream:
        for _ in stream:
            pass


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured request.

    Attributes:
        seconds: Time from sending the request to the first piece of the answer.
        prompt_tokens: Tokens of the prompt, as the server counts them.
        cached: Prompt tokens that the server found in its cache; None if it does not report them.
        text: The answer.
    """

    seconds: float
    prompt_tokens: int
    cached: int | None
    text: str


def read(server: ChatServer, body: dict[str, Any]) -> Reading:
    """Send a request and return its measurement. Raises InputError if it fails or has no usage."""
    first, usage, pieces = None, None, []
    began = time.perf_counter()
    try:
        with closing(server.stream({"temperature": 0, **body})) as chunks:
            for chunk in chunks:
                if first is None and _has_output(chunk):
                    first = time.perf_counter() - began
                pieces.append(text_in(chunk))
                if isinstance(chunk.get("usage"), dict):
                    usage = chunk["usage"]
    except RequestFailed as error:
        raise InputError(f"{server.url}: {error}", hint=_HINTS.get(error.kind, "")) from error
    if first is None or usage is None or type(usage.get("prompt_tokens")) is not int:
        raise InputError(f"{server.url} sends no usage", hint="use a server with stream_options")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Reading(first, usage["prompt_tokens"], cached if type(cached) is int else None, "".join(pieces))


_HINTS = {"silent": "raise --timeout", "HTTP 400": "check --prompt-tokens and --result-tokens"}


def _has_output(chunk: dict[str, Any]) -> bool:
    """Return True for a chunk with text, a tool call or the end of the answer."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    called = isinstance(delta, dict) and bool(delta.get("tool_calls"))
    return called or choice.get("finish_reason") is not None or text_in(chunk) != ""


def measure(servers: Servers, lengths: Lengths) -> dict[str, Any]:
    """Return the report for JSON.

    ``sizes`` has ``turns`` for each length of the prompt, with milliseconds to the first token and cached tokens by
    state of the cache. ``identical`` counts the answers from a filled cache that equal those from an empty one.

    Raises:
        InputError: A request fails, the conversation is too long for the model, or a cold prompt was in the cache.
    """
    try:
        replay = Replay(servers, lengths)
        with progress_bar(replay.requests * len(replay.prompt_tokens)) as replay.advance:
            sizes = [replay.size(tokens) for tokens in replay.prompt_tokens]
    except BaseException:
        with suppress(InputError):  # the first error is the reason
            servers.stop()
        raise
    servers.stop()
    facts = {"turns": lengths.turns, "result_tokens": replay.result_tokens, "max_new_tokens": lengths.max_new_tokens}
    identical = f"{sum(replay.same)}/{len(replay.same)}"
    return {"model": replay.server.model, **facts, "sizes": sizes, "identical": identical}


class Replay:
    """The conversations of one report.

    Three tasks share the system prompt and the tools: the first request of task 0 is the cold one, task 1 is measured
    warm, and task 2 with a restart before each turn.

    Args:
        servers: The server; it is started here.
        lengths: Lengths of the conversations.

    Attributes:
        server: The running server.
        prompt_tokens: Lengths of the system prompt and tools, with the default for the server's context.
        result_tokens: Length of the long tool result, likewise.
        requests: Number of requests for each length of the prompt.
        advance: Called after each of these requests.
        same: For each comparison, whether an answer from a filled cache equals the one from an empty cache.
    """

    def __init__(self, servers: Servers, lengths: Lengths) -> None:
        self._servers, self._lengths = servers, lengths
        self.server = servers.start()
        context = 1 << 62 if self.server.context is None else self.server.context
        self.prompt_tokens = lengths.prompt_tokens or [min(6000, context // 2)]
        self.result_tokens = lengths.result_tokens or min(4000, context // 8)
        self._cold = sorted({turn for turn in lengths.cold if 1 < turn <= lengths.turns})
        compared = 1 + len(self._cold) if self.server.row_invariant else 0
        self.requests = 1 + lengths.turns * (2 if servers.restarts else 1) + len(self._cold) + compared
        self.advance: Callable[[], None] = lambda: None
        self.same: list[bool] = []

    def size(self, prompt_tokens: int) -> dict[str, Any]:
        """Return the entry of one length of the prompt."""
        lengths, number = self._lengths, secrets.token_hex(4)
        counted_as = Conversation(f"{number}-count", turns=lengths.turns)
        fitting, last = fitted(counted_as, prompt_tokens, self.result_tokens, self._count)
        if self.server.context is not None and last + lengths.max_new_tokens > self.server.context:
            raise InputError(
                f"turn {lengths.turns} has about {last} prompt tokens; the server's context is {self.server.context}",
                hint="give smaller --prompt-tokens, --result-tokens or --turns",
            )
        conversation = replace(fitting, name=number)
        turns = range(1, lengths.turns + 1)
        cold = {1: self._ask(conversation, 1)}
        warm = {turn: self._ask(replace(conversation, task=1), turn) for turn in turns}
        restarted = {}
        if self._servers.restarts:
            for turn in turns:
                self._restart()
                restarted[turn] = self._ask(replace(conversation, task=2), turn)
        for turn in self._cold:
            cold[turn] = self._ask_cold(replace(conversation, task=1), turn)
        for turn, reading in cold.items():
            if reading.cached is not None and reading.cached > COLD_SHARE * reading.prompt_tokens:
                raise InputError(
                    f"turn {turn} must be cold, and the server found {reading.cached} of {reading.prompt_tokens} "
                    "prompt tokens in its cache"
                )
        if self.server.row_invariant:
            self._compare(replace(conversation, task=1), warm, cold)
        states = {"cold": cold, "warm": warm, "restarted": restarted}
        return {"prompt_tokens": prompt_tokens, "turns": [_row(turn, states) for turn in turns]}

    def _compare(self, conversation: Conversation, warm: dict[int, Reading], cold: dict[int, Reading]) -> None:
        """Compare answers from an empty cache with those from a filled one, before and after the restarts."""
        for turn in cold:
            again = self._ask(conversation, turn)
            if turn == 1:  # the cold one was another task
                self.same.append(again.text == warm[turn].text)
            else:
                self.same += [again.text == cold[turn].text, warm[turn].text == cold[turn].text]

    def _restart(self) -> None:
        self._servers.stop()
        self.server = self._servers.start()

    def _count(self, body: dict[str, Any]) -> int:
        return read(self.server, {**body, "max_tokens": 1}).prompt_tokens

    def _ask(self, conversation: Conversation, turn: int, **more: Any) -> Reading:
        found = read(self.server, {**conversation.body(turn), "max_tokens": self._lengths.max_new_tokens, **more})
        self.advance()
        return found

    def _ask_cold(self, conversation: Conversation, turn: int) -> Reading:
        """Send a request that shares no prefix with others: a salt where answers are comparable, else another name."""
        number = secrets.token_hex(4)
        if self.server.row_invariant:
            return self._ask(conversation, turn, cache_salt=number)
        return self._ask(replace(conversation, name=number), turn)


def _row(turn: int, states: dict[str, dict[int, Reading]]) -> dict[str, Any]:
    found = {state: readings[turn] for state, readings in states.items() if turn in readings}
    row: dict[str, Any] = {"turn": turn, "prompt_tokens": found["warm"].prompt_tokens}
    for state in states:
        row[f"{state}_ms"] = 1e3 * found[state].seconds if state in found else None
        row[f"{state}_cached"] = found[state].cached if state in found else None
    return row


def print_report(report: dict[str, Any], *, to_stderr: bool) -> None:
    """Print one table for each length of the prompt."""
    for size in report["sizes"]:
        rows = [
            (
                row["turn"],
                row["prompt_tokens"],
                *(_seconds(row[f"{state}_ms"]) for state in STATES),
                *("-" if row[f"{state}_cached"] is None else row[f"{state}_cached"] for state in STATES[1:]),
            )
            for row in size["turns"]
        ]
        print_table(
            ("turn", "prompt\ntokens", "cold\ns", "warm\ns", "restarted\ns", "cached\nwarm", "cached\nrestarted"),
            rows,
            title=f"{report['model']} · time to first token · system prompt and tools: {size['prompt_tokens']} tokens",
            caption="warm: the turns before were sent; restarted: and then the server was restarted",
            to_stderr=to_stderr,
        )
    if report["identical"] != "0/0":
        print_facts([("equal to cold", f"{report['identical']} answers")], to_stderr=to_stderr)


def _seconds(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1e3:.3g}"
