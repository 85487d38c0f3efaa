"""Chat templates: right in the usual cases, harmless in the hostile ones."""

from __future__ import annotations

import datetime
import os
import threading

import pytest

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.tokenization import process
from ipex_lookahead.tokenization.chat_template import Renderer, render_chats

from .conftest import CHATML

CHAT = [{"role": "user", "content": "Hi é 🙂"}, {"role": "assistant", "content": "Hello"}]
LLAMA2 = """{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}
    {% set rest = messages[1:] %}
{% else %}
    {% set rest = messages %}
{% endif %}
{% for message in rest %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + message['content'].strip() + ' [/INST]' -}}
    {% else %}
        {{- ' ' + message['content'] + ' ' + eos_token -}}
    {% endif %}
{% endfor %}"""


def render(template, messages=CHAT, **options):
    settings = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **options}
    return render_chats(template, [messages], settings)[0]


def test_the_usual_templates():
    text = "<|start|>user\nHi é 🙂<|end|>\n<|start|>assistant\nHello<|end|>\n"
    assert render(CHATML) == text + "<|start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == text
    assert render(LLAMA2) == "<s>[INST] Hi é 🙂 [/INST] Hello </s>"


@pytest.mark.parametrize(
    "template", [CHATML, LLAMA2, "{% generation %}\n  x{% endgeneration %}\n{{ messages|length }}\n"]
)
@pytest.mark.usefixtures("kept_renderer")
def test_equal_to_transformers(template):
    from transformers.utils.chat_template_utils import render_jinja_template

    expected, _ = render_jinja_template(
        [CHAT], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert render(template) == expected[0]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ {'a': 'é', 'b': [1]}|tojson }}", '{"a": "é", "b": [1]}'),
        ("{{ [1, 2]|tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% for i in [1, 2, 3] %}{{ loop.length }}{{ loop.last }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
         "3False3False"),
        ("{% for i in [1, 2] recursive %}{{ i }}{% else %}none{% endfor %}", "12"),
        ("{% set n = namespace(x=1) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "4"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}", "<a>"),
        ("{% if tools is not none %}tools{% else %}none{% endif %}", "none"),
        ("{% if pad_token is defined %}pad{% else %}undefined{% endif %}", "undefined"),
        ("{{ bos_token }}{{ thinking }}", "<s>"),
        ("a  \n  {% if true %}\nb\n  {% endif %}\nc\n", "a  \nb\nc"),
        ("{{ '<b>' }}", "<b>"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("kept_renderer")
def test_what_templates_may_use(template, expected):
    assert render(template) == expected


def test_the_time_and_variables():
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.datetime.now().year + d) for d in (-1, 0, 1)}
    assert render("{{ tools[0].name }} {{ mood }}", tools=[{"name": "look"}], mood="good") == "look good"
    assert render("{{ bos_token is defined }}", bos_token=None) == "False"


def test_several_conversations_at_once():
    chats = [[{"role": "user", "content": str(i)}] for i in range(3)]
    assert render_chats("{{ messages[0].content }}{{ x }}", chats, {"x": "!"}) == ["0!", "1!", "2!"]


def test_a_template_that_refuses_is_the_callers_error():
    with pytest.raises(InputError, match="refuses these messages: Conversation roles must alternate"):
        render(LLAMA2, [{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", float])
def test_only_json_goes_in(value):
    with pytest.raises(InputError, match="not a string, number, list or mapping"):
        render(CHATML, [{"role": "user", "content": value}])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "line 1: Expected an expression"),
        ("{{ 'x' ", "line 1"),
        ("{{ messages[5].content }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'x' %}", "loader"),
        ("{% import '/etc/passwd' as x %}", "loader"),
        ("{% extends 'x' %}", "loader"),
        ("{{ nothing() }}", "undefined"),
        ("{{ 'x'|nofilter }}", "nofilter"),
    ],
)
@pytest.mark.usefixtures("kept_renderer")
def test_faulty_templates_are_named(template, reason):
    with pytest.raises(ModelFormatError, match=reason):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ lipsum.__globals__['os'].popen('true').read() }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['sys'] }}",
        "{{ (''|attr('format'))('{0.__class__}') and messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.pop() }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.__class__ }}",
        "{{ ''['__class__'].__base__ }}",
        "{% set x = namespace() %}{% set x.__class__ = 1 %}",
        "{{ ('%c' % 95)|format and ''|attr('__class__')|attr('__base__') }}",
    ],
)
@pytest.mark.rotating(7)
@pytest.mark.usefixtures("kept_renderer")
def test_the_sandbox_holds(template):
    try:
        assert "class" not in render(template)
    except ModelFormatError as error:
        assert "unsafe" in str(error) or "Error" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in [[[]]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ 'a' * 10**8 }}",
        "{{ [0] * 10**10 }}",
        "{{ 'x'|center(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ ('a' * 10**6).replace('a', 'a' * 10**6) }}",
        "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "{{ lipsum(n=100000) }}",
        "{{ range(99999)|map('string')|join('a' * 10000) }}",
        "{{ (9 ** 9999999) % 7 }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ 1" + " + 1" * 60000 + " }}",
    ],
)
@pytest.mark.rotating(7)
def test_runaway_templates_are_stopped(template):
    with pytest.raises(ModelFormatError, match="more than|too much|too deep|too large|Range|Error"):
        render(template)


