"""Chat templates of unknown origin: a text within its bounds, or an error of ours, in time.

A process for each takes 50 ms. So most are rendered by the worker's own functions in children of this process, whose
limits are the gates'; those that only the kernel can end, and some of the others, go the whole way.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ipex_lookahead.errors import InputError, LookaheadError, ModelFormatError
from ipex_lookahead.tokenization import chat_template, process, worker
from ipex_lookahead.tokenization.chat_template import render_chats
from tests.gates import cases, seed
from tests.support.forked import in_children
from tests.support.mutated.settings import TEMPLATES

CASES = cases(500, 30_000)
PROCESSES = cases(7, 400)

EXPRESSIONS = (
    *("messages", "messages[0]", "messages[-1]['content']", "messages[0].role", "bos_token", "tools", "nothing", "1"),
    *("'a' * 100", "'a' * 9000", "range(5)", "[1, 2, 3]", "{'a': 1}", "none", "true", "1.5", "'é🙂'", "-1", "2**70"),
    *("loop.index", "namespace(a=1)", "cycler", "joiner()", "lipsum()", "dict(a=1)", "self", "caller", "varargs"),
    *("messages.append(1)", "bos_token.__class__", "''.__class__.__mro__", "messages.__len__"),
    *("[].__init__.__globals__", "'%s' % messages", "'{0.__class__}'.format(1)", "raise_exception('no')"),
    *("raise_exception(messages)", "strftime_now('%Y')", "strftime_now(5)", "1 // 0", "''.join(range(3))"),
    *("messages[99]", "[[]] * 9", "x.y.z"),
)
FILTERS = (
    *("tojson", "tojson(indent=2)", "length", "upper", "trim", "list", "first", "last", "join(',')", "default('d')"),
    *("int", "string", "reverse", "sort", "unique", "map('upper')", "selectattr('role')", "batch(2)", "sum"),
    *("groupby('role')", "replace('a', 'bb')", "indent(4)", "center(80)", "format(1)", "attr('__class__')"),
    *("nothing", "tojson(x=1)"),
)
TESTS = ("defined", "none", "string", "mapping", "iterable", "equalto(1)", "nothing", "divisibleby(0)", "in messages")


def expression(chance: random.Random) -> str:
    found = chance.choice(EXPRESSIONS)
    for _ in range(chance.choice((0, 0, 1, 1, 2))):
        found = f"({found})|{chance.choice(FILTERS)}"
    if chance.random() < 0.3:
        found = (
            f"({found}) {chance.choice(('+', '~', '*', '==', 'in', 'and', '%', '<'))} ({chance.choice(EXPRESSIONS)})"
        )
    return found if chance.random() < 0.9 else f"({found}) is {chance.choice(TESTS)}"


def source(chance: random.Random, depth: int = 0) -> str:
    """Statements that nest, most of them well formed."""
    made = []
    for _ in range(chance.randint(1, 3)):
        way = chance.random()
        inner = source(chance, depth + 1) if depth < 2 else "x"
        if way < 0.45:
            made.append(f"{{{{ {expression(chance)} }}}}")
        elif way < 0.55:
            ended = chance.choice(("endfor", "endfor", "endfor", "endfor", "endfor", "endif"))
            made.append(f"{{% for m in {expression(chance)} %}}{inner}{{% {ended} %}}")
        elif way < 0.7:
            made.append(f"{{% if {expression(chance)} %}}{inner}{{% else %}}{{% endif %}}")
        elif way < 0.78:
            made.append(f"{{% set a = {expression(chance)} %}}{{{{ a }}}}")
        elif way < 0.84:
            made.append(f"{{% macro f(n=1) %}}{inner}{{% endmacro %}}{{{{ f() }}}}")
        elif way < 0.88:
            made.append(f"{{% generation %}}{inner}{{% endgeneration %}}")
        elif way < 0.9:
            made.append(chance.choice(("{% break %}", "{% continue %}", "{% include 'x' %}", "{% import 'os' as o %}")))
        elif way < 0.92:
            made.append(
                chance.choice(("{#", "{{", "}}", "{%- -%}", "{% raw %}{{", "\0", "\ud800", "\n  \n", "{% x %}"))
            )
        else:
            made.append(f"{{% filter upper %}}{inner}{{% endfilter %}}")
    return "".join(made)


def case_of(number: int) -> tuple[str, list[list[dict[str, Any]]], dict[str, Any]]:
    """Template, conversations, variables."""
    chance = random.Random(f"{seed()} template {number}")
    text = chance.choice(ENDING) if chance.random() < 0.05 else source(chance)
    if chance.random() < 0.1:
        at = chance.randrange(len(text) + 1)
        text = text[:at] + chance.choice(("{", "}", "%", "'", "")) + text[at + chance.choice((0, 1)) :]
    content = chance.choice(("Hi", "", "a" * 3000, "{{ 1 }}", "é🙂\0", None, ["x", {"type": "text", "text": "y"}]))
    talk = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}][
        : chance.choice((0, 1, 2, 2))
    ]
    return text, [talk] * chance.choice((1, 1, 3)), {"bos_token": chance.choice(("<s>", None, 5)), "tools": None}


ENDING = [text for text in TEMPLATES if len(text) < 2000]
"""Loops without an end, memory without one, and other whole templates; each ends by itself, in the worker's budget."""


