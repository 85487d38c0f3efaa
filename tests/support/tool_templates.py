"""Chat templates in the ways of families that write calls of tools, each with what its own template uses of Jinja."""

from __future__ import annotations


def changed(template: str, *pairs: tuple[str, str]) -> str:
    """A template with texts in place of others that it has."""
    for old, new in pairs:
        assert old in template
        template = template.replace(old, new)
    return template


QWEN35 = """
{%- macro said(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for part in content %}
            {%- if 'image' in part or part.type == 'image' %}{{- raise_exception('no pictures here') }}
            {%- elif 'text' in part %}{{- part.text }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('what is that') }}{%- endif %}
{%- endmacro %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nCall with <tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>' }}
    {{- '\\n</function>\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(asked=messages | length - 1, open=true) %}
{%- for turn in messages[::-1] %}
    {%- set text = said(turn.content) | trim %}
    {%- if ns.open and turn.role == 'user' and not (text.startswith('<r>') and text.endswith('</r>')) %}
        {%- set ns.open = false %}{%- set ns.asked = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for turn in messages %}
    {%- set text = said(turn.content) | trim %}
    {%- if turn.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.asked %}
            {%- set thought = turn.reasoning_content if turn.reasoning_content is string else '' %}
            {{- '<think>\\n' + thought | trim + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- text }}
        {%- if turn.tool_calls and turn.tool_calls is iterable and turn.tool_calls is not mapping %}
            {%- for call in turn.tool_calls %}
                {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
                {{- ('\\n\\n' if loop.first and text | trim else '' if loop.first else '\\n') }}
                {{- '<tool_call>\\n<function=' + call.name + '>\\n' }}
                {%- if call.arguments is defined %}
                    {%- for key, value in call.arguments | items %}
                        {{- '<parameter=' + key + '>\\n' }}
                        {%- set list = value is sequence and value is not string %}
                        {%- set value = value | tojson | safe if value is mapping or list else value | string %}
                        {{- value }}{{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif turn.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<r>' + text + '</r>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}{{- '<|im_start|>' + turn.role + '\\n' + text + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and enable_thinking is false else '<think>\\n' }}
{%- endif %}"""

