// The chat: conversations at the side, one of them in the middle, and the composer below it.
import { Dialog } from "../lib/dialog.js";
import { html, useEffect, useState } from "../lib/html.js";
import { listen, useEvent, useObservable } from "../lib/observable.js";
import { modelOf, stateOf } from "../lib/served.js";
import { say } from "../lib/spoken.js";
import { fleet } from "../live.js";
import { Composer } from "./composer.js";
import { focusComposer } from "./editor.js";
import { learnFacts } from "./facts.js";
import { useFollow } from "./follow.js";
import { Icon, IconButton } from "./icons.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";
import { endWords, errorWords } from "./words.js";

const WIDE = matchMedia("(min-width: 900px)");

export function Room({ chats }) {
  const conversation = useObservable(chats.current);
  const isWide = useEvent(WIDE, "change", () => WIDE.matches);
  const [open, setOpen] = useState(null); // "settings", "list"
  const follow = useFollow(conversation.id);
  const answering = chats.answeringOf(conversation);
  const served = useObservable(fleet.served);
  const chosen = modelOf(served, conversation.settings.model);
  useEffect(() => { learnFacts(chosen); }, [chosen?.id, chosen !== null && stateOf(chosen) === "ready"]);
  useEffect(() => listen(window, "keydown", (event) => {
    const isElsewhere = event.defaultPrevented || event.isComposing || document.querySelector("dialog[open], [popover]:popover-open") !== null;
    if (event.key === "Escape" && !isElsewhere) chats.stop();
  }), [chats]);
  // Each answer is announced after it has ended. The thread itself is silent: it would be read token by token.
  useEffect(() => chats.said.subscribe((message) => say(spokenOf(message))), [chats]);
  const send = (text, attached) => {
    follow.toEnd();
    chats.send(text, attached);
  };
  return html`
    <div class="chat">
      ${isWide && html`<aside class="chat-side" aria-label="History"><${Sidebar} chats=${chats} onChosen=${() => {}} /></aside>`}
      ${!isWide && open === "list" && html`<${Dialog} class="drawer" aria-label="Conversations" onClose=${() => setOpen(null)}><${Sidebar} chats=${chats} onChosen=${() => setOpen(null)} /></${Dialog}>`}
      <section class="chat-main" aria-label=${conversation.title || "New conversation"}>
        ${!isWide && html`
          <header class="chat-bar">
            <${IconButton} icon="list" label="Conversations" onClick=${() => setOpen("list")} />
            <span class="ellipsis grow">${conversation.title || "New conversation"}</span>
            <${IconButton} icon="plus" label="New conversation" onClick=${() => chats.start()} />
          </header>`}
        <${Thread} ...${{ chats, conversation, follow }} isBusy=${answering !== null} />
        <div class="dock">
          ${follow.isAway && html`<button type="button" class="to-end" aria-label="To the newest" title="To the newest" onClick=${follow.toEnd}><${Icon} name="down" /></button>`}
          <${Toast} chats=${chats} />
          <${Composer} ...${{ chats, conversation, answering }} onSend=${send} onSettings=${() => setOpen("settings")} />
        </div>
      </section>
      ${open === "settings" && html`<${Settings} ...${{ chats, conversation }} onClose=${() => setOpen(null)} />`}
    </div>`;
}

function Toast({ chats }) {
  const toast = useObservable(chats.toast);
  useEffect(() => {
    if (toast === null) return undefined;
    const away = setTimeout(() => { if (chats.toast.value === toast) chats.toast.set(null); }, 8000);
    return () => clearTimeout(away);
  }, [toast]);
  return html`
    <div class="toast-place" role="status">
      ${toast !== null && html`<div class="toast">${toast.text}${toast.undo && html`<button type="button" class="quiet small" onClick=${() => { toast.undo(); chats.toast.set(null); focusComposer(); }}>Undo</button>`}</div>`}
    </div>`;
}

const MAX_SPOKEN = 2000; // characters
const spokenOf = (message) => `${message.content.slice(0, MAX_SPOKEN)} ${message.error ? errorWords(message.error).title : endWords(message) ?? ""}`;
