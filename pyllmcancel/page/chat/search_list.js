// The field that searches the conversations, and what it has found.
import { html, useEffect, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";

const REST = 150; // milliseconds without a key, after which is searched

export const SearchField = ({ text, onChange }) => html`
  <input type="search" class="side-search" placeholder="Search" aria-label="Search the conversations" value=${text}
    onInput=${(event) => onChange(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Escape") { event.preventDefault(); onChange(""); } }} />`;

// `entryOf(one)` draws a conversation that was found.
export function Found({ chats, text, entryOf }) {
  const summaries = useObservable(chats.summaries); // searched again when one has changed
  const [found, setFound] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const search = async () => {
      const list = await chats.search(text, controller.signal);
      if (!controller.signal.aborted) setFound(list);
    };
    const timer = setTimeout(search, REST);
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [text, summaries]);
  return html`
    <p class="dim none" role="status">${found === null ? "Searching …" : found.length === 0 ? "Nothing found." : `${found.length} found`}</p>
    ${found !== null && html`<ul>${found.map(entryOf)}</ul>`}`;
}
