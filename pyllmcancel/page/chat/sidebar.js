// The conversations that this browser keeps.
import { copyText } from "../lib/copy.js";
import { Dialog } from "../lib/dialog.js";
import { plural } from "../lib/format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { fromJson, MAX_FILE, toJson, toMarkdown } from "./archive.js";
import { focusComposer } from "./editor.js";
import { chooseFiles, fileName, saveFile } from "./files.js";
import { Icon } from "./icons.js";
import { Menu } from "./menu.js";
import { Found, SearchField } from "./search_list.js";
import { MAX_KEPT } from "./storage.js";
import { day } from "./words.js";

// `onChosen` is called when the person has opened a conversation.
export function Sidebar({ chats, onChosen }) {
  const summaries = useObservable(chats.summaries);
  const current = useObservable(chats.current);
  const problem = useObservable(chats.problem);
  const [renamed, setRenamed] = useState(null);
  const last = useRef(null);
  useEffect(() => {
    // Return the focus to where it was before the name was edited.
    if (renamed === null && last.current !== null) document.querySelector(`[data-id="${last.current}"] .open`)?.focus();
    last.current = renamed;
  }, [renamed]);
  const [isAsking, setAsking] = useState(false);
  const [refusal, setRefusal] = useState(null);
  const [searched, setSearched] = useState("");
  const begin = () => { chats.start(); onChosen(); };
  const open = async (id) => { await chats.open(id); onChosen(); };
  const bring = async () => {
    setRefusal(null);
    try {
      const found = [];
      for (const file of await chooseFiles("application/json,.json", true)) {
        if (file.size > MAX_FILE) throw new Error(`${file.name} has more than 64 MiB`);
        found.push(...fromJson(await file.text()));
      }
      if (found.length > 0) await chats.take(found);
    } catch (error) {
      setRefusal(`Not imported: ${error.message}.`);
    }
  };
  const entryOf = (one) => html`
    <${Entry} key=${one.id} ...${{ chats, one, onOpen: () => open(one.id), isCurrent: one.id === current?.id, isRenamed: one.id === renamed, onRename: setRenamed }} />`;
  const entries = [
    { text: "Import …", act: bring },
    { text: "Export all as JSON", act: async () => saveFile("chats.json", toJson(await chats.everything()), "application/json") },
    { text: "Delete all …", act: () => setAsking(true), isDangerous: true },
  ];
  return html`
    <div class="side">
      <div class="side-head">
        <button type="button" class="new" onClick=${begin}><${Icon} name="plus" />New conversation</button>
        <${Menu} label="All conversations" entries=${entries} />
      </div>
      ${refusal !== null && html`<p class="refusal" role="alert">${refusal}</p>`}
      ${summaries.length > 0 && html`<${SearchField} text=${searched} onChange=${setSearched} />`}
      <nav class="side-list" aria-label="Conversations">
        ${searched.trim() !== "" && html`<${Found} chats=${chats} text=${searched.trim()} entryOf=${entryOf} />`}
        ${searched.trim() === "" && [...Map.groupBy(summaries, ({ updated }) => day(updated))].map(([name, group]) => html`
          <h2 key=${name}>${name}</h2>
          <ul key=${`${name} list`}>${group.map(entryOf)}</ul>`)}
        ${summaries.length === 0 && html`<p class="dim none">No conversations yet.</p>`}
      </nav>
      <p class="side-foot dim">${problem === null
    ? html`The last ${MAX_KEPT} conversations are kept, in this browser only.`
    : html`<span class="refusal" role="alert">This browser cannot store conversations (${problem}): export those that you need.</span>`}</p>
      ${isAsking && html`<${DeleteAll} n=${summaries.length} onDone=${(yes) => { setAsking(false); if (yes) chats.removeAll(); }} />`}
    </div>`;
}

function Entry({ chats, one, onOpen, isCurrent, isRenamed, onRename }) {
  const title = one.title || "Untitled";
  if (isRenamed) return html`<li class="entry current"><${Title} title=${one.title} onDone=${(text) => { onRename(null); if (text !== null) chats.rename(one.id, text); }} /></li>`;
  const entries = [{ text: "Rename", act: () => onRename(one.id) }, ...exports(chats, one.id), { text: "Delete", act: () => { chats.removeConversation(one.id); focusComposer(); }, isDangerous: true }];
  return html`
    <li class=${`entry ${isCurrent ? "current" : ""}`} data-id=${one.id}>
      <button type="button" class=${`quiet open ${one.excerpt ? "" : "ellipsis"}`} aria-current=${isCurrent ? "true" : undefined} title=${title} onClick=${onOpen}>
        ${one.excerpt ? html`<span class="ellipsis">${title}</span><span class="excerpt dim">${one.excerpt}</span>` : title}</button>
      <${Menu} label=${`Actions on “${title}”`} entries=${entries} class="small" />
    </li>`;
}

// Menu entries that export a conversation.
function exports(chats, id) {
  const saved = (ending, text, type) => async () => {
    const conversation = await chats.stored(id);
    if (conversation !== null) saveFile(fileName(conversation.title, ending), text(conversation), type);
  };
  const copy = async () => {
    const conversation = await chats.stored(id);
    if (conversation !== null && !(await copyText(toMarkdown(conversation)))) saveFile(fileName(conversation.title, "md"), toMarkdown(conversation), "text/markdown");
  };
  return [
    { text: "Copy as Markdown", act: copy },
    { text: "Export as Markdown", act: saved("md", toMarkdown, "text/markdown") },
    { text: "Export as JSON", act: saved("json", (conversation) => toJson([conversation]), "application/json") },
  ];
}

function Title({ title, onDone }) {
  const field = useRef(null), isDone = useRef(false);
  useLayoutEffect(() => { field.current.select(); }, []); // before anything is typed into it
  const done = (text) => {
    if (isDone.current) return; // the field loses the focus after the key, too
    isDone.current = true;
    onDone(text);
  };
  const keep = (event) => done(event.target.value.trim() || null);
  const keys = (event) => {
    if (event.key === "Enter" && !event.isComposing) keep(event);
    if (event.key === "Escape") {
      event.stopPropagation();
      event.preventDefault();
      done(null);
    }
  };
  return html`<input ref=${field} class="title-field" aria-label="The conversation's name" maxlength="200" defaultValue=${title} onKeyDown=${keys} onBlur=${keep} />`;
}

function DeleteAll({ n, onDone }) {
  return html`
    <${Dialog} aria-labelledby="delete-title" onClose=${(answer) => onDone(answer === "yes")}>
      <form method="dialog">
        <h2 id="delete-title">Delete ${plural(n, "conversation")}?</h2>
        <p class="dim">They are stored in this browser only, and cannot be restored.</p>
        <div class="row"><button class="danger" value="yes">Delete all</button><button value="no" autofocus>Keep them</button></div>
      </form>
    </${Dialog}>`;
}
