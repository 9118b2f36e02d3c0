// A text for screen readers only. It is announced after it has stopped changing, and no more often than they can speak.
import { html, useEffect, useRef, useState } from "../lib/html.js";

const REST = 700, BETWEEN = 3000; // milliseconds

export function Spoken({ text }) {
  const [said, say] = useState("");
  const lastAt = useRef(-Infinity);
  useEffect(() => {
    const delay = text === "" ? 0 : Math.max(REST, lastAt.current + BETWEEN - performance.now());
    const timer = setTimeout(() => {
      if (text !== "") lastAt.current = performance.now();
      say(text);
    }, delay);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<div class="hidden-text" role="status">${said}</div>`;
}
