// The field in which the person writes.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { fit, isSend } from "./editor.js";
import { facts } from "./facts.js";
import { chooseFiles, IMAGE_TYPES, MAX_IMAGES, readImage } from "./files.js";
import { Icon, IconButton } from "./icons.js";

export function Composer({ chats, conversation, answering, onSend, onSettings }) {
  const known = useObservable(facts);
  const field = useRef(null);
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [refusal, setRefusal] = useState(null);
  const isBusy = answering !== null;

  // Each conversation has an unsent text of its own.
  useLayoutEffect(() => {
    const unsent = chats.unsent.get(conversation.id);
    setText(unsent?.text ?? "");
    setImages(unsent?.images ?? []);
    setRefusal(null);
  }, [conversation.id]);
  useLayoutEffect(() => { fit(field.current); }, [text]);
  useEffect(() => { if (matchMedia("(hover: hover)").matches) field.current.focus(); }, [conversation.id]);

  const change = (newText, newImages) => {
    setText(newText);
    setImages(newImages);
    chats.unsent.set(conversation.id, { text: newText, images: newImages });
  };
  const attach = async (files) => {
    setRefusal(null);
    try {
      const read = await Promise.all(files.map(readImage));
      if (images.length + read.length > MAX_IMAGES) throw new Error(`a message may have ${MAX_IMAGES} images at most`);
      change(text, [...images, ...read]);
    } catch (error) {
      setRefusal(error.message);
    }
  };
  const send = () => {
    if (isBusy || (text.trim() === "" && images.length === 0)) return;
    onSend(text.trim(), images);
    change("", []);
    field.current.focus();
  };
  const keys = (event) => {
    if (isSend(event)) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && text === "" && !isBusy) {
      // Edit the person's last message.
      const edits = document.querySelectorAll('.message.user button[aria-label^="Edit"]');
      if (edits.length > 0) event.preventDefault();
      [...edits].at(-1)?.click();
    }
  };
  const taken = (event, list) => {
    const files = known?.takesImages ? [...(list?.files ?? [])].filter(({ type }) => IMAGE_TYPES.includes(type)) : [];
    if (files.length === 0) return;
    event.preventDefault();
    attach(files);
  };
  const isEmpty = text.trim() === "" && images.length === 0;
  return html`
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }} onDragOver=${(event) => known?.takesImages && event.preventDefault()} onDrop=${(event) => taken(event, event.dataTransfer)}>
      ${images.length > 0 && html`
        <div class="images">${images.map((url, at) => html`
          <span class="image"><img src=${url} alt=${`Image ${at + 1}`} /><${IconButton} icon="close" label=${`Leave out image ${at + 1}`} onClick=${() => change(text, images.filter((_, i) => i !== at))} /></span>`)}
        </div>`}
      ${refusal !== null && html`<p class="refusal" role="alert">${refusal}</p>`}
      <textarea ref=${field} rows="1" value=${text} placeholder=${`Message ${known?.models[0] ?? "the model"}`} aria-label="Message" aria-describedby="composer-hint" onInput=${(event) => change(event.target.value, images)} onKeyDown=${keys} onPaste=${(event) => taken(event, event.clipboardData)}></textarea>
      <div class="composer-row">
        ${known?.takesImages && html`<${IconButton} icon="image" label="Add images" onClick=${async () => attach(await chooseFiles(IMAGE_TYPES.join(","), true))} />`}
        <button type="button" class=${`quiet small tune ${isSet(conversation.settings) ? "on" : ""}`} onClick=${onSettings}><${Icon} name="tune" />Settings${isSet(conversation.settings) ? html`<span class="hidden-text">, changed</span>` : ""}</button>
        <span class="hint dim grow" id="composer-hint">${isBusy ? html`<kbd>Esc</kbd> stops` : html`<kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> starts a new line`}</span>
        ${isBusy
    ? html`<button key="go" type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" disabled=${answering.isStopping} onClick=${() => { chats.stop(); field.current.focus(); }}><${Icon} name="stop" /></button>`
    : html`<button key="go" type="submit" class="round primary" aria-label="Send" title="Send (Enter)" disabled=${isEmpty}><${Icon} name="send" /></button>`}
      </div>
    </form>`;
}

// True if any setting differs from the server's.
const isSet = ({ system, sampling, stop, tools, effort }) => [system, stop, tools, effort].some((text) => text.trim() !== "") || Object.keys(sampling).length > 0;
