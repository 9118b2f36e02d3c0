// All conversations, the one that is shown, and the actions on them. It outlives the view: an answer continues while
// another view is shown.
import { fleet, server } from "../live.js";
import { Observable } from "../lib/observable.js";
import { Answering } from "./answering.js";
import { add, newConversation, openCalls, remove, replace, select } from "./conversation.js";
import { requestBody } from "./request_body.js";
import { excerptOf, wordsOf } from "./search.js";
import { MemoryStorage, openStorage } from "./storage.js";

const LAST = "pyllmcancel-chat-last", DEFAULTS = "pyllmcancel-chat-settings", MODEL = "pyllmcancel-chat-model";

export class Chats {
  summaries = new Observable([]); // {id, title, updated}, newest first
  current = new Observable(null); // the conversation that is shown
  problem = new Observable(null); // why nothing is stored
  toast = new Observable(null); // {text, undo}: the last action
  said = new Observable(null); // the answer that has just ended, for screen readers

  unsent = new Map(); // text that is written and not sent, by conversation

  #storage;
  #isSingle;
  #channel;
  #answering = new Map(); // by conversation: {answering, conversation, message (id)}
  #memory; // localStorage, or its substitute

  // `isSingle()`: true if the server has one model.
  constructor(storage, memory, isSingle, channel = null) {
    this.#isSingle = isSingle;
    this.#storage = storage;
    this.#memory = memory;
    this.#channel = channel;
    if (channel !== null) channel.onmessage = ({ data }) => this.#changedElsewhere(data);
  }

  async begin() {
    await this.#list();
    const last = this.#memory.getItem(LAST);
    if (last !== null && (await this.open(last))) return;
    this.start();
  }

