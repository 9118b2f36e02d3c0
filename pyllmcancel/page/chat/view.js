// The chat's view. Its code, and the libraries for Markdown, are loaded when it is first shown.
import { html, useEffect } from "../lib/html.js";
import { useObservable, Observable } from "../lib/observable.js";

const state = new Observable(null); // {Room, chats}, or {problem}; null while they are loaded, and before

async function load() {
  state.set(null);
  try {
    const [{ Room }, { openChats }] = await Promise.all([import("./room.js"), import("./chats.js")]);
    const chats = await openChats();
    await chats.begin();
    state.set({ Room, chats });
  } catch (error) {
    state.set({ problem: error.message });
  }
}

let first = null; // the first load

export function ChatView() {
  const { Room, chats, problem } = useObservable(state) ?? {};
  useEffect(() => { first ??= load(); }, []);
  if (chats) return html`<${Room} chats=${chats} />`;
  if (problem === undefined) return html`<p class="dim" role="status">Loading …</p>`;
  return html`<p role="alert">The chat could not be loaded: ${problem}. <button type="button" onClick=${load}>Try again</button></p>`;
}
