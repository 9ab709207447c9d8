"use strict";
const test = require("node:test");
const assert = require("node:assert");
const { load, Node } = require("./load_page.js");

const page = load();
const showMarkdown = page("showMarkdown");

// Without the wrapping of code, whose own test has it.
function html(text) {
  const target = new Node("div");
  showMarkdown(target, text);
  return target.childNodes.map(String).join("")
    .replace(/<div class="code"><div class="code_head"><span>(.*?)<\/span>.*?<\/button><\/div><pre.*?><code>/g, "<pre $1>")
    .replace(/<\/code><\/pre><\/div>/g, "</pre>");
}

const kCases = [
  // texts
  ["a\nb\n\nc", "<p>a\nb</p><p>c</p>"],
  ["**bold** and *em* and __bold__ and _em_", "<p><strong>bold</strong> and <em>em</em> and <strong>bold</strong> and <em>em</em></p>"],
  ["***both***", "<p><em><strong>both</strong></em></p>"],
  ["*a **b** c*", "<p><em>a <strong>b</strong> c</em></p>"],
  ["**中文。**中文", "<p><strong>中文。</strong>中文</p>"],
  ["snake_case_name a_b_, 2 * 3 * 4, a ** b", "<p>snake_case_name a_b_, 2 * 3 * 4, a ** b</p>"],
  ["*open and **open too", "<p>*open and **open too</p>"],
  ["**a _b**", "<p><strong>a _b</strong></p>"],
  ["~~gone~~ ~not~", "<p><del>gone</del> ~not~</p>"],
  ["\\*not\\* \\(x\\) \\[y\\]", "<p>*not* \\(x\\) \\[y\\]</p>"],
  ["`a*b*` ``c`d`` `` `e` `` `open", "<p><code>a*b*</code> <code>c`d</code> <code>`e`</code> `open</p>"],
  // headings, rules, quotes
  ["# One\n### Three ###\n####### no\n#no", "<h3>One</h3><h5>Three</h5><p>####### no\n#no</p>"],
  ["a\n---\n* * *\n___", "<p>a</p><hr></hr><hr></hr><hr></hr>"],
  ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  // lists
  ["- a\n- b\n  goes on\n\nc", "<ul><li>a</li><li>b\ngoes on</li></ul><p>c</p>"],
  ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  ["1. a\n   - b\n     1. c\n2. d", "<ol><li>a<ul><li>b<ol><li>c</li></ol></li></ul></li><li>d</li></ol>"],
  ["1. a\n  - b\n2. d", "<ol><li>a<ul><li>b</li></ul></li><li>d</li></ol>"],
  ["- a\n\t- b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"],
  ["- a\n\n  second\n\n- b", "<ul><li>a<p>second</p></li><li>b</li></ul>"],
  ["- a\nlazy\n# h", "<ul><li>a\nlazy</li></ul><h3>h</h3>"],
  ["- a\n* b", "<ul><li>a</li></ul><ul><li>b</li></ul>"],
  ["- [ ] to do\n- [x] done", "<ul><li>\u2610 to do</li><li>\u2611 done</li></ul>"],
  ["in\n1998. It was", "<p>in\n1998. It was</p>"],
  ["1. a\n   ```py\n   x\n     y\n   ```\n2. b", "<ol><li>a<pre py>x\n  y</pre></li><li>b</li></ol>"],
  ["-", "<ul><li></li></ul>"],
  // code
  ["```js\nlet a = 1 < 2;\n\n# no heading\n```\nb", "<pre js>let a = 1 < 2;\n\n# no heading</pre><p>b</p>"],
  ["~~~~\n~~~\n```\n~~~~", "<pre >~~~\n```</pre>"],
  ["```\nstill coming\n", "<pre >still coming\n</pre>"],
  ["```not code```", "<p><code>not code</code></p>"],
  // links
  ["[t](https://a.b/c \"x\")", '<p><a href="https://a.b/c" title="https://a.b/c" target="_blank" rel="noopener noreferrer">t</a></p>'],
  ["![i](http://a.b/i.png)", '<p><a href="http://a.b/i.png" title="http://a.b/i.png" target="_blank" rel="noopener noreferrer">i</a></p>'],
];

test("Markdown", () => {
  for (const [text, expected] of kCases) assert.equal(html(text), expected, JSON.stringify(text));
});

test("addresses in running text end before punctuation", () => {
  for (const [text, address] of [["see https://a.b/c, and", "https://a.b/c"], ["(https://a.b/c(d))", "https://a.b/c(d)"],
    ["**https://a.b/c**.", "https://a.b/c"], ["https://a.b/c?d=e&f#g!", "https://a.b/c?d=e&f#g"]])
    assert.equal(/href="(.*?)"/.exec(html(text))?.[1], address, text);
  for (const text of ["xhttps://a.b", "https://", "http", "https://)))"]) assert.doesNotMatch(html(text), /<a /, text);
});

