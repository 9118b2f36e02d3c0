// Lists with a limit, so that a page that is open for hours does not grow.

// Drops the items at the front of `list` for which `isOld` is true, in batches instead of at every call.
export function trim(list, isOld, slack = 64) {
  let n = 0;
  while (n < list.length && isOld(list[n])) n += 1;
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

// Return the index of the first item that ends after `t`, in a list sorted by `until`.
export function firstAfter(list, t) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].until > t) high = middle; else low = middle + 1;
  }
  return low;
}
