"use strict";
const test = require("node:test");
const assert = require("node:assert");
const { load, storage } = require("./load_page.js");

const plain = value => JSON.parse(JSON.stringify(value));

function chatOf(page) {
  const chat = page("newChat()");
  const add = page("addMessage");
  const question = add(chat, -1, "user", "  A long\nquestion ");
  add(chat, question, "assistant", "first");
  return { chat, add, question };
}

test("a chat is a tree whose branch is shown", () => {
  const page = load(), { chat, add, question } = chatOf(page), branch = page("branch"), versions = page("versions");
  const second = add(chat, question, "assistant", "second");
  const next = add(chat, second, "user", "more");
  assert.deepEqual(plain(branch(chat)), [question, second, next]);
  assert.deepEqual(plain(versions(chat, second)), [1, second]);
  page("choose")(chat, 1);
  assert.deepEqual(plain(branch(chat)), [question, 1]);
  page("choose")(chat, second);
  assert.deepEqual(plain(branch(chat)), [question, second, next]);
  const edited = add(chat, -1, "user", "another question");
  assert.deepEqual(plain(branch(chat)), [edited]);
  page("dropLatest")(chat);
  assert.deepEqual(plain(branch(chat)), [question, second, next]);
  page("dropLatest")(chat);
  assert.deepEqual(plain(branch(chat)), [question, second]);
  page("dropLatest")(chat);
  assert.deepEqual(plain(branch(chat)), [question, 1]);
  assert.equal(page("titleOf")(chat), "A long question");
});

test("chats are kept in storage and read again", () => {
  const local = storage(), page = load({ localStorage: local }), { chat } = chatOf(page);
  chat.messages[1].marks = [5, 2];
  chat.messages[1].stats = page("emptyStats()");
  assert.equal(page("saveChat")(chat), "");
  const again = load({ localStorage: local });
  assert.equal(again("loadChats()"), "");
  assert.deepEqual(plain(again("[...chats.values()]")), [plain(chat)]);
  assert.equal(again("forgetChat")(chat), "");
  assert.deepEqual(Object.keys(local), []);
});

test("entries that are no chats are left alone, and full or blocked storage is said", () => {
  const local = storage();
  local.setItem("refold-chat:a", "{");
  local.setItem("refold-chat:b", '{"id": "other", "messages": []}');
  local.setItem("something", "else");
  const page = load({ localStorage: local });
  assert.equal(page("loadChats()"), "");
  assert.equal(page("chats.size"), 0);
  assert.equal(Object.keys(local).length, 3);
  assert.match(load({ localStorage: storage(10) })("saveChat(newChat())"), /storage is full/);
  const blocked = load({ get localStorage() { throw new Error("denied"); } });
  assert.match(blocked("saveChat(newChat())"), /does not let the page store/);
  assert.match(blocked("loadChats()"), /does not let the page store/);
});

test("an export is imported", () => {
  const { chat } = chatOf(load()), page = load();
  const text = page("exported")([chat]);
  const [read] = page("imported")(text);
  assert.deepEqual(plain(read), plain(chat));
  page("chats").set(read.id, read);
  assert.equal(page("imported")(text).length, 0);  // it is here
  read.title = "changed";
  const [other] = page("imported")(text);
  assert.notEqual(other.id, read.id);
});

test("what is imported is checked", () => {
  const page = load(), imported = page("imported");
  const file = chat => JSON.stringify({ refold_chats: 1, chats: [chat] });
  const error = text => {
    try {
      imported(text);
    } catch (problem) {
      return problem.message;
    }
    return "";
  };
  assert.match(error("no JSON"), /not JSON/);
  assert.match(error("[]"), /no export/);
  assert.match(error("null"), /no export/);
  assert.match(error(file(null)), /chat 1: not a chat/);
  const message = { role: "user", parent: -1, content: "x" };
  for (const wrong of [{ role: "system" }, { content: 5 }, { parent: 0 }, { parent: 1.5 }, { parent: "0" }, { parent: -2 }, { role: "tool" }])
    assert.match(error(file({ id: "a", messages: [{ ...message, ...wrong }] })), /chat 1: message 0/, JSON.stringify(wrong));
  assert.match(error(file({ id: "a", messages: [null] })), /chat 1: message 0/);
  const [chat] = imported(file({ id: "../x", chosen: "constructor", title: 7, settings: { seed: 5, stop: "." },
    messages: [{ ...message, extra: 1, stats: "", marks: [-1], chosen: 0 }, { ...message, parent: 0, role: "assistant", chosen: 0 }] }));
  assert.match(chat.id, /^[a-z0-9]+$/);
  assert.deepEqual([chat.title, chat.chosen, chat.settings.seed, chat.settings.stop], ["", 0, "", "."]);
  assert.deepEqual(plain(chat.messages), [{ ...message, chosen: 1 }, { ...message, parent: 0, role: "assistant", chosen: -1 }]);
});
