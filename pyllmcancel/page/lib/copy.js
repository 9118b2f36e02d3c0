// The clipboard.
import { useState } from "./html.js";

const TOLD = 1500; // milliseconds for which a button says that it has copied

// Return [told, copy]: the result of the last copy in words, null after a moment; and the function that copies a text.
export function useCopy() {
  const [told, tell] = useState(null);
  const copy = async (text) => {
    tell((await copyText(text)) ? "Copied" : "Not allowed");
    setTimeout(() => tell(null), TOLD);
  };
  return [told, copy];
}

// Returns whether the text was copied. Without https, only the old API can reach the clipboard.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const field = Object.assign(document.createElement("textarea"), { className: "hidden-text", value: text });
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return isDone;
  }
}
