// The only module that names the front-end library: Preact with htm, which needs no build.
import htm from "../vendor/htm/htm.module.js";
import { h } from "../vendor/htm/preact-standalone.js";

export {
  render, useState, useReducer, useEffect, useLayoutEffect, useRef, useMemo, useCallback,
} from "../vendor/htm/preact-standalone.js";

// htm keeps the static parts of a template, and each kept part would hold the tree in which it was first drawn, with
// everything drawn since. A page that is open for hours would grow, so nothing is marked as static.
const NOTHING_IS_STATIC = 3;

export const html = htm.bind(function make(...args) {
  this[0] = NOTHING_IS_STATIC;
  return h(...args);
});
