// The only text of a view that screen readers announce by themselves, but for the states that are seen, too.
import { html, useState } from "./html.js";
import { Observable, useObservable } from "./observable.js";

const spoken = new Observable("");

export const say = (text) => spoken.set(text);
export const Spoken = () => html`<p class="hidden-text" role="status">${useObservable(spoken)}</p>`;

// Return {busy, problem, run}. `run(act)` calls `act`, one call at a time, and announces the text that it resolves with,
// or its error, which begins with `name` if there is one.
export function useAction(name = "") {
  const [asked, setAsked] = useState({ busy: false, problem: null });
  const run = async (act) => {
    if (asked.busy) return;
    setAsked({ busy: true, problem: null });
    try {
      say(await act());
      setAsked({ busy: false, problem: null });
    } catch (error) {
      setAsked({ busy: false, problem: error.message });
      say(`${name}${error.message}`);
    }
  };
  return { ...asked, run };
}
