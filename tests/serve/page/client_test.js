"use strict";
const test = require("node:test");
const assert = require("node:assert");
const { load } = require("./load_page.js");

const plain = value => JSON.parse(JSON.stringify(value));

test("settings become fields; what cannot be sent is an error with its field", () => {
  const fields = load()("requestFields"), empty = load()("({ ...kStart })");
  assert.deepEqual(plain(fields(empty)), { temperature: 0.7, top_p: 0.95, max_tokens: 1024 });
  for (const name of Object.keys(empty)) empty[name] = "";
  assert.deepEqual(plain(fields(empty)), {});
  assert.deepEqual(plain(fields({ ...empty, top_k: "5", min_p: "0.1", seed: "-3", stop: "a\\nb\n\nc", schema: '{"b": 1, "a": 2}' })), {
    top_k: 5, min_p: 0.1, seed: -3, stop: ["a\nb", "c"],
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { b: 1, a: 2 } } },
  });
  assert.deepEqual(plain(fields({ ...empty, tools: '[{"type": "function"}]' })), { tools: [{ type: "function" }] });
  assert.throws(() => fields({ ...empty, schema: "{" }), { field: "schema" });
  assert.throws(() => fields({ ...empty, tools: "[" }), { field: "tools" });
  assert.throws(() => fields({ ...empty, seed: "x" }), { field: "seed" });
});

test("a request has the branch, and joins messages that were not answered", () => {
  const page = load(), chat = page("newChat()"), add = page("addMessage"), request = page("requestFor");
  for (const text of ["a", "b"]) add(chat, chat.messages.length - 1, "user", text);
  add(chat, 1, "assistant", "");
  add(chat, 2, "user", "c");
  add(chat, 3, "assistant", "part");
  const whole = { isChat: true, model: "", loops: 1 };
  assert.deepEqual(plain(request(chat, [0, 1, 2, 3, 4], whole).messages),
    [{ role: "user", content: "a\n\nb\n\nc" }, { role: "assistant", content: "part" }]);
  chat.system = "S";
  const more = plain(request(chat, [0], { isChat: true, model: "m", loops: 3 }));
  assert.deepEqual([more.messages[0], more.model, more.return_exits], [{ role: "system", content: "S" }, "m", true]);
  const text = plain(request(chat, [0, 1, 2, 3, 4], { ...whole, isChat: false }));
  assert.deepEqual([text.prompt, text.messages], ["abcpart", undefined]);
});

test("calls of tools go back with their results, and the reasoning that led to them", () => {
  const page = load(), chat = page("newChat()"), add = page("addMessage"), missing = () => plain(page("missingResults")(chat)).map(call => call.id);
  const calls = ["a", "b"].map(id => ({ id, name: "f", arguments: "{}" }));
  add(chat, -1, "user", "q");
  add(chat, 0, "assistant", "", { calls, reasoning: "r", finish: "tool_calls" });
  assert.deepEqual(missing(), ["a", "b"]);
  add(chat, 1, "tool", "1", { call: "a", name: "f" });
  assert.deepEqual(missing(), ["b"]);
  add(chat, 2, "tool", "2", { call: "b", name: "f" });
  assert.deepEqual(missing(), []);
  const sent = plain(page("requestFor")(chat, [0, 1, 2, 3], { isChat: true, model: "", loops: 1 }).messages);
  const call = id => ({ id, type: "function", function: { name: "f", arguments: "{}" } });
  assert.deepEqual(sent, [{ role: "user", content: "q" },
    { role: "assistant", content: "", reasoning_content: "r", tool_calls: [call("a"), call("b")] },
    { role: "tool", content: "1", tool_call_id: "a" }, { role: "tool", content: "2", tool_call_id: "b" }]);
  assert.deepEqual(plain(page("checkedChat")(plain(chat)).messages), plain(chat.messages));
});

test("events are read however they are cut", () => {
  const text = ': waiting\n\ndata: {"a": 1}\n\ndata: {"b": "\u00fc"}\n\n: waiting\n\ndata: [DONE]\n\n';
  for (let size = 1; size <= text.length; ++size) {
    const reader = load.page ||= load()("EventReader"), events = new reader(), out = [];
    for (let at = 0; at < text.length; at += size) out.push(...events.take(text.slice(at, at + size)));
    assert.deepEqual(out, ['{"a": 1}', '{"b": "\u00fc"}', "[DONE]"]);
  }
});

