// Lists with a limit, so that a page that is open for hours does not grow.

// Drops the items at the front of `list` for which `isOld` is true, in batches instead of at every call.
export function trim(list, isOld, slack = 64) {
  const kept = list.findIndex((item) => !isOld(item)), n = kept < 0 ? list.length : kept;
  if (n >= slack) list.splice(0, n);
}

// Drops the oldest items until `list` has at most `most`; returns the dropped ones.
export const cap = (list, most) => (list.length > most ? list.splice(0, list.length - most) : []);

// As `cap`, for the values of a Map, in the order of insertion.
export function capMap(map, most, mayGo = () => true) {
  const dropped = [];
  if (map.size <= most) return dropped;
  for (const [key, value] of map) {
    if (map.size <= most) break;
    if (!mayGo(value)) continue;
    map.delete(key);
    dropped.push(value);
  }
  return dropped;
}
