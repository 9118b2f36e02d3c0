import { html, useEffect, useRef } from "./html.js";

// A modal dialog, open while it is drawn. Esc, a form of the method "dialog" and a click beside it close it, which calls
// `onClose` with its return value.
export function Dialog({ onClose, children, ...rest }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  // A click on the backdrop has the dialog itself as its target.
  const outside = (event) => { if (event.target === dialog.current) dialog.current.close(); };
  return html`<dialog ref=${dialog} onClose=${({ target }) => onClose(target.returnValue)} onClick=${outside} ...${rest}>${children}</dialog>`;
}