def test_source_and_output_are_limited():
    with pytest.raises(ModelFormatError, match="more than 262144 bytes"):
        render("é" * (128 * 1024 + 1))
    assert render("x" * (256 * 1024)) == "x" * (256 * 1024)
    with pytest.raises(ModelFormatError, match=r"writes more than 26\d{4} characters"):
        render("{{ 'a' * 300000 }}")
    long = [{"role": "user", "content": "a" * 600_000}]
    assert len(render("{{ (messages[0].content * 14)[:8388608] }}", long)) == 8388608
    with pytest.raises(ModelFormatError, match="more than 8388608 characters"):
        render("{{ (messages[0].content * 14)[:8388609] }}", long)


def test_a_refusal_of_any_length_is_an_error_of_ours():
    with pytest.raises(InputError) as refused:
        render("{{ raise_exception('no' * 10**6) }}")
    assert len(str(refused.value)) < 3000


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def renderer():
    made = Renderer()
    yield made
    made.close()


def rendered(renderer: Renderer, template: str, *said: str) -> list[str]:
    return render_chats(template, [[{"role": "user", "content": text}] for text in said], {}, renderer)


def test_a_renderer_says_what_a_process_of_its_own_does(renderer):
    for text in ("one", "two", "three"):
        assert rendered(renderer, "{{ messages[0].content }}{{ seen }}", text) == [text]
    chats = [[{"role": "user", "content": text}] for text in ("a", "b é 🙂")]
    assert render_chats(CHATML, chats, {}, renderer) == render_chats(CHATML, chats, {})
    with pytest.raises(InputError, match="refuses these messages: no"):
        rendered(renderer, "{{ raise_exception('no') }}", "x")
    with pytest.raises(ModelFormatError, match="line 1"):
        rendered(renderer, "{% for %}", "x")


@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(i=0) %}{% for i in range(9) %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}",
        "{% macro say(x) %}{{ x }}{% endmacro %}{{ say(messages[0].content) }}",
        "{{ [1, 2, 3, 4, 5, 6, 7, 8, 9] | random }}",
    ],
)
def test_nothing_of_a_template_is_there_for_the_next(renderer, template):
    before = rendered(renderer, "{{ say is defined }} {{ n is defined }} {{ messages | length }}", "a")
    rendered(renderer, template, "secret")
    assert rendered(renderer, "{{ say is defined }} {{ n is defined }} {{ messages | length }}", "a") == before


def test_a_template_that_was_stopped_harms_none_after_it(renderer):
    process_id = renderer._running()._process.pid
    with pytest.raises(ModelFormatError, match="more than"):
        rendered(renderer, ENDLESS, "x")
    with pytest.raises(ModelFormatError, match=r"was stopped: it takes more than 1 s of processor time or 512 MiB"):
        rendered(renderer, "{{ ((messages | length) + 8) ** 9999999 % 7 }}", "x")
    assert rendered(renderer, "after", "x") == ["after"]
    assert renderer._running()._process.pid == process_id, "what was stopped was another"
    with pytest.raises(ModelFormatError, match=r"was stopped: it takes more than 1 s of processor time or 512 MiB"):
        rendered(renderer, "{{ 9 ** 9999999 % 7 }}", "x")  # constants are computed when a template is compiled
    assert rendered(renderer, "after", "x") == ["after"]


def test_a_template_is_compiled_anew_when_it_is_another(renderer):
    for _ in range(2):
        for text in ("x", "y"):
            assert rendered(renderer, "{{ messages[0].content }}", text) == [text]
            assert rendered(renderer, "2 {{ messages[0].content }}", text) == [f"2 {text}"]
            with pytest.raises(ModelFormatError, match="line 1: Expected an expression"):
                rendered(renderer, "{% for %}", text)
            with pytest.raises(ModelFormatError, match="too much memory"):
                rendered(renderer, "{{ 'a' * 10**10 }}", text)


def test_a_process_that_died_while_it_waited_is_not_asked(renderer):
    waiting = renderer._running()
    waiting._process.kill()
    waiting._process.wait()
    assert rendered(renderer, "alive", "x") == ["alive"]


def test_a_child_starts_a_process_of_its_own(renderer):
    parents = renderer._running()
    child = os.fork()
    if child == 0:
        found = None
        try:
            found = rendered(renderer, "child", "x")
        finally:
            os._exit(0 if found == ["child"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert parents.runs, "the child has left it alone"
    assert rendered(renderer, "parent", "x") == ["parent"]


def test_threads_take_turns(renderer):
    found: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: rendered(renderer, "{{ messages[0].content }}", str(n))}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: [str(n)] for n in range(8)}


def test_a_machine_that_cannot_start_processes_says_so(monkeypatch):
    monkeypatch.setattr(process.sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="no Python process"):
        render(CHATML)


def test_a_worker_that_breaks_says_so(monkeypatch):
    monkeypatch.setattr(process.sys, "path", [])
    with pytest.raises(ModelFormatError, match="could not be run: ModuleNotFoundError"):
        render(CHATML)
