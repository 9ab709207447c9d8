"""Requests to the endpoints of `refold serve` that generate text, and what is said in their answers, whole or streamed."""
import collections
import json


def request(address, text, tokens):
    """The body of a greedy request for so many tokens at most."""
    if address == "/v1/completions":
        return {"prompt": text, "max_tokens": tokens, "temperature": 0}
    if address == "/v1/responses":
        return {"input": text, "max_output_tokens": tokens, "temperature": 0}
    if address == "/api/generate":
        return {"prompt": text, "stream": False, "options": {"num_predict": tokens, "temperature": 0}}
    return {"messages": [{"role": "user", "content": text}], "max_tokens": tokens, "temperature": 0}  # OpenAI's and Anthropic's


def choices(body):
    return {c["index"]: (c.get("text", c.get("message", {}).get("content")), c["finish_reason"]) for c in body["choices"]}


def streamed_choices(events):
    texts, reasons = collections.defaultdict(str), {}
    for event in events:
        for c in event["choices"]:
            texts[c["index"]] += c.get("text") or c.get("delta", {}).get("content") or ""
            reasons[c["index"]] = c["finish_reason"] or reasons.get(c["index"])
    return {index: (text, reasons[index]) for index, text in texts.items()}


def response(body):
    return {0: ("".join(c["text"] for item in body["output"] for c in item["content"]), body["status"])}


def streamed_response(events):
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return {0: (text, events[-1]["response"]["status"])}


def message(body):
    return {0: ("".join(part["text"] for part in body["content"]), body["stop_reason"])}


def streamed_message(events):
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    return {0: (text, next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"))}


def generated(body):
    return {0: (body["response"], body["done_reason"])}


def streamed_generated(events):
    return {0: ("".join(event["response"] for event in events), events[-1]["done_reason"])}


def vectors(body):
    return {item["index"]: item["embedding"] for item in body["data"]}


FORMS = {"/v1/completions": (choices, streamed_choices), "/v1/chat/completions": (choices, streamed_choices),
         "/v1/responses": (response, streamed_response), "/v1/messages": (message, streamed_message),
         "/api/generate": (generated, streamed_generated), "/v1/embeddings": (vectors, None)}


def streams(address):
    return FORMS[address][1] is not None


def answers(address, status, body, streamed):
    """The texts of an answer and why they ended, or its vectors, by the number of the choice."""
    assert status == 200, (status, body[:300])
    if not streamed:
        return FORMS[address][0](json.loads(body))
    lines = body.decode().strip().split("\n")
    if address.startswith("/api/"):
        return FORMS[address][1]([json.loads(line) for line in lines])
    events = [line[6:] for line in lines if line.startswith("data: ")]
    if address in ("/v1/completions", "/v1/chat/completions"):
        assert events and events.pop() == "[DONE]", body[-300:]
    return FORMS[address][1]([json.loads(event) for event in events])
