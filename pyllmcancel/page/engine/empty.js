// Hints for an idle engine.
import { html, useState } from "../lib/html.js";

const BASE = new URL(".", document.baseURI);
const BODY = JSON.stringify({ prompt: "def fibonacci(n):", max_tokens: 400, stream: true });

export function Empty({ model }) {
  const [copied, setCopied] = useState(false);
  const line = `curl -N ${BASE}v1/completions -H 'Content-Type: application/json' -d '${BODY}'`;
  const copy = () => navigator.clipboard?.writeText(line).then(() => setCopied(true), () => {});
  if (model.server === null) return html`<p class="nothing">Waiting for the server.</p>`;
  return html`
    <div class="nothing">
      <p>Nothing is computed at the moment. ${" "}<a href="#try">Try it</a>, or send a request, and interrupt it with Ctrl+C while it is answered:</p>
      <div class="row curl"><code class="grow">${line}</code>${navigator.clipboard && html`<button onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}</div>
    </div>`;
}
