// Requests to this server, and to no other. One prompt for the key, however many requests were refused: they all wait
// for its answer. The key lives as long as the page.
import { Observable } from "./observable.js";

// Relative: the page may be served under a prefix.
const BASE = new URL(".", document.baseURI);

// null: nobody is asked; else {wrong}: whether a key was refused, which is said once.
export const keyWanted = new Observable(null);

let key = "";
let asking = null; // {promise, resolve}, while the key is asked for

export class ApiError extends Error {
  constructor(status, body, headers) {
    super(body?.error?.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = body?.error?.code ?? null;
    this.body = body;
    this.requestId = headers.get("x-request-id");
  }
}

function askForKey(refused) {
  if (asking === null) {
    let resolve;
    const promise = new Promise((done) => { resolve = done; });
    asking = { promise, resolve };
    keyWanted.set({ wrong: refused !== "" });
  }
  return asking.promise;
}

// The person's answer; null: no key is given, and what waits is refused.
export function giveKey(given) {
  const { resolve } = asking;
  asking = null;
  if (given !== null) key = given;
  keyWanted.set(null);
  resolve(given !== null);
}

// As fetch(), for a path relative to the page's; its answer is returned whatever its status, but for 401.
export async function send(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const used = key;
    const authorization = used === "" ? {} : { Authorization: `Bearer ${used}` };
    const response = await fetch(new URL(path, BASE), { ...options, headers: { ...headers, ...authorization }, cache: "no-store" });
    if (response.status !== 401) return response;
    // Another key was given meanwhile: that one is tried first.
    if (used === key && !(await askForKey(used))) return response;
    await response.body?.cancel(); // its connection is free for the next try
  }
}

// The answer's JSON; ApiError where the status is an error's.
export async function call(path, { method = "GET", body, headers = {}, signal } = {}) {
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await send(path, { method, headers: { ...json, ...headers }, body: body === undefined ? undefined : JSON.stringify(body), signal });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return new ApiError(response.status, body, response.headers);
}

// Cancel a request, or a session's; resolves when the computation has stopped, with what happened. `owner`: whose, for an
// administrator's key, to which several may have the name. `hold`: seconds for which an id that is not known yet is
// cancelled on its arrival.
export const cancelRequest = (id, which = {}) => cancel(`v1/requests/${encodeURIComponent(id)}/cancel`, which);
export const cancelSession = (id, which = {}) => cancel(`v1/sessions/${encodeURIComponent(id)}/cancel`, which);

function cancel(path, which) {
  const query = new URLSearchParams(Object.entries(which).filter(([, value]) => value));
  return call(query.size === 0 ? path : `${path}?${query}`, { method: "POST" });
}
