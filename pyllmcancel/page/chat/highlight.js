// Syntax colours, as HTML that sanitize.js accepts.
import hljs from "../vendor/highlight/core.min.js";
import bash from "../vendor/highlight/bash.min.js";
import cpp from "../vendor/highlight/cpp.min.js";
import css from "../vendor/highlight/css.min.js";
import diff from "../vendor/highlight/diff.min.js";
import go from "../vendor/highlight/go.min.js";
import json from "../vendor/highlight/json.min.js";
import markdown from "../vendor/highlight/markdown.min.js";
import python from "../vendor/highlight/python.min.js";
import rust from "../vendor/highlight/rust.min.js";
import sql from "../vendor/highlight/sql.min.js";
import typescript from "../vendor/highlight/typescript.min.js";
import xml from "../vendor/highlight/xml.min.js";
import yaml from "../vendor/highlight/yaml.min.js";

// TypeScript's grammar is JavaScript's and more. A script in HTML has its colours only by the name itself, not by an alias.
const LANGUAGES = { bash, cpp, css, diff, go, javascript: typescript, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, grammar] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, grammar);
hljs.registerAliases(["c", "h", "cc", "c++", "java", "cs", "csharp"], { languageName: "cpp" });
hljs.registerAliases(["shell", "console", "zsh", "sh"], { languageName: "bash" });
hljs.registerAliases(["svg", "html", "vue"], { languageName: "xml" });
hljs.registerAliases(["js", "jsx", "mjs", "cjs"], { languageName: "javascript" });

const MAX_OPEN = 8_000, MAX_CLOSED = 200_000; // characters: while a block grows, and after it is complete

// null: the code is shown without colours
export function highlighted(text, lang, isOpen) {
  if (lang === "" || hljs.getLanguage(lang) === undefined || text.length > (isOpen ? MAX_OPEN : MAX_CLOSED)) return null;
  return hljs.highlight(text, { language: lang, ignoreIllegals: true }).value;
}
