// The server's facts that the chat needs: its models, its defaults, and the inputs that it accepts.
import { call } from "../lib/api.js";
import { Observable } from "../lib/observable.js";

// null until known: {models, params, takesImages, reasons, nCtx}
export const facts = new Observable(null);

export async function learnFacts() {
  const [models, props] = await Promise.all([call("v1/models").catch(() => null), call("props").catch(() => null)]);
  if (models === null) return;
  const params = props?.default_generation_settings?.params ?? null;
  const caps = props?.chat_template_caps ?? {};
  facts.set({
    models: models.data.map(({ id }) => id),
    nCtx: models.data[0]?.meta?.n_ctx ?? null,
    params,
    takesImages: props?.modalities?.vision === true,
    reasons: caps.supports_reasoning_effort === true || caps.supports_preserve_reasoning === true,
  });
}
