"""Chat templates with all that the families' own use, equal to transformers' rendering; and every place for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipex_lookahead.errors import InputError, ModelFormatError
from ipex_lookahead.tokenization import folder as folder_module
from ipex_lookahead.tokenization.chat_template import render_chats
from ipex_lookahead.tokenization.folder import text_from_folder
from ipex_lookahead.tokenization.gguf import text_from_gguf
from tests.support.tool_templates import TOOL_TEMPLATES

pytestmark = pytest.mark.usefixtures("kept_renderer")

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather: <b>rain</b> & 'sun'.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Köln", "東京"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = {"type": "function", "id": "abc123xyz", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
PLAIN = [
    {"role": "user", "content": " Hi é 🙂 "},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "?"},
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "plain": PLAIN,
    "system": [{"role": "system", "content": "Be brief."}, *PLAIN],
    "reasoning": [
        PLAIN[0],
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "reasoning_content": "let me see"},
        PLAIN[2],
    ],
    "tools": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "def456uvw"}], "thinking": "look"},
        {"role": "tool", "name": "weather", "tool_call_id": "abc123xyz", "content": '{"rain": true}'},
        {"role": "tool", "name": "weather", "tool_call_id": "def456uvw", "content": "sun"},
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": "Thanks"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}],
}

THINKING = """
{%- macro open(who) %}{{ '<' ~ who ~ '>' }}{% endmacro %}
{%- set seen = namespace(user=-1, calls=0) %}
{%- for turn in messages[::-1] %}
    {%- if seen.user < 0 and turn.role == 'user' and turn.content is string and not turn.content.startswith('{') %}
        {%- set seen.user = loop.revindex0 %}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{- 'can call: ' }}
    {%- for tool in tools %}{{- tool | tojson ~ ('\\n' if not loop.last else '') }}{%- endfor %}
{%- elif messages[0].role == 'system' %}{{- messages[0].content }}
{%- endif %}
{%- for turn in messages %}
    {%- set text = turn.content if turn.content is string else '' %}
    {%- if turn.role == 'assistant' %}
        {%- set thought = turn.reasoning_content if turn.reasoning_content is string else none %}
        {%- if thought is none and '</think>' in text %}
            {%- set thought = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- endif %}
        {{- open('model') }}
        {%- if thought and (loop.last or loop.index0 > seen.user) %}{{- '(' ~ thought.strip('\\n') ~ ')' }}{%- endif %}
        {{- text.split('</think>')[-1].lstrip('\\n') }}
        {%- for call in turn.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {%- set seen.calls = seen.calls + 1 %}
            {{- seen.calls ~ call.name ~ (call.arguments if call.arguments is string else call.arguments | tojson) }}
        {%- endfor %}
    {%- elif turn.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- open('results') }}{%- endif %}
        {{- text }}
        {%- if not (not loop.last and messages[loop.index0 + 1].role == 'tool') %}{{- '</results>' }}{%- endif %}
    {%- elif not (loop.first and turn.role == 'system') %}{{- open(turn.role) ~ text }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- open('model') }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '()' }}{%- endif %}
{%- endif %}"""

CHECKED = """{{- bos_token }}
{%- set told = 'It is ' + strftime_now('%Y') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set told, turns = messages[0]['content'], messages[1:] %}
{%- else %}{%- set turns = messages %}
{%- endif %}
{{- '{' + told + '}' }}
{%- set asked = turns | selectattr('role', 'equalto', 'user') | list %}
{%- for turn in turns | rejectattr('role', 'equalto', 'system') %}
    {%- if turn['role'] == 'user' %}
        {%- if tools is not none and turn == asked[-1] %}
            {%- for tool in tools %}
                {%- for name, value in tool.function.items() if name != 'description' %}
                    {{- name + ': ' + (value if value is string else value | tojson) + ('' if loop.last else '; ') }}
                {%- endfor %}
            {%- endfor %}
        {%- endif %}
        {%- if turn['content'] is string %}{{- '[' + turn['content'] + ']' }}
        {%- else %}
            {%- for part in turn['content'] | sort(attribute='text', reverse=true) %}
                {{- part['text'] if part['type'] == 'text' else raise_exception('pictures are not for this model') }}
            {%- endfor %}
        {%- endif %}
    {%- elif turn['tool_calls'] is defined and turn['tool_calls'] | length > 0 %}
        {%- for call in turn.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}
                {{- raise_exception('a call is numbered with nine characters, not with ' + call.id) }}
            {%- endif %}
            {{- call.id + call.function.arguments | tojson | string }}
        {%- endfor %}
    {%- elif turn['role'] == 'tool' %}{{- turn.content.content if turn.content.content is defined else turn.content }}
    {%- else %}{{- turn['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}"""

TYPED = """{#- Types in the way of a programming language -#}
{%- macro kind(of, required=[], depth=0) -%}
    {%- if of.enum -%}{{- of.enum | join(' or ') -}}
    {%- elif of.type is iterable and of.type is not string and of.type is not mapping -%}{{- of.type | join('|') -}}
    {%- elif of.properties is mapping -%}
        {%- for name, inner in of.properties | dictsort -%}
            {{- '  ' * depth + name + ('' if name in (of.required or []) else '?') + ': ' -}}
            {{- kind(inner, required=of.required, depth=depth + 1) + '\\n' -}}
        {%- endfor -%}
    {%- else -%}{{- of.type or 'anything' -}}
    {%- endif -%}
{%- endmacro -%}
{%- if identity is not defined %}{%- set identity = 'someone' %}{%- endif %}
{{- '<|start|>' + identity + strftime_now(' %Y ') + (reasoning_effort | default('medium')) }}
{%- set turns = messages[1:] if messages[0].role in ['developer', 'system'] else messages %}
{%- for tool in tools or [] %}{{- tool.function.name + '\\n' + kind(tool.function.parameters) }}{%- endfor %}
{%- set call = namespace(name=none) %}
{%- for turn in turns -%}
    {%- if turn.role == 'assistant' and 'tool_calls' in turn -%}
        {%- set rest = namespace(answered=false) %}
        {%- for later in turns[loop.index:] %}
            {%- if later.role == 'assistant' %}{%- set rest.answered = true %}{%- break %}{%- endif %}
        {%- endfor %}
        {%- if turn.thinking and not rest.answered %}{{- '<|thought|>' + turn.thinking }}{%- endif %}
        {%- set call.name = turn.tool_calls[-1].function.name %}
        {{- '<|call|>' + call.name + turn.tool_calls[0].function.arguments | tojson(indent=2) }}
    {%- elif turn.role == 'tool' -%}
        {%- if call.name is none %}{{- raise_exception('nothing was called') }}{%- endif %}
        {{- call.name + ' said ' + turn.content | tojson(ensure_ascii=true) }}
    {%- else -%}
        {%- if turn.content is not string %}{% continue %}{%- endif %}
        {{- '<|' + turn.role + '|>' + turn.content + ('(' + turn.thinking + ')' if turn.thinking else '') }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""

TEMPLATES = {"qwen3": THINKING, "mistral": CHECKED, "gpt_oss": TYPED,
             **{f"{family}, tools": template for family, template in TOOL_TEMPLATES.items()}}  # fmt: skip
"""By the family whose own template has those features: among them namespaces, recursive macros, loops with conditions,
``break`` and ``continue``, the time, JSON in each of its forms, and refusals."""


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.rotating(14)
def test_what_the_families_use(family: str, chat: str) -> None:
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered = 0
    for told in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False, "tools": [WEATHER]},
        {
            "add_generation_prompt": True,
            "enable_thinking": False,
            "reasoning_effort": "low",
        },
        {"tools": [WEATHER]},
    ):
        told |= {"bos_token": "<s>", "eos_token": "</s>"}
        try:
            expected, _ = render_jinja_template([CHATS[chat]], chat_template=TEMPLATES[family], **told)
        except (TemplateError, TypeError) as error:  # the template refuses, or adds a list to a text
            expected, problem = "", str(error)
        else:
            problem = ""
        if problem:
            with pytest.raises((InputError, ModelFormatError)) as caught:
                render_chats(TEMPLATES[family], [CHATS[chat]], told)
            assert problem in str(caught.value)
        else:
            assert render_chats(TEMPLATES[family], [CHATS[chat]], told) == [expected[0]]
            rendered += 1
    assert rendered or (family, chat) in REFUSED


REFUSED = {("granite, tools", "parts")}


def test_tools_and_variables_reach_the_template(tmp_path: Path, bpe_metadata: dict[str, Any]) -> None:
    tokenizer = text_from_gguf({**bpe_metadata, "tokenizer.chat_template": THINKING}, "x.gguf")
    full = tokenizer.for_transformers()
    for variables in ({}, {"enable_thinking": False}, {"tools": [WEATHER]}):
        options: dict[str, Any] = {"add_generation_prompt": True, "tokenize": False, **variables}
        text = tokenizer.apply_chat_template(PLAIN, **options)
        assert text == full.apply_chat_template(PLAIN, **options)
        assert (text.endswith("()"), "can call" in text) == ("enable_thinking" in variables, "tools" in variables)


def folder_of(path: Path, bpe_core: Any, **settings: Any) -> Path:
    bpe_core.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **settings}), encoding="utf-8")
    return path


def test_where_templates_are_found(tmp_path: Path, bpe_core: Any) -> None:
    """The setting goes before a processor's file, a file of its own before both; named ones come besides."""
    folder = folder_of(tmp_path, bpe_core)

    def found() -> Any:
        made = text_from_folder(folder, {})
        assert made is not None
        return made.chat_template

    assert found() is None
    (folder / "chat_template.json").write_text('{"chat_template": "processor"}', encoding="utf-8")
    assert found() == "processor"
    folder_of(tmp_path, bpe_core, chat_template="setting")
    assert found() == "setting"
    (folder / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert found() == "file"
    named = folder / "additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text("{{ tools[0].function.name }}", encoding="utf-8")
    assert found() == {"default": "file", "tool_use": "{{ tools[0].function.name }}"}
    made = text_from_folder(folder, {})
    assert made is not None
    assert made.apply_chat_template(PLAIN) == "file"
    assert made.apply_chat_template(PLAIN, tools=[WEATHER]) == "weather"


def test_transformers_finds_the_same(tmp_path: Path, bpe_core: Any) -> None:
    from transformers import AutoTokenizer

    named = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    for settings in ({"chat_template": "one"}, {"chat_template": named}):
        folder = folder_of(tmp_path, bpe_core, tokenizer_class="PreTrainedTokenizerFast", **settings)
        ours = text_from_folder(folder, {})
        assert ours is not None
        assert ours.chat_template == AutoTokenizer.from_pretrained(folder).chat_template
    (tmp_path / "saved").mkdir()
    ours.for_transformers().save_pretrained(tmp_path / "saved")
    again = text_from_folder(tmp_path / "saved", {})
    assert again is not None
    assert again.chat_template == {"default": "a", "rag": "b"}


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("chat_template.json", b'{"chat_template": 5}', "chat_template.json: chat_template: must be text"),
        ("chat_template.json", b"[]", "must be a JSON object"),
        ("chat_template.jinja", b"\xff", "is not UTF-8"),
        ("additional_chat_templates/x.jinja", b"\xff", "is not UTF-8"),
        ("additional_chat_templates/x.jinja", b"x" * (256 << 10) + b"x", "the maximum is"),
    ],
)
def test_files_that_hold_none(tmp_path: Path, bpe_core: Any, name: str, data: bytes, says: str) -> None:
    folder_of(tmp_path, bpe_core)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelFormatError, match=says):
        text_from_folder(tmp_path, {})


def test_a_folder_of_many_templates(tmp_path: Path, bpe_core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MOST_TEMPLATES", 2)
    folder_of(tmp_path, bpe_core)
    (tmp_path / "additional_chat_templates").mkdir()
    for name in "abc":
        (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(name, encoding="utf-8")
    with pytest.raises(ModelFormatError, match="holds more than 2 templates"):
        text_from_folder(tmp_path, {})


def test_named_templates_of_a_gguf_file(bpe_metadata: dict[str, Any]) -> None:
    more = {"tokenizer.chat_templates": ["tool_use", "none"], "tokenizer.chat_template.tool_use": "tools"}
    found = text_from_gguf({**bpe_metadata, **more}, "x.gguf").chat_template
    assert found == {"default": bpe_metadata["tokenizer.chat_template"], "tool_use": "tools"}
    with pytest.raises(ModelFormatError, match="tokenizer.chat_templates: must be an array of strings"):
        text_from_gguf({**bpe_metadata, "tokenizer.chat_templates": [1]}, "x.gguf")
