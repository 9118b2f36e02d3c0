// Conversations in this browser: IndexedDB, within limits. Without it (in a private window, for example) they live as
// long as the page.

const NAME = "pyllmcancel-chats", VERSION = 1;
export const MAX_KEPT = 200, MAX_SIZE = 128 * 2 ** 20; // conversations; characters in all of them

const summaryOf = (conversation) => {
  const { id, title, updated } = conversation;
  return { id, title, updated, size: sizeOf(conversation) };
};

export function sizeOf({ messages, settings }) {
  const lengths = messages.map(({ content, reasoning = "", images = [], files = [] }) => [content, reasoning, ...images, ...files.map(({ text }) => text)].reduce((sum, text) => sum + text.length, 0));
  return lengths.reduce((sum, length) => sum + length + 200, settings.system.length + settings.tools.length);
}

const newestFirst = (summaries) => summaries.sort((a, b) => b.updated - a.updated);

// Return the ids to delete, the oldest first, so that the rest is within the limits; never the one in `kept`.
export function excess(summaries, kept) {
  let size = 0, n = 0;
  const first = (one) => (one.id === kept ? 0 : 1);
  return newestFirst([...summaries]).sort((a, b) => first(a) - first(b)).filter((one) => {
    const fits = one.id === kept || (n < MAX_KEPT && size + one.size <= MAX_SIZE);
    if (fits) [n, size] = [n + 1, size + one.size];
    return !fits;
  }).map(({ id }) => id);
}

const result = (request) => new Promise((done, failed) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => failed(request.error);
});

export async function openStorage() {
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("conversations", { keyPath: "id" });
    request.result.createObjectStore("summaries", { keyPath: "id" });
  };
  return new Storage(await result(request));
}

class Storage {
  #database;

  constructor(database) {
    this.#database = database;
    // A newer page wants to change the schema, and must not wait for this one.
    database.onversionchange = () => database.close();
  }

  #stores(mode) {
    const transaction = this.#database.transaction(["conversations", "summaries"], mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
    return { conversations: transaction.objectStore("conversations"), summaries: transaction.objectStore("summaries"), done };
  }

  async list() { return newestFirst(await result(this.#stores("readonly").summaries.getAll())); }
  async get(id) { return (await result(this.#stores("readonly").conversations.get(id))) ?? null; }
  async all() { return newestFirst(await result(this.#stores("readonly").conversations.getAll())); }

  async put(conversation) {
    const { conversations, summaries, done } = this.#stores("readwrite");
    conversations.put(conversation);
    summaries.put(summaryOf(conversation));
    for (const id of excess(await result(summaries.getAll()), conversation.id)) for (const store of [conversations, summaries]) store.delete(id);
    await done;
  }

  delete(id) { return this.#inBoth((store) => store.delete(id)); }
  clear() { return this.#inBoth((store) => store.clear()); }

  #inBoth(act) {
    const { conversations, summaries, done } = this.#stores("readwrite");
    [conversations, summaries].forEach(act);
    return done;
  }
}

export class MemoryStorage {
  #all = new Map();

  async list() { return newestFirst([...this.#all.values()].map(summaryOf)); }
  async get(id) { return structuredClone(this.#all.get(id) ?? null); }
  async all() { return newestFirst([...this.#all.values()].map((one) => structuredClone(one))); }
  async put(conversation) {
    this.#all.set(conversation.id, structuredClone(conversation));
    for (const id of excess(await this.list(), conversation.id)) this.#all.delete(id);
  }
  async delete(id) { this.#all.delete(id); }
  async clear() { this.#all.clear(); }
}
