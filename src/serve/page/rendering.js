// Markdown on the page. What a model wrote becomes texts of elements, never markup, and links lead to http and https only.

function inlineElements(text) {
  const shown = node => {
    if (typeof node === "string") return node;
    if (node.kind === "code") return element("code", {}, node.text);
    if (node.kind !== "link") return element(node.kind, {}, node.nodes.map(shown));
    return element("a", { href: node.address, title: node.address, target: "_blank", rel: "noopener noreferrer" },
      node.nodes.map(shown));
  };
  return inlineOf(text).map(shown);
}

const kBlocks = {
  paragraph: block => element("p", {}, inlineElements(block.text)),
  // The page and its messages have the first two levels.
  heading: block => element("h" + Math.min(6, block.level + 2), {}, inlineElements(block.text)),
  rule: () => element("hr"),
  quote: block => element("blockquote", {}, block.blocks.map(blockElement)),
  code: block => {
    const text = element("code", {}, block.text);
    return element("div", { class: "code" },
      element("div", { class: "code_head" }, element("span", {}, block.language),
        copyButton("Copy the code", () => text.textContent)),
      element("pre", { tabindex: "0", role: "region", "aria-label": "Code" }, text));
  },
  list: block => element(block.ordered ? "ol" : "ul", block.start !== 1 ? { start: block.start } : {},
    block.items.map(blocks => element("li", {}, blocks.map((inner, i) =>
      i === 0 && inner.kind === "paragraph" ? inlineElements(inner.text) : blockElement(inner)).flat()))),
  table: block => {
    const row = (cells, tag) => element("tr", {}, cells.map((cell, i) =>
      element(tag, { class: block.align[i], ...(tag === "th" && { scope: "col" }) }, inlineElements(cell))));
    return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
      element("table", {}, element("thead", {}, row(block.head, "th")),
        element("tbody", {}, block.rows.map(cells => row(cells, "td")))));
  },
};

function blockElement(block) { return kBlocks[block.kind](block); }

// Shows `text` in `target`. Blocks that are as before keep their elements, and with them what a person has selected
// there; of a code block that grows only the text changes.
function showMarkdown(target, text) {
  const before = target.shownBlocks || [], blocks = blocksOf(text.replace(/\r\n?/g, "\n").split("\n"));
  blocks.forEach((block, i) => {
    const old = before[i], now = target.children[i];
    if (old && old.kind === block.kind && old.source === block.source) return;
    if (old && old.kind === "code" && block.kind === "code" && old.language === block.language)
      now.querySelector("code").textContent = block.text;
    else if (old) now.replaceWith(blockElement(block));
    else target.append(blockElement(block));
  });
  while (target.children.length > blocks.length) target.lastElementChild.remove();
  target.shownBlocks = blocks;
}
