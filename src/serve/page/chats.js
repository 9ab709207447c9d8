// Chats as they are kept in this browser: one entry of its storage for each. A chat is a tree of messages, because an
// edited message and a regenerated answer leave the earlier ones beside them. Messages refer to each other by their
// places in `messages`; a message comes after the one that it answers.
//
//   chat     {id, title, system, settings: {name: text}, updated (ms since 1970), chosen, messages}
//   message  {role, parent, chosen, content, ...}; `chosen` is the next message of the branch that is shown, or -1
//   result   {call, name} as well: the id and the tool's name of the call whose result it is
//   answer   {reasoning, calls, finish, model, stats, loops, marks} as well; see checkedMessage()

const kChatPrefix = "refold-chat:", kExportVersion = 1;
const chats = new Map();  // by id: all chats

function newChat() {
  return { id: newId(), title: "", system: "", settings: startSettings(), updated: Date.now(), chosen: -1, messages: [] };
}

function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(3));
  return Array.from(numbers, n => n.toString(36)).join("");
}

const latestFirst = () => [...chats.values()].sort((a, b) => b.updated - a.updated);

const titleOf = chat => chat.title || chat.messages.find(message => message.role === "user")?.content.trim()
  .replace(/\s+/g, " ").slice(0, 60) || "New chat";

// ---- the tree

// Messages of the branch that is shown, as places in chat.messages.
function branch(chat) {
  const out = [];
  for (let at = chat.chosen; at >= 0; at = chat.messages[at].chosen) out.push(at);
  return out;
}

// Those that answer the same message as the one at `at`, itself included.
function versions(chat, at) {
  const { parent } = chat.messages[at];
  return chat.messages.flatMap((message, i) => message.parent === parent ? [i] : []);
}

const callsTools = message => message.finish === "tool_calls" && Boolean(message.calls);

// The calls of tools at the end of the branch whose results are missing.
function missingResults(chat) {
  const shown = branch(chat).map(at => chat.messages[at]), there = new Set();
  let last = shown.pop();
  for (; last?.role === "tool"; last = shown.pop()) there.add(last.call);
  return last && callsTools(last) ? last.calls.filter(call => !there.has(call.id)) : [];
}

// Shows the branch of the message at `at` from its parent on.
function choose(chat, at) {
  const { parent } = chat.messages[at];
  (parent < 0 ? chat : chat.messages[parent]).chosen = at;
}

// `more`: what the message has beside its text.
function addMessage(chat, parent, role, content, more = {}) {
  const at = chat.messages.push({ role, parent, chosen: -1, content, ...more }) - 1;
  choose(chat, at);
  return at;
}

// Takes the latest message back, and shows the version before it.
function dropLatest(chat) {
  const at = chat.messages.length - 1, others = versions(chat, at).filter(i => i !== at);
  const { parent } = chat.messages[at];
  (parent < 0 ? chat : chat.messages[parent]).chosen = others.length ? others[others.length - 1] : -1;
  chat.messages.pop();
}

// ---- what is read is not trusted: files come from elsewhere, and other versions of this page have written others

const isText = value => typeof value === "string";
const isCount = value => Number.isSafeInteger(value) && value >= 0;

// Throws an Error that says what is wrong with a chat read as JSON; else gives it with known fields only.
function checkedChat(value) {
  const wrong = what => { throw new Error(what); };
  if (!value || typeof value !== "object" || !isText(value.id) || !Array.isArray(value.messages)) wrong("not a chat");
  const messages = value.messages.map((message, at) => checkedMessage(message, at, wrong));
  const settings = {};
  for (const name of kSettings) settings[name] = isText(value.settings?.[name]) ? value.settings[name] : "";
  const out = { id: value.id, title: isText(value.title) ? value.title : "", system: isText(value.system) ? value.system : "",
    settings, updated: isCount(value.updated) ? value.updated : 0, chosen: value.chosen, messages };
  // A choice that is none becomes the latest version.
  for (const [parent, holder] of [[-1, out], ...messages.entries()])
    if (messages[holder.chosen]?.parent !== parent) holder.chosen = messages.findLastIndex(m => m.parent === parent);
  return out;
}

function checkedMessage(message, at, wrong) {
  const { role, parent, content } = message || {};
  if (!["user", "assistant", "tool"].includes(role) || !isText(content)) wrong(`message ${at} has no role or no text`);
  if (!Number.isSafeInteger(parent) || parent < -1 || parent >= at) wrong(`message ${at} answers none before it`);
  const out = { role, parent, chosen: message.chosen, content };
  if (role === "tool" && !(isText(message.call) && isText(message.name))) wrong(`message ${at} is the result of no call`);
  for (const name of ["reasoning", "finish", "model", "call", "name"]) if (isText(message[name])) out[name] = message[name];
  if (Array.isArray(message.calls) && message.calls.every(call => [call?.id, call?.name, call?.arguments].every(isText)))
    out.calls = message.calls;
  if (isCount(message.loops)) out.loops = message.loops;
  if (Array.isArray(message.marks) && message.marks.every(isCount)) out.marks = message.marks;
  const stats = message.stats;
  if (stats && Object.values(stats).every(n => Number.isFinite(n) && n >= 0)) out.stats = { ...emptyStats(), ...stats };
  return out;
}

// ---- storage

// Does `work` with this browser's storage. Returns what is wrong in words, or an empty text.
function withStorage(work) {
  try {
    work(localStorage);
    return "";
  } catch (error) {
    return error.name === "QuotaExceededError"
      ? "This browser's storage is full, so the latest changes are not kept. Export chats and delete some."
      : "This browser does not let the page store anything: chats are lost when the page closes. Export what you need.";
  }
}

function saveChat(chat) {
  return withStorage(storage => storage.setItem(kChatPrefix + chat.id, JSON.stringify(chat)));
}

function forgetChat(chat) {
  chats.delete(chat.id);
  return withStorage(storage => storage.removeItem(kChatPrefix + chat.id));
}

// Takes a chat from what storage has for it; null when it was removed there.
function takeStored(key, text) {
  const id = key.slice(kChatPrefix.length);
  chats.delete(id);
  try {
    const chat = checkedChat(JSON.parse(text));
    if (chat.id === id) chats.set(id, chat);
  } catch { /* what cannot be read stays in the storage, unshown */ }
}

function loadChats() {
  return withStorage(storage => {
    for (const key of Object.keys(storage)) if (key.startsWith(kChatPrefix)) takeStored(key, storage.getItem(key));
  });
}

// ---- files

const exported = list => JSON.stringify({ refold_chats: kExportVersion, chats: list }, null, 1);

// The chats of a file. One whose id is taken by another chat gets a new one; one that is here already is left out.
// Throws an Error that says what is wrong.
function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("the file is not JSON");
  }
  if (file?.refold_chats !== kExportVersion || !Array.isArray(file.chats))
    throw new Error("the file is no export of chats of this page");
  const out = [];
  file.chats.forEach((value, i) => {
    let chat;
    try {
      chat = checkedChat(value);
    } catch (error) {
      throw new Error(`chat ${i + 1}: ${error.message}`);
    }
    const same = chats.get(chat.id);
    if (same && JSON.stringify(checkedChat(same)) === JSON.stringify(chat)) return;
    if (same || !/^[a-z0-9]{1,40}$/.test(chat.id)) chat.id = newId();
    out.push(chat);
  });
  return out;
}
