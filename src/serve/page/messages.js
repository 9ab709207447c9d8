// Messages on the page. A view has the element of a message and shows its news while an answer is received.

const kLoopsKey = "refold-loops";
let tokensByLoop = null;  // whether answers show their tokens' loops; null: where tokens can exit early

const showsLoops = message => Boolean(message.marks) && (tokensByLoop ?? exitsEarly());

// Parts in words.
function statsText({ prompt, tokens, estimated, first, timed, seconds }) {
  return [
    prompt && `${number(prompt)} tokens of prompt`,
    tokens && `${estimated ? "about " : ""}${number(tokens)} ${tokens === 1 ? "token" : "tokens"}`,
    seconds > 0 && timed > 0 && `${(timed / seconds).toFixed(1)} tokens/s`,
    first > 0 && `the first after ${first.toFixed(2)} s`,
  ].filter(Boolean).join(", ");
}

const kFinish = {
  length: "Cut off: the limit of tokens is reached.",
  stopped: "Stopped.",
  "broken off": "Broken off.",
};

// Tokens by loop: a color each, and what the colors mean.
function loopsElements(message) {
  const counts = new Array(Math.max(message.loops, 1)).fill(0), tokens = [];
  let at = 0;
  for (let i = 0; i + 1 < message.marks.length; i += 2) {
    const length = message.marks[i], loop = message.marks[i + 1];
    if (loop > 0 && loop <= counts.length) counts[loop - 1]++;
    const text = message.content.slice(at, at += length);
    if (text) tokens.push(loop > 0 ? element("span", { class: "token " + loopColor(loop), title: `loop ${loop}` }, text) : text);
  }
  tokens.push(message.content.slice(at));
  const all = counts.reduce((a, b) => a + b, 0);
  return [element("p", { class: "legend" }, counts.map((count, i) => element("span", {},
    element("span", { class: "token " + loopColor(i + 1) }, `loop ${i + 1}`), ` ${percent(count / Math.max(1, all))}`))),
    element("div", { class: "tokens" }, tokens)];
}

const loopColor = loop => "loop" + (loop - 1) % kColors;

function folded(name, summary, ...content) {
  return element("details", { class: name }, element("summary", {}, summary), content);
}

class MessageView {
  constructor(chat, at) {
    this.message = chat.messages[at];
    const answer = this.message.role === "assistant";
    const { role, model, name } = this.message;
    this.who = element("h2", {}, answer ? model || "Model" : role === "tool" ? "Result of " + name : "You");
    this.body = element("div", { class: "body" });
    this.reasoning = folded("reasoning", "Reasoning", element("p"));
    this.calls = folded("calls", "Tool calls", element("pre", { tabindex: "0" }));
    this.note = element("p", { class: "note" });
    this.actions = element("div", { class: "actions" });
    this.element = element("article", { class: "message " + (answer ? "assistant" : "user"), "data-at": at }, this.who,
      answer ? [this.reasoning, this.body, this.calls, this.note] : this.body, this.actions);
  }

  // Shows the news of an answer that comes in, at most once a frame.
  soon() {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.update();
    });
  }

  set busy(busy) {
    this.isBusy = busy;
    this.element.setAttribute("aria-busy", busy);
    this.element.classList.toggle("busy", busy);
    this.update();
  }

  update() {
    const message = this.message, log = $("log"), low = this.isBusy && isLow(log);
    if (message.role !== "assistant") {
      if (this.editing) return;
      this.body.textContent = message.content;
      return;
    }
    this.showContent();
    this.reasoning.hidden = !message.reasoning;
    this.reasoning.lastChild.textContent = message.reasoning || "";
    this.reasoning.firstChild.textContent = this.isBusy && !message.content ? "Reasoning ..." : "Reasoning";
    this.calls.hidden = !message.calls;
    this.calls.lastChild.textContent = message.calls ? callsText(message.calls) : "";
    const empty = !message.content && !message.reasoning && !message.calls;
    const cut = this.isBusy ? "" : kFinish[message.finish] || (empty ? "The answer is empty." : "");
    this.note.replaceChildren(element("span", { class: "cut" }, cut), cut ? " " : "",
      message.stats && !this.isBusy ? statsText(message.stats) : "");
    if (low) log.scrollTop = log.scrollHeight;
  }

  // As tokens, as a text where nothing is marked up, or as Markdown. The element is new when the way changes.
  showContent() {
    const way = showsLoops(this.message) ? "loops" : isChat() ? "markdown" : "text";
    if (this.way !== way) {
      this.body.replaceChildren();
      this.body.shownBlocks = [];
      this.body.className = "body " + way;
    }
    this.way = way;
    if (way === "markdown") showMarkdown(this.body, this.message.content);
    else if (way === "text") this.body.textContent = this.message.content;
    else this.body.replaceChildren(...loopsElements(this.message));
  }
}

// Near the end, where it stays while more comes.
const isLow = log => log.scrollHeight - log.scrollTop - log.clientHeight < 60;

// Tool calls as JSON; their arguments are JSON themselves once they are complete.
function callsText(calls) {
  const parsed = text => { try { return JSON.parse(text); } catch { return text; } };
  return JSON.stringify(calls.map(call => ({ ...call, arguments: parsed(call.arguments) })), null, 2);
}
