"""The process in which a client's grammar is tried before the server compiles it.

A schema of 40 bytes can take minutes and gigabytes to compile, or overflow the stack of the library that compiles it.
So each grammar is first compiled in a process of its own (``tokenization/worker.py``) with limits on processor time,
memory and stack, where a few answers are begun in it too. What fails there is a client's error; what does not is
compiled again in the server, in the same time and memory.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ipex_lookahead.conversation.reasons import reason
from ipex_lookahead.errors import InputError
from ipex_lookahead.tokenization.process import (
    KeptWorker,
    Link,
    Stopped,
    Worker,
    importable,
    patience_for,
    spoken_memory,
    stopped_by,
)

MAX_SECONDS = 2.0
"""Processor time of a trial."""
MAX_MEMORY = 128 << 20
"""Bytes of address space that a trial takes in addition to the library and the vocabulary."""
MAX_STACK = 2 << 20
"""Bytes; less where the server's own threads, which compile the same again, have less than four times that."""
PARSER: dict[str, Any] = {
    "max_items_in_row": 50_000,
    "step_max_items": 500_000,
    "step_lexer_fuel": 200_000,
    "max_lexer_states": 250_000,
    "verbose_errors": False,
}
"""llguidance's limits, in the trial and in the server: alternatives at one place of an answer; those of one token, 25
ms; regular expressions derived for one token, 15 ms; states of all patterns in one answer."""
MAX_STOPPED = 4
"""Number of one request's trials (one per tool) that may reach a limit before the request is refused."""
_ANSWERS, _STEPS = 2, 4
"""Answers that a trial begins, and tokens of each."""
_SECONDS_TO_START = 10.0
_THREAD_STACK = 2 << 20
"""Bytes that the C library gives threads where the main thread's stack has no limit."""
_NOTHING = "NoExtensionBias"
"""llguidance's word for a grammar in which no token can come next."""


class RefusedError(InputError):
    """The grammar cannot be compiled, now or later."""


class Cancelled(Exception):
    """The client left before its grammar was compiled."""


class NotCompiled(Exception):
    """The grammar is not among those that are kept, and the client does not wait."""


@dataclass
class Client:
    """Who wants a grammar compiled.

    Attributes:
        owner: API key that owns the cached grammars.
        waits: whether it waits for one that is not compiled yet; otherwise it gets NotCompiled.
        stopped: trials for it that reached a limit.
    """

    owner: str = ""
    waits: bool = True
    stopped: int = 0
    _left: bool = False
    _link: Link | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def leave(self) -> None:
        """Stop what is being compiled for it, from any thread."""
        with self._lock:
            self._left = True
            if self._link is not None:
                self._link.hang_up()

    @contextlib.contextmanager
    def waiting(self, link: Link) -> Iterator[None]:
        """Hang up where the client leaves meanwhile. Raises Cancelled where it has left."""
        try:
            with self._lock:
                if self._left:
                    raise Cancelled
                self._link = link
            yield
        finally:
            with self._lock:
                self._link = None
            link.close()

    @property
    def left(self) -> bool:
        """Whether it has left."""
        return self._left


