// The list of chats: choosing, naming, deleting, files.

function showChats() {
  const known = latestFirst();
  if (!chats.has(current.id)) known.unshift(current);
  $("chat_list").replaceChildren(...known.map(chat => {
    const select = button(titleOf(chat) + (running?.chat === chat ? " (answering)" : ""), () => {
      openChat(chat);
      if (isNarrow()) showPanel(false);
      $("input").focus();
    });
    if (chat !== current) return element("li", {}, select);
    select.setAttribute("aria-current", "true");
    const act = (text, work) => button(text, work, `${text}: ${titleOf(chat)}`);
    return element("li", {}, select, element("div", { class: "actions" },
      act("Rename", () => rename(chat)),
      act("Export", () => download([chat], titleOf(chat))),
      act("Delete", () => remove(chat))));
  }));
}

function rename(chat) {
  const input = element("input", { "aria-label": "Title of the chat" });
  const form = element("form", { class: "rename" }, input);
  input.value = titleOf(chat);
  let done = false;
  const end = keep => {
    if (done) return;
    done = true;
    if (keep) {
      chat.title = input.value.trim();
      keepChat(chat);
    }
    showChats();
    $("chat_list").querySelector("[aria-current]")?.focus();
  };
  form.addEventListener("submit", event => {
    event.preventDefault();
    end(true);
  });
  input.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end(false);
  });
  input.addEventListener("blur", () => end(true));
  $("chat_list").querySelector("[aria-current]").replaceWith(form);
  input.select();
}

function remove(chat) {
  if (running?.chat === chat) running.controller.abort();
  const title = titleOf(chat), problem = forgetChat(chat);
  openChat(latestFirst()[0] || newChat());
  $("new_chat").focus();
  if (problem) return notice(problem);
  notice(`Deleted "${title}".`, "Undo", () => {
    keepChat(chat);
    openChat(chat);
  });
}

function download(list, name) {
  const address = URL.createObjectURL(new Blob([exported(list)], { type: "application/json" }));
  element("a", { href: address, download: name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) + ".json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

async function importFile(file) {
  try {
    const added = imported(await file.text());
    const problem = added.map(keepChat).find(Boolean);
    showChats();
    if (added.length) openChat(added[0]);
    if (!problem) notice(`${added.length} ${added.length === 1 ? "chat" : "chats"} imported from ${file.name}.`);
  } catch (error) {
    notice(`${file.name} was not imported: ${error.message}.`);
  }
}
