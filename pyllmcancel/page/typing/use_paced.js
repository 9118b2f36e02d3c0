// As useObservable, but drawn again at most every `ms`: the page may run on the machine whose engine it shows.
import { useEffect, useReducer } from "../lib/html.js";

export function usePaced(observable, ms) {
  const [, redraw] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    let timer = null, drawn = 0;
    const draw = () => {
      timer = null;
      drawn = performance.now();
      redraw();
    };
    const soon = () => { timer ??= setTimeout(draw, Math.max(0, drawn + ms - performance.now())); };
    const forget = observable.subscribe(soon);
    soon(); // for changes before this effect
    return () => { forget(); clearTimeout(timer); };
  }, [observable, ms]);
}
