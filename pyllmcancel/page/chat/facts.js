// The facts of a model that the chat needs: its defaults, and the inputs that it accepts.
import { call } from "../lib/api.js";
import { Observable } from "../lib/observable.js";
import { stateOf } from "../lib/served.js";

// null until known: {name, params, takesImages, reasons, nCtx, isBase}
export const facts = new Observable(null);

const UNKNOWN = { params: null, takesImages: null, reasons: false, nCtx: null, isBase: false };
let wanted = 0;

// `chosen`: the model, if the server has several. Only a model that is loaded can be asked.
export async function learnFacts(chosen) {
  wanted += 1;
  const asked = wanted;
  if (chosen !== null) facts.set({ name: chosen.id, ...UNKNOWN });
  if (chosen !== null && stateOf(chosen) !== "ready") return;
  const query = chosen === null ? "" : `?model=${encodeURIComponent(chosen.id)}`;
  const [models, props] = await Promise.all([chosen === null ? call("v1/models").catch(() => null) : null, call(`props${query}`).catch(() => null)]);
  if (asked !== wanted || (chosen === null && models === null)) return;
  const { params = null, n_ctx: nCtx = null } = props?.default_generation_settings ?? {};
  const caps = props?.chat_template_caps ?? {};
  facts.set({
    name: chosen?.id ?? models.data[0]?.id ?? "the model",
    nCtx: models?.data[0]?.meta?.n_ctx ?? nCtx,
    params,
    takesImages: props?.modalities?.vision === true,
    isBase: props?.chats === false,
    reasons: caps.supports_reasoning_effort === true || caps.supports_preserve_reasoning === true,
  });
}
