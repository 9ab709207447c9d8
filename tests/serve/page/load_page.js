// The page's scripts outside of a browser: all but page.js, which starts it, with the few parts of a document that they use.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const kFolder = path.join(__dirname, "../../../src/serve/page");

class Node {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, childNodes: [] });
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener() {}
  append(...nodes) {
    for (const node of nodes) if (node instanceof Node) node.parent = this;
    this.childNodes.push(...nodes);
  }
  get children() { return this.childNodes.filter(node => node instanceof Node); }
  get lastElementChild() { return this.children.at(-1); }
  remove() { this.parent.childNodes = this.parent.childNodes.filter(node => node !== this); }
  replaceWith(other) {
    other.parent = this.parent;
    this.parent.childNodes = this.parent.childNodes.map(node => node === this ? other : node);
  }
  get textContent() { return this.childNodes.map(node => typeof node === "string" ? node : node.textContent).join(""); }
  set textContent(text) { this.childNodes = [text]; }
  querySelector(tag) {
    for (const child of this.children) {
      const found = child.tag === tag ? child : child.querySelector(tag);
      if (found) return found;
    }
    return null;
  }
  // As a text to compare with; < and & of texts are those of the texts.
  toString() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${value}"`).join("");
    return `<${this.tag}${attributes}>${this.childNodes.map(node => String(node)).join("")}</${this.tag}>`;
  }
}

function storage(most = Infinity) {
  const entries = {};
  Object.defineProperties(entries, {
    getItem: { value: name => Object.hasOwn(entries, name) ? entries[name] : null },
    removeItem: { value: name => delete entries[name] },
    setItem: {
      value: (name, value) => {
        if (String(value).length > most) throw Object.assign(new Error("full"), { name: "QuotaExceededError" });
        entries[name] = String(value);
      },
    },
  });
  return entries;
}

// The scripts' functions and constants: page("name") is what an expression in them gives.
function load(given = {}) {
  const context = vm.createContext(Object.defineProperties({
    URL, performance, crypto: globalThis.crypto, TextDecoderStream, setTimeout, sessionStorage: storage(), localStorage: storage(),
    document: { createElement: tag => new Node(tag) },
  }, Object.getOwnPropertyDescriptors(given)));
  const names = fs.readdirSync(kFolder).filter(name => name.endsWith(".js") && name !== "page.js");
  const scripts = names.map(name => fs.readFileSync(path.join(kFolder, name), "utf8"));
  vm.runInContext('"use strict";\n' + scripts.join("\n"), context);
  return expression => vm.runInContext(expression, context);
}

module.exports = { load, Node, storage };