class GrammarProcess(KeptWorker):
    """A process that has llguidance and a vocabulary, and is forked for each grammar. For any number of threads.

    Args:
        tokens: the vocabulary's bytes, by id.
        ends: ids that end an answer.
        special: ids of the special tokens.
    """

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int], special: Sequence[int]) -> None:
        super().__init__()
        self._vocabulary = (tokens, ends, special)
        self._closed = False

    def start(self) -> None:
        """Start it in the background, unless it runs."""
        threading.Thread(target=self._started, daemon=True).start()

    def _started(self) -> None:
        with self._lock, contextlib.suppress(InputError):  # the first grammar meets the same error, and reports it
            self._running()

    def tried(self, grammar: str, client: Client) -> int:
        """Compile a grammar there: bytes of memory that it takes.

        Raises:
            RefusedError: it cannot be compiled, or not within the limits.
            InputError: no process can be started, or it ended.
            Cancelled: the client left.
        """
        if client.stopped >= MAX_STOPPED:
            raise InputError(
                f"{client.stopped} grammars of this request reached the limits", hint="simplify its schemas"
            )
        limits: dict[str, Any] = {"seconds": MAX_SECONDS, "memory": MAX_MEMORY, "stack": _stack()}
        question = json.dumps(
            {"grammar": grammar, "limits": limits, "parser": PARSER, "answers": _ANSWERS, "steps": _STEPS}
        ).encode("ascii")
        try:
            answer = self._answer(question, client)
        except ConnectionError:  # the process that is kept ended a moment ago
            try:
                answer = self._answer(question, client)
            except ConnectionError:
                raise InputError("the grammar cannot be compiled now: its process ended without an answer") from None
        if "ok" in answer:
            return int(answer["ok"])
        kind = answer["error"]
        if kind == "stopped" and answer["signal"] == signal.SIGKILL:  # by the system, which had no memory
            raise InputError("the grammar cannot be compiled now: the system ended its process")
        if kind == "stopped":
            client.stopped += 1
            spoken = (
                f"{MAX_SECONDS:g} s of processor time, {spoken_memory(MAX_MEMORY)} or {_stack() >> 10} KiB of stack"
            )
            said = f"its process {stopped_by(answer['signal'], spoken)}"
            raise RefusedError(f"the grammar cannot be compiled: {said}", hint="simplify it")
        said = reason(answer["message"])
        if said == _NOTHING:
            raise RefusedError("the grammar cannot be compiled: no text satisfies it", hint="check its recursive rules")
        if kind == "outgrown":
            raise RefusedError(
                f"the grammar cannot be compiled: it is too complex to continue: {said}",
                hint="simplify its patterns and lengths",
            )
        raise RefusedError(f"the grammar cannot be compiled: {said}")

    def _answer(self, question: bytes, client: Client) -> dict[str, Any]:
        """Raises ConnectionError where the process ended, and otherwise as ``tried``."""
        link = self._branch()
        with client.waiting(link):
            try:
                return link.request(question, patience_for(MAX_SECONDS))
            except TimeoutError:
                raise InputError("the grammar cannot be compiled now: its process does not answer") from None
            except OSError:
                if client.left:
                    raise Cancelled from None
                raise ConnectionError from None

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _branch(self) -> Link:
        with self._lock:
            try:
                return self._running().branch()
            except OSError:  # it ended a moment ago
                if self._worker is not None:
                    self._worker.close()
                    self._worker = None
                return self._running().branch()

    def _running(self) -> Worker:
        if self._closed:
            raise InputError("the grammar cannot be compiled: the server is shutting down")
        if self._worker is not None and not self._worker.runs:
            self._worker.close()
            self._worker = None
        if self._worker is None:
            tokens, ends, special = self._vocabulary
            request = {"path": importable(), "tokens": [token.hex() for token in tokens], "ends": list(ends)}
            message = json.dumps({**request, "special": list(special)}).encode("ascii")
            self._worker = Worker("grammars", instead="leave the schema or grammar out")
            try:
                answer = self._request(self._worker, message, _SECONDS_TO_START, "the time to start")
            except Stopped as stopped:
                raise InputError(f"the process that compiles grammars {stopped}") from None
            if "ok" not in answer:
                self._worker.close()
                self._worker = None
                raise InputError(f"the process that compiles grammars cannot start: {answer['error']}")
        return self._worker


def _stack() -> int:
    """Bytes of stack for a trial: a quarter of what a thread of this process has."""
    try:
        import resource
    except ImportError:
        return MAX_STACK
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return min(MAX_STACK, (_THREAD_STACK if soft == resource.RLIM_INFINITY else soft) // 4)