test("chunks add texts, reasoning, tool calls and the loops of tokens", () => {
  const page = load(), add = page("addChunk"), answer = { content: "" };
  const take = (delta, more = {}) => add(answer, { choices: [{ delta, ...more }] });
  assert.ok(!take({ role: "assistant", content: "" }, { exits: [] }));
  assert.ok(take({ reasoning_content: "let " }));
  assert.ok(take({ reasoning_content: "me see" }));
  assert.ok(take({ content: "Hi" }, { exits: [3] }));
  assert.ok(take({ content: " you" }, { exits: [1, 2] }));
  assert.ok(take({ tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: '{"x"' } }] }));
  assert.ok(take({ tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] }));
  assert.ok(!take({}, { finish_reason: "length" }));
  assert.ok(!add(answer, { choices: [], usage: {} }));
  assert.deepEqual(plain(answer), { content: "Hi you", reasoning: "let me see", marks: [2, 3, 0, 1, 4, 2],
    calls: [{ id: "c", name: "f", arguments: '{"x": 1}' }], finish: "length" });
  assert.match(page("callsText")(answer.calls), /"x": 1/);
  take({ content: "!" });  // the part of a token whose loop comes with the next part
  take({ content: "?" }, { exits: [1] });
  assert.deepEqual(plain(answer.marks.slice(-4)), [1, 0, 1, 1]);
  // A text of another page's version has no marks at its beginning.
  const older = { content: "old" };
  add(older, { choices: [{ text: "new", exits: [2] }] });
  assert.deepEqual(plain(older), { content: "oldnew", marks: [3, 0, 3, 2] });
});

function served(responses) {
  const asked = [];
  const page = load({
    fetch: async (path, options) => {
      asked.push({ path, ...options, body: JSON.parse(options.body) });
      const next = responses.shift();
      if (next instanceof Error) throw next;
      return next;
    },
  });
  return { page, asked };
}

const stream = text => new Response(text, { headers: { "Content-Type": "text/event-stream" } });
const refusal = (status, message, headers = {}) => new Response(JSON.stringify({ error: { message } }), { status, headers });

async function received(response, answer = { content: "" }) {
  const { page } = served([response]);
  const problem = await page("receive")(answer, "/v1/chat/completions", {}, undefined, () => {});
  return { answer, problem };
}

test("answers are received, and errors are readable", async () => {
  const chunk = (content, finish = null) => `data: ${JSON.stringify({ choices: [{ delta: { content }, finish_reason: finish }] })}\n\n`;
  const usage = 'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n\n';
  const whole = await received(stream(chunk("a") + chunk("b", "stop") + usage + "data: [DONE]\n\n"));
  assert.equal(whole.problem, null);
  assert.deepEqual([whole.answer.content, whole.answer.finish, whole.answer.stats.prompt, whole.answer.stats.tokens,
    whole.answer.stats.timed], ["ab", "stop", 7, 3, 2]);
  const more = await received(stream(chunk("c", "length") + usage + "data: [DONE]\n\n"), whole.answer);
  assert.deepEqual([more.answer.content, more.answer.finish, more.answer.stats.tokens], ["abc", "length", 6]);

  const lost = await received(stream(chunk("a")));
  assert.match(lost.problem.message, /connection to the server was lost/);
  assert.deepEqual([lost.answer.content, lost.answer.finish, lost.answer.stats.estimated], ["a", "broken off", 1]);
  const cut = await received(stream(chunk("a") + 'data: {"error": {"message": "no memory"}}\n'));
  assert.match(cut.problem.message, /lost/);  // an event without its end
  const broken = await received(stream(chunk("a") + 'data: {"error": {"message": "no memory"}}\n\n'));
  assert.match(broken.problem.message, /broke the answer off: no memory/);
  assert.match((await received(new TypeError("fetch failed"))).problem.message, /lost/);
  const stopped = await received(new DOMException("", "AbortError"));
  assert.deepEqual([stopped.problem, stopped.answer.finish], [null, "stopped"]);
  for (const [response, status, text] of [
    [refusal(401, "x"), 401, /needs an API key/],
    [refusal(429, "full", { "Retry-After": "3" }), 429, /busy.*in 3 s/],
    [refusal(503, "shutting down"), 503, /shutting down.*later/],
    [refusal(400, "'top_p': got 2"), 400, /'top_p': got 2/],
    [new Response("<html>", { status: 502 }), 502, /HTTP 502/],
  ]) {
    const { problem } = await received(response);
    assert.equal(problem.status, status);
    assert.match(problem.message, text);
  }
});

test("the key goes along, and stays in the tab", async () => {
  const { page, asked } = served([refusal(500, "x")]);
  page('setKey("secret")');
  await page("receive")({ content: "" }, "/v1/chat/completions", { a: 1 }, undefined, () => {});
  assert.deepEqual([asked[0].path, asked[0].headers.Authorization, asked[0].body], ["/v1/chat/completions", "Bearer secret", { a: 1 }]);
  assert.equal(page('sessionStorage.getItem("refold-key")'), "secret");
  assert.equal(page("Object.keys(localStorage).length"), 0);
});
