// Icons of the chat, drawn with strokes in the text's colour. Screen readers ignore them, because their buttons have
// names.
import { html } from "../lib/html.js";

const PATHS = {
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4.5M5 9.5l5-5 5 5",
  copy: "M7.5 7.5h8v9h-8zM12.5 7.5v-4h-8v9h3",
  edit: "M4 16l.8-3.6L13 4.2l2.8 2.8-8.2 8.2zM11.2 6l2.8 2.8",
  again: "M15.8 8A6 6 0 1 0 16 11.5M16 4v4h-4",
  save: "M10 3.5v9M5.5 8.5l4.5 4.5 4.5-4.5M4 16.5h12",
  file: "M5 3h6.5L15.5 7v10H5zM11.5 3v4h4M7.5 10.5h5M7.5 13.5h5",
  bin: "M4 6h12M8 6V4h4v2M5.5 6l.8 10.5h7.4L14.5 6M8.5 9v5M11.5 9v5",
  more: "M4.5 10h.01M10 10h.01M15.5 10h.01",
  tune: "M4 6h7M15 6h1M4 14h1M9 14h7M13 4v4M7 12v4",
  list: "M4 5.5h12M4 10h12M4 14.5h12",
  down: "M10 4.5v11M5 10.5l5 5 5-5",
  choose: "M6 8l4 4 4-4",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  close: "M5 5l10 10M15 5L5 15",
  image: "M3.5 4.5h13v11h-13zM3.5 13l4-4 3.5 3.5 2-2 3.5 3.5M12.5 7.5h.01",
  check: "M4.5 10.5l3.5 3.5 7.5-8",
};

export function Icon({ name }) {
  if (name === "stop") return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true"><rect x="5.5" y="5.5" width="9" height="9" rx="1.5" fill="currentColor" /></svg>`;
  return html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width=${name === "more" ? 2.4 : 1.5} stroke-linecap="round" stroke-linejoin="round"><path d=${PATHS[name]} /></svg>`;
}

// A button that shows an icon; `label` is its name and its tooltip.
export function IconButton({ icon, label, class: extra = "", ...rest }) {
  return html`<button type="button" class=${`quiet icon-button ${extra}`} aria-label=${label} title=${label} ...${rest}><${Icon} name=${icon} /></button>`;
}
