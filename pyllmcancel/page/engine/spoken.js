// The only text that screen readers announce by themselves: the result of a cancel that was pressed here.
import { html } from "../lib/html.js";
import { Observable, useObservable } from "../lib/observable.js";

const spoken = new Observable("");

export const say = (text) => spoken.set(text);
export const Spoken = () => html`<p class="hidden-text" role="status">${useObservable(spoken)}</p>`;
