// One message, and the actions on it.
import { useCopy } from "../lib/copy.js";
import { html, useMemo, useState } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { AnswerBody, AnswerFoot } from "./answer.js";
import { NO_DRAFT } from "./draft.js";
import { titleOf } from "./conversation.js";
import { Editor, focusComposer } from "./editor.js";
import { fileName, saveFile } from "./files.js";
import { Icon, IconButton } from "./icons.js";
import { Markdown } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool" };

// `versions`: the messages that may be shown in this place. `isBusy`: the conversation is being answered.
export function Message({ chats, message, versions, isLast, isBusy }) {
  const answering = message.running ? chats.draftOf(message) : null;
  // Drawn again only when its data change: a long conversation costs nothing while its end is written.
  return useMemo(
    () => html`<${Drawn} ...${{ chats, message, versions, isLast, isBusy, answering }} />`,
    [message, versions.length, isLast, isBusy, answering],
  );
}

function Drawn({ chats, message, versions, isLast, isBusy, answering }) {
  const draft = useObservable(answering?.draft ?? NO_DRAFT);
  const [isEdited, setEdited] = useState(false);
  const shown = draft === null ? message : { ...message, ...pick(draft) };
  const { role } = message;
  const done = (text) => {
    setEdited(false);
    if (text !== null && text !== message.content) chats.edit(message, text);
  };
  return html`
    <article class=${`message ${role} ${isLast ? "last" : ""}`} aria-label=${NAMES[role]} aria-busy=${draft === null ? undefined : "true"} data-id=${message.id}>
      ${isEdited ? html`<${Editor} text=${message.content} isQuestion=${role === "user"} onDone=${done} />` : html`<${Said} message=${shown} draft=${draft} answering=${answering} />`}
      ${role === "assistant" && draft === null && html`<${AnswerFoot} ...${{ chats, message, isLast, isBusy }} />`}
      ${!isEdited && draft === null && html`<${Actions} ...${{ chats, message, versions, isLast, isBusy }} onEdit=${() => setEdited(true)} />`}
    </article>`;
}

const pick = ({ content, reasoning, toolCalls }) => ({ content, reasoning, toolCalls });

function Said({ message, draft, answering }) {
  switch (message.role) {
    case "user":
      return html`
        <div class="bubble">
          ${message.images?.length > 0 && html`<div class="images">${message.images.map((url, at) => html`<img src=${url} alt=${`Image ${at + 1}`} />`)}</div>`}
          ${message.files?.map((file, at) => html`<${AttachedFile} key=${at} file=${file} />`)}
          ${message.content !== "" && html`<${Markdown} text=${message.content} isTyped />`}
        </div>`;
    case "tool":
      return html`<details class="fold"><summary>Result of <code>${message.name || "the tool"}</code></summary><pre class="fold-text" tabindex="0">${message.content}</pre></details>`;
    default:
      return html`<${AnswerBody} ...${{ message, draft, answering }} />`;
  }
}

const AttachedFile = ({ file }) => html`
  <details class="fold attached"><summary><${Icon} name="file" /><bdi>${file.name}</bdi></summary><pre class="fold-text" tabindex="0">${file.text}</pre></details>`;

// The button disappears after the action, so the focus returns to the composer.
const then = (act) => () => {
  act();
  focusComposer();
};

function Actions({ chats, message, versions, isBusy, onEdit }) {
  const [told, copy] = useCopy();
  const { role } = message;
  return html`
    <div class="actions" role="group" aria-label=${`Actions on this ${role === "user" ? "message" : "answer"}`}>
      ${versions.length > 1 && html`<${Versions} ...${{ chats, message, versions, isBusy }} />`}
      ${message.content !== "" && html`<${IconButton} icon=${told === "Copied" ? "check" : "copy"} label=${told ?? "Copy"} onClick=${() => copy(message.content)} />`}
      ${role === "assistant" && message.content !== "" && html`<${IconButton} icon="save" label="Download as Markdown" onClick=${() => saveFile(fileName(titleOf(message.content), "md"), `${message.content}\n`, "text/markdown")} />`}
      ${role === "assistant" && html`<${IconButton} icon="again" label="Answer again" disabled=${isBusy} onClick=${then(() => chats.again(message))} />`}
      ${role !== "tool" && html`<${IconButton} icon="edit" label=${role === "user" ? "Edit, and continue from here" : "Edit the answer"} disabled=${isBusy} onClick=${onEdit} />`}
      <${IconButton} icon="bin" label="Delete this and all later messages" disabled=${isBusy} onClick=${then(() => chats.removeMessage(message))} />
    </div>`;
}

function Versions({ chats, message, versions, isBusy }) {
  const at = versions.findIndex(({ id }) => id === message.id);
  const step = (icon, label, to) => html`<${IconButton} icon=${icon} label=${label} disabled=${isBusy || to < 0 || to >= versions.length} onClick=${() => chats.choose(versions[to])} />`;
  return html`
    <span class="versions num">
      ${step("left", "Previous version", at - 1)}<span aria-label=${`Version ${at + 1} of ${versions.length}`}>${at + 1}/${versions.length}</span>${step("right", "Next version", at + 1)}
    </span>`;
}
