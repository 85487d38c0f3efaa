"""The process in which what a checkpoint brings is run: its chat template, or a tokenizer of any parts.

Started by ``process.py`` as a script; imports nothing of the package. A sandbox keeps a template from reaching Python's
insides, and a library reads the tokenizer, but neither keeps them from running for ever or filling the memory. Here the
kernel sees to both: address space and processor time are limited, no file can be written, and when a limit is reached
the process dies, whatever it is doing. It reads messages from standard input and answers each on standard output: eight
bytes of length, then JSON. It ends when there are no more, as when the process that asks is gone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any


class Raised(Exception):
    """The template called raise_exception."""


class Budget(Exception):
    """The template took more steps, or wrote more, than it may."""


def template_of(request: dict[str, Any]) -> Any:
    """The template of a request, compiled. Its loops are counted from then on."""
    import jinja2
    import jinja2.debug  # while files may still be opened
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
        """``{% generation %}`` marks what the assistant wrote; it renders its contents."""

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
    """Answer a request: {"ok": [texts]} or {"error": kind, "message": ...}.

    ``template``: its template, where that is compiled already.
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
    except Exception as error:  # whatever the template's own expressions raise
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"[:2000]}


class Kept:
    """The template that was rendered last, compiled: a server has one or two, and most of the time goes into that."""

    def __init__(self) -> None:
        self._source = ""
        self._template: Any = None

    def template(self, request: dict[str, Any]) -> Any:
        """The request's; None where it cannot be compiled, which whoever renders it will say.

        Compiling sees no conversation, and is limited as rendering is.
        """
        if request["template"] != self._source:
            self._source, self._template = request["template"], None
            try:
                self._template = template_of(request)
            except Exception:
                self._template = None
            limit_time(0)
        return self._template


def apart(request: dict[str, Any], template: Any) -> dict[str, Any]:
    """Answer a request in a process of its own, forked from this one; what ends it is an answer too.

    So each template has a process that nothing was run in, and none waits for Python to start.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)  # our parent's answers
            os.close(reader)
            try:
                answer = render(request, template)
            except BaseException as error:
                answer = {"error": "broken", "message": f"{type(error).__name__}: {error}"[:2000]}
            limit_time(0)
            with os.fdopen(writer, "wb") as out:
                out.write(json.dumps(answer).encode("ascii"))
        finally:
            os._exit(0)
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


def strftime_now(form: str) -> str:
    """The local time now, in the format given."""
    from datetime import datetime

    return datetime.now().strftime(form)


class Tokenizer:
    """A tokenizer of the ``tokenizers`` library, and what may be asked of it."""

    def __init__(self, request: dict[str, Any]) -> None:
        import tokenizers

        limit_resources(request["limits"])
        self.core = tokenizers.Tokenizer.from_str(request["description"])

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Ids of ``text``, or the text of ``ids``; of neither more than ``most``."""
        found: list[int] | str
        if "text" in question:
            found = self.core.encode(question["text"], add_special_tokens=question["special"]).ids
        else:
            found = self.core.decode(question["ids"], skip_special_tokens=question["skip"])
        if len(found) > question["most"]:
            return {"error": f"{len(found)} came of it; at most {question['most']} are taken"}
        return {"ok": found}


def limit_resources(limits: dict[str, Any]) -> None:
    """Limits that the kernel enforces."""
    try:
        import resource
    except ImportError:  # not on this system: the parent's deadline remains
        return
    from datetime import datetime

    datetime.now().strftime("%d")
    for limit, most in ((resource.RLIMIT_AS, limits["memory"]), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(limit)
        if hard != resource.RLIM_INFINITY:  # a limit that stands already (ulimit -Hv) may be lowered only
            most = min(most, hard)
        resource.setrlimit(limit, (most, most))
    limit_time(limits["seconds"])


def limit_time(seconds: float) -> None:
    """Processor time from here; 0: no limit. The alarm's default action ends the process inside any operation."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Read what is to be run, then answer questions about it."""
    messages, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")

    def read() -> Any:
        size = int.from_bytes(messages.read(8), "little")
        return json.loads(messages.read(size)) if size else None

    def write(answer: dict[str, Any]) -> None:
        limit_time(0)
        body = json.dumps(answer).encode("ascii")
        answers.write(len(body).to_bytes(8, "little") + body)
        answers.flush()

    request = read()
    if request is None:
        return
    sys.path[:] = request["path"]
    if "import" in request:
        for module in request["import"]:
            importlib.import_module(module)
        kept = Kept()
        kept.template(request)  # what Jinja prepares once, those that are forked have
        gc.collect()
        gc.freeze()  # a collection in a fork would copy every page
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        while (request := read()) is not None:
            write(apart(request, kept.template(request)))
        return
    if "template" in request:
        write(render(request))
        return
    try:
        tokenizer = Tokenizer(request)
    except BaseException as error:  # a panic in the library is no Exception
        write({"error": f"{error}"[:2000]})
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what the library says of its panics
    write({"ok": True})
    while (question := read()) is not None:
        limit_time(question["seconds"])
        try:
            answer = tokenizer.answer(question)
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        write(answer)


if __name__ == "__main__":
    main()
