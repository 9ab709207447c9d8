// The chat that is shown: its messages, what can be done with them, and sending.

let current = null;      // the chat that is shown
let views = new Map();   // of its messages, by their places
let running = null;      // the answer that is received: {chat, at, controller}; possibly of another chat
const drafts = new Map();  // typed texts by the chat's id

// Stores a chat, and says so where that fails. Returns what is wrong, or an empty text.
function keepChat(chat) {
  chats.set(chat.id, chat);
  const problem = saveChat(chat);
  if (problem) notice(problem);
  return problem;
}

function openChat(chat) {
  if (current) drafts.set(current.id, $("input").value);
  current = chat;
  $("input").value = drafts.get(chat.id) || "";
  fit($("input"));
  showSettings();
  showChats();
  showBranch();
  $("log").scrollTop = $("log").scrollHeight;
}

// Views of messages that stay are kept where they are, and with them the focus and what is selected.
function showBranch() {
  const before = views, box = $("messages");
  views = new Map(branch(current).map(at => {
    const view = before.get(at);
    return [at, view?.message === current.messages[at] ? view : new MessageView(current, at)];
  }));
  let place = 0;
  for (const [at, view] of views) {
    view.busy = running?.chat === current && running.at === at;
    if (box.children[place] !== view.element) box.insertBefore(view.element, box.children[place] || null);
    ++place;
  }
  while (box.children.length > views.size) box.lastElementChild.remove();
  $("empty").hidden = views.size > 0;
  showActions();
  // The focus was on a button that is no more.
  if (document.activeElement === document.body) $("log").focus({ preventScroll: true });
}

// Buttons below messages, which depend on what runs and on what is last.
function showActions() {
  const last = branch(current).pop(), missing = missingResults(current);
  $("input").placeholder = missing.length ? "Result of " + missing[0].name
    : isChat() ? "Message" : "Text to continue (the model has no chat template)";
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  for (const [at, view] of views) {
    if (view.editing) continue;
    const message = current.messages[at], answer = message.role === "assistant", actions = [];
    const others = versions(current, at), place = others.indexOf(at);
    if (others.length > 1 && !running) {
      const to = (i, text, name) => {
        const out = button(text, () => changeBranch(others[i], true), name);
        out.disabled = !(i in others);
        return out;
      };
      actions.push(to(place - 1, "\u2039", "Earlier version"), element("span", {}, `${place + 1} / ${others.length}`),
        to(place + 1, "\u203a", "Later version"));
    }
    if (message.content) actions.push(copyButton(answer ? "Copy the answer" : "Copy the message", () => message.content));
    if (!running && !answer) actions.push(button("Edit", () => edit(at)));
    if (!running && at === last) {
      if (!answer && !missing.length) actions.push(button("Answer", () => generate(current, at)));
      if (answer && canContinue(current, message)) actions.push(button("Continue", () => generate(current, at, true)));
    }
    if (!running && answer) actions.push(button("Regenerate", () => generate(current, message.parent)));
    if (answer && message.marks) {
      const toggle = button("Loops", () => showLoops(!showsLoops(message)));
      toggle.setAttribute("aria-pressed", showsLoops(message));
      actions.push(toggle);
    }
    view.actions.replaceChildren(...actions);
  }
}

// A format begins anew with every answer, so that an answer in one cannot go on.
const canContinue = (chat, message) =>
  message.content && !["stop", "tool_calls"].includes(message.finish) && !chat.settings.schema.trim();

function showLoops(show) {
  tokensByLoop = show;
  withStorage(storage => storage.setItem(kLoopsKey, show));
  for (const view of views.values()) view.update();
  showActions();
}

function changeBranch(at, focus) {
  choose(current, at);
  keepChat(current);
  showBranch();
  if (focus) views.get(at).actions.querySelector("button:enabled")?.focus();
}

