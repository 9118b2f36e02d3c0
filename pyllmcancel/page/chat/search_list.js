// The field that searches the conversations, and what it has found.
import { html, useEffect, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";

const REST = 150; // milliseconds without a key, after which is searched

export const SearchField = ({ text, onChange }) => html`
  <input type="search" class="side-search" placeholder="Search" aria-label="Search the conversations" value=${text}
    onInput=${(event) => onChange(event.target.value)}
    onKeyDown=${(event) => { if (event.key === "Escape") { event.preventDefault(); onChange(""); } }} />`;

export function Found({ chats, text, current, onOpen }) {
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
    ${found !== null && html`<ul>${found.map((one) => html`
      <li class=${`entry ${one.id === current ? "current" : ""}`} key=${one.id}>
        <button type="button" class="quiet open" aria-current=${one.id === current ? "true" : undefined} onClick=${() => onOpen(one.id)}>
          <span class="ellipsis">${one.title || "Untitled"}</span>${one.excerpt !== "" && html`<span class="excerpt dim">${one.excerpt}</span>`}
        </button>
      </li>`)}</ul>`}`;
}