LFM2 = """{{- bos_token -}}
{%- macro literal(value) -%}
    {%- if value is string -%}{{- '"' + value + '"' -}}
    {%- elif value is mapping -%}{{- value | tojson -}}
    {%- else -%}{{- value | string -}}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(system='', calls=[]) -%}
{%- if messages[0]['role'] == 'system' -%}
    {%- set ns.system = messages[0].get('content') or '' -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system = ns.system + ('\\n' if ns.system else '') + 'List of tools: [' -%}
    {%- for tool in tools -%}
        {%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}
        {%- set ns.system = ns.system + tool + ('' if loop.last else ', ') -%}
    {%- endfor -%}
    {%- set ns.system = ns.system + ']' -%}
{%- endif -%}
{%- if ns.system -%}{{- '<|im_start|>system\\n' + ns.system + '<|im_end|>\\n' -}}{%- endif -%}
{%- for turn in messages -%}
    {{- '<|im_start|>' + turn.role + '\\n' -}}
    {%- if turn.role == 'assistant' -%}
        {%- generation -%}
        {%- if turn.content is defined -%}{{- turn.content.split('</think>')[-1] | trim -}}{%- endif -%}
        {%- if turn.tool_calls is defined -%}
            {%- set ns.calls = [] -%}
            {%- for call in turn.tool_calls -%}
                {%- set made = namespace(parts=[]) -%}
                {%- for key, value in call['function']['arguments'].items() -%}
                    {%- set made.parts = made.parts + [key + '=' + literal(value)] -%}
                {%- endfor -%}
                {%- set ns.calls = ns.calls + [call['function']['name'] + '(' + made.parts | join(', ') + ')'] -%}
            {%- endfor -%}
            {{- '<|tool_call_start|>[' + ns.calls | join(', ') + ']<|tool_call_end|>' -}}
        {%- endif -%}
        {%- endgeneration -%}
    {%- elif turn.content is string -%}{{- turn.content -}}
    {%- else -%}{{- turn.content | tojson -}}
    {%- endif -%}
    {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

LFM2_PLAIN = """{{- bos_token -}}
{%- if tools -%}{{- 'List of tools: <|tool_list_start|>' + tools | tojson + '<|tool_list_end|>' -}}{%- endif -%}
{%- for turn in messages -%}
    {%- set text = turn['content'] if turn['content'] is string else turn['content'] | tojson -%}
    {{- '<|im_start|>' + turn['role'] + '\\n' + text + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

GRANITE4 = """{%- set opening = 'Tools:\\n<tools>' %}
{%- set ns = namespace(tools=opening, system='') %}
{%- if tools %}
    {%- for tool in tools %}{%- set ns.tools = ns.tools + '\\n' + (tool | tojson) %}{%- endfor %}
    {%- set ns.tools = ns.tools + '\\n</tools> as <tool_call>\\n{"name": .., "arguments": ..}\\n</tool_call>' %}
{%- else %}{%- set ns.tools = '' %}{%- endif %}
{%- if messages[0].role == 'system' and messages[0].content is string %}
    {%- set ns.system = messages[0].content %}
{%- endif %}
{%- if ns.system or ns.tools %}{{- '<|role|>system<|>' + ns.system + ns.tools + '<|end|>\\n' }}{%- endif %}
{%- for turn in messages %}
    {%- set text = namespace(all='') %}
    {%- if turn.content is string %}{%- set text.all = turn.content %}
    {%- elif turn.content is iterable %}
        {%- for part in turn.content if part.type == 'text' %}
            {%- set text.all = text.all + ('\\n' if text.all != '' else '') + part.text %}
        {%- endfor %}
    {%- endif %}
    {%- if turn.role == 'user' or turn.role == 'system' and not loop.first %}
        {{- '<|role|>' + turn.role + '<|>' + text.all + '<|end|>\\n' }}
    {%- elif turn.role == 'assistant' %}
        {{- '<|role|>assistant<|>' + text.all }}
        {%- for call in turn.tool_calls or [] %}
            {%- if loop.first and text.all or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif turn.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|role|>user<|>' }}{%- endif %}
        {{- '<r>' + text.all + '</r>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|role|>assistant<|>' }}{%- endif %}"""

GRANITE3 = """{%- if tools and not available_tools -%}{%- set available_tools = tools -%}{%- endif -%}
{%- if messages[0]['role'] == 'system' %}{%- set told = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}{%- set told = 'In ' + strftime_now('%Y') + '.' %}{%- set turns = messages %}{%- endif %}
{%- if available_tools %}{%- set told = told + ' Call with <|tool_call|> and a list.' %}{%- endif %}
{{- '<|role|>system<|>' + told }}
{%- if available_tools %}{{- available_tools | tojson(indent=4) }}{%- endif %}
{%- for turn in turns %}
    {{- '<|role|>' + turn['role'] + '<|>' + turn['content'] + '<|end|>\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|role|>assistant<|>' }}{%- endif %}
{%- endfor %}"""

NEMOTRON2 = """{%- set ns = namespace(think=true) -%}
{%- for turn in messages -%}
    {%- if turn['role'] in ('user', 'system') and turn['content'] is string -%}
        {%- if '/think' in turn['content'] -%}{%- set ns.think = true -%}
        {%- elif '/no_think' in turn['content'] -%}{%- set ns.think = false -%}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{{- '<S>System\\n' -}}
{%- if messages[0]['role'] == 'system' -%}
    {{- (messages[0]['content'] | default('', true)).replace('/think', '').replace('/no_think', '').strip() -}}
{%- endif -%}
{%- if tools -%}{{- '<TOOLS>[' -}}
    {%- for tool in tools -%}
        {{- (tool.function if tool.function is defined else tool) | tojson -}}{{- ', ' if not loop.last else '' -}}
    {%- endfor -%}{{- '] call with <TOOLCALL>[..]</TOOLCALL>' -}}
{%- endif -%}
{%- set messages = messages[1:] if messages[0]['role'] == 'system' else messages -%}
{%- for turn in messages -%}
    {%- if turn['role'] == 'tool' -%}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<R>[' -}}{%- endif -%}
        {{- turn['content'] -}}
        {{- ', ' if not loop.last and messages[loop.index0 + 1].role == 'tool' else ']</R>\\n' -}}
    {%- elif turn['role'] == 'assistant' -%}
        {%- set text = turn['content'] -%}
        {%- if text and '</think>' in text -%}
            {%- set text = (text.split('</think>')[1] | default('', true)).strip() -%}
        {%- endif -%}
        {{- '<A>' + (text | default('', true)).strip() -}}
        {%- if turn.tool_calls -%}{{- '<TOOLCALL>[' -}}
            {%- for call in turn.tool_calls -%}
                {%- set made = call.function if call.function is defined else call -%}
                {{- '{"name": "' + made.name + '", "arguments": ' -}}
                {{- made.arguments if made.arguments is string else made.arguments | tojson -}}
                {{- '}' + (', ' if not loop.last else '') -}}
            {%- endfor -%}{{- ']</TOOLCALL>' -}}
        {%- endif -%}{{- '\\n' -}}
    {%- elif turn['content'] is string -%}{{- '<U>' + turn['content'].strip() + '\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<A>' + ('<think>\\n' if ns.think else '<think></think>') -}}{%- endif -%}"""

GLM46 = """[gMASK]<sop>
{%- if tools -%}
<|system|>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
<tool_call>{name}
<arg_key>{key}</arg_key>
<arg_value>{value}</arg_value>
</tool_call>{%- endif -%}
{%- macro text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part is mapping and part.type == 'text' -%}{{- part.text }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{{- '\\n<think></think>' }}
{%- if text(m.content).strip() -%}{{ '\\n' + text(m.content).strip() }}{%- endif -%}
{% for tc in m.tool_calls or [] %}
{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set args = tc.arguments or {} %}
{% if args is not mapping %}
    {{ raise_exception('arguments are ' + args | string) }}
{% endif %}
{% for k, v in args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{%- endif %}
{{- '\\n<r>' ~ m.content ~ '</r>' }}
{%- elif m.role == 'system' -%}
<|system|>
{{ text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}"""

GLM47 = changed(
    GLM46,
    ("{name}\n<arg_key>{key}</arg_key>\n<arg", "{name}<arg_key>{key}</arg_key><arg"),
    ("</arg_value>\n</tool_call>{%- endif", "</arg_value></tool_call>{%- endif"),
    ("{{ '\\n<tool_call>' + tc.name }}\n", "{{- '<tool_call>' + tc.name -}}\n"),
    ("items() %}\n<arg_key>{{ k }}</arg_key>\n<arg", "items() %}<arg_key>{{ k }}</arg_key><arg"),
    ("</arg_value>\n{% endfor %}\n</tool_call>", "</arg_value>{% endfor %}</tool_call>"),
)

DEEPSEEK3 = """{% if not add_generation_prompt is defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}
{%- set ns = namespace(first=true, system='', tool=false) -%}
{%- for turn in messages -%}
    {%- if turn['role'] == 'system' -%}{%- set ns.system = ns.system + turn['content'] -%}{%- endif -%}
{%- endfor -%}{{ bos_token }}{{ ns.system }}
{%- for turn in messages -%}
    {%- if turn['role'] == 'user' -%}{{ '<｜User｜>' ~ turn['content'] }}
    {%- elif turn['role'] == 'assistant' and turn['content'] is none -%}
        {{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
        {%- for tool in turn['tool_calls'] -%}
            {{ '' if loop.first else '\\n' }}
            {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] }}
            {{- '\\n```json\\n' + tool['function']['arguments'] + '\\n```' + '<｜tool▁call▁end｜>' }}
        {%- endfor -%}{{ '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif turn['role'] == 'assistant' -%}
        {{ '<｜Assistant｜>' + turn['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}
    {%- elif turn['role'] == 'tool' -%}{{ '<｜tool▁output▁begin｜>' + turn['content'] + '<｜tool▁output▁end｜>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜><think>\\n' }}{%- endif -%}"""

DEEPSEEK31 = changed(
    DEEPSEEK3,
    ("turn['content'] is none", "turn['tool_calls']"),
    ("tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] }}", "tool['function']['name'] + '<｜tool▁sep｜>' }}"),
    ("'\\n```json\\n' + tool['function']['arguments'] + '\\n```' + ", "tool['function']['arguments'] | tojson + "),
    ("'' if loop.first else '\\n'", "''"),
)

GEMMA4 = """
{%- macro value(it, marked=True) -%}
    {%- if it is none -%}{{- 'null' -}}
    {%- elif it is string -%}{{- '<|"|>' + it + '<|"|>' -}}
    {%- elif it is boolean -%}{{- 'true' if it else 'false' -}}
    {%- elif it is mapping -%}{{- '{' -}}
        {%- for key, one in it | dictsort -%}
            {{- '' if loop.first else ',' -}}{{- '<|"|>' + key + '<|"|>' if marked else key -}}
            :{{- value(one, marked) -}}
        {%- endfor -%}{{- '}' -}}
    {%- elif it is sequence -%}{{- '[' -}}
        {%- for one in it -%}{{- '' if loop.first else ',' -}}{{- value(one, marked) -}}{%- endfor -%}{{- ']' -}}
    {%- else -%}{{- it -}}{%- endif -%}
{%- endmacro -%}
{%- macro unthought(text) -%}
    {%- set ns = namespace(said='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set ns.said = ns.said + part.split('<|channel>')[0] -%}
    {%- endfor -%}{{- ns.said | trim -}}
{%- endmacro -%}
{%- macro words(content, own) -%}
    {%- if content is string -%}{{- unthought(content) if own else content | trim -}}
    {%- elif content is sequence -%}
        {%- for part in content if part.get('type') == 'text' -%}{{- part['text'] | trim -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set enable_thinking = enable_thinking | default(false) -%}
{%- set ns = namespace(last=None, before=None, asked=-1) -%}
{%- set turns = messages -%}{{- bos_token -}}
{%- if enable_thinking or tools or messages[0]['role'] == 'system' -%}
    {{- '<|turn>system\\n' -}}{%- if enable_thinking -%}{{- '<|think|>\\n' -}}{%- endif -%}
    {%- if messages[0]['role'] == 'system' -%}
        {{- words(messages[0]['content'], false) -}}{%- set turns = messages[1:] -%}
    {%- endif -%}
    {%- for tool in tools or [] %}{%- set it = tool['function'] -%}
        {{- '<|tool>declaration:' + it['name'] + '{description:' + value(it['description'] or '') -}}
        {%- if it['parameters'] -%}{{- ',parameters:' + value(it['parameters'], false) -}}{%- endif -%}
        {{- '}<tool|>' -}}
    {%- endfor %}{{- '<turn|>\\n' -}}
{%- endif %}
{%- for turn in turns -%}{%- if turn['role'] == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for turn in turns -%}{%- if turn['role'] != 'tool' -%}
    {%- set role = 'model' if turn['role'] == 'assistant' else turn['role'] -%}{%- set ns.last = None -%}
    {%- if not (role == 'model' and ns.before == 'assistant') -%}{{- '<|turn>' + role + '\\n' }}{%- endif -%}
    {%- set thought = turn.get('reasoning') or turn.get('reasoning_content') -%}
    {%- if thought and loop.index0 > ns.asked -%}{{- '<|channel>thought\\n' + thought + '\\n<channel|>' -}}{%- endif -%}
    {%- for call in turn.get('tool_calls') or [] -%}{%- set it = call['function'] -%}
        {{- '<|tool_call>call:' + it['name'] -}}
        {%- if it['arguments'] is mapping -%}{{- value(it['arguments'], false) -}}
        {%- else -%}{{- raise_exception('arguments are no mapping') -}}{%- endif -%}
        {{- '<tool_call|>' -}}{%- set ns.last = 'call' -%}
    {%- endfor -%}
    {%- if turn.get('tool_calls') -%}{%- set scan = namespace(over=false) -%}
        {%- for k in range(loop.index0 + 1, turns | length) -%}
            {%- if scan.over or turns[k]['role'] != 'tool' -%}{%- set scan.over = true -%}
            {%- else -%}{%- set found = namespace(name=turns[k].get('name') or 'unknown') -%}
                {%- for call in turn['tool_calls'] if call.get('id') == turns[k].get('tool_call_id') -%}
                    {%- set found.name = call['function']['name'] -%}
                {%- endfor -%}
                {{- '<|tool_response>response:' + found.name -}}
                {{- value({'value': words(turns[k]['content'], false)}, false) + '<tool_response|>' -}}
                {%- set ns.last = 'response' -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set said -%}{{- words(turn.get('content'), role == 'model') -}}{%- endset -%}{{- said -}}
    {%- if ns.last == 'call' -%}{{- '<|tool_response>' -}}
    {%- elif not (ns.last == 'response' and not said | trim | length > 0) -%}{{- '<turn|>\\n' -}}{%- endif -%}
    {%- set ns.before = turn['role'] -%}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if ns.last not in ('call', 'response') -%}{{- '<|turn>model\\n' -}}
        {%- if not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}
    {%- elif ns.last == 'response' and enable_thinking -%}{{- '<|channel>thought\\n' -}}{%- endif -%}
{%- endif -%}"""

GEMMA4_FIRST = changed(
    GEMMA4,
    ("{%- if it is none -%}{{- 'null' -}}\n    {%- elif it is string", "{%- if it is string"),
    ("{%- if turn['role'] != 'tool' -%}", "{%- if true -%}"),
    ("{%- if turn.get('tool_calls') -%}{%- set scan", "{%- if false -%}{%- set scan"),
    (" if call.get('id') == turns[k].get('tool_call_id')", ""),
    (
        "{%- set said -%}",
        "{%- for it in turn.get('tool_responses') or [] -%}\n        {{- '<|tool_response>response:' + it['name'] -}}\n"
        "        {{- value({'value': it['response']}, false) + '<tool_response|>' -}}{%- set ns.last = 'response' -%}\n"
        "    {%- endfor -%}\n    {%- set said -%}",
    ),
    ("{%- elif ns.last == 'response' and enable_thinking -%}{{- '<|channel>thought\\n' -}}", ""),
)

TOOL_TEMPLATES = {
    "qwen3_5": QWEN35, "lfm2_moe": LFM2, "lfm2": LFM2_PLAIN, "granitemoehybrid": GRANITE4, "granite": GRANITE3,
    "nemotron_h": NEMOTRON2, "glm4_moe": GLM46, "glm4_moe_lite": GLM47, "deepseek_v3": DEEPSEEK3,
    "deepseek_v3.1": DEEPSEEK31, "gemma4": GEMMA4, "gemma4, the first": GEMMA4_FIRST,
}  # fmt: skip
"""By a model of the family."""
