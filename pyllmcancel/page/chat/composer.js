// The field in which the person writes.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { ContextMeter } from "./context.js";
import { fit, isSend } from "./editor.js";
import { facts } from "./facts.js";
import { chooseFiles, IMAGE_TYPES, MAX_IMAGES, MAX_TEXTS, readImage, readText } from "./files.js";
import { Icon, IconButton } from "./icons.js";
import { ModelPicker } from "./model_picker.js";

const BUSY = "The answer is still being written: stop it (Esc), then send";
const NOTHING = Object.freeze({ text: "", images: [], files: [] });

export function Composer({ chats, conversation, answering, onSend, onSettings }) {
  const known = useObservable(facts);
  const field = useRef(null);
  const [unsent, setUnsent] = useState(NOTHING);
  const [refusal, setRefusal] = useState(null);
  const isBusy = answering !== null;
  const { text, images, files } = unsent;
  const isEmpty = text.trim() === "" && images.length === 0 && files.length === 0;

  // Each conversation has an unsent text of its own.
  useLayoutEffect(() => {
    setUnsent(chats.unsent.get(conversation.id) ?? NOTHING);
    setRefusal(null);
  }, [conversation.id]);
  useLayoutEffect(() => { fit(field.current); }, [text]);
  useEffect(() => { if (!isBusy) setRefusal((said) => (said === BUSY ? null : said)); }, [isBusy]);
  // Before it is drawn: later the focus may be where a quick person has put it.
  useLayoutEffect(() => { if (matchMedia("(hover: hover)").matches) field.current.focus(); }, [conversation.id]);

  // The person may have typed, or opened another conversation, while files were read.
  const latest = () => chats.unsent.get(conversation.id) ?? NOTHING;
  const change = (fields) => {
    chats.unsent.set(conversation.id, { ...latest(), ...fields });
    if (chats.current.value.id === conversation.id) setUnsent(latest());
  };
  const attach = async (chosen) => {
    setRefusal(null);
    try {
      const read = await readAll(chosen, known?.takesImages);
      change(together(latest(), read));
    } catch (error) {
      setRefusal(error.message);
    }
  };
  const send = () => {
    if (isEmpty) return;
    if (isBusy) return setRefusal(BUSY);
    onSend(text.trim(), { images, files });
    change(NOTHING);
    setRefusal(null);
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
    // Office programs put a picture of the text beside the text.
    const isText = list?.types.includes("text/plain");
    const chosen = [...(list?.files ?? [])].filter((file) => !isText || (known?.takesImages && isImage(file)));
    if (chosen.length === 0) return;
    event.preventDefault();
    attach(chosen);
  };
  return html`
    <form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }} onDragOver=${(event) => event.dataTransfer?.types.includes("Files") && event.preventDefault()} onDrop=${(event) => taken(event, event.dataTransfer)}>
      ${images.length > 0 && html`
        <div class="images">${images.map((url, at) => html`
          <span class="image"><img src=${url} alt=${`Image ${at + 1}`} /><${IconButton} icon="close" label=${`Remove image ${at + 1}`} onClick=${() => change({ images: images.filter((_, i) => i !== at) })} /></span>`)}
        </div>`}
      ${files.length > 0 && html`
        <div class="attached-files">${files.map(({ name }, at) => html`
          <span class="attached-file"><${Icon} name="file" /><bdi class="ellipsis" title=${name}>${name}</bdi><${IconButton} icon="close" label=${`Remove ${name}`} onClick=${() => change({ files: files.filter((_, i) => i !== at) })} /></span>`)}
        </div>`}
      ${known?.isBase && html`<p class="base-note">This model has no chat template, so it continues texts and was hardly trained to answer. <a href="#try">Complete a text</a> instead.</p>`}
      ${refusal !== null && html`<p class="refusal" role="alert">${refusal}</p>`}
      <textarea ref=${field} rows="1" value=${text} placeholder=${`Message ${known?.name ?? "the model"}`} aria-label="Message" aria-describedby="composer-hint" onInput=${(event) => { setRefusal(null); change({ text: event.target.value }); }} onKeyDown=${keys} onPaste=${(event) => taken(event, event.clipboardData)}></textarea>
      <div class="composer-row">
        <${IconButton} icon="file" label="Add text files" onClick=${async () => attach(await chooseFiles("", true))} />
        ${known?.takesImages && html`<${IconButton} icon="image" label="Add images" onClick=${async () => attach(await chooseFiles(IMAGE_TYPES.join(","), true))} />`}
        <${ModelPicker} chats=${chats} conversation=${conversation} />
        <button type="button" class=${`quiet small tune settings-button ${isSet(conversation.settings) ? "on" : ""}`} onClick=${onSettings}><${Icon} name="tune" />Settings${isSet(conversation.settings) ? html`<span class="hidden-text">, changed</span>` : ""}</button>
        <${ContextMeter} conversation=${conversation} answering=${answering} />
        <span class="hint dim grow" id="composer-hint">${isBusy ? html`<kbd>Esc</kbd> stops` : html`<kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> starts a new line`}</span>
        ${isBusy
    ? html`<button key="go" type="button" class="round stop" aria-label="Stop" title="Stop (Esc)" disabled=${answering.isStopping} onClick=${() => { chats.stop(); field.current.focus(); }}><${Icon} name="stop" /></button>`
    : html`<button key="go" type="submit" class="round primary" aria-label="Send" title="Send (Enter)" disabled=${isEmpty}><${Icon} name="send" /></button>`}
      </div>
    </form>`;
}

const isImage = ({ type }) => IMAGE_TYPES.includes(type);

// Return {images, files} of the chosen files; throws an Error that says which one is not accepted, and why.
async function readAll(chosen, takesImages) {
  const images = chosen.filter(isImage);
  if (images.length > 0 && takesImages === null) throw new Error(`${images[0].name} is an image, and this model is not loaded: only then is it known whether the model takes any`);
  if (images.length > 0 && !takesImages) throw new Error(`${images[0].name} is an image, and this model takes none: the server has no projector (--mmproj) for it`);
  const texts = chosen.filter((file) => !images.includes(file));
  return { images: await Promise.all(images.map(readImage)), files: await Promise.all(texts.map(readText)) };
}

function together(before, read) {
  const images = [...before.images, ...read.images], files = [...before.files, ...read.files];
  if (images.length > MAX_IMAGES) throw new Error(`a message may have ${MAX_IMAGES} images at most`);
  if (files.length > MAX_TEXTS) throw new Error(`a message may have ${MAX_TEXTS} files at most`);
  return { images, files };
}

// True if any setting differs from the server's.
const isSet = ({ system, sampling, stop, tools, effort }) => [system, stop, tools, effort].some((text) => text.trim() !== "") || Object.keys(sampling).length > 0;
