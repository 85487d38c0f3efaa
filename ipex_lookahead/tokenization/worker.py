"""The process that runs untrusted input: chat templates, tokenizers, grammars, and files of clients.

``process.py`` starts it as a script; it does not import the package. Jinja's sandbox, the tokenizers library,
llguidance, and the libraries for PDFs and images do not limit time and memory of their input. In this process the
kernel limits address space and processor time, files cannot be written, and the process ends when a limit is reached.
It reads messages from standard input and writes an answer for each to standard output: eight bytes of length, then
JSON. It ends at the end of its input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, NoReturn

_COPIED = 4 << 20
"""Bytes of the parent that a fork copies in any case."""
_MAX_ERROR = 20_000
"""Maximum characters of an error of the library, which may quote a pattern twice."""
_UNHURRIED = 0.1
"""Seconds after which the process of a grammar has a lower priority."""


class Raised(Exception):
    """The template called raise_exception."""


class Budget(Exception):
    """The template exceeded its steps or its output."""


def template_of(request: dict[str, Any]) -> Any:
    """Return the compiled template of a request, with counted loops."""
    import jinja2
    import jinja2.debug  # before files are limited
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
    import jinja2.visitor

    most = request["limits"]["steps"]
    steps = 0

    def counted(items: Any) -> Any:
        nonlocal steps
        for item in items:
            steps += 1
            if steps > most:
                raise Budget(f"it takes more than {most} loop steps")
            yield item

    class CountLoops(jinja2.visitor.NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.iter = jinja2.nodes.Filter(node.iter, "_counted", [], [], None, None, lineno=node.lineno)
            return node

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        def _parse(self, source: Any, name: Any, filename: Any) -> Any:
            return CountLoops().visit(super()._parse(source, name, filename))

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` marks text of the assistant; it renders its contents."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message: Any) -> None:
        raise Raised(str(message))

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols], cache_size=0
    )
    environment.filters.update(tojson=tojson, _counted=counted)
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    limit_resources(request["limits"])
    return environment.from_string(request["template"])


def render(request: dict[str, Any], template: Any = None) -> dict[str, Any]:
    """Answer a request with {"ok": [texts]} or {"error": kind, "message": ...}.

    ``template`` is the compiled template, if available.
    """
    import jinja2

    limits = request["limits"]
    try:
        if template is None:
            template = template_of(request)
        else:
            limit_resources(limits)
        texts, size = [], 0
        for context in request["contexts"]:
            parts = []
            for part in template.generate({**request["variables"], **context}):
                parts.append(part)
                size += len(part)
                if size > limits["output"]:
                    raise Budget(f"it writes more than {limits['output']} characters")
            texts.append("".join(parts))
        return {"ok": texts}
    except Raised as error:
        return {"error": "raised", "message": str(error)[:2000]}
    except Budget as error:
        return {"error": "budget", "message": str(error)}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"error": "budget", "message": f"it needs too much memory or nests too deep ({type(error).__name__})"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "message": f"line {error.lineno}: {error.message}"[:2000]}
    except Exception as error:  # expressions of the template may raise anything
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"[:2000]}


class Kept:
    """A cache of the last compiled template, because compiling takes most of the time."""

    def __init__(self) -> None:
        self._source = ""
        self._template: Any = None

    def template(self, request: dict[str, Any]) -> Any:
        """Return the compiled template of a request, or None after an error, which ``render`` reports.

        Compiling does not read the conversation, and has the limits of rendering.
        """
        if request["template"] != self._source:
            self._source, self._template = request["template"], None
            try:
                self._template = template_of(request)
            except Exception:
                self._template = None
            limit_time(0)
        return self._template


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run ``work`` in a fork of this process and return its answer, or an answer for the signal that ended it.

    Each call has a clean process without the time to start Python.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        do(work, os.fdopen(writer, "wb"))
    os.close(writer)
    with os.fdopen(reader, "rb") as found:
        body = found.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"error": "stopped", "signal": os.WTERMSIG(status)}
    try:
        answered: dict[str, Any] = json.loads(body)
    except (ValueError, RecursionError):
        return {"error": "broken", "message": "it gave no answer"}
    return answered


def do(work: Callable[[], dict[str, Any]], out: BinaryIO, *, framed: bool = False) -> NoReturn:
    """Write the answer of ``work`` as JSON and exit this fork, with status 0 on success."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)  # file 1 has the answers of the parent
        try:
            answer = work()
        except BaseException as error:
            answer = {"error": "broken", "message": f"{type(error).__name__}: {error}"[:2000]}
        limit_time(0)
        out.write(spelled(answer) if framed else json.dumps(answer).encode("ascii"))
        out.flush()
        os._exit(0)
    finally:
        os._exit(1)


