"""Templates written by hand: one for each rule that engines get wrong, and some like those of models."""

import conversations

CHAT_ML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
"""

MACROS = """{%- macro type_of(schema, depth=0) -%}
  {%- if schema.type is sequence and schema.type is not string -%}
    {{ schema.type | join(' | ') }}
  {%- elif schema.enum -%}
    {{ schema.enum | map('tojson') | join(' | ') }}
  {%- elif schema.type == 'array' -%}
    {{ type_of(schema['items'], depth + 1) }}[]
  {%- elif schema.type == 'object' -%}
{ {% for name, part in schema.properties.items() %}{{ name }}{{ '?' if name not in schema.get('required', []) }}: {{ type_of(part, depth + 1) }}{{ ', ' if not loop.last }}{% endfor %} }
  {%- else -%}
    {{ schema.type | default('any') }}{{ ' // ' ~ schema.minimum if schema.minimum is defined }}
  {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- for tool in tools | default([]) %}
// {{ tool.function.description }}
function {{ tool.function.name }}({{ type_of(tool.function.parameters) }})
{% endfor %}
{%- for message in messages %}
[{{ message.role | upper }}]{{ ' ' }}
{%- if message.content is string %}{{ message.content | trim }}
{%- elif message.content %}{% for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls | default([], true) %}
 -> {{ call.function.name }}({% for k, v in (call.function.arguments | items if call.function.arguments is mapping else []) %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}{% endfor %})
{%- endfor %}
{% generation %}{{ eos_token if message.role == 'assistant' }}{% endgeneration %}
{%- endfor %}
{%- if not messages %}{{ raise_exception('Conversation is empty: ' ~ (messages | length)) }}{% endif %}
"""

# Each a template and, if it needs any, its variables.
RULES = [
    # Values are written as Python writes them.
    ("{{ ['a', 'b'] }}{{ {'a': 1, 2: none} }}{{ (1,) }}{{ [true, none, 1.0, \"it's\", 'a\"b', '\\n\\\\é\\x00\\u200b'] }}{{ {} }}{{ () }}", {}),
    ("{{ none }}{{ true }}{{ 1.0 }}{{ 1e16 }}{{ 1e15 }}{{ 0.0001 }}{{ 0.00001 }}{{ 1e22 }}{{ -0.0 }}{{ 1/3 }}{{ 100000.0 * 3 }}", {}),
    ("{{ values }}|{{ values | tojson }}|{{ values | tojson(indent=2) }}|{{ values | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}",
     {"values": {"z": [2**64 - 1, 2**63, -(2**63), 10**40, -(10**25), 48.856613, 123456789.125, 1.0, 1e16, 5e-324, 0.1, 1e100], "a": "é\x7f\x1f</\u2028😀", "k": None, "ü": {}}}),
    ("{{ d.items() }}{{ d.keys() }}{{ d.values() }}{{ range(3) }}{{ range(1, 9, 2) }}", {"d": {"a": 1}}),
    ("{{ namespace(a=1, b=[2]) }}{% macro m() %}{% endmacro %}{{ m }}", {}),
    # Variables: loops and macros have their own.
    ("{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", {}),
    ("{% macro m() %}[{{ x }}{{ i }}{{ y }}]{% endmacro %}{% set y = 5 %}{% for i in [1] %}{% set x = 2 %}{{ m() }}{% endfor %}", {}),
    ("{% for i in [1] %}{% macro m() %}[{{ i }}{{ x }}]{% endmacro %}{% set x = 3 %}{{ m() }}{% endfor %}{{ m is defined }}", {}),
    ("{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% set x = 1 %}{{ m() }}", {"x": 5}),
    ("{% set x %}{{ x }}!{% endset %}{{ x }}", {"x": 5}),
    ("{% if x %}{% set x = x + 1 %}{% endif %}{{ x }}{% if false %}{% set y = 1 %}{% endif %}{{ y }}", {"x": 5, "y": 6}),
    ("{% with x = 2, y = x %}{{ x }}{{ y }}{% set x = 3 %}{{ x }}{% endwith %}{{ x }}", {"x": 1}),
    ("{% set ns = namespace(n=0) %}{% for i in range(5) if ns.n < 3 %}{% set ns.n = ns.n + i %}{{ i }}{% endfor %}{{ ns.n }}", {}),
    ("{% set ns = namespace(n=0) %}{% set ns.self = ns %}{{ ns.self.self.n }}", {}),
    ("{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% set p, q = 1, [2] %}{{ p }}{{ q }}", {}),
    ("{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{{ loop.index }}{% else %}none{% endfor %}", {}),
    ("{% for x in [] %}{{ x }}{% else %}none{% endfor %}{{ loop }}", {}),
    ("{% for x in [3, 1, 1] %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.changed(x) }} {{ loop.cycle('a', 'b') }} {{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop }}\n{% endfor %}", {}),
    ("{% for n in tree recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{{ loop.depth }}{% endfor %}", {"tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3}]}]}),
    ("{% macro f(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, 4, 5) }}{{ f(b=1, z=2) }}", {}),
    ("{% macro f(a) %}<{{ caller(a, 2) }}>{% endmacro %}{% call(x, y=9, z=8) f(1) %}{{ x }}{{ y }}{{ z }}{{ a }}{% endcall %}", {}),
    ("{% macro f() %}{% endmacro %}{{ f(1) }}", {}),
    ("{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}", {}),
    # Characters, not bytes.
    ("{{ s | length }}{{ s[1] }}{{ s[::-1] }}{{ s[2:5] }}{{ s.find('ß') }}{{ s | upper }}{{ s | lower }}{{ s | title }}{{ s | capitalize }}{{ s | center(20) }}|{{ s.title() }}{{ s.swapcase() }}", {"s": "äöÜ straße ΟΔΟΣ ǆ日本"}),
    ("[{{ s | trim }}][{{ s.strip() }}][{{ s.rstrip('\\u3000') }}][{{ s.split() }}][{{ s.split(none, 1) }}][{{ s | replace('', '-') }}]", {"s": "\u00a0\u2003a  b\u3000"}),
    ("{% for c in s %}{{ c }}.{% endfor %}{{ s | list }}{{ s | first }}{{ s | last }}{{ s | reverse }}{{ s | truncate(3, true, '…', 0) }}", {"s": "日本語テキスト"}),
    # Defaults and undefined values.
    ("{{ none | default('d') }}|{{ none | default('d', true) }}|{{ u | default('d') }}|{{ '' | d('e', true) }}|{{ u.x is defined if u is defined else 'no' }}|[{{ u }}]|{{ u is none }}{{ d.nope }}{{ 'x' if false }}", {"d": {}}),
    ("{{ u.x }}", {}), ("{{ u + 'a' }}", {}), ("{{ u ~ 'a' }}{{ u == v }}{{ not u }}{{ u | list }}{{ u | length }}{{ u | upper }}", {}), ("{{ none.x }}", {}), ("{{ none['x'] }}|{{ 1 .x }}", {}),
    ("{{ d['items'] }}{{ d.get('k', 4) }}{{ d.k }}{{ d['__class__'] }}{{ d.__class__ }}", {"d": {"items": 3}}), ("{{ l.append(1) }}", {"l": []}), ("{{ d.pop('a') }}", {"d": {"a": 1}}),
    # White space.
    ("x{% if true %}y{% endif %}", {}), ("x{# c #}y", {}), ("\n{% if true %}\n  a\n  {% endif %}\n  {{ 1 }}\n b {#- c -#} d\n{%- set x = 1 +%}\n e\n", {}),
    ("  {%+ if true %}a{%+ endif %}\n\n {% raw -%} {{ x }} {%- endraw %}\nz\r\n{% if true -%}  \n b{% endif %}", {}), ("a\n\n", {}), ("{{ 'a' }}\n", {}), ("{{- ' a ' -}}  b", {}), ("\t{% set a = 1 %}\t{{ a }}{# x\ny #}\n", {}),
    # Arithmetic and comparisons.
    ("{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 // -2 }} {{ 7 % 3 }}{{ -7 % 3 }}{{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 6 / 2 }} {{ 2 ** 3 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ true + 1 }}", {}),
    ("{{ 1 / 0 }}", {}), ("{{ 0.1 + 0.2 }} {{ 1e308 * 10 }} {{ 9007199254740993 / 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}", {}), ("{{ 'a' + 1 }}", {}), ("{{ 9223372036854775807 == 9223372036854775807.0 }} {{ big > 1e30 }} {{ big == big2 }} {{ big | string | length }} {{ -big }}", {"big": 10**30 + 1, "big2": 10**30 + 1}),
    ("{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'a' < 'B' }}{{ [1, 2] < [1, 3] }}{{ 1 == 1.0 }}{{ 1 == true }}{{ '1' == 1 }}{{ none == false }}{{ 'b' in 'abc' }}{{ 'k' in {'k': 1} }}{{ 2 not in [1, 2] }}", {}), ("{{ 1 < 'a' }}", {}),
    ("{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42 | round }} {{ 2.1 | round(0, 'ceil') }} {{ '12abc' | int }} {{ '0x1A' | int(0, 16) }} {{ ' 42 ' | int }} {{ '3.9' | int }} {{ 'x' | float }} {{ '1e3' | float }} {{ 3.9 | int }} {{ -3.9 | int }}", {}),
    # Tests.
    ("{{ 1 is number }}{{ true is integer }}{{ 1.0 is float }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is mapping }}{{ 'a' is iterable }}{{ none is none }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'A' is upper }}{{ 1 is in [1] }}{{ x is not defined }}{{ range is callable }}{{ true is true }}{{ 1 is eq 1 }}{{ 1 is sameas true }}", {}),
    # Filters.
    ("{{ l | map(attribute='n') | join(',') }} {{ l | selectattr('n', 'gt', 1) | list | length }} {{ l | rejectattr('n', 'equalto', 2) | map(attribute='n') | list }} {{ l | sum(attribute='n') }} {{ l | groupby('k') }} {{ l | sort(attribute='n', reverse=true) | map(attribute='n') | list }} {% for k, v in l | groupby('k') %}{{ k }}{{ v | length }}{% endfor %}", {"l": [{"n": 2, "k": "b"}, {"n": 1, "k": "A"}, {"n": 3, "k": "a"}]}),
    ("{{ ['b', 'A', 'c', 'a'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ ['a', 'A', 'b'] | unique | list }} {{ [3, 1, 2] | max }} {{ ['b', 'a'] | min }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'b': 1, 'a': 2} | dictsort(false, 'value', true) }} {{ [1, 2, 3, 4, 5] | batch(2, 'x') | list }} {{ [1, 2, 3, 4, 5] | slice(3) | list }}", {}),
    ("{{ '<a href=\"x\">' | e }} {{ 'a b&c/d é' | urlencode }} {{ 123456789 | filesizeformat }} {{ 'a\nb' | indent(2, true) }} {{ '%s is %05.1f%%' | format('x', 2.25) }} {{ '%(a)s' % {'a': 1} }} {{ '{:>6}|{a[k]}|{0!r}'.format('é', a={'k': 2}) }} {{ 'hello-big (world)' | title }} {{ 'one two three four' | truncate(11) }}", {}),
    ("{{ [1, 2] | map('nosuch') | list }}", {}), ("{{ x | nosuch }}", {}), ("{% if false %}{{ x | nosuch }}{% endif %}a", {}), ("{% include 'x' %}", {}), ("{% unknown %}", {}), ("{{ x", {}), ("{% if x %}", {}), ("{{ }}", {}), ("{{ 'a' 'b' \"c\" }}{{ 'a\\tb\\x41\\u00e9\\q' }}", {}),
    ("{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'abc'.partition('b') }}{{ 'x'.join(['1', '2']) }}{{ 'abcabc'.replace('b', 'X', 1) }}{{ 'Abc'.isupper() }}{{ '²'.isdigit() }}{{ 'a'.zfill(3) }}{{ 'ab'.center(5, '*') }}{{ 'a\nb\r\nc'.splitlines() }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abcb'.index('b', 2) }}{{ 'ab'.removeprefix('a') }}", {}),
    ("{% filter upper %}a{{ 'b' }}{% endfilter %}{% set t | trim | upper %} x {% endset %}[{{ t }}]{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}x{{ j() }}y", {}),
    ("{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}{{ g is iterable }}", {}), ("{{ dict(a=1, b=2) }}{{ dict([('x', 1)], y=2) }}{{ raise_exception('no') }}", {}), ("{% block a %}x{{ y }}{% endblock %}{% print 1, 'a' %}", {"y": 2}), ("{{ x.y.z }}{{ l[0].a }}{{ l.0.a }}{{ l[-1]['a'] }}{{ l[5] }}{{ l | last | string }}", {"x": {"y": {"z": 1}}, "l": [{"a": 1}]}),
]


def cases():
    for name, template in (("chatml", CHAT_ML), ("macros", MACROS)):
        for conversation, context in conversations.contexts():
            yield {"name": f"{name}, {conversation}", "mode": "chat", "template": template, "context": context}
    for mode in ("chat", "task"):
        for number, (template, context) in enumerate(RULES):
            yield {"name": f"rule {number}", "mode": mode, "template": template, "context": context}
