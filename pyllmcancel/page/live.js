// The page's one feed and the server's state; views take their data from `model`.
import { Feed } from "./lib/feed.js";
import { Fleet } from "./lib/fleet.js";
import { Observable } from "./lib/observable.js";

export const server = new Observable(null); // of the last snapshot: {version, boot, started, model, capacity, …}
export const stale = new Observable(false); // the server is of another version than this page
export const fleet = new Fleet(); // all replicas

function take(event) {
  if (event.type === "snapshot" && server.value !== null && server.value.server.version !== event.server.version) stale.set(true);
  fleet.take(event);
  if (event.type === "snapshot" && (event.replica ?? "") === fleet.first.replica) server.set(event);
}

export const feed = new Feed(take);
feed.state.subscribe(({ name }) => { fleet.lost = name === "lost"; });
feed.run();