// A field in place of the message; what is sent becomes another version of it.
function edit(at) {
  const view = views.get(at), message = current.messages[at];
  const input = element("textarea", { "aria-label": "Message", rows: "1" });
  const end = () => {
    view.editing = false;
    showBranch();
    views.get(at)?.actions.querySelector("button")?.focus();
  };
  const send = () => {
    if (!input.value.trim() || running) return;
    view.editing = false;
    const { parent, role, call, name } = message;
    ask(addMessage(current, parent, role, input.value, role === "tool" ? { call, name } : {}));
  };
  input.value = message.content;
  input.addEventListener("input", () => fit(input));
  input.addEventListener("keydown", event => {
    if (isEnter(event)) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      end();
    }
  });
  view.editing = true;
  view.body.replaceChildren(input);
  view.actions.replaceChildren(button("Send", send), button("Cancel", end));
  fit(input);
  input.focus();
}

// Sends what is typed: a message, or the result of a call of a tool. An empty field asks again for an answer that did not
// come.
function send() {
  if (running) return;
  const text = isChat() ? $("input").value.trim() : $("input").value;
  const last = branch(current).pop() ?? -1, [call] = missingResults(current);
  if (!text.trim()) {
    if (last >= 0 && current.messages[last].role !== "assistant") ask(last);
    return;
  }
  const at = call ? addMessage(current, last, "tool", text, { call: call.id, name: call.name })
    : addMessage(current, last, "user", text);
  $("input").value = "";
  drafts.delete(current.id);
  fit($("input"));
  ask(at);
}

// Gets an answer to the message at `at`, unless results are still missing.
function ask(at) {
  if (!missingResults(current).length) return generate(current, at);
  keepChat(current);
  showBranch();
}

// Gets an answer to the message at `at`, or the rest of it where it is an answer itself.
async function generate(chat, at, more = false) {
  if (running) return;
  let body;
  const path = branchTo(chat, at);
  try {
    body = requestFor(chat, path, { isChat: isChat(), model: chosenModel(), loops: loopsOf() });
  } catch (error) {
    keepChat(chat);
    showBranch();
    return settingProblem(error);
  }
  notice("");
  const place = more ? at : addMessage(chat, at, "assistant", "");
  const answer = chat.messages[place], controller = new AbortController();
  answer.model = chosenModel() || served?.model || "";
  if (loopsOf() > 1) answer.loops = loopsOf();
  running = { chat, at: place, controller };
  chat.updated = Date.now();
  keepChat(chat);
  showChats();
  showBranch();
  $("log").scrollTop = $("log").scrollHeight;
  announce("The answer is being written.");
  const changed = () => current === chat && views.get(place)?.soon();
  const problem = await receive(answer, isChat() ? "/v1/chat/completions" : "/v1/completions", body,
    controller.signal, changed);
  running = null;
  finish(chat, place, problem);
}

// Messages from the first one to the one at `at`.
function branchTo(chat, at) {
  const out = [];
  for (; at >= 0; at = chat.messages[at].parent) out.unshift(at);
  return out;
}

function finish(chat, place, problem) {
  const answer = chat.messages[place], empty = !answer.content && !answer.reasoning && !answer.calls;
  if (empty && answer.finish !== "stop" && answer.finish !== "length") dropLatest(chat);
  if (chats.has(chat.id)) keepChat(chat);  // it may have been deleted meanwhile
  showChats();
  if (current === chat) showBranch();
  else showActions();
  if (problem) {
    const again = () => {
      if (current !== chat) openChat(chat);
      const last = branch(chat).pop(), message = chat.messages[last];
      if (message.role !== "assistant") generate(chat, last);
      else if (canContinue(chat, message)) generate(chat, last, true);
      else generate(chat, message.parent);
    };
    notice(problem.message, problem.status === 400 ? "" : "Try again", again);
    if (problem.status === 401) {
      $("access").hidden = false;
      $("key").focus();
    }
    return;
  }
  if (current === chat && views.has(place)) announce(views.get(place).body.textContent);
}