def test_any_template_is_a_text_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {
        "steps": 1 << 16,
        "output": chat_template.OUTPUT_ANYWAY,
        "seconds": 1.0,
        "memory": chat_template.MAX_MEMORY,
    }
    nothing = {"RLIM_INFINITY": -1, "getrlimit": lambda limit: (-1, -1), "setrlimit": lambda *limit: None}
    kernel = SimpleNamespace(RLIMIT_AS=0, RLIMIT_FSIZE=1, RLIMIT_CORE=2, **nothing)
    timers = SimpleNamespace(**{**vars(signal), "setitimer": lambda *timer: None})
    monkeypatch.setitem(sys.modules, "resource", kernel)
    monkeypatch.setitem(sys.modules, "signal", timers)

    def case(number: int) -> str:
        text, conversations, variables = case_of(number)
        given = {name: value for name, value in variables.items() if value is not None}
        request = {
            "path": sys.path,
            "template": text,
            "variables": {"tools": None, "documents": None, **given},
            "contexts": [{"messages": talk} for talk in conversations],
            "limits": limits,
        }
        answer = json.loads(json.dumps(worker.render(json.loads(json.dumps(request)))))
        if "ok" in answer:
            assert len(answer["ok"]) == len(conversations)
            assert sum(map(len, answer["ok"])) <= limits["output"]
            return "rendered"
        assert answer["error"] in ("raised", "budget", "syntax", "failed"), answer
        assert len(answer["message"]) <= 2000
        return str(answer["error"])

    seen = in_children(case, CASES)
    monkeypatch.undo()
    print(dict(seen))
    assert min(seen[ending] for ending in ("rendered", "raised", "syntax", "failed")) > CASES // 50, seen
    assert seen["budget"]


FOR_THE_KERNEL = (
    *("{{ 'a' * 10**9 }}", "{{ ('a' * 10**8)|list|length }}", "{{ 9**9**9 }}", "{{ range(10**5)|sum ** 10**6 }}"),
)


def test_any_template_ends_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}
    for number in range(PROCESSES):
        text, conversations, variables = case_of(number)
        if number < len(FOR_THE_KERNEL):
            text = FOR_THE_KERNEL[number]
        try:
            texts = render_chats(text, conversations, variables)
            ending = "rendered"
            start, end = variables["bos_token"], None
            variables = {"add_generation_prompt": True, "bos_token": start, "eos_token": end}
            (one,) = render_chats(text, conversations[:1], variables)
            assert type(one) is str
            assert len(texts) == len(conversations)
        except LookaheadError as error:
            ending = type(error).__name__
        seen[ending] = seen.get(ending, 0) + 1
    print(seen)
    assert seen["ModelFormatError"] >= len(FOR_THE_KERNEL), seen
    assert seen["rendered"], seen
    with pytest.raises(InputError, match="refuses these messages: no"):
        render_chats("{{ raise_exception('no') }}", [[]], {})
    with pytest.raises(InputError, match="not a string, number, list or mapping"):
        render_chats("x", [[{"role": "user", "content": object()}]], {})
    with pytest.raises(ModelFormatError, match="more than 262144 bytes"):
        render_chats("x" * 300_000, [[]], {})
    monkeypatch.setattr(process, "_PATIENCE", 0.001 - 10 * chat_template.MAX_SECONDS)
    with pytest.raises(ModelFormatError, match="did not finish within"):
        render_chats("x", [[]], {})
    monkeypatch.undo()
    monkeypatch.setattr(sys, "executable", shutil.which("true"))  # says nothing
    with pytest.raises(ModelFormatError, match="could not be run: exit status 0"):
        render_chats("x", [[]], {})
    monkeypatch.setattr(sys, "executable", os.devnull)
    with pytest.raises(InputError, match="no Python process for the chat template"):
        render_chats("x", [[]], {})
