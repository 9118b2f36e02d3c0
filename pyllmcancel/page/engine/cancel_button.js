// A button that cancels. It keeps its label and place from press to answer, so that a press is never lost to a redraw.
import { cancelRequest, cancelSession } from "../lib/api.js";
import { milliseconds, shorten } from "../lib/format.js";
import { html, useRef } from "../lib/html.js";
import { useAction } from "../lib/spoken.js";

export function CancelRequest({ entry }) {
  const text = entry.live ? (entry.status === "cancelling" ? "Cancelling" : "Cancel") : "Ended";
  return html`
    <${CancelButton} name=${`cancel request ${entry.id}`} text=${text} isOver=${!entry.live || entry.status === "cancelling"}
      act=${async () => outcome(entry.id, await cancelRequest(entry.id, { owner: entry.owner }))} />`;
}

export function CancelSession({ session, live }) {
  const act = async () => {
    const { requests } = await cancelSession(session.id, { owner: session.owner });
    return `session ${session.id}: ${requests.length} cancelled`;
  };
  return html`<${CancelButton} name=${`cancel session ${session.id}`} text=${live === 0 ? "Idle" : "Cancel session"} isOver=${live === 0} act=${act} />`;
}

// Not `disabled`, which would swallow a press that has begun, and lose the focus.
function CancelButton({ name, text, isOver, act }) {
  const { busy, problem, run } = useAction(`${name}: `);
  // The place where a press began, while there was something to cancel. It counts even if the page has moved below it.
  const began = useRef(null);
  const begin = (event) => {
    began.current = isOver ? null : event.currentTarget.getBoundingClientRect();
    event.currentTarget.setPointerCapture(event.pointerId);
  };
  const press = (event) => {
    const place = began.current;
    began.current = null;
    const isKey = event.detail === 0;
    if ((place === null && isOver) || (!isKey && !isIn(event, event.currentTarget.getBoundingClientRect()) && !isIn(event, place))) return;
    run(act);
  };
  return html`
    <button class=${isOver ? "cancel over" : "cancel danger"} aria-label=${name} aria-disabled=${isOver || busy}
      onPointerDown=${begin} onClick=${press} title=${problem ?? name}>
      ${busy && !isOver ? "Cancelling" : text}</button>
    ${problem !== null && html`<span class="badge error problem">${shorten(problem, 60)}</span>`}`;
}

const isIn = ({ clientX: x, clientY: y }, place) => place !== null && x >= place.left && x <= place.right && y >= place.top && y <= place.bottom;

function outcome(id, { outcome: what, cancel_latency_ms: ms }) {
  return what === "cancelled" ? `request ${id} cancelled, compute stopped after ${milliseconds(ms)}` : `request ${id} had already ended`;
}
