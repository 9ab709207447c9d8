// Elements of the page, and numbers as people read them.

const $ = id => document.getElementById(id);

// An element with attributes; children are elements, texts, which stay texts, or arrays of them.
function element(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  for (const child of children.flat()) out.append(child);
  return out;
}

function drawn(tag, attributes) {
  const out = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  return out;
}

// A button that shows `text`. `name` is what it says to those who do not see what it stands beside.
function button(text, act, name) {
  const out = element("button", { type: "button", class: "plain", ...(name && { "aria-label": name }) }, text);
  out.addEventListener("click", act);
  return out;
}

// Shows a text above the message field until it is dismissed, with a button where something can be done about it.
function notice(text, label, act) {
  const parts = text ? [element("span", {}, text)] : [];
  if (label) {
    parts.push(button(label, () => {
      notice("");
      act();
    }));
  }
  if (text) parts.push(button("Dismiss", () => notice("")));
  $("notice").replaceChildren(...parts);
}

// Tells it to people who do not see the page.
function announce(text) { $("announce").textContent = text; }

const number = n => Number(n).toLocaleString("en-US");
const short = n => n >= 1e9 ? (n / 1e9).toFixed(2) + " G" : n >= 1e6 ? (n / 1e6).toFixed(1) + " M"
  : n >= 1e4 ? (n / 1e3).toFixed(0) + " k" : number(n);
const bytes = n => n >= 2 ** 30 ? (n / 2 ** 30).toFixed(2) + " GiB" : n >= 2 ** 20 ? (n / 2 ** 20).toFixed(1) + " MiB"
  : n >= 1024 ? (n / 1024).toFixed(1) + " KiB" : n + " B";
const percent = part => (100 * part).toFixed(1) + " %";

// The clipboard; browsers offer it to pages of this machine or of TLS, the rest copy a selection.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (focused) focused.focus();
    return done;
  }
}

function copyButton(name, text) {
  const out = button("Copy", async () => {
    out.textContent = await copy(text()) ? "Copied" : "Not copied";
    setTimeout(() => { out.textContent = "Copy"; }, 1500);
  }, name);
  return out;
}
