// Requests to this server, and to no other. All refused requests wait for one prompt for the key. The key lives as long
// as the page.
import { Observable } from "./observable.js";

// Relative, because the page may be served under a prefix.
const BASE = new URL(".", document.baseURI);

// null: the key is not asked for; else {wrong}: true if a key was refused, which is shown once.
export const keyWanted = new Observable(null);

let key = "";
let asking = null; // {promise, resolve}, while the key is asked for

export class ApiError extends Error {
  constructor(status, body, headers) {
    super(body?.error?.message ?? `HTTP ${status}`);
    this.status = status;
    this.code = body?.error?.code ?? null;
    this.body = body;
    this.retryAfter = Number(headers.get("Retry-After")) || 0; // seconds
  }
}

function askForKey(refused) {
  if (asking === null) {
    asking = Promise.withResolvers();
    keyWanted.set({ wrong: refused !== "" });
  }
  return asking.promise;
}

// The person's answer; null: there is no key, and waiting requests are refused.
export function giveKey(given) {
  const { resolve } = asking;
  asking = null;
  if (given !== null) key = given;
  keyWanted.set(null);
  resolve(given !== null);
}

// As fetch(), for a path relative to the page's. The answer is returned whatever its status, except 401.
export async function send(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const used = key;
    const authorization = used === "" ? {} : { Authorization: `Bearer ${used}` };
    const response = await fetch(new URL(path, BASE), { ...options, headers: { ...headers, ...authorization }, cache: "no-store" });
    if (response.status !== 401) return response;
    // Another key was given meanwhile, and is tried first.
    if (used === key && !(await askForKey(used))) return response;
    await response.body?.cancel(); // its connection is free for the next try
  }
}

// Return the options of a request with this body.
export const posted = (body, headers = {}) => ({ method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) });

// Return the answer's JSON; throws ApiError if the status is an error's.
export async function call(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

export async function errorOf(response) {
  const body = await response.json().catch(() => null);
  return new ApiError(response.status, body, response.headers);
}

// Cancel a request, or a session's. Resolves with the result when the computation has stopped. `owner`: the owner, for
// an administrator's key, if several owners may have the name. `hold`: seconds for which an unknown id is cancelled on
// its arrival.
export const cancelRequest = (id, which = {}) => cancel(`v1/requests/${encodeURIComponent(id)}/cancel`, which);
export const cancelSession = (id, which = {}) => cancel(`v1/sessions/${encodeURIComponent(id)}/cancel`, which);

const MAX_NOTED = 1000;
const cancelled = new Set(); // paths of the cancels that this page has sent, noted first: the answer ends before ours does

// Return whether this page has cancelled the request, or its session, by these functions.
export const hasCancelled = (id, session) =>
  cancelled.has(`v1/requests/${encodeURIComponent(id)}/cancel`) || cancelled.has(`v1/sessions/${encodeURIComponent(session)}/cancel`);

function cancel(path, which) {
  cancelled.add(path);
  if (cancelled.size > MAX_NOTED) cancelled.delete(cancelled.values().next().value);
  const query = new URLSearchParams(Object.entries(which).filter(([, value]) => value));
  return call(query.size === 0 ? path : `${path}?${query}`, { method: "POST" });
}
