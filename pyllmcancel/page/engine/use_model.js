// Draws a component again when the model (or any observable) changes, but at most every `ms`, and only while the page is
// visible. Some things change without an event (an age, a row that has lingered): `idle` draws these.
import { useEffect, useReducer } from "../lib/html.js";

export function useModel(model, ms = 250, idle = 1000) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    let drawn = 0, timer = null;
    const draw = () => {
      timer = null;
      if (document.hidden) return;
      drawn = performance.now();
      redraw();
    };
    const soon = () => { timer ??= setTimeout(draw, Math.max(0, drawn + ms - performance.now())); };
    const stop = (model.events ?? model).subscribe(soon);
    const slow = setInterval(soon, idle);
    document.addEventListener("visibilitychange", soon);
    return () => {
      stop();
      clearInterval(slow);
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", soon);
    };
  }, [model, ms, idle]);
}
