// The page's one feed and what is known of the server; views take what they need from `model`.
import { Feed } from "./lib/feed.js";
import { Fleet } from "./lib/fleet.js";
import { Observable } from "./lib/observable.js";

export const server = new Observable(null); // of the last snapshot: {version, boot, started, model, capacity, …}
export const stale = new Observable(false); // the server is of another version than this page
export const fleet = new Fleet(); // all replicas
export const model = fleet.first; // the one that the page is of

function take(event) {
  if (event.type === "snapshot") {
    const known = server.value;
    if (known !== null && known.server.version !== event.server.version) stale.set(true);
    if (known === null || (event.replica ?? "") === (known.replica ?? "")) server.set(event);
  }
  fleet.take(event);
}

export const feed = new Feed(take);
feed.state.subscribe(({ name }) => { fleet.lost = name === "lost"; });
feed.run();
