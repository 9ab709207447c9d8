// Markdown as blocks of plain data: what models write of CommonMark and GitHub's tables, without HTML, images and
// references. A text that is still arriving is as valid as a whole one: an open code block reaches to its end.

const kDeepest = 12;  // blocks in blocks; deeper ones are paragraphs

const kFence = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const kRule = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const kQuote = /^ {0,3}> ?/;
const kItem = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*))?$/;
const kTask = /^\[([ xX])\] /;
const kDelimiters = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/;  // of a trimmed line

const columns = space => space.replace(/\t/g, "    ").length;
const indentation = line => columns(/^[ \t]*/.exec(line)[0]);
const blank = line => !line.trim();

// `line` without up to `count` columns of indentation.
function outdented(line, count) {
  let at = 0;
  for (let column = 0; column < count && (line[at] === " " || line[at] === "\t"); ++at)
    column += line[at] === "\t" ? 4 : 1;
  return line.slice(at);
}

// The blocks of `lines`. Every one has its kind, its lines as `source`, and what its kind needs.
function blocksOf(lines, depth = 0) {
  const out = [];
  for (let at = 0; at < lines.length;) {
    if (blank(lines[at])) {
      ++at;
      continue;
    }
    const [block, next] = codeAt(lines, at) || lineAt(lines, at) || quoteAt(lines, at, depth) ||
      tableAt(lines, at) || listAt(lines, at, depth) || paragraphAt(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    out.push(block);
    at = next;
  }
  return out;
}

function codeAt(lines, at) {
  const open = kFence.exec(lines[at]);
  if (!open) return null;
  const mark = open[1], body = [], indent = indentation(lines[at]);
  let next = at + 1;
  for (; next < lines.length; ++next) {
    const line = lines[next].trim();
    if (line.length >= mark.length && line === mark[0].repeat(line.length)) return [code(++next), next];
    body.push(outdented(lines[next], indent));
  }
  return [code(), next];

  function code() {
    return { kind: "code", language: open[2].trim().split(/\s/)[0], text: body.join("\n") };
  }
}

// Blocks of one line.
function lineAt(lines, at) {
  const heading = kHeading.exec(lines[at]);
  if (heading) {
    const text = lines[at].slice(heading[0].length).trim().replace(/(^|\s)#+$/, "");
    return [{ kind: "heading", level: heading[1].length, text }, at + 1];
  }
  return kRule.test(lines[at]) ? [{ kind: "rule" }, at + 1] : null;
}

function quoteAt(lines, at, depth) {
  if (depth >= kDeepest || !kQuote.test(lines[at])) return null;
  const inner = [];
  for (; at < lines.length && kQuote.test(lines[at]); ++at) inner.push(lines[at].replace(kQuote, ""));
  return [{ kind: "quote", blocks: blocksOf(inner, depth + 1) }, at];
}

// The texts between the bars of a table's line; a bar in code or after a backslash is none.
function cells(line) {
  const out = [""];
  const text = line.trim().replace(/^\|/, "");
  let ticks = false;
  for (let i = 0; i < text.length; ++i) {
    if (text[i] === "`") ticks = !ticks && text.includes("`", i + 1);
    if (text[i] === "\\" && text[i + 1] === "|") out[out.length - 1] += text[++i];
    else if (text[i] === "|" && !ticks) out.push("");
    else out[out.length - 1] += text[i];
  }
  if (out.length > 1 && blank(out[out.length - 1])) out.pop();
  return out.map(cell => cell.trim());
}

function isTable(lines, at) {
  return at + 1 < lines.length && lines[at].includes("|") && lines[at + 1].includes("-") &&
    kDelimiters.test(lines[at + 1].trim()) && cells(lines[at]).length === cells(lines[at + 1]).length;
}

function tableAt(lines, at) {
  if (!isTable(lines, at)) return null;
  const head = cells(lines[at]), rows = [];
  const align = cells(lines[at + 1]).map(mark => mark.endsWith(":") ? mark[0] === ":" ? "center" : "right" : "left");
  for (at += 2; at < lines.length && lines[at].includes("|"); ++at) rows.push(cells(lines[at]).slice(0, head.length));
  return [{ kind: "table", head, align, rows }, at];
}

// An item's lines are those indented by two columns more than its mark, and those that go on with its text.
function listAt(lines, at, depth) {
  const first = kItem.exec(lines[at]);
  if (!first || depth >= kDeepest) return null;
  const ordered = /\d/.test(first[2]), mark = first[2].slice(-1), items = [];
  const margin = columns(first[1]);
  const box = (_, mark) => mark === " " ? "\u2610 " : "\u2611 ";
  let last = at;  // after the list's last line that is not blank
  while (at < lines.length) {
    const item = kItem.exec(lines[at]);
    if (!item || item[2].slice(-1) !== mark || columns(item[1]) >= margin + 2 || kRule.test(lines[at])) break;
    const indent = columns(item[1]), inner = [(item[4] || "").replace(kTask, box)];
    const content = indent + item[2].length + Math.min(4, columns(item[3] || " "));
    last = ++at;
    for (; at < lines.length; ++at) {
      const line = lines[at];
      if (blank(line)) inner.push("");
      else if (indentation(line) >= Math.min(content, indent + 2)) inner.push(outdented(line, content));
      else if (!blank(lines[at - 1]) && !begins(lines, at)) inner.push(line);
      else break;
      if (!blank(line)) last = at + 1;
    }
    while (inner.length > 1 && blank(inner[inner.length - 1])) inner.pop();
    items.push(blocksOf(inner, depth + 1));
  }
  return [{ kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items }, last];
}

// Whether a line begins another block than a paragraph.
function begins(lines, at) {
  const line = lines[at];
  return kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line) || kItem.test(line) ||
    isTable(lines, at);
}

function paragraphAt(lines, at, depth) {
  let next = at + 1;
  // A number ends a paragraph only where it begins a list.
  const ends = i => begins(lines, i) && !/^\s*(?!1[.)])\d+[.)]/.test(lines[i]);
  while (next < lines.length && !blank(lines[next]) && (depth >= kDeepest || !ends(next))) ++next;
  return [{ kind: "paragraph", text: lines.slice(at, next).join("\n").trim() }, next];
}

