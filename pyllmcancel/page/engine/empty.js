// Hints for an idle engine.
import { html, useState } from "../lib/html.js";

const BASE = new URL(".", document.baseURI);

export function Empty({ model }) {
  const [copied, setCopied] = useState(false);
  const { path, body } = model.server?.model.example ?? {};
  const line = `curl -N ${BASE}${path?.slice(1)} -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'`;
  const copy = () => navigator.clipboard?.writeText(line).then(() => setCopied(true), () => {});
  if (model.server === null && !model.served?.value) return html`<p class="nothing">Waiting for the server.</p>`;
  return html`
    <div class="nothing">
      <p>Nothing is computed at the moment. ${" "}<a href="#try">Try it</a>${path ? ", or send a request, and interrupt it with Ctrl+C while it is answered:" : "."}</p>
      ${path && html`<div class="row curl"><code class="grow">${line}</code>${navigator.clipboard && html`<button onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}</div>`}
    </div>`;
}