test("tables", () => {
  const cells = text => html(text).replace(/<(td|th) class="(\w+)"[^>]*>/g, "<$1 $2>").replace(/<div.*?>/, "").replace("</div>", "");
  assert.equal(cells("| a | b\\|c | `d|e` |\n|:--|:-:|--:|\n| 1 | **2** |\n|3|4|5|6|\nno bar"),
    "<table><thead><tr><th left>a</th><th center>b|c</th><th right><code>d|e</code></th></tr></thead>" +
    "<tbody><tr><td left>1</td><td center><strong>2</strong></td></tr>" +
    "<tr><td left>3</td><td center>4</td><td right>5</td></tr></tbody></table><p>no bar</p>");
  assert.equal(cells("a|b\n-|-"), "<table><thead><tr><th left>a</th><th left>b</th></tr></thead><tbody></tbody></table>");
  assert.equal(html("a|b\n-"), "<p>a|b</p><ul><li></li></ul>");
});

test("markup of a model stays text, and links lead to http and https only", () => {
  const kTries = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "<iframe srcdoc='<script>alert(1)</script>'>",
    "**<b onmouseover=alert(1)>x</b>**", "`<script>alert(1)</script>`", "```html\n<script>alert(1)</script>\n```",
    "```\"><script>alert(1)</script>\nx\n```", "| <script> | b |\n|---|---|\n| <img onerror=alert(1)> | x |", "# <u>x</u>",
    "- <details open ontoggle=alert(1)>", "> <style>*{}</style>", "&lt;script&gt;", "<!-- x -->", "<https://a.b>",
  ];
  for (const text of kTries) {
    const target = new Node("div");
    showMarkdown(target, text);
    const tags = [];
    const visit = node => node.children.forEach(child => {
      tags.push(child.tag);
      for (const name of Object.keys(child.attributes))
        assert.match(name, /^(class|type|aria-label|tabindex|role|scope|start|href|title|target|rel)$/, text);
      visit(child);
    });
    visit(target);
    for (const tag of tags)
      assert.match(tag, /^(p|strong|code|div|span|button|pre|table|thead|tbody|tr|th|td|h3|ul|li|blockquote|a)$/, text);
  }
  for (const address of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,x", "vbscript:x",
    "//evil.example", "/status", "\u0001javascript:alert(1)", "file:///etc/passwd", "blob:x", "https:", "&#106;avascript:x"])
    assert.doesNotMatch(html(`[x](${address}) ![x](${address}) <${address}>`), /<a /, address);
});

test("a text that is arriving has valid blocks at every character", () => {
  const whole = kCases.map(([text]) => text).join("\n\n");
  const target = new Node("div");
  for (let end = 0; end <= whole.length; ++end) showMarkdown(target, whole.slice(0, end));
  assert.equal(target.childNodes.map(String).join(""), (() => {
    const once = new Node("div");
    showMarkdown(once, whole);
    return once.childNodes.map(String).join("");
  })());
});

test("blocks that do not change keep their elements", () => {
  const target = new Node("div");
  showMarkdown(target, "a\n\n```js\nx");
  const [first, code] = target.childNodes;
  showMarkdown(target, "a\n\n```js\nx\ny\n```\nb");
  assert.equal(target.childNodes[0], first);
  assert.equal(target.childNodes[1], code);
  assert.equal(code.querySelector("code").textContent, "x\ny");
  assert.equal(target.childNodes.length, 3);
  showMarkdown(target, "a");
  assert.deepEqual(target.childNodes, [first]);
});

// Texts on which careless parsers take hours or overflow the stack; a model that repeats itself writes them.
test("long repetitions end", () => {
  const n = 100000;
  for (const text of ["*", "**a ", "*a* ", "_", "~~", "`", "`` ` ", "[", "[a](", "[a](b ", "![", "<", "\\", ">", "> ", "- ", "  - a\n", "1. ",
    "#", "# ", "|", "a|", "https://a.b) ", "https://a.b/))))", ")", "```\n", "a\n", "\n", " ", "| a |\n|---|\n", "-|", "*a **b ", "\t", "h", "_a "])
    assert.ok(html(text.repeat(Math.ceil(n / text.length))).length > 0 || !text.trim(), text);
  for (const text of ["*a ".repeat(n) + "b* ".repeat(n), "a|b\n" + " ".repeat(n) + "-x", "# " + " ".repeat(n) + "x", "[a](" + " ".repeat(n) + "x", "https://a" + ")".repeat(n),
    "- ".repeat(20) + "a", "> ".repeat(40) + "a", "|".repeat(200) + "\n" + "|-".repeat(200) + "\n" + "|x\n".repeat(1000)])
    assert.ok(html(text).length > 0);
});
