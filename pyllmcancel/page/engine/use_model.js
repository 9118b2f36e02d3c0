// Follows the model at the pace of people: a component that uses it is drawn again at most every `ms`, and only while
// the page can be seen. Something may change without an event (an age, a row that has lingered): `idle` draws then.
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
    const stop = model.events.subscribe(soon);
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