def spelled(answer: dict[str, Any]) -> bytes:
    """Return an answer as a message."""
    body = json.dumps(answer).encode("ascii")
    return len(body).to_bytes(8, "little") + body


def strftime_now(form: str) -> str:
    """Return the local time in a format."""
    from datetime import datetime

    return datetime.now().strftime(form)


class Tokenizer:
    """A tokenizer of the ``tokenizers`` library."""

    def __init__(self, request: dict[str, Any]) -> None:
        import tokenizers

        limit_resources(request["limits"])
        self.core = tokenizers.Tokenizer.from_str(request["description"])

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the ids of ``text``, or the text of ``ids``; at most ``most`` elements."""
        found: list[int] | str
        if "text" in question:
            found = self.core.encode(question["text"], add_special_tokens=question["special"]).ids
        else:
            found = self.core.decode(question["ids"], skip_special_tokens=question["skip"])
        if len(found) > question["most"]:
            return {"error": f"the result has length {len(found)}; the limit is {question['most']}"}
        return {"ok": found}


class Grammars:
    """A vocabulary for llguidance, and trials of grammars."""

    def __init__(self, request: dict[str, Any]) -> None:
        import llguidance

        self._library = llguidance
        self.tokens = [bytes.fromhex(token) for token in request["tokens"]]
        special = frozenset(request["special"])
        self._ids = {token: i for i, token in enumerate(self.tokens) if token and i not in special}
        self._longest = max(map(len, self.tokens))
        self._ends = frozenset(request["ends"])
        self.eos_token_id, self.bos_token_id, self.special_token_ids = request["ends"][0], None, request["special"]
        wrapper = llguidance.TokenizerWrapper(self)
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(self.tokens), eos_token=request["ends"])

    def __call__(self, text: bytes | str) -> list[int]:
        """Return tokens of a text, the longest first; masks do not depend on the tokenization."""
        given, found, at = text.encode("utf-8") if isinstance(text, str) else text, [], 0
        while at < len(given):
            sizes = range(min(self._longest, len(given) - at), 0, -1)
            size = next((size for size in sizes if given[at : at + size] in self._ids), 0)
            if size:
                found.append(self._ids[given[at : at + size]])
            at += size or 1
        return found

    def tried(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile a grammar and start a few answers with it.

        Returns {"ok": bytes of memory}, or {"error": "refused" or "outgrown", "message": ...}.
        """
        limits = request["limits"]
        before = memory()
        limit_resources({**limits, "memory": limits["memory"] + before[0]})
        parser = self._library.LLParserLimits(**request["parser"])
        matcher = self._library.LLMatcher(self._tokenizer, request["grammar"], log_level=0, limits=parser)
        if matcher.is_error():
            return {"error": "refused", "message": matcher.get_error()[:_MAX_ERROR]}
        taken = memory()[1] - before[1]
        for answer in range(request["answers"]):
            copy = matcher.deep_copy()
            for step in range(request["steps"]):
                mask = copy.compute_bitmask()
                token = -1 if copy.is_error() else self._some(mask, 7919 * answer + 104729 * step)
                if token >= 0:
                    copy.consume_token(token)
                if copy.is_error():
                    return {"error": "outgrown", "message": copy.get_error()[:_MAX_ERROR]}
                if token < 0 or copy.is_stopped():
                    break
        del copy, matcher  # deallocation is part of the trial
        return {"ok": max(0, taken - _COPIED)}

    def _some(self, mask: bytes, start: int) -> int:
        """Return a token of a mask that is not an end token, searching from ``start``; -1 for none."""
        size = len(self.tokens)
        for at in range(0, len(mask), 64):  # most blocks are empty or full
            place = (at + start // 8) % len(mask) // 64 * 64
            if any(piece := mask[place : place + 64]):
                for i in range(8 * len(piece)):
                    token = 8 * place + i
                    if piece[i >> 3] >> (i & 7) & 1 and token < size and token not in self._ends:
                        return token
        return -1


def memory() -> tuple[int, int]:
    """Return the bytes of address space and of resident memory of this process; zeros if unknown."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = file.read().split()
    except OSError:
        return 0, 0
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE"), int(pages[1]) * os.sysconf("SC_PAGE_SIZE")


class Trials:
    """Forks for one grammar each, and the connections of their clients.

    Args:
        grammars: The vocabulary.
        link: Socket that receives connections.
    """

    def __init__(self, grammars: Grammars, link: socket.socket) -> None:
        self._grammars = grammars
        self._link = link
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._trials: dict[int, tuple[int, socket.socket]] = {}  # pipe that closes at its end -> process, client
        self._clients: dict[int, int] = {}  # descriptor of the client -> process
        self._new: dict[int, float] = {}  # process -> time to lower its priority

    def serve(self) -> None:
        """Try grammars until the link closes."""
        while True:
            wait = min(self._new.values()) - time.monotonic() if self._new else None
            ready = self._poll.poll(None if wait is None else max(0.0, 1000 * wait))
            # New connections last: they may reuse the numbers of descriptors that are closed before.
            for descriptor, _ in sorted(ready, key=lambda one: one[0] == self._link.fileno()):
                if descriptor == self._link.fileno():
                    data, descriptors, _, _ = socket.recv_fds(self._link, 1, 1)
                    if not data:
                        return
                    self._begin(socket.socket(fileno=descriptors[0]))
                elif descriptor in self._trials:
                    self._end(descriptor)
                elif descriptor in self._clients:  # it has disconnected; the pipe closes next
                    self._poll.unregister(descriptor)
                    os.kill(self._clients[descriptor], signal.SIGKILL)
            now = time.monotonic()
            for process in [one for one, at in self._new.items() if at <= now]:
                del self._new[process]
                os.setpriority(os.PRIO_PROCESS, process, 10)

    def _begin(self, client: socket.socket) -> None:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            self._link.close()
            questions, answers = client.makefile("rb"), client.makefile("wb")
            do(lambda: self._grammars.tried(read_message(questions)), answers, framed=True)
        os.close(writer)
        self._poll.register(reader, 0)  # poll reports its end in any case
        self._poll.register(client, 0)
        self._trials[reader] = process, client
        self._clients[client.fileno()] = process
        self._new[process] = time.monotonic() + _UNHURRIED

    def _end(self, reader: int) -> None:
        process, client = self._trials.pop(reader)
        self._poll.unregister(reader)
        os.close(reader)
        self._new.pop(process, None)
        _, status = os.waitpid(process, 0)
        if status:  # it wrote no answer
            stopped = {"error": "stopped", "signal": os.WTERMSIG(status)}
            broken = {"error": "broken", "message": "it gave no answer"}
            with contextlib.suppress(OSError):
                client.sendall(spelled(stopped if os.WIFSIGNALED(status) else broken))
        del self._clients[client.fileno()]
        with contextlib.suppress(KeyError):
            self._poll.unregister(client)
        client.close()


def read_message(stream: BinaryIO) -> Any:
    """Return the next message, or None at the end."""
    size = int.from_bytes(stream.read(8), "little")
    return json.loads(stream.read(size)) if size else None


def limit_resources(limits: dict[str, Any]) -> None:
    """Set limits of the kernel: bytes of memory, seconds of processor time, and optionally bytes of stack."""
    try:
        import resource
    except ImportError:  # not on this system: the parent has a timeout
        return
    from datetime import datetime

    datetime.now().strftime("%d")
    given = [(resource.RLIMIT_AS, limits["memory"]), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)]
    if "stack" in limits:
        given.append((resource.RLIMIT_STACK, limits["stack"]))
    for limit, most in given:
        _, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:  # an existing hard limit (ulimit -Hv) cannot be raised
            most = min(most, hard)
        resource.setrlimit(limit, (most, most))
    limit_time(limits["seconds"])


def limit_time(seconds: float) -> None:
    """Limit the processor time from now on; 0 is unlimited. The signal ends the process in any operation."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def settle() -> None:
    """Prepare for forks after all imports: a garbage collection in a fork would copy every page. Close stderr."""
    gc.collect()
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def main() -> None:
    """Read the first request, which selects the kind of worker, and answer requests."""
    messages, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")

    def write(answer: dict[str, Any]) -> None:
        limit_time(0)
        answers.write(spelled(answer))
        answers.flush()

    request = read_message(messages)
    if request is None:
        return
    sys.path[:] = request["path"]
    if "import" in request:
        for module in request["import"]:
            importlib.import_module(module)
        kept = Kept()
        kept.template(request)  # forks inherit Jinja's tables
        settle()
        while (request := read_message(messages)) is not None:
            write(apart(partial(render, request, kept.template(request))))
        return
    if "template" in request:
        write(render(request))
        return
    if "script" in request:  # a file of the package with a function ``answer``
        answer_one = runpy.run_path(request["script"])["answer"]
        settle()
        while (question := read_message(messages)) is not None:
            given = messages.read(int.from_bytes(messages.read(8), "little"))
            write(apart(partial(answer_one, question, given, limit_resources)))
        return
    if "tokens" in request:
        grammars = Grammars(request)
        settle()
        write({"ok": True})
        Trials(grammars, socket.socket(fileno=0)).serve()
        return
    try:
        tokenizer = Tokenizer(request)
    except BaseException as error:  # a panic in the library is not an Exception
        write({"error": f"{error}"[:2000]})
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the library prints its panics
    write({"ok": True})
    while (question := read_message(messages)) is not None:
        limit_time(question["seconds"])
        try:
            answer = tokenizer.answer(question)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        write(answer)


if __name__ == "__main__":
    main()
