// Requests to the server that the page came from, and the streams of its answers.

const kKeyKey = "refold-key";
let apiKey = "";
try { apiKey = sessionStorage.getItem(kKeyKey) || ""; } catch { /* then it lives as long as the page */ }

function setKey(key) {
  apiKey = key;
  try { sessionStorage.setItem(kKeyKey, key); } catch { /* as above */ }
}

const headers = () => apiKey ? { Authorization: "Bearer " + apiKey } : {};

// What went wrong, for people. `status` is HTTP's, 0 for a connection that failed.
class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.name = "RequestError";
    this.status = status;
  }
}

async function failure(response) {
  let message = "HTTP " + response.status;
  try { message = (await response.json()).error.message; } catch { /* an error of a proxy */ }
  return new RequestError(response.status, failureText(response.status, message, response.headers.get("Retry-After")));
}

function failureText(status, message, retryAfter) {
  const again = retryAfter ? ` Try again in ${retryAfter} s.` : " Try again later.";
  if (status === 401) return "The server needs an API key, or another one than this.";
  if (status === 429) return "The server is busy: all its slots are taken and its queue is full." + again;
  if (status === 503) return `The server cannot answer now: ${message}.` + again;
  return `The server refused the request: ${message}`;
}

const lost = () => new RequestError(0, "The connection to the server was lost.");

// Takes the text of a stream piece by piece; gives the data of the events that are complete, as texts.
class EventReader {
  buffer = "";

  take(piece) {
    this.buffer += piece;
    const events = this.buffer.split("\n\n");
    this.buffer = events.pop();
    return events.flatMap(event => {
      const data = event.split("\n").filter(line => line.startsWith("data:")).map(line => line.slice(5).trimStart());
      return data.length ? [data.join("\n")] : [];
    });
  }
}

// The chunks of a streamed answer. Throws RequestError, and an AbortError when `signal` says so.
async function* chunks(path, body, signal) {
  const network = async work => {
    try {
      return await work();
    } catch (error) {
      throw error.name === "AbortError" ? error : lost();
    }
  };
  const response = await network(() => fetch(path, {
    method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...headers() },
  }));
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), events = new EventReader();
  for (;;) {
    const { value, done } = await network(() => reader.read());
    if (done) throw lost();
    for (const event of events.take(value)) {
      if (event === "[DONE]") return;
      const chunk = JSON.parse(event);
      if (chunk.error) throw new RequestError(500, "The server broke the answer off: " + chunk.error.message);
      yield chunk;
    }
  }
}

// ---- answers

const emptyStats = () => ({
  prompt: 0,      // tokens
  tokens: 0,      // of the answer
  estimated: 0,   // 1: tokens are counted as pieces of the stream, because the server's count did not come
  first: 0,       // seconds from the request to the first token
  timed: 0,       // tokens after the first one,
  seconds: 0,     // and how long they took
});

// The body of the request for the answer at the end of `at`, places of messages in the chat. What the answer at the end
// has already is continued. Throws SettingError.
function requestFor(chat, at, { isChat, model, loops }) {
  const body = { stream: true, stream_options: { include_usage: true }, ...requestFields(chat.settings) };
  if (model) body.model = model;
  if (loops > 1) body.return_exits = true;
  const messages = at.map(i => chat.messages[i]).filter(message => message.content || callsTools(message));
  if (!isChat) return { ...body, prompt: messages.map(message => message.content).join("") };
  body.messages = chat.system.trim() ? [{ role: "system", content: chat.system }] : [];
  for (const message of messages) {
    // Messages whose answer never came: templates take one of the user at a time.
    const last = body.messages[body.messages.length - 1];
    if (last && last.role === message.role && message.role === "user") last.content += "\n\n" + message.content;
    else body.messages.push(requestMessage(message));
  }
  return body;
}

// A message as the server takes it. Reasoning is of use only until the results of the calls that it led to.
function requestMessage(message) {
  const { role, content } = message, out = { role, content };
  if (role === "tool") out.tool_call_id = message.call;
  if (!callsTools(message)) return out;
  if (message.reasoning) out.reasoning_content = message.reasoning;
  out.tool_calls = message.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return out;
}

// Adds a chunk's news to an answer. Returns whether there were any.
function addChunk(answer, chunk) {
  const choice = chunk.choices[0];
  if (!choice) return false;
  const delta = choice.delta || { content: choice.text };
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  if (delta.reasoning_content) answer.reasoning = (answer.reasoning || "") + delta.reasoning_content;
  for (const call of delta.tool_calls || []) addCall(answer, call);
  if (delta.content) answer.content += delta.content;
  if (Array.isArray(choice.exits) || answer.marks) addMarks(answer, choice.exits || [], delta.content || "");
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}

// Tool calls come in parts: a name first, then pieces of the arguments.
function addCall(answer, { index = 0, id, function: part = {} }) {
  answer.calls ||= [];
  const call = answer.calls[index] ||= { id: "", name: "", arguments: "" };
  if (id) call.id = id;
  call.name += part.name || "";
  call.arguments += part.arguments || "";
}

// Marks are pairs: a number of characters of the content, and the loop that their token exited after. Where several
// tokens came as one text, the last one stands for it.
function addMarks(answer, exits, text) {
  const before = answer.content.length - text.length;  // what has no marks, as marks are there from the first token on
  answer.marks ||= before > 0 ? [before, 0] : [];
  if (!exits.length && text) answer.marks.push(text.length, 0);
  exits.forEach((loop, i) => answer.marks.push(i === exits.length - 1 ? text.length : 0, loop));
}

// Streams into `answer`, calling changed() after every piece. Returns an error's text, or an empty one; what was stopped
// or broken off says so in answer.finish.
async function receive(answer, path, body, signal, changed) {
  const stats = answer.stats ||= emptyStats(), start = performance.now();
  let first = 0, latest = 0, pieces = 0, usage = null, problem = null;
  answer.finish = "";
  try {
    for await (const chunk of chunks(path, body, signal)) {
      if (chunk.usage) usage = chunk.usage;
      if (!addChunk(answer, chunk)) continue;
      latest = performance.now();
      first ||= latest;
      ++pieces;
      changed();
    }
  } catch (error) {
    answer.finish = error.name === "AbortError" ? "stopped" : "broken off";
    problem = error.name === "AbortError" ? null : error;
  }
  const tokens = usage ? usage.completion_tokens : pieces;
  if (first) {
    stats.first ||= (first - start) / 1000;
    stats.timed += Math.max(0, tokens - 1);
    stats.seconds += (latest - first) / 1000;
  }
  stats.tokens += tokens;
  if (usage) stats.prompt ||= usage.prompt_tokens;
  else stats.estimated = 1;
  return problem;
}
