// Hints for an idle engine.
import { html, useState } from "../lib/html.js";

const BASE = new URL(".", document.baseURI);
// The same as in README.md and in the log of a server that is ready.
const BODY = '{"prompt":"def hello_world():\\n","max_tokens":2000,"n":8,"ignore_eos":true,"stream":true}';

export function Empty({ model }) {
  const [copied, setCopied] = useState(false);
  const line = `curl -N ${BASE}v1/completions -H 'Content-Type: application/json' -d '${BODY}'`;
  const copy = () => navigator.clipboard?.writeText(line).then(() => setCopied(true), () => {});
  if (model.server === null && !model.served?.value) return html`<p class="nothing">Waiting for the server.</p>`;
  return html`
    <div class="nothing">
      <p>Nothing is computed at the moment. ${" "}<a href="#try">Try it</a>, or send a request, and interrupt it with Ctrl+C while it is answered:</p>
      <div class="row curl"><code class="grow">${line}</code>${navigator.clipboard && html`<button onClick=${copy}>${copied ? "Copied" : "Copy"}</button>`}</div>
    </div>`;
}
