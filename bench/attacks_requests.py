"""Attacks by requests that are valid, or nearly, for bench/attacks. They need a key."""
import json
import time

NO_END = {"ignore_eos": True}


def complete(t, **fields):
    t.repeat(t.request({"model": t.model, "prompt": "Once", **fields}))


def huge_bodies(t):
    t.repeat(t.request(b'{"prompt": "' + b"word " * ((8 << 20) // 5 - 10) + b'"}'))


def deep_json(t):
    t.repeat(t.request(b'{"prompt": ' + b"[" * 1000000))


def many_keys(t):
    t.repeat(t.request(b'{"metadata": {' + b",".join(b'"k%d":%d' % (i, i) for i in range(400000)) + b"}}"))


def huge_numbers(t):
    t.repeat(t.request(b'{"prompt": "a", "max_tokens": ' + b"9" * 1000000 + b', "temperature": 1e999999, "seed": -1e-99999}'))


def escapes(t):
    t.repeat(t.request(b'{"prompt": "' + b"\\u0000\\ud83d\\ude00" * 200000 + b'", "max_tokens": 1}'))


def odd_unicode(t):
    odd = ["\u202e\u0301" * 3000, "e" + "\u0301" * 5000, "\U0001f468\u200d\U0001f469\u200d" * 800, "\ufeff\ufffe\u0000\u2028" * 900,
           "ﷺ" * 2000]
    data = [t.request({"prompt": text, "max_tokens": 1}) for text in odd] + [t.request(b'{"prompt": "\xff\xfe\xc0\x80", "n": 1}'),
                                                                            t.request(b'{"prompt": "\\ud800"}')]
    turn = 0
    while t.on():
        t.ask(data[turn % len(data)].replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        turn += 1


def many_choices(t):
    complete(t, n=128, best_of=128, max_tokens=2000, temperature=1, **NO_END)


def many_prompts(t):
    complete(t, prompt=["Once upon a time %d" % i for i in range(2048)], max_tokens=50, **NO_END)


def stop_lists(t):
    complete(t, stop=[chr(97 + i) * 1024 for i in range(16)], stop_token_ids=list(range(5, 1029)), max_tokens=2000, **NO_END)


def big_bias(t):
    complete(t, logit_bias={str(i): -100 + i % 200 for i in range(49000)}, max_tokens=2000, logprobs=20, n=16, **NO_END)


def penalties(t):
    complete(t, repeat_last_n=-1, repetition_penalty=1.3, presence_penalty=2, frequency_penalty=2, max_tokens=3000, n=8, **NO_END)


def long_answers(t):
    complete(t, max_tokens=4000, **NO_END)


def exploding_regex(t):
    patterns = ["((a|aa)+)+b", "(((a{1,100}){1,100}){1,100}){1,100}", "(x+x+)+y" * 50, "(.*a){25}", "[\\s\\S]{5000}", "(a?){3000}a{3000}"]
    answer_each(t, [{"structured_outputs": {"regex": p}} for p in patterns])


def exploding_schema(t):
    deep = {"type": "string"}
    for _ in range(15):
        deep = {"anyOf": [deep, {"type": "array", "items": deep}]}
    wide = {"type": "object", "properties": {"p%d" % i: {"type": "string", "maxLength": 500} for i in range(400)}}
    names = {"enum": ["value %d" % i for i in range(20000)]}
    nodes = {"$ref": "#/$defs/n0", "$defs": {"n%d" % i: {"type": "object", "properties": {
        "a%d" % j: {"$ref": "#/$defs/n%d" % ((i * 7 + j) % 60)} for j in range(20)}} for i in range(60)}}
    long = {"type": "array", "minItems": 3000, "maxItems": 9000, "items": {"type": "string", "minLength": 900, "maxLength": 90000}}
    answer_each(t, [{"json_schema": s} for s in (deep, wide, names, nodes, long)])


def grammar_recursion(t):
    nested = "root ::= " + "(" * 3000 + '"a"' + ")" * 3000
    left = 'root ::= root "a" | root root | "a"'
    chain = "\n".join(["root ::= r0"] + ["r%d ::= r%d r%d | \"a\"" % (i, i + 1, i + 1) for i in range(2000)] + ['r2000 ::= "b"'])
    ambiguous = 'root ::= s\ns ::= s s s | s s | "a" | ""'
    answer_each(t, [{"grammar": g} for g in (nested, left, chain, ambiguous)])


# Each of them compiles for many seconds.
SLOW_FORMATS = [
    {"guided_json": {"type": "string", "pattern": "(\\w{1,50}\\s?){1,50}"}},
    {"guided_json": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(\\w{1,100}\\s?){1,100}"}}}},
    {"guided_regex": "(((\\w{1,90}\\s?){1,90}x?){1,90})*"},
    {"json_schema": {"type": "string", "minLength": 9000, "maxLength": 90000}},
    {"grammar": "root ::= " + " ".join("r%d?" % i for i in range(4000)) + "\n" +
                "\n".join("r%d ::= [a-z]{1,90} | \"a\"" % i for i in range(4000))},
]


def slow_formats(t):
    t.hold(20, t.request({"model": t.model, "prompt": "Once", "max_tokens": 20, **SLOW_FORMATS[0]}))


def slow_formats_left(t):
    turn = 0
    while t.on():
        connection = t.send(t.request({"model": t.model, "prompt": str(turn), **SLOW_FORMATS[turn % len(SLOW_FORMATS)]}))
        turn += 1
        t.count("left")
        time.sleep(0.05)
        if connection is not None:
            connection.close()


def answer_each(t, formats):
    data = [t.request({"model": t.model, "prompt": "Once", "max_tokens": 200, **form}).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            for form in formats]
    turn = 0
    while t.on():
        t.ask(data[turn % len(data)])
        turn += 1


def scored_prompts(t):
    prompt = [1 + i * 7919 % 40000 for i in range(1900)]
    turn = 0
    while t.on():
        prompt[0] = 1 + turn % 40000  # nothing of it is known from before
        data = t.request({"model": t.model, "prompt": prompt, "echo": True, "logprobs": 20, "max_tokens": 1})
        t.ask(data.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        turn += 1


def special_tokens(t):
    complete(t, prompt="<|im_start|><|endoftext|><|im_end|>" * 600, max_tokens=1)


def many_messages(t):
    messages = [{"role": ("user", "assistant")[i % 2], "content": "{{ x }}{% raw %}" + "y" * 20} for i in range(4001)]
    t.repeat(t.request({"model": t.model, "messages": messages, "max_tokens": 1}, "/v1/chat/completions"))


def tokenizing(t):
    texts = [" " * 1000000, "a" * 1000000, "漢" * 300000, "!?" * 500000]
    data = [t.request({"prompt": text}, "/tokenize").replace(b"\r\n", b"\r\nConnection: close\r\n", 1) for text in texts]
    turn = 0
    while t.on():
        t.ask(data[turn % len(data)])
        turn += 1


def templates(t):
    message = {"role": "user", "content": [{"type": "text", "text": json.dumps({"a": "{{" * 50000})}] * 8}
    t.repeat(t.request({"model": t.model, "messages": [message] * 20, "max_tokens": 1}, "/v1/chat/completions"))


REQUESTS = [
    ("huge bodies", "8 MiB of prompt", huge_bodies),
    ("deep JSON", "1,000,000 brackets", deep_json),
    ("many keys", "400,000 in an object", many_keys),
    ("huge numbers", "1,000,000 digits", huge_numbers),
    ("escapes", "600,000 of them", escapes),
    ("odd Unicode", "combining marks, surrogates, bytes that are no UTF-8", odd_unicode),
    ("n and best_of", "128 choices of 2000 tokens", many_choices),
    ("many prompts", "2048 in a request", many_prompts),
    ("stop lists", "16 texts of 1 KiB and 1024 tokens", stop_lists),
    ("logit_bias", "49,000 tokens, 16 choices", big_bias),
    ("penalties", "over all tokens, 8 choices", penalties),
    ("long answers", "4000 tokens", long_answers),
    ("regular expressions", "that explode", exploding_regex),
    ("JSON Schemas", "that explode", exploding_schema),
    ("grammars", "recursion to the left, 3000 brackets, ambiguity", grammar_recursion),
    ("slow formats", "40 schemas of 60 bytes that compile for a minute", slow_formats),
    ("slow formats, left", "the client leaves while they are compiled", slow_formats_left),
    ("scored prompts", "1900 tokens with 20 log probabilities each", scored_prompts),
    ("special tokens", "1800 in a text", special_tokens),
    ("many messages", "4001 in a chat", many_messages),
    ("chat template", "20 messages of 800 KB", templates),
    ("tokenizing", "1 MB of one character", tokenizing),
]
