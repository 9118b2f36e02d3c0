// The page's one feed and what is known of the server; views take what they need from `model`.
import { Feed } from "./lib/feed.js";
import { Observable } from "./lib/observable.js";
import { Model } from "./lib/model.js";

export const server = new Observable(null); // of the last snapshot: {version, boot, started, model, capacity, …}
export const stale = new Observable(false); // the server is of another version than this page
export const model = new Model();

function take(event) {
  if (event.type === "snapshot") {
    const known = server.value;
    if (known !== null && known.server.version !== event.server.version) stale.set(true);
    server.set(event);
  }
  model.take(event);
}

export const feed = new Feed(take);
feed.state.subscribe(({ name }) => { model.lost = name === "lost"; });
feed.run();
