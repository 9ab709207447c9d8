"""Conversations with which chat templates are compared: tools, calls, parts, and numbers of all sizes."""

NUMBERS = {
    "latitude": 48.856613, "one": 1.0, "eighth": 123456789.125, "largest": 2**64 - 1, "beyond": 2**64, "huge": 10**30, "least": -(2**63),
    "negative_zero": -0.0, "tiny": 1.5e-7, "e15": 1e15, "e16": 1e16, "e22": 1e22, "e23": 1e23, "max": 1.7976931348623157e308, "third": 1 / 3,
    "text": "é \"quoted\" <tag> & 'it' \n 日本", "list": [1, 2.0, None, True, [], {}], "nested": {"z": 1, "a": [{"k": "v"}]},
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {
                "latitude": {"type": "number", "description": "Degrees", "minimum": -90.0, "maximum": 90, "default": 48.856613},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": ["integer", "null"], "maximum": 2**64 - 1, "multipleOf": 0.1},
                "places": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer", "const": 10**20}}}},
            },
            "required": ["latitude"],
        },
    },
}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Ünïcode \"search\"", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, identifier="call00001"):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def contexts():
    """Names and variables of renderings."""
    system = {"role": "system", "content": "You are é helpful.\n"}
    user = {"role": "user", "content": "  Hello, 世界!\n"}
    answer = {"role": "assistant", "content": "Hi <b>there</b>"}
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}
    reasoned = {"role": "assistant", "content": "Yes", "reasoning_content": "Because.\n", "thinking": "Because."}
    called = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", NUMBERS)]}
    called_twice = {"role": "assistant", "content": None,
                    "tool_calls": [call("get_weather", {"latitude": 1.0}), call("search", {}, "call00002")]}
    as_text = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", '{"latitude": 48.856613, "days": 1.0}')]}
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"temperature": 21.0}'}
    parts = {"role": "user", "content": [{"type": "text", "text": "Look "}, {"type": "text", "text": "here"}]}
    base = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    tools = {"tools": [WEATHER, SEARCH]}
    yield "one message", base | {"messages": [user]}
    yield "system", base | {"messages": [system, user, answer, user]}
    yield "without prompt", base | {"messages": [user, answer], "add_generation_prompt": False}
    yield "thought", base | {"messages": [user, thought, user, reasoned, user], "enable_thinking": True}
    yield "not thinking", base | {"messages": [system, user], "enable_thinking": False, "thinking": False, "reasoning_effort": "low"}
    yield "tools", base | tools | {"messages": [system, user]}
    yield "tools without system", base | tools | {"messages": [user]}
    yield "calls", base | tools | {"messages": [system, user, called, result, answer, user]}
    yield "two calls", base | tools | {"messages": [user, called_twice, result, dict(result, tool_call_id="call00002")]}
    yield "arguments as text", base | tools | {"messages": [user, as_text, result]}
    yield "parts", base | {"messages": [parts, answer, parts]}
    yield "no tools given, but calls", base | {"messages": [user, called, result]}
    yield "documents", base | {"messages": [user], "documents": [{"title": "T", "text": "x" * 30, "score": 0.1}], "date_string": "26 Jul 2024"}
    yield "two of the user", base | {"messages": [user, user, answer]}
    yield "none", base | {"messages": []}
