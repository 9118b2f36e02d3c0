// The choice of one of several replicas, whose figures and slots are shown.
import { count, plural } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { useModel } from "./use_model.js";

// The name of the replica that is shown, and the function that chooses another one.
export function useReplica(fleet) {
  const [wanted, choose] = useState(null);
  useModel(fleet, 500);
  return [fleet.names.find((name) => name === wanted) ?? fleet.names[0] ?? "", choose];
}

export function Figures({ model }) {
  const now = model.serverNow();
  const running = [...model.live.values()].filter((entry) => entry.t.admitted !== null);
  const used = running.reduce((sum, entry) => sum + Math.max(1, entry.slots.length), 0);
  const speed = now === null ? 0 : model.series.rate(now, "decode");
  return html`<span class="dim small num">${`${used} of ${plural(model.server?.capacity.slots ?? 0, "slot")}, ${count(model.waiting().length)} waiting, ${count(speed)} tokens/s`}</span>`;
}
