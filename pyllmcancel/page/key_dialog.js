// Asks for the API key once, in the page, and reports once that the key was wrong.
import { giveKey, keyWanted } from "./lib/api.js";
import { Dialog } from "./lib/dialog.js";
import { html } from "./lib/html.js";
import { useObservable } from "./lib/observable.js";

export function KeyDialog() {
  const wanted = useObservable(keyWanted);
  if (wanted === null) return null;
  const submit = (event) => {
    event.preventDefault();
    giveKey(new FormData(event.target).get("key").trim());
  };
  return html`
    <${Dialog} aria-labelledby="key-title" onClose=${() => giveKey(null)} onClick=${null}>
      <form onSubmit=${submit}>
        <h2 id="key-title">This server needs an API key</h2>
        ${wanted.wrong && html`<p class="badge error" role="alert">That key was refused.</p>`}
        <label>API key <input name="key" type="password" autocomplete="off" required autofocus /></label>
        <p class="dim">The key is kept in this page only, until the page is closed.</p>
        <div class="row"><button class="primary" type="submit">Use this key</button><button type="button" onClick=${() => giveKey(null)}>Continue without a key</button></div>
      </form>
    </${Dialog}>`;
}
