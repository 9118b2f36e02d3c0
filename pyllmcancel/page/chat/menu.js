// A button with a menu below it: arrow keys move in the menu; Esc and a click outside close it.
import { html, useRef } from "../lib/html.js";
import { IconButton } from "./icons.js";

// `entries`: [{text, act, isDangerous, isChosen}]; `isChosen` is there if one of them is. `face`: shown instead of the icon.
export function Menu({ label, face, entries, class: extra }) {
  const menu = useRef(null);
  const button = () => menu.current.previousElementSibling;
  const place = () => {
    const { left, right, top, bottom } = button().getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = menu.current;
    const x = Math.min(left, innerWidth - width - 8);
    const y = bottom + height + 8 > innerHeight ? top - height - 4 : bottom + 4;
    Object.assign(menu.current.style, { left: `${Math.max(8, Math.max(x, right - width))}px`, top: `${Math.max(8, y)}px` });
  };
  const toggled = ({ newState }) => {
    if (menu.current === null) return; // the chosen entry has removed the menu
    button().setAttribute("aria-expanded", String(newState === "open"));
    if (newState !== "open") return;
    place();
    (menu.current.querySelector('[aria-checked="true"]') ?? menu.current.firstElementChild).focus();
  };
  const move = (event) => {
    const items = [...menu.current.children];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Tab") menu.current.hidePopover();
    if (to === undefined) return;
    event.preventDefault();
    items.at(to % items.length).focus();
  };
  const choose = (act) => () => {
    menu.current.hidePopover();
    button().focus();
    act();
  };
  return html`
    <span class="menu-holder">
      ${face === undefined
    ? html`<${IconButton} icon="more" label=${label} class=${extra} aria-haspopup="menu" aria-expanded="false" onClick=${() => menu.current.togglePopover()} />`
    : html`<button type="button" class=${extra} aria-haspopup="menu" aria-expanded="false" onClick=${() => menu.current.togglePopover()}>${face}</button>`}
      <div class="menu" role="menu" popover="auto" aria-label=${label} ref=${menu} onToggle=${toggled} onKeyDown=${move}>
        ${entries.map(({ text, act, isDangerous, isChosen }) => html`<button type="button" role=${isChosen === undefined ? "menuitem" : "menuitemradio"} aria-checked=${isChosen} tabindex="-1" class=${`quiet ${isDangerous ? "dangerous" : ""}`} onClick=${choose(act)}>${text}</button>`)}
      </div>
    </span>`;
}
