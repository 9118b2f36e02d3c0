import { html } from "./lib/html.js";
import { stateWords } from "./lib/served.js";

// The progress of a model's load. The share is not known while the process starts, or waits for room.
export function LoadBar({ model }) {
  const { progress = null } = model.status;
  return html`
    <span class=${`load-bar${progress === null ? " unknown" : ""}`} role="progressbar" aria-label=${`Load of ${model.id}`} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${progress === null ? undefined : Math.round(100 * progress)} aria-valuetext=${stateWords(model)}><i style=${{ width: `${100 * (progress ?? 0)}%` }}></i></span>`;
}
