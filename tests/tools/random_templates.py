"""Random Jinja templates with contexts over the whole language, and how Python renders them.

Used by make_template_fixtures.py and scripts/check-templates. Needs jinja2.
"""

import datetime
import json
import random

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    """{% generation %}, as transformers defines it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_text")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def chat_environment():
    """The environment in which transformers renders chat templates."""

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


def task_environment():
    """The environment in which lm-evaluation-harness renders prompts."""
    return jinja2.Environment(
        loader=jinja2.BaseLoader(), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )


ENVIRONMENTS = {"chat": chat_environment(), "task": task_environment()}


def render(case):
    """The text, or None when Jinja raises an error."""
    try:
        return ENVIRONMENTS[case["mode"]].from_string(case["template"]).render(**case["context"])
    except Exception:  # any error: refold must refuse as well
        return None


TEXTS = [
    "", "a", "abc", "Hello World", "  padded\t", "line\nbreak\r\nagain", "don't \"quote\"", "back\\slash", "über ÄÖÜ ß",
    "日本語 テキスト", "emoji 😀👍🏽", "ΣΊΣΥΦΟΣ ΟΔΟΣ", "ǆ ﬁ ŉ", "İstanbul", "<b>&amp;'</b>", "12", " -7 ", "3.25", "1e3", "x,y,,z",
    "a b  c", "%s and %d", "{} {0}", "user", "assistant", "hello-world (foo) [bar]", "null", "True", "\u00a0nbsp\u3000", "tab\tstop",
    "{{ x }}", "{% if %}", "zero\u200bwidth", "a" * 20, "\x00\x1f\x7f",
]
NUMBERS = [
    0, 1, -1, 2, 3, 7, -8, 10, 42, 100, 255, 1000, 2**31, -(2**31), 2**53, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**20,
    10**30, -(10**25), 0.0, -0.0, 0.1, 0.5, 1.0, 1.5, 2.5, -2.5, 3.0, 48.856613, 123456789.125, 1e15, 1e16, 1e17, 123456789012345680.0,
    1e-4, 1e-5, 1.5e-7, 1e22, 1e23, 1.7976931348623157e308, 5e-324, 2.675, 0.30000000000000004, -1e100,
]
SMALL = [n for n in NUMBERS if isinstance(n, int) and abs(n) < 10**6] + [0.5, 1.5, -2.5, 3.0, 0.1]


def random_value(rng, depth=0):
    kind = rng.random()
    if depth > 2 or kind < 0.35:
        return rng.choice(TEXTS)
    if kind < 0.6:
        return rng.choice(NUMBERS)
    if kind < 0.75:
        return rng.choice([True, False, None])
    if kind < 0.88:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["a", "b", "c", "name", "items", "ü", "x y", ""]): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_context(rng):
    people = [
        {"name": rng.choice(["Bob", "alice", "Émile", "zoe", "Bob"]), "age": rng.choice([3, 20, 20, 45]),
         "tags": rng.sample(["x", "y", "z"], rng.randrange(3))}
        for _ in range(rng.randrange(5))
    ]
    messages = [
        {"role": rng.choice(["system", "user", "assistant", "tool"]), "content": rng.choice(TEXTS + [None])}
        for _ in range(rng.randrange(5))
    ]
    if messages and rng.random() < 0.3:
        messages[-1]["tool_calls"] = [
            {"type": "function", "function": {"name": "f", "arguments": {"v": random_value(rng)}}}
        ]
    return {
        "s": rng.choice(TEXTS), "t": rng.choice(TEXTS), "n": rng.choice(SMALL), "m": rng.choice(SMALL), "big": rng.choice(NUMBERS),
        "b": rng.random() < 0.5, "nothing": None, "xs": [rng.choice(SMALL) for _ in range(rng.randrange(6))],
        "words": [rng.choice(TEXTS) for _ in range(rng.randrange(5))], "d": {k: random_value(rng) for k in rng.sample(["a", "b", "k", "ü"], 3)},
        "nested": random_value(rng), "people": people, "messages": messages, "value": random_value(rng),
    }


def literal(rng):
    return rng.choice(
        ["'a'", '"b c"', "'it\\'s'", "'\\n'", "'\\u00e9\\x41'", "'ß'", "0", "1", "2", "7", "1.5", "1e2", "1_000", "0x1f", "true", "false",
         "none", "True", "None", "[]", "[1, 2, 3]", "['x', 'y']", "(1, 2)", "(1,)", "{}", "{'a': 1, 'b': [2]}", "{1: 'one', none: 2}",
         "'a' 'b'", "[[1, 'a'], [2, 'b']]"]
    )


class Writer:
    """Writes one template."""

    def __init__(self, rng):
        self.rng = rng
        self.depth = 0
        self.names = ["s", "t", "n", "m", "b", "nothing", "xs", "words", "d", "nested", "people", "messages", "value", "missing", "big"]
        self.macros = []
        self.loops = 0

    def pick(self, *choices):
        return self.rng.choice(choices)

    # --- expressions, by type

    def text(self):
        self.depth += 1
        try:
            if self.depth > 4 or self.rng.random() < 0.4:
                return self.pick("s", "t", "'a-b c'", "'Hello'", "'ÄÖ ü'", "''", "'x y z'", "(n ~ '')", "'%05d'", "'a.b.c'")
            a = self.text
            return self.pick(
                lambda: f"{a()} ~ {self.any()}",
                lambda: f"({a()} + {a()})",
                lambda: f"({a()} * {self.pick('0', '1', '2', '3', '-1')})",
                lambda: f"{a()} | {self.text_filter()}",
                lambda: f"{a()} | {self.text_filter()}",
                lambda: f"({a()}).{self.text_method()}",
                lambda: f"({a()}).{self.text_method()}",
                lambda: f"({a()})[{self.slice()}]",
                lambda: f"({a()})[{self.pick('0', '-1', '1', '5')}]",
                lambda: f"({self.list()}) | join({self.pick('', chr(39) + ', ' + chr(39), 's')})",
                lambda: f"({self.any()}) | tojson{self.json_arguments()}",
                lambda: f"({self.any()}) | string",
                lambda: f"({a()} if {self.bool()} else {a()})",
                lambda: f"{self.pick(chr(39) + '%s|%r' + chr(39))} % ({self.any()}, {self.any()})",
                lambda: f"'{self.pick('%d', '%5d', '%-6d|', '%05d', '%+d', '%x', '%.2f', '%8.3f', '%e', '%g', '%s', '%10s|', '%-10s|')}' % {self.number()}",
                lambda: f"'{self.pick('{}', '{0}', '{:>8}', '{:<5}|', '{:^9}', '{:*^7}', '{!r}', '{!s:>4}')}'.format({self.text()})",
                lambda: f"'{self.pick('{:d}', '{:5d}', '{:05d}', '{:,}', '{:x}', '{:+d}', '{:b}')}'.format({self.pick('1', '1234567', '-42', '0')})",
                lambda: f"'{self.pick('{:.2f}', '{:10.3f}', '{:e}', '{:.1%}', '{:g}', '{:,.2f}', '{}')}'.format({self.pick('1.5', '-0.125', '12345.678', '1e20')})",
                lambda: f"{self.macro_call()}",
            )()
        finally:
            self.depth -= 1

    def text_filter(self):
        return self.pick(
            "upper", "lower", "title", "capitalize", "trim", "trim('a')", "trim(chars=' b')", "replace('a', 'ü')", "replace(' ', '')",
            "replace('', '-')", "replace('l', 'L', 1)", "center(11)", "center", "truncate(5)", "truncate(4, true)", "truncate(6, false, '…', 0)",
            "indent", "indent(2)", "indent(3, true)", "indent('> ', first=true, blank=true)", "reverse", "default('d')", "e", "escape",
            "urlencode", "string", "first", "last", "format(1)", "format", "list | join('|')", "safe",
            "wordcount | string", "length | string", "tojson", "nosuchfilter", "sort | join", "unique | join", "batch(2) | list | string",
        )

    def text_method(self):
        return self.pick(
            "upper()", "lower()", "title()", "capitalize()", "swapcase()", "strip()", "lstrip()", "rstrip()", "strip('ax ')", "rstrip('c')", "lstrip('H')",
            "split() | join('/')", "split(' ') | tojson", "split('a', 1) | string", "split(none, 1) | string", "rsplit(' ', 1) | string", "rsplit(none, 1) | string",
            "split(sep=',', maxsplit=1) | string", "splitlines() | string", "splitlines(true) | string", "replace('a', 'b')", "replace('', '.')", "replace('a', 'b', 1)",
            "center(9)", "center(8, '*')", "ljust(7, '.')", "rjust(7)", "zfill(6)", "partition('-') | string", "rpartition(' ') | string",
            "removeprefix('H')", "removesuffix('c')", "find('l') | string", "rfind('l', 2) | string", "index('a') | string", "count('a') | string", "count('') | string",
            "join(['1', '2', '3'])", "join('xyz')", "expandtabs(4)", "format(1, 2)", "encode()", "nosuch()", "startswith('a') | string", "endswith(('c', 'd')) | string",
        )

    def json_arguments(self):
        return self.pick(
            "", "", "", "(indent=2)", "(ensure_ascii=true)", "(indent=4, sort_keys=true)", "(separators=(',', ':'))", "(true)", "(false, 1)", "(indent=0)", "(indent='--')",
        )

    def number(self):
        self.depth += 1
        try:
            if self.depth > 4 or self.rng.random() < 0.35:
                return self.pick("n", "m", "1", "2", "3", "7", "-4", "1.5", "0.1", "10", "big", "0", "loop.index" if self.loops else "5")
            a = self.number
            return self.pick(
                lambda: f"({a()} {self.pick('+', '-', '*', '/', '//', '%')} {a()})",
                lambda: f"({a()} {self.pick('+', '-', '*', '/', '//', '%')} {a()})",
                lambda: f"{self.pick('2', '3', '-2', 'n', '1.5')} ** {self.pick('0', '1', '2', '3', '-1', '0.5')}",
                lambda: f"-{a()}",
                lambda: f"{a()} | abs",
                lambda: f"{a()} | int",
                lambda: f"{a()} | float",
                lambda: f"({a()}) | round{self.pick('', '(1)', '(2)', '(0, ' + chr(39) + 'floor' + chr(39) + ')', '(1, ' + chr(39) + 'ceil' + chr(39) + ')')}",
                lambda: f"({self.text()}) | int{self.pick('', '(5)', '(0, 16)')}",
                lambda: f"({self.text()}) | float",
                lambda: f"({self.text()}) | length",
                lambda: f"({self.list()}) | {self.pick('length', 'count', 'sum', 'max', 'min', 'first', 'last')}",
                lambda: f"({self.text()}).{self.pick('find', 'count', 'rfind')}({self.text()})",
            )()
        finally:
            self.depth -= 1

    def list(self):
        self.depth += 1
        try:
            if self.depth > 4 or self.rng.random() < 0.35:
                return self.pick("xs", "words", "people", "messages", "[1, 2, 3]", "['b', 'A', 'c']", "range(4)", "range(5, 0, -2)", "[]", "(1, 'a')", "d.items()",
                                 "d.keys() | list", "d | dictsort", "d.values() | list")
            a = self.list
            return self.pick(
                lambda: f"({a()} + {a()})",
                lambda: f"({a()})[{self.slice()}]",
                lambda: f"{a()} | {self.list_filter()}",
                lambda: f"{a()} | {self.list_filter()}",
                lambda: f"people | {self.people_filter()}",
                lambda: f"({self.text()}).split({self.pick('', chr(39) + ' ' + chr(39))})",
                lambda: f"({self.text()}) | list",
                lambda: f"[{self.any()}, {self.any()}]",
                lambda: f"{a()} * {self.pick('0', '2')}",
            )()
        finally:
            self.depth -= 1

    def list_filter(self):
        return self.pick(
            "list", "sort", "sort(reverse=true)", "sort(case_sensitive=true)", "reverse | list", "unique | list", "map('string') | list", "map('upper') | list",
            "map('int') | list", "select | list", "reject('none') | list", "select('odd') | list", "select('string') | list", "reject('equalto', 1) | list",
            "batch(2) | list", "batch(2, 'x') | list", "slice(2) | list", "slice(3, 'x') | list", "select('gt', 1) | list", "map('default', 'q') | list", "map('tojson') | list",
            "select('in', [1, 'a', 'b']) | list", "map('length') | list", "map('first') | list", "map('nosuch') | list", "select('nosuch') | list",
        )

    def people_filter(self):
        return self.pick(
            "map(attribute='name') | list", "map(attribute='age') | sum | string | list", "selectattr('age') | list", "selectattr('age', 'gt', 19) | list",
            "rejectattr('name', 'equalto', 'Bob') | list", "sort(attribute='age')", "sort(attribute='name,age')", "sort(attribute='name', reverse=true)",
            "groupby('age')", "groupby('name')", "map(attribute='tags.0') | list", "map(attribute='nope', default='?') | list", "selectattr('tags', 'defined') | map(attribute='name') | list",
            "sum(attribute='age') | string | list", "unique(attribute='name') | map(attribute='name') | list", "max(attribute='age') | default({}) | string | list", "groupby('nope', default='z')",
            "map(attribute='tags') | sum(start=[])", "rejectattr('nope') | list | length | string | list", "map('attr', 'name') | list",
        )

    def slice(self):
        part = lambda: self.pick("", "0", "1", "2", "-1", "-2", "10", "-10", "n | int")
        return f"{part()}:{part()}" + self.pick("", "", f":{self.pick('1', '2', '-1', '-2', '')}")

    def bool(self):
        self.depth += 1
        try:
            if self.depth > 4 or self.rng.random() < 0.3:
                return self.pick("b", "true", "false", "n", "s", "xs", "nothing", "missing", "loop.first" if self.loops else "not b")
            a = self.bool
            return self.pick(
                lambda: f"({a()} and {a()})",
                lambda: f"({a()} or {a()})",
                lambda: f"not {a()}",
                lambda: f"{self.any()} is {self.test()}",
                lambda: f"{self.any()} is not {self.test()}",
                lambda: f"{self.any()} is {self.test()}",
                lambda: f"({self.number()} {self.compare()} {self.number()})",
                lambda: f"({self.text()} {self.compare()} {self.text()})",
                lambda: f"({self.any()} {self.pick('==', '!=')} {self.any()})",
                lambda: f"({self.any()} in {self.list()})",
                lambda: f"({self.text()} not in {self.text()})",
                lambda: f"(1 < {self.number()} <= 7)",
                lambda: f"({self.text()}).{self.pick('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'istitle', 'isalnum', 'isnumeric', 'isascii', 'isidentifier', 'isprintable', 'isdecimal')}()",
                lambda: f"({self.text()}).{self.pick('startswith', 'endswith')}({self.text()})",
            )()
        finally:
            self.depth -= 1

    def compare(self):
        return self.pick("<", "<=", ">", ">=", "==", "!=")

    def test(self):
        return self.pick(
            "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "odd", "even",
            "divisibleby 3", "divisibleby(2)", "upper", "lower", "in [1, 'a', none]", "eq 1", "equalto('a')", "ne 2", "gt 1", "sameas none", "sameas(true)", "filter", "test", "escaped", "lt(5)",
        )

    def any(self):
        self.depth += 1
        try:
            return self.pick(
                self.text, self.number, self.list, self.bool, lambda: literal(self.rng), lambda: literal(self.rng),
                lambda: self.pick(*self.names), lambda: self.pick(*self.names), lambda: self.pick("d.a", "d['k']", "d.get('zz', 'none')", "d.nope", "nested.a", "people[0].name", "messages[-1]['content']",
                                                                                              "value.x.y", "d.items", "xs.0", "people.0.tags", "messages | last", "missing | default('D')", "nothing | default('D')",
                                                                                              "nothing | d('D', true)", "value[0]", "value['a']", "d | length", "nested | string", "dict(a=1, **d)", "d.__class__", "xs.append"),
                lambda: f"({self.any()} if {self.bool()})" if self.depth < 4 else "1",
                lambda: f"{{'k': {self.any()}, 2: {self.any()}}}" if self.depth < 4 else "{}",
            )()
        finally:
            self.depth -= 1

    def macro_call(self):
        if not self.macros:
            return "s"
        name = self.pick(*self.macros)
        return f"{name}({self.pick('', '1', 'x=2', chr(39) + 'q' + chr(39) + ', x=3', '1, 2, 3', 'zz=1')})"

    # --- statements

    def open(self, word):
        return self.pick("{% ", "{%- ", "{%", "{%+ " if self.rng.random() < 0.3 else "{% ") + word + self.pick(" %}", " -%}", "%}", " +%}" if self.rng.random() < 0.3 else " %}")

    def data(self):
        return self.pick("", " ", "\n", "x", "text ", "\n  ", "  \n\n", "é ", "<|im_start|>", "a\tb", "  ", "\r\n", "{", "}", "%", "#")

    def output(self):
        return self.pick("{{ ", "{{", "{{- ") + self.any() + self.pick(" }}", "}}", " -}}")

    def body(self, depth):
        return "".join(self.data() + self.statement(depth) for _ in range(self.rng.randrange(1, 4))) + self.data()

    def statement(self, depth):
        if depth > 2 or self.rng.random() < 0.4:
            return self.output()
        rng = self.rng
        body = lambda: self.body(depth + 1)
        kind = rng.randrange(16)
        if kind == 0:
            return self.open(f"if {self.bool()}") + body() + (self.open(f"elif {self.bool()}") + body() if rng.random() < 0.4 else "") + (
                self.open("else") + body() if rng.random() < 0.6 else "") + self.open("endif")
        if kind in (1, 2, 3):
            target, items = self.pick(("i", self.list()), ("p", "people"), ("m", "messages"), ("k, v", "d.items()"), ("k, v", "d | items"), ("c", self.text()), ("i", "range(3)"), ("x", self.any()),
                                      ("a, (b, c)", "[(1, (2, 3)), (4, 'xy')]"))
            condition = f" if {self.bool()}" if rng.random() < 0.25 else ""
            saved, self.names = self.names, self.names + [t.strip(" ()") for t in target.split(",")]
            self.loops += 1
            inner = body() + self.pick("", "", "{{ loop.index }}/{{ loop.length }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.last }}", "{{ loop.previtem }}|{{ loop.nextitem }}", "{{ loop.changed(b) }}",
                                       "{{ loop.revindex0 }}{{ loop.depth }}", "{{ loop }}", self.open("if loop.index > 1") + self.open("break") + self.open("endif"),
                                       self.open("if loop.first") + self.open("continue") + self.open("endif") + "after")
            self.loops -= 1
            self.names = saved
            return self.open(f"for {target} in {items}{condition}") + inner + (self.open("else") + body() if rng.random() < 0.2 else "") + self.open("endfor")
        if kind in (4, 5):
            name = self.pick("s", "n", "u", "w", "xs", "missing", "d")
            out = self.open(f"set {name} = {self.any()}")
            self.names.append(name)
            return out
        if kind == 6:
            return self.open(f"set {self.pick('u', 's')}{self.pick('', ' | upper', ' | trim | title')}") + body() + self.open("endset") + "{{ u }}"
        if kind == 7:
            return self.open("set ns = namespace(a=0, l=[])") + self.open("for q in xs") + self.open(f"set ns.a = {self.pick('ns.a + 1', 'q', 'ns.a ~ q')}") + self.open("endfor") + "{{ ns.a }}{{ ns.b }}"
        if kind == 8:
            name = self.pick("f", "g")
            parameters = self.pick("", "x", "x=1", "x, y=s", "x='d', y=x")
            out = self.open(f"macro {name}({parameters})") + self.pick("[{{ x }}]", "{{ x }}{{ y }}", "{{ varargs }}", "{{ kwargs }}", "{{ i }}{{ loop }}", "{{ s }}{{ u }}") + body() + self.pick(
                "", "", "{{ caller() if caller }}", "{{ caller(1) }}") + self.open("endmacro")
            self.macros.append(name)
            return out + "{{ " + self.macro_call() + " }}"
        if kind == 9 and self.macros:
            return self.open(f"call{self.pick('', '(z)', '(z=5)')} {self.macro_call()}") + body() + "{{ z }}" + self.open("endcall")
        if kind == 10:
            return self.open(f"filter {self.pick('upper', 'trim', 'replace(' + chr(39) + 'a' + chr(39) + ', ' + chr(39) + 'b' + chr(39) + ')', 'title | indent', 'length')}") + body() + self.open("endfilter")
        if kind == 11:
            return self.open(f"with w = {self.any()}, u = s") + body() + "{{ w }}" + self.open("endwith")
        if kind == 12:
            return "{#" + self.pick("", "-", " c ") + " {{ no }} " + self.pick("#}", "-#}", "+#}")
        if kind == 13:
            return self.open("raw") + "{{ raw }} {% x %}" + self.open("endraw")
        if kind == 14:
            return self.open("generation") + body() + self.open("endgeneration")
        return self.open("for n in [1, [2, [3]]] recursive") + "{{ n if n is number else loop(n) }}" + self.pick("{{ loop.depth }}", ",") + self.open("endfor")


def random_case(seed):
    """A template and its context. Most render; some raise an error, which refold must do as well."""
    rng = random.Random(seed)
    may_fail = rng.random() < 0.15
    for _ in range(20):
        writer = Writer(rng)
        template = "".join(writer.data() + writer.statement(0) for _ in range(rng.randrange(1, 6))) + writer.data()
        mode = "task" if rng.random() < 0.25 and "generation" not in template else "chat"
        case = {"seed": seed, "mode": mode, "template": template, "context": random_context(rng)}
        text = render(case)
        # Python writes the address of some values, which refold refuses.
        if (may_fail or text is not None) and " at 0x" not in (text or "") and len(text or "") < 2000:
            break
    return case
