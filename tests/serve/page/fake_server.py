"""A server that answers the page with prepared streams: what a small model never says, and what goes wrong."""
import http.server
import json
import threading
import time

XSS = """<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 1"> <svg onload=window.hacked=1>
[a](javascript:window.hacked=1) [b](data:text/html,<script>window.hacked=1</script>) <a href="javascript:window.hacked=1">c</a>
![d](https://example.org/tracker.png) <iframe srcdoc="<script>parent.hacked=1</script>"></iframe>

| <img src=x onerror=window.hacked=1> | b |
|---|---|
| <style>* { display: none }</style> | `<script>window.hacked=1</script>` |

```"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked = 1</script>
```
"""

MARKDOWN = """# Sorting a list

Python's `sorted` gives a **new list**, and *keeps* the old one; see the [documentation](https://docs.python.org/3/howto/sorting.html).

1. Choose a key:
   - a function of one item,
   - or `operator.itemgetter`.
2. Sort:

```python
def by_length(words):
    return sorted(words, key=len)  # a comment that is so long that the line is wider than any phone is, and scrolls
```

| function | returns | in place | order of equal items |
|:--|:-:|:-:|--:|
| `sorted(x)` | a list | no | kept |
| `x.sort()` | `None` | yes | kept |

> Sorts are stable.

---

A word that is too long: """ + "long" * 40

# Texts by what the page's user says; the key of `say` in Answers below.
REASONING = ("First I think about it.\nThen about the other side.", "It is 4.")
LOOPS = [("The", 3), (" answer", 1), (" is", 1), (" forty", 2), ("-two", 1), (",\n", 3), ("as", 2), (" always", 1), (".", 3)]


class Answers(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, status, value, headers=()):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, message, headers=()):
        self.send(status, {"error": {"message": message, "type": "error", "param": None, "code": None}}, headers)

    def do_GET(self):
        if self.path == "/":
            page, policy = self.server.page
            self.send(200, page, [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", policy)])
        elif self.path.startswith("/status"):
            self.send(200, {**self.server.status, "model": self.path.partition("?model=")[2] or "first"})
        else:
            self.error(404, "there is nothing here")

    def chunk(self, delta, **more):
        choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
        self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        said = asked["messages"][-1]["content"]
        refusals = {"busy": (429, "all slots are busy", [("Retry-After", "7")]), "no key": (401, "a key is needed", []),
                    "going down": (503, "the server is shutting down", []), "wrong": (400, "'seed': got x", [])}
        if said in refusals and said not in self.server.refused:
            self.server.refused.add(said)  # the next try succeeds
            return self.error(*refusals[said])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            self.stream(said)
        except (BrokenPipeError, ConnectionResetError):
            return
        if said == "lost":
            return
        usage = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
        self.chunk({}, finish_reason="tool_calls" if said == "tools" else "stop")
        self.wfile.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")

    def stream(self, said):
        if said == "loops":
            for text, loop in LOOPS:
                self.chunk({"content": text}, exits=[loop])
        elif said == "reasoning":
            self.chunk({"reasoning_content": REASONING[0]})
            self.chunk({"content": REASONING[1]})
        elif said == "tools":
            self.chunk({"content": "I look it up."})
            self.chunk({"tool_calls": [{"index": 0, "id": "call-1", "type": "function",
                                        "function": {"name": "weather", "arguments": ""}}]})
            self.chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}]})
        elif said == "slow":
            for i in range(600):
                self.chunk({"content": f"{i} "})
                time.sleep(0.02)
        else:
            text = {"xss": XSS, "markdown": MARKDOWN}.get(said, "You said: " + said)
            for at in range(0, len(text), 7):
                self.chunk({"content": text[at:at + 7]})


class FakeServer(http.server.ThreadingHTTPServer):
    """`page` is the page's text and its Content-Security-Policy; `status` is what /status says of all models."""

    def __init__(self, page, status):
        super().__init__(("127.0.0.1", 0), Answers)
        self.page, self.status = page, status
        self.asked, self.refused = [], set()
        self.url = f"http://127.0.0.1:{self.server_port}/"
        threading.Thread(target=self.serve_forever, daemon=True).start()
