// Markdown to blocks, at once and while it grows.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks, escape } from "../../pyllmcancel/page/chat/blocks.js";

const whole = (text) => new Blocks().update(text, true);
const htmlOf = (text) => whole(text).map((block) => block.html ?? `<pre>${escape(block.text)}</pre>`).join("");

const LONG = `# Title

A paragraph with *emphasis*, \`code\` and a [link][here].

1. one
2. two

   within two

- [x] done
- [ ] not yet

\`\`\`python
def f():

    return "\`\`\`"
\`\`\`

| a | b |
|---|--:|
| 1 | 2 |

> quote
>
> - in it

    indented

Setext
======

~~~
tildes
~~~

[here]: https://example.org/x

The end.`;

test("a text that comes letter by letter comes out as the same text at once", () => {
  const growing = new Blocks();
  for (let n = 1; n < LONG.length; n += 1) growing.update(LONG.slice(0, n));
  assert.deepEqual(growing.update(LONG, true), whole(LONG));
});

test("so does one that defines nothing, which is not read again at its end", () => {
  const text = LONG.replaceAll("[here]", "here");
  const growing = new Blocks();
  for (let n = 1; n < text.length; n += 1) growing.update(text.slice(0, n));
  assert.deepEqual(growing.update(text, true), whole(text));
});

test("so does one that was whole, at whichever letter it was stopped, and is continued", () => {
  const text = LONG.replaceAll("[here]", "here");
  for (let n = 1; n < text.length; n += 1) {
    const continued = new Blocks();
    continued.update(text.slice(0, n), true);
    assert.deepEqual(continued.update(text.slice(0, n + 1)), new Blocks().update(text.slice(0, n + 1)), text.slice(0, n));
    assert.deepEqual(continued.update(text, true), whole(text), text.slice(0, n));
  }
});

test("while it grows, only its last blocks are other ones", () => {
  const growing = new Blocks();
  const before = growing.update("# a\n\nb\n\nc\n\nd");
  const after = growing.update("# a\n\nb\n\nc\n\nd e");
  assert.deepEqual(before.map((block, at) => block === after[at]), [true, true, true, false]);
});

test("a number that becomes a list's item does not begin another list", () => {
  const growing = new Blocks();
  for (const text of ["1. one\n\n", "1. one\n\n2", "1. one\n\n2.", "1. one\n\n2. two"]) growing.update(text);
  assert.equal(growing.update("1. one\n\n2. two").length, 1);
});

test("a block of code is open until its fence has come", () => {
  const [open] = new Blocks().update("```js\nlet a;\n");
  assert.deepEqual([open.kind, open.lang, open.text, open.isOpen], ["code", "js", "let a;", true]);
  assert.equal(whole("```js title=x\nlet a;\n```")[0].isOpen, false);
  assert.equal(whole("````\n```\nx\n````")[0].text, "```\nx");
});

test("markup of an answer is shown as the text that it is", () => {
  for (const wrong of ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '<div style="position:fixed">', "<style>*{}</style>", "<form action=x>", "<iframe>", '<b id="app">', '<a href="javascript:x">', "Vec<T>", "<svg onload=x>", "<!-- a -->", "a <b", "<b\n onclick=x>"]) {
    for (const text of [wrong, `a ${wrong} b`, `- ${wrong}`, `| ${wrong.replaceAll("|", "")} |\n|---|\n| ${wrong} |`]) {
      const unknown = htmlOf(text).match(/<(?!\/?(p|ul|li|table|thead|tbody|tr|th|td|b)>)[^>]*>/);
      assert.equal(unknown, null, text);
    }
  }
  assert.match(htmlOf("H<sub>2</sub>O<br>x"), /H<sub>2<\/sub>O<br>x/);
});

test("a picture elsewhere is a link", () => {
  assert.equal(htmlOf("![a cat](https://example.org/cat.png)"), '<p><a href="https://example.org/cat.png">a cat</a></p>\n');
  assert.match(htmlOf("![dot](data:image/png;base64,AA==)"), /<img src="data:image\/png;base64,AA==" alt="dot">/);
});

test("what its parser does not take is shown as it is", () => {
  const deep = `${"> ".repeat(30000)}x`;
  assert.deepEqual(whole(deep).map(({ kind, text }) => [kind, text]), [["code", deep]]);
});

test("line ends of other systems", () => {
  assert.deepEqual(whole("a\r\n\r\nb\rc"), whole("a\n\nb\nc"));
});

test("a person's Markdown is read as an answer's is, and keeps lines and spaces", () => {
  const [list, text] = new Blocks(true).update("- **a**\n- `b`\n\ndef f(x):\n    return  x", true);
  assert.equal(list.html, "<ul>\n<li><strong>a</strong></li>\n<li><code>b</code></li>\n</ul>\n");
  assert.equal(text.html, "<p>def f(x):\n    return  x</p>\n");
});

test("markup that a person types is text", () => {
  const html = new Blocks(true).update("<b>bold</b> and <img src=x>\n\n<table><tr>\n\nend", true).map((block) => block.html).join("");
  assert.equal(html, "<p>&lt;b&gt;bold&lt;/b&gt; and &lt;img src=x&gt;</p>\n<p>&lt;table&gt;&lt;tr&gt;</p><p>end</p>\n");
});

const tex = (text) => [...whole(text).map((block) => block.html ?? block.text).join("").matchAll(/<code class="language-tex-(\w+)">([^<]*)<\/code>/g)].map(([, kind, source]) => `${kind} ${source}`);

test("formulas are found in lines and in lines of their own", () => {
  assert.deepEqual(tex("So $E = mc^2$, \\(a_1 + b_1\\) and $x$."), ["inline E = mc^2", "inline a_1 + b_1", "inline x"]);
  assert.deepEqual(tex("Now\n$$\n\\frac{a}{b}\n= c\n$$\nand \n\\[ x_1\n\\]"), ["block \\frac{a}{b}\n= c", "block x_1"]);
  assert.deepEqual(tex("- item $a_1$\n- $b$\n\n| $c$ | d |\n|---|---|\n| 1 | $e$ |"), ["inline a_1", "inline b", "inline c", "inline e"]);
});

test("money, variables, escaped dollars and code are no formulas", () => {
  for (const text of ["$5 and $10", "from $5 to $ 10", "a \\$x\\$ b", "`$x$`", "$HOME/$USER", "```sh\necho $a $b\n```", "$$", "$", "\\(", "\\[ x"]) assert.deepEqual(tex(text), [], text);
});

test("a formula is shown as it was written until it is complete", () => {
  const growing = new Blocks();
  assert.equal(growing.update("$$\nx +").at(-1).html, "<p>$$\nx +</p>\n");
  assert.match(growing.update("$$\nx + 1\n$$\n\nAnd").at(0).html, /language-tex-block">x \+ 1</);
});

test("many beginnings of formulas take no longer than other text", () => {
  for (const piece of ["\\(", "$a ", "$$\n", "\\[", "*a* ", "$$\nx", "\\[\n", "$$ "]) {
    const began = performance.now();
    new Blocks().update(piece.repeat(20_000), true);
    assert.ok(performance.now() - began < 5_000, piece);
  }
});
