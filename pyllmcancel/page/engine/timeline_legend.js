import { html } from "../lib/html.js";

const KINDS = [
  ["prefill", "prefill"], ["decode", "decode"], ["drafted", "decode with drafts"], ["aborted", "aborted step"], ["waiting", "waiting"], ["idle", "idle"],
  ["cancel", "cancel, until compute stopped"], ["gap", "not known"],
];

export const Legend = () => html`
  <ul class="legend" aria-label="Legend">
    ${KINDS.map(([kind, name]) => html`<li><span class=${`swatch ${kind}`} aria-hidden="true"></span>${name}</li>`)}
  </ul>`;
