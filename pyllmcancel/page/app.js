// The page: a header, and one of three views, which the address's fragment selects.
import { EngineView } from "./engine/view.js";
import { ChatView } from "./chat/view.js";
import { TypingView } from "./typing/view.js";
import { KeyDialog } from "./key_dialog.js";
import { Notices } from "./notices.js";
import { feed, fleet, server } from "./live.js";
import { documentation } from "./lib/documentation.js";
import { html, render, useEffect } from "./lib/html.js";
import { plural } from "./lib/format.js";
import { useEvent, useObservable } from "./lib/observable.js";
import { Spoken } from "./lib/spoken.js";

const VIEWS = {
  engine: { name: "Engine", view: EngineView },
  try: { name: "Try it", view: TypingView },
  chat: { name: "Chat", view: ChatView },
};

// The part after a slash belongs to the view.
function viewNow() {
  const name = location.hash.slice(1).split("/")[0];
  return Object.hasOwn(VIEWS, name) ? name : "engine";
}

function App() {
  const name = useEvent(window, "hashchange", viewNow);
  useEffect(() => { document.title = `${VIEWS[name].name} · pyllmcancel`; }, [name]);
  const View = VIEWS[name].view;
  return html`
    <${Header} current=${name} />
    <${Notices} />
    <${Spoken} />
    <main class="view" id="view" key=${name}><${View} /></main>
    <${KeyDialog} />`;
}

function Header({ current }) {
  const { name: state, problem } = useObservable(feed.state);
  const facts = useObservable(server);
  const all = useObservable(fleet.served)?.models ?? [];
  const link = ([id, { name }]) => html`<a href=${`#${id}`} aria-current=${id === current ? "page" : undefined}>${name}</a>`;
  return html`
    <header class="top">
      <h1 class="brand"><img src="page/icon.svg" alt="" />pyllmcancel</h1>
      ${all.length > 1 && html`<span class="model dim">${plural(all.length, "model")}</span>`}
      ${all.length <= 1 && facts && html`<span class="model dim ellipsis" title=${facts.model.description}>${facts.model.id}</span>`}
      <nav class="views" aria-label="Views">${Object.entries(VIEWS).map(link)}</nav>
      <div class="links">
        <span class="feed-state" data-state=${state} role="status" title=${problem ?? ""}>${state === "lost" ? "reconnecting" : state}</span>
        <a href="docs">API</a>
        ${documentation && html`<a href=${documentation} target="_blank" rel="noreferrer">guide</a>`}
        <a href="metrics">metrics</a>
      </div>
    </header>`;
}

render(html`<${App} />`, document.getElementById("app"));
