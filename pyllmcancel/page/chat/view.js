// The chat's view. Its code, and the libraries for Markdown, are loaded when it is first shown.
import { html, useEffect, useState } from "../lib/html.js";
import { useObservable, Observable } from "../lib/observable.js";

const loaded = new Observable(null); // {Room, chats}
const failed = new Observable(null);
let loading = null;

async function load() {
  const [{ Room }, { openChats }] = await Promise.all([import("./room.js"), import("./chats.js")]);
  const chats = await openChats();
  await chats.begin();
  loaded.set({ Room, chats });
}

export function ChatView() {
  const chat = useObservable(loaded);
  const problem = useObservable(failed);
  const [, retry] = useState(0);
  useEffect(() => {
    loading ??= load().catch((error) => {
      loading = null;
      failed.set(error.message);
    });
  });
  if (chat !== null) return html`<${chat.Room} chats=${chat.chats} />`;
  if (problem === null) return html`<p class="dim" role="status">Loading …</p>`;
  const again = () => {
    failed.set(null);
    retry((n) => n + 1);
  };
  return html`<p role="alert">The chat could not be loaded: ${problem}. <button type="button" onClick=${again}>Try again</button></p>`;
}
