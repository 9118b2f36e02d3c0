// The row that pointer and focus are on in a list, so that nothing moves there: `props` for the list's element, and
// `held`, which returns whether the row of a uid (data-uid) must stay.
import { useRef } from "../lib/html.js";

const LINGER = 1500; // milliseconds that a row is kept after it was touched

export function useAttention() {
  const at = useRef({ pointer: null, inside: false, focus: null, focused: false, touched: null, until: 0 }).current;
  const uidOf = (target) => Number(target.closest?.("[data-uid]")?.dataset.uid ?? NaN);
  const props = {
    onPointerOver: (event) => { if (event.pointerType !== "touch") { at.pointer = uidOf(event.target); at.inside = true; } },
    onPointerLeave: () => { at.pointer = null; at.inside = false; },
    onPointerDown: (event) => { at.touched = uidOf(event.target); at.until = Infinity; },
    onPointerUp: () => { at.until = performance.now() + LINGER; },
    onPointerCancel: () => { at.until = performance.now() + LINGER; },
    // In lower case: the library has no capitals for these.
    onfocusin: (event) => { at.focus = uidOf(event.target); at.focused = true; },
    onfocusout: (event) => { if (!event.currentTarget.contains(event.relatedTarget)) { at.focus = null; at.focused = false; } },
  };
  const isTouched = () => performance.now() < at.until;
  return {
    props,
    held: (uid) => uid === at.pointer || uid === at.focus || (isTouched() && uid === at.touched),
    quiet: () => !at.inside && !at.focused && !isTouched(),
  };
}
