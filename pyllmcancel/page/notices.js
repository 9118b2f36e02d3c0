// Notices for the whole page, above the view.
import { feed, stale } from "./live.js";
import { html } from "./lib/html.js";
import { useObservable } from "./lib/observable.js";

export function Notices() {
  const { name, problem } = useObservable(feed.state);
  const isStale = useObservable(stale);
  return html`
    ${isStale && html`
      <div class="notice" role="alert">
        The server is of another version than this page.
        <button class="primary" onClick=${() => location.reload()}>Reload</button>
      </div>`}
    ${name === "lost" && html`<div class="notice error" role="alert">No connection to the server: ${problem}. Trying again.</div>`}`;
}
