// The model that a conversation's answers come from, if the server has several: a menu of all, with their states.
import { fleet } from "../live.js";
import { html } from "../lib/html.js";
import { useObservable } from "../lib/observable.js";
import { modelOf, stateOf, stateWords } from "../lib/served.js";
import { Icon } from "./icons.js";
import { Menu } from "./menu.js";

export function ModelPicker({ chats, conversation }) {
  const served = useObservable(fleet.served);
  if (served === null || served.models.length < 2) return null;
  const { model: name } = conversation.settings;
  const chosen = modelOf(served, name);
  const entries = served.models.map((one) => ({ text: html`<${Entry} one=${one} />`, act: () => chats.chooseModel(one.id), isChosen: one === chosen }));
  const face = html`
    <span class="hidden-text">Model: </span><span class=${`state-dot ${chosen === null ? "failed" : stateOf(chosen)}`} aria-hidden="true"></span><bdi class="ellipsis">${chosen?.id ?? name}</bdi>
    <span class="hidden-text">, ${chosen === null ? "not on this server" : stateWords(chosen)}</span><${Icon} name="choose" />`;
  return html`<${Menu} label="Models" face=${face} class="quiet small tune model-button" entries=${entries} />`;
}

function Entry({ one }) {
  const { error = null } = one.status;
  const words = stateWords(one);
  return html`
    <span class="model-entry">
      <span class=${`state-dot ${stateOf(one)}`} aria-hidden="true"></span>
      <span class="model-facts"><bdi class="ellipsis">${one.id}</bdi> <span class="dim num">${words}${one.default ? ", the default" : ""}</span>
        ${stateOf(one) === "failed" && error !== null && html`<span class="why-failed">${error}</span>`}</span>
    </span>`;
}
