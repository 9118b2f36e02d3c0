// The last things of a kind: what is kept must not grow with the hours.

// Drops from the front of `list` what `isOld` says, in one go and not at every call.
export function trim(list, isOld, slack = 64) {
  let n = 0;
  while (n < list.length && isOld(list[n])) n += 1;
  if (n >= slack) list.splice(0, n);
}

// Drops the oldest until `list` has `most` at most; returns what was dropped.
export const cap = (list, most) => (list.length > most ? list.splice(0, list.length - most) : []);

// The same for a Map, in the order of insertion.
export function capMap(map, most, mayGo = () => true) {
  if (map.size <= most) return;
  for (const [key, value] of map) {
    if (map.size <= most) return;
    if (mayGo(value)) map.delete(key);
  }
}

// Index of the first of a list in order of `until` that ends after `t`.
export function firstAfter(list, t) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].until > t) high = middle; else low = middle + 1;
  }
  return low;
}
