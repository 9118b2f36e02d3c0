// Hints for an idle engine.
import { useCopy } from "../lib/copy.js";
import { html } from "../lib/html.js";

const BASE = new URL(".", document.baseURI);

export function Empty({ model }) {
  const [told, copy] = useCopy();
  const { path, body } = model.server?.model.example ?? {};
  const line = `curl -N ${BASE}${path?.slice(1)} -H 'Content-Type: application/json' -d '${JSON.stringify(body)}'`;
  if (model.server === null && !model.served?.value) return html`<p class="nothing">Waiting for the server.</p>`;
  return html`
    <div class="nothing">
      <p>Nothing is computed at the moment. ${" "}<a href="#try">Try it</a>${path ? ", or send a request, and interrupt it with Ctrl+C while it is answered:" : "."}</p>
      ${path && html`<div class="row curl"><code class="grow">${line}</code><button onClick=${() => copy(line)}>${told ?? "Copy"}</button></div>`}
    </div>`;
}
