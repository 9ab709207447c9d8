// The page's fields, keys and panels, and its start.

// A field as high as its text.
function fit(area) {
  area.style.height = "auto";
  area.style.height = area.scrollHeight + 2 + "px";
}

const isEnter = event => event.key === "Enter" && !event.shiftKey && !event.isComposing;

// ---- settings of the chat

function showSettings() {
  $("set_system").value = current.system;
  for (const name of kSettings) $("set_" + name).value = current.settings[name];
  showChanged();
}

// How many settings are not those that a chat begins with, so that it shows while they are folded.
function showChanged() {
  const start = startSettings();
  const changed = kSettings.filter(name => current.settings[name] !== start[name]).length + (current.system ? 1 : 0);
  $("changed").textContent = changed ? `(${changed} changed)` : "";
}

function settingsChanged() {
  current.system = $("set_system").value;
  for (const name of kSettings) current.settings[name] = $("set_" + name).value;
  if (chats.has(current.id) || current.system) keepChat(current);
  showChanged();
}

function settingProblem(error) {
  notice(error.message);
  $("options").open = true;
  $("set_" + error.field).focus();
}

function wireSettings() {
  for (const name of ["system", ...kSettings]) $("set_" + name).addEventListener("change", settingsChanged);
  $("reset").addEventListener("click", () => {
    withStorage(storage => storage.removeItem(kStartKey));
    current.settings = startSettings();
    current.system = "";
    showSettings();
    settingsChanged();
  });
  $("keep").addEventListener("click", () => {
    const problem = withStorage(storage => storage.setItem(kStartKey, JSON.stringify(current.settings)));
    notice(problem || "New chats begin with these settings.");
    showChanged();
  });
}

// ---- panels

const kChatsKey = "refold-chats-open", kThemeKey = "refold-theme";
const narrow = matchMedia("(max-width: 900px)");
const isNarrow = () => narrow.matches;

function showPanel(show) {
  $("chats").hidden = !show;
  for (const behind of [$("chat"), $("server")]) behind.inert = show && isNarrow();
  $("chats_switch").setAttribute("aria-expanded", show);
}

// Wide windows have room for all, narrow ones begin with the chat.
function arrange() {
  let open = true;
  withStorage(storage => { open = storage.getItem(kChatsKey) !== "false"; });
  showPanel(open && !isNarrow());
  $("server").open = !isNarrow();
}

function wirePanels() {
  narrow.addEventListener("change", arrange);
  $("chats_switch").addEventListener("click", () => {
    const show = $("chats").hidden;
    showPanel(show);
    if (!isNarrow()) withStorage(storage => storage.setItem(kChatsKey, show));
  });
  const theme = $("theme");
  withStorage(storage => { theme.value = storage.getItem(kThemeKey) || ""; });
  const show = () => { document.documentElement.dataset.theme = theme.value; };
  theme.addEventListener("change", () => {
    show();
    withStorage(storage => storage.setItem(kThemeKey, theme.value));
  });
  show();
}

function wireModels() {
  $("models").addEventListener("change", () => {
    withStorage(storage => storage.setItem(kModelKey, $("models").value));
    refresh();
  });
}

function wireChats() {
  $("new_chat").addEventListener("click", () => {
    openChat(newChat());
    if (isNarrow()) showPanel(false);
    $("input").focus();
  });
  $("export").addEventListener("click", () => download([...chats.values()], "refold-chats"));
  $("import").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    if ($("file").files[0]) await importFile($("file").files[0]);
    $("file").value = "";
  });
  // Changes of other tabs; what is being answered here is newer.
  addEventListener("storage", event => {
    if (!event.key?.startsWith(kChatPrefix) || (running && event.key === kChatPrefix + running.chat.id)) return;
    takeStored(event.key, event.newValue);
    if (event.key === kChatPrefix + current.id && chats.has(current.id)) openChat(chats.get(current.id));
    else showChats();
  });
  // What is not finished when the page is left is kept as far as it came.
  addEventListener("pagehide", () => {
    if (running) saveChat(running.chat);
  });
}

// ---- the message field

const kDraftKey = "refold-draft";

function wireInput() {
  const input = $("input");
  $("form").addEventListener("submit", event => {
    event.preventDefault();
    send();
  });
  input.addEventListener("keydown", event => {
    if (!isEnter(event)) return;
    event.preventDefault();
    send();
  });
  input.addEventListener("input", () => fit(input));
  $("stop").addEventListener("click", () => running?.controller.abort());
  addEventListener("keydown", event => {
    if (event.key !== "Escape" || event.isComposing) return;
    if (running) running.controller.abort();
    else if (isNarrow() && !$("chats").hidden) {
      showPanel(false);
      $("chats_switch").focus();
    }
  });
  // A reload loses no typed text, unless the browser keeps nothing.
  addEventListener("pagehide", () => {
    try { sessionStorage.setItem(kDraftKey, JSON.stringify([current.id, input.value])); } catch { /* as said */ }
  });
  $("access").addEventListener("submit", event => {
    event.preventDefault();
    setKey($("key").value);
    refresh();
    input.focus();
  });
  $("access_switch").addEventListener("click", () => {
    $("access").hidden = !$("access").hidden;
    if (!$("access").hidden) $("key").focus();
  });
}

// The conversation stays at its end while its window changes.
function wireLog() {
  const log = $("log");
  let low = true;
  log.addEventListener("scroll", () => { low = isLow(log); });
  new ResizeObserver(() => { if (low) log.scrollTop = log.scrollHeight; }).observe(log);
}

// The chat and the typed text of this tab before a reload; else the latest chat, or the first one.
function startChat() {
  let draft = [];
  try { draft = JSON.parse(sessionStorage.getItem(kDraftKey)) || []; } catch { /* there is none */ }
  const chat = chats.get(draft[0]) || latestFirst()[0] || newChat();
  if (draft[1]) drafts.set(chat.id, draft[1]);
  return chat;
}

function start() {
  const problem = loadChats();
  withStorage(storage => {
    const shown = storage.getItem(kLoopsKey);
    if (shown) tokensByLoop = shown === "true";
  });
  $("key").value = apiKey;
  wireSettings();
  wirePanels();
  wireChats();
  wireModels();
  wireInput();
  wireLog();
  arrange();
  openChat(startChat());
  if (problem) notice(problem);
  $("input").focus();
  refresh();
  setInterval(() => document.hidden || refresh(), 1000);
}

start();