// ---- texts within a block

const kMostOpen = 40;  // marks that wait for their end; more are texts
const kEscape = /[*_`~#|>\\+\-.!<]/;
const kLink = /!?\[((?:[^[\]\\]|\\.)*)\]\([ \t]{0,9}<?([^\s<>()]*(?:\([^\s()]*\)[^\s()]*)*)>?(?:[ \t]+"[^"]*")?[ \t]*\)/y;
const kAddress = /https?:\/\/[^\s<>"'`]+/y;

// `text` as an address that a link may have, or an empty text.
function safeAddress(text) {
  try {
    const address = new URL(text);
    return address.protocol === "https:" || address.protocol === "http:" ? address.href : "";
  } catch {
    return "";
  }
}

// An address in running text ends before punctuation, and before a bracket that was opened before it.
function trimmedAddress(text) {
  let end = text.length, closed = text.split(")").length - text.split("(").length;
  for (;; --end) {
    const last = text[end - 1];
    if (last === ")" ? closed-- <= 0 : !".,;:!?*_~]}".includes(last)) return text.slice(0, end);
  }
}

// Whether a run of marks can open and close emphasis, by what stands before and after it. Within words `_` is a text.
function flanks(before, after, mark) {
  const space = c => !c || /\s/.test(c), word = c => /[\p{L}\p{N}_]/u.test(c);
  return [!space(after) && !(mark === "_" && word(before)), !space(before) && !(mark === "_" && word(after))];
}

// The nodes of a text: strings, and {kind, nodes} or {kind, text} for what is marked.
function inlineOf(text) {
  // Marks that are open, the outermost first; the first entry is the text itself.
  const open = [{ mark: "", count: 0, nodes: [] }];
  const waiting = { "*": 0, "_": 0, "~": 0 };
  let plain = "";
  const flush = () => {
    if (plain) open[open.length - 1].nodes.push(plain);
    plain = "";
  };
  const add = node => {
    flush();
    open[open.length - 1].nodes.push(node);
  };
  // Marks above `level` found no end: they are texts.
  const settle = level => {
    for (const entry of open.splice(level + 1)) {
      waiting[entry.mark]--;
      open[level].nodes.push(entry.mark.repeat(entry.count));
      for (const node of entry.nodes) open[level].nodes.push(node);
    }
  };
  const close = (mark, count) => {
    while (count > 0 && waiting[mark] > 0) {
      let level = open.length - 1;
      while (open[level].mark !== mark) --level;
      settle(level);
      const entry = open[level], used = Math.min(entry.count, count, 2);
      if (mark === "~" && used < 2) break;
      const kind = mark === "~" ? "del" : used === 2 ? "strong" : "em";
      const node = { kind, nodes: entry.nodes };
      entry.count -= used;
      count -= used;
      if (entry.count > 0) {
        entry.nodes = [node];
      } else {
        open.pop();
        waiting[mark]--;
        open[open.length - 1].nodes.push(node);
      }
    }
    return count;
  };

  for (let at = 0; at < text.length;) {
    const c = text[at];
    if (c === "\\" && kEscape.test(text[at + 1] || "")) {
      plain += text[at + 1];
      at += 2;
    } else if (c === "`") {
      const ticks = /`+/y;
      ticks.lastIndex = at;
      const run = ticks.exec(text)[0];
      const end = endOfCode(text, at + run.length, run.length);
      if (end < 0) {
        plain += run;
        at += run.length;
      } else {
        const inner = text.slice(at + run.length, end).replace(/\n/g, " ");
        add({ kind: "code", text: /^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner });
        at = end + run.length;
      }
    } else if (c === "[" || (c === "!" && text[at + 1] === "[")) {
      kLink.lastIndex = at;
      const link = kLink.exec(text), address = link ? safeAddress(link[2]) : "";
      if (address) add({ kind: "link", address, nodes: inlineOf(link[1] || link[2]) });
      else plain += link ? link[0] : c;
      at += link ? link[0].length : 1;
    } else if (c === "h" && !/[\p{L}\p{N}]/u.test(text[at - 1] || "")) {
      kAddress.lastIndex = at;
      const found = kAddress.exec(text), shown = found ? trimmedAddress(found[0]) : c, address = safeAddress(shown);
      if (found && address) add({ kind: "link", address, nodes: [shown] });
      else plain += shown;
      at += shown.length;
    } else if (c in waiting) {
      let end = at;
      while (text[end] === c) ++end;
      const [opens, closes] = flanks(text[at - 1] || "", text[end] || "", c);
      let count = end - at;
      flush();
      if (closes) count = close(c, count);
      if (count > 0 && opens && open.length < kMostOpen && (c !== "~" || count === 2)) {
        open.push({ mark: c, count, nodes: [] });
        waiting[c]++;
      } else {
        plain += c.repeat(count);
      }
      at = end;
    } else {
      plain += c;
      ++at;
    }
  }
  flush();
  settle(0);
  return open[0].nodes;
}

// Where the run of exactly `length` backquotes begins that ends a code span, or -1.
function endOfCode(text, from, length) {
  const runs = /`+/g;
  runs.lastIndex = from;
  for (let run; (run = runs.exec(text));) if (run[0].length === length) return run.index;
  return -1;
}