  // The settings of new conversations.
  get defaults() {
    try {
      return JSON.parse(this.#memory.getItem(DEFAULTS)) ?? undefined;
    } catch {
      return undefined;
    }
  }

  keepDefaults(settings) { this.#memory.setItem(DEFAULTS, JSON.stringify(settings)); }

  start() {
    this.#show(newConversation({ ...this.defaults, model: this.#memory.getItem(MODEL) ?? "" }));
  }

  // Have this conversation, and new ones, answered by a model.
  chooseModel(id) {
    this.#memory.setItem(MODEL, id);
    return this.set({ ...this.current.value.settings, model: id });
  }

  // True if there is such a conversation.
  async open(id) {
    const known = this.#held(id);
    const conversation = known ?? (await this.#storage.get(id));
    if (conversation === null) return false;
    if (known === null) this.#goOnAfterReload(conversation);
    this.#show(conversation);
    return true;
  }

  #show(conversation) {
    this.#memory.setItem(LAST, conversation.id);
    this.toast.set(null);
    this.current.set(conversation);
  }

  answeringOf(conversation) { return this.#answering.get(conversation?.id)?.answering ?? null; }

  // The draft of the message that is being written; null for others.
  draftOf(message) {
    const found = [...this.#answering.values()].find((one) => one.message === message.id);
    return found?.answering ?? null;
  }

  send(text, { images = [], files = [] } = {}) {
    const conversation = this.current.value;
    add(conversation, conversation.leaf, { role: "user", content: text, ...(images.length > 0 ? { images } : {}), ...(files.length > 0 ? { files } : {}) });
    return this.#answer(conversation);
  }

  // Generate another answer to the message that `message` answers.
  again(message) {
    const conversation = this.current.value;
    conversation.leaf = message.parent;
    return this.#answer(conversation);
  }

  // Let the model continue its answer.
  goOn(message) {
    const conversation = this.current.value;
    select(conversation, message.id);
    return this.#run(conversation, replace(conversation, message.id, { running: true }));
  }

  // Add a new branch with another text; if the text is the person's, an answer follows.
  edit(message, text) {
    const conversation = this.current.value;
    const { images, files, reasoning, toolCalls, model } = message;
    const kept = message.role === "user" ? { images, files } : { reasoning, toolCalls, model, finish: "stop", edited: true };
    add(conversation, message.parent, { role: message.role, content: text, ...kept });
    return message.role === "user" ? this.#answer(conversation) : this.#keep(conversation);
  }

  // Store the result of a tool; when all results are there, the model continues.
  result(toolCall, text) {
    const conversation = this.current.value;
    add(conversation, conversation.leaf, { role: "tool", content: text, toolCallId: toolCall.id, name: toolCall.name });
    return openCalls(conversation).length === 0 ? this.#answer(conversation) : this.#keep(conversation);
  }

  choose(message) {
    select(this.current.value, message.id);
    return this.#keep(this.current.value);
  }

  removeMessage(message) {
    const conversation = this.current.value;
    const before = { messages: conversation.messages, leaf: conversation.leaf };
    remove(conversation, message.id);
    this.toast.set({ text: "Message deleted", undo: () => this.#keep(Object.assign(conversation, before)) });
    return this.#keep(conversation);
  }

  stop() { this.answeringOf(this.current.value)?.stop(); }

  set(settings) {
    const conversation = this.current.value;
    conversation.settings = settings;
    return this.#keep(conversation);
  }

  async rename(id, title) {
    const conversation = this.#held(id) ?? (await this.#storage.get(id));
    if (conversation !== null) await this.#keep(Object.assign(conversation, { title, named: true }));
  }

  async removeConversation(id) {
    const conversation = this.#held(id) ?? (await this.#storage.get(id));
    this.#answering.get(id)?.answering.stop();
    this.#answering.delete(id);
    this.unsent.delete(id);
    await this.#storage.delete(id);
    if (this.current.value?.id === id) this.start();
    if (conversation === null) return this.#list(id); // another window was first
    this.toast.set({ text: "Conversation deleted", undo: async () => { await this.#keep(conversation); await this.open(id); } });
    await this.#list(id);
  }

  async removeAll() {
    for (const { answering } of this.#answering.values()) answering.stop();
    this.#answering.clear();
    this.unsent.clear();
    await this.#storage.clear();
    this.start();
    await this.#list(null);
  }

  everything() { return this.#storage.all(); }

  stored(id) { return this.#storage.get(id); }

  // Return {id, title, excerpt} of the conversations that have all the words, newest first. They are read one by one:
  // all of them may be large.
  async search(text, signal) {
    const words = wordsOf(text), found = [];
    for (const { id } of this.summaries.value) {
      const conversation = await this.#storage.get(id);
      if (signal.aborted) break;
      const excerpt = conversation === null ? null : excerptOf(conversation, words);
      if (excerpt !== null) found.push({ id, title: conversation.title, excerpt });
    }
    return found;
  }

  async take(conversations) {
    for (const conversation of conversations) await this.#storage.put(conversation);
    await this.#list();
    await this.open(conversations[0].id);
    this.toast.set({ text: conversations.length === 1 ? "Conversation imported" : `${conversations.length} conversations imported`, undo: null });
  }

  // Store the unfinished answers, because the page is about to close.
  keepDrafts() {
    for (const { answering, conversation, message } of this.#answering.values()) {
      const { content, reasoning } = answering.draft.value;
      replace(conversation, message, { content, reasoning });
      this.#storage.put(conversation).catch(() => {});
    }
  }

  #held(id) { return this.#answering.get(id)?.conversation ?? (this.current.value?.id === id ? this.current.value : null); }

  #answer(conversation) { return this.#run(conversation, add(conversation, conversation.leaf, { role: "assistant", running: true })); }

  // Have a message written, after what it has.
  async #run(conversation, message) {
    if (this.#answering.has(conversation.id)) return;
    this.toast.set(null);
    const { id, content: prefix, reasoning = "" } = message;
    return this.#follow(conversation, message, { prefix, reasoning, body: requestBody(conversation, id, { isSingle: this.#isSingle() }) });
  }

  // Take up the answer that was being written when its page was closed; if it is gone, mark it as cut.
  #goOnAfterReload(conversation) {
    for (const message of conversation.messages) {
      if (!message.running) continue;
      if (message.request === undefined || this.#answering.has(conversation.id)) replace(conversation, message.id, CLOSED);
      else this.#follow(conversation, message, message.request);
    }
  }

  // Show an answer while it comes. `from` has the text before it, and the request's body, or the id of a request.
  async #follow(conversation, message, { prefix, reasoning, body, id }) {
    const answering = new Answering({
      session: `chat-${conversation.id}`,
      model: conversation.settings.model,
      body,
      prefix,
      reasoning,
      takeUp: id,
      onSave: (fields) => {
        // deleted meanwhile, and must not come back
        if (this.#answering.get(conversation.id)?.answering !== answering) return;
        replace(conversation, message.id, fields);
        this.#keep(conversation);
      },
    });
    replace(conversation, message.id, { request: { id: answering.requestId, prefix, reasoning } });
    this.#answering.set(conversation.id, { answering, conversation, message: message.id });
    const ending = answering.run();
    this.#keep(conversation);
    const fields = await ending;
    if (this.#answering.get(conversation.id)?.answering !== answering) return; // deleted meanwhile
    this.#answering.delete(conversation.id);
    const ended = replace(conversation, message.id, { ...(answering.isGone ? CLOSED : fields), request: undefined });
    if (ended !== null && conversation === this.current.value) this.said.set(ended);
    await this.#keep(conversation);
  }

  // Draw the conversation again, and store it.
  async #keep(conversation) {
    if (conversation === this.current.value) this.current.changed();
    if (conversation.messages.length === 0 && !this.summaries.value.some(({ id }) => id === conversation.id)) return;
    try {
      await this.#storage.put(conversation);
      this.problem.set(null);
    } catch (error) {
      this.problem.set(error.message);
    }
    await this.#list(conversation.id);
  }

  // `told` is sent to the browser's other tabs.
  async #list(told) {
    this.summaries.set(await this.#storage.list());
    if (told !== undefined) this.#channel?.postMessage(told);
  }

  async #changedElsewhere(id) {
    await this.#list();
    const shown = this.current.value;
    if (shown === null || this.#answering.has(shown.id) || (id !== null && id !== shown.id)) return;
    const stored = await this.#storage.get(shown.id);
    if (stored !== null) this.current.set(stored);
    else if (shown.messages.length > 0) this.start();
  }
}

// The fields of an answer that was being written when its page was closed, and was not taken up in time.
const CLOSED = { running: false, cut: { why: "closed" } };

export async function openChats() {
  const isSingle = () => server.value !== null && fleet.served.value === null;
  const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("pyllmcancel-chats") : null;
  try {
    const chats = new Chats(await openStorage(), localStorage, isSingle, channel);
    addEventListener("pagehide", () => chats.keepDrafts());
    return chats;
  } catch (error) {
    const memory = new Map();
    const chats = new Chats(new MemoryStorage(), { getItem: (name) => memory.get(name) ?? null, setItem: (name, value) => memory.set(name, value) }, isSingle);
    chats.problem.set(error.message);
    return chats;
  }
}
